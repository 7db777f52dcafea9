"""Serve as a feature party: dial the label party and answer its questions until the operator stops it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from torch import nn

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.disclosure.serving import serving_lines
from tallystick.errors import PeerError
from tallystick.job.handshake import shake_hands
from tallystick.network.channel import Channel
from tallystick.run_folder.trained import TrainedFeatureParty
from tallystick.scoring.answering import (
    AnsweringRun,
    FindByKey,
    FindByPosition,
    Finder,
    FindInUnion,
    answer_questions,
    receive_way,
)
from tallystick.serving.aligned_rows import aligned_rows
from tallystick.serving.loaded_runs import LoadedRuns
from tallystick.serving.serving_messages import VersionsHeld, VersionsWanted, WantedRun
from tallystick.serving.side import OpenRun, ServingSide, Stop
from tallystick.watcher import Watcher


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureRun(OpenRun):
    """A run that this feature party has loaded, independent of the session.

    ``bottom`` is None on a union, because it is built for an alignment there.
    """

    bottom: nn.Module | None

    def retire(self) -> bool:
        """Retire the run. This is always possible: questions come one by one, and the one being answered has all it needs."""
        return True

    def close(self) -> None:
        """Release the rows."""
        self.store.close()


@dataclass(kw_only=True)
class AnsweringRuns:
    """The runs with which a session's questions are answered: this side allows them, and both sides agree on their hash.

    Args:
        side: this party.
        runs: the loaded runs.
        alignment: of this session; None if rows are asked for by key.
        begun: the run that the handshake chose, and its version; None if nobody has promoted a run.
    """

    side: ServingSide
    runs: LoadedRuns[FeatureRun]
    alignment: Alignment | None
    begun: WantedRun
    _agreed: dict[str, str | None] = field(init=False)
    _ready: dict[str, tuple[FeatureRun, AnsweringRun]] = field(default_factory=dict, init=False)
    _said: dict[str, str] = field(default_factory=dict, init=False)
    _key_at: Sequence[bytes] | None = field(init=False)

    def __post_init__(self) -> None:
        by_position = self.alignment is not None and not self.side.contract.linkage.imputes
        self._key_at = self.side.keys.ids_of(self.alignment.rows_N) if self.alignment is not None and by_position else None
        self._agreed = {self.begun.run_id: self.begun.version}
        self._prepare(self.begun.run_id)

    def __getitem__(self, run_id: str) -> AnsweringRun:
        """Return the run to answer with. Raises KeyError for a run that was not agreed on, or that this side has withdrawn."""
        if not (run_id in self._agreed and (self._agreed[run_id] is None or self.runs.allows(run_id))):
            raise KeyError(run_id)
        return self._ready[run_id][1]

    def agree(self, channel: Channel) -> None:
        """Receive which runs the label party wants, and answer which of them are loaded here."""
        runs_wanted = channel.receive(VersionsWanted).runs
        self._agreed = {each.run_id: each.version for each in runs_wanted if self._agrees(each, channel.peer)}
        self.runs.want(list(self._agreed))
        self._ready = {run_id: found for run_id, found in self._ready.items() if run_id in self._agreed}
        for run_id in self._agreed:
            self._prepare(run_id)
        self._tell("scores", f"run {runs_wanted[0].run_id} scores")
        promoted = self.runs.promoted
        if promoted.halves and promoted.halves[0].run_id not in [each.run_id for each in runs_wanted]:
            newest = promoted.halves[0].run_id
            self._tell(newest, f"run {newest} is promoted here, and not yet by {channel.peer} or another party")
        channel.send(
            VersionsHeld(
                promoted=promoted.halves,
                candidate=promoted.candidate,
                loaded=tuple(self._ready),
                failed=self.runs.failed,
            )
        )

    def _agrees(self, wanted_run: WantedRun, peer: str) -> bool:
        """Tell whether this side allows the run in this version, and save the version."""
        run_id = wanted_run.run_id
        if wanted_run.version is None:
            return wanted_run == self.begun and not self.runs.withdrew(run_id)
        if not self.runs.allows(run_id):
            self._tell(run_id, f"{peer} wants run {run_id}, which is not promoted here: its questions are not answered")
            return False
        if self._agreed.get(run_id) == wanted_run.version:
            return True
        try:
            self.side.versions.agree(run_id, wanted_run.version, peer)
        except PeerError as error:
            self._tell(run_id, str(error))
            return False
        return True

    def _prepare(self, run_id: str) -> None:
        """Prepare a loaded run to answer in the agreed way."""
        try:
            run = self.runs[run_id]
        except KeyError:
            self._ready.pop(run_id, None)
            return
        if run_id not in self._ready or self._ready[run_id][0] is not run:
            if run.bottom is None:
                assert self.alignment is not None
                dataset = aligned_rows(self.side, self.alignment, run.encoder)
                bottom = TrainedFeatureParty.load(run.folder, self.side.architecture, dataset).bottom.eval()
                answering = AnsweringRun(bottom=bottom, finder=FindInUnion(source=dataset.features_at, rows=len(self.alignment)))
            else:
                finder: Finder = FindByKey(store=run.store)
                if self._key_at is not None:
                    finder = FindByPosition(store=run.store, key_at=self._key_at)
                answering = AnsweringRun(bottom=run.bottom, finder=finder)
            self._ready[run_id] = run, answering

    def _tell(self, about: str, text: str) -> None:
        if self._said.get(about) != text:
            self._said[about] = text
            self.side.watcher.say(text)


def serve_feature_party(contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> None:
    """Answer the label party's questions until the operator stops it.

    Raises ConfigError or DataError before a peer is called, if model or table is not usable, or the contract allows no serving.
    """
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    with side.home.locked():
        gate = side.gate()
        runs = LoadedRuns(None if side.chosen else side.versions, lambda run_id: _load(side, run_id), say=watcher.say)
        runs.begin(_load(side, side.first.run_id, anew=False))

        def work(channels: dict[str, Channel], _leave: Callable[[], None]) -> None:
            channel = channels[contract.label_party]
            agreement = shake_hands(contract, side.resume_state(runs.promoted.halves), channel, note=watcher.say)
            first_run = WantedRun(run_id=side.agreed(agreement, channel.peer), version=agreement.version or None)
            if first_run.version is None and runs.withdrew(first_run.run_id):
                raise PeerError(channel.peer, f"run {first_run.run_id} was withdrawn here; promote a run on all sides")
            loaded = side.load_agreed(runs.require, first_run.run_id)
            way = receive_way(channel, side.serving.ways)
            alignment = None if way == "key" else side.align(channels, loaded.ids)
            watcher.say(f"serving run {first_run.run_id} to {channel.peer}, who asks by {way}")
            answering = AnsweringRuns(side=side, runs=runs, alignment=alignment, begun=first_run)
            answer_questions(channel, answering, gate=gate, agree=answering.agree)

        for line in serving_lines(contract):
            watcher.say(line)
        try:
            side.in_rounds(work, stopped=Stop())
        finally:
            runs.close()


def _load(side: ServingSide, run_id: str, *, anew: bool = True) -> FeatureRun:
    opened, bottom = side.open(run_id, anew=anew), None
    if not side.contract.linkage.imputes:
        dataset = IntersectionDataset(encoder=opened.encoder, source=None)
        bottom = TrainedFeatureParty.load(opened.folder, side.architecture, dataset).bottom.eval()
    return FeatureRun(**vars(opened), bottom=bottom)
