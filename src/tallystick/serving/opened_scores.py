"""Serve a head on shares as the label party: answer with opened scores, and call nobody.

A row has only one score by a model, so a request needs no computation. `tallystick predict` opens the scores of its rows, once
each, and clients get these. To open a row's score at the first request for it would open fewer scores. But it would show the
feature party which rows are asked for, and when, and each request would have to wait for it. A score discloses what it does
when it is opened and counted; a request discloses nothing more.

Threat model: clients hold a token, and everyone who holds one can get the score of each row of the label party's table.
Guarantee: a request causes no message to another party. Not protected: what the scores themselves reveal, as in any prediction.

A score stays as it was opened, even if the row's columns change later, and the answer has the day on which it was opened. A row
without a score is scored by the network of the label party's columns, and the answer says so. Shapes: B requested rows, E of
them with a score, C outputs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.cut.forward import whole_tiles
from tallystick.errors import ConfigError, TallystickError
from tallystick.job.phases.shared_head import logits_of
from tallystick.network.channel import Channel
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.own_network import OwnNetwork, member_logits
from tallystick.run_folder.shared_head import ROW_SCORES, RowScores
from tallystick.scoring.asking import Answered
from tallystick.scoring.batching import Batcher
from tallystick.scoring.predict import score_columns
from tallystick.scoring.scoring import ByOwnColumns, Columns
from tallystick.scoring.scoring_messages import ABSENT, HERE
from tallystick.serving.asking_side import answer_clients
from tallystick.serving.side import OpenRun, ServingSide, Stop
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick.watcher import Watcher


def serve_opened_scores(contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> None:
    """Answer clients until the operator ends it.

    Raises ConfigError or DataError before a client is answered, if model, table or options are not usable, the extra ``serve``
    is not installed, another process serves the same contract, or this party has nothing to serve.
    """
    if party.party != contract.label_party:
        raise ConfigError(
            f"serve: {contract.label_party} answers alone, with scores that `tallystick predict` opened, and {party.party} "
            "takes no part; run `tallystick predict` on all sides to score rows"
        )
    try:
        from tallystick.serving.http import ScoreServer, application, run_server
        from tallystick.serving.metrics import Metrics
        from tallystick.serving.served_runs import ServedRun, ServedRuns
    except ImportError as error:
        raise ConfigError(f"serve: {error.name} is not installed; run: pip install 'tallystick[serve]'") from None
    side = ServingSide.of(contract, party, table=table, run=run, watcher=watcher)
    options, metrics, stopped = party.serving, Metrics(), Stop()
    batcher = Batcher(
        gate=side.gate(crosses=False),
        patience_s=options.deadline_ms / 1000,
        most_waiting=options.max_waiting,
        gather_s=options.gather_ms / 1000,
        crosses=False,
        observe=metrics.observe_batch,
        say=watcher.say,
    )
    opened = side.open(side.first.run_id, anew=False)
    scores = KeptScores(folder=opened.folder, contract=contract, say=watcher.say)
    served = ServedRun.of(side, opened, HeadScorer.of(side, opened), scored_on=scores.days)
    server = run_server(application(ScoreServer(options, batcher, ServedRuns(served), metrics, say=watcher.say)), options)
    watcher.say(f"serving run {opened.run_id}: {len(scores.now.rows_N):,} rows have a score")
    try:
        with side.home.locked():
            answer = partial(batcher.serve, {opened.run_id: scores}, _Nobody(), stopped.is_set)
            answer_clients(side, server, answer, stopped=stopped)
    finally:
        served.close()


@dataclass(kw_only=True)
class KeptScores:
    """The opened scores of a run. They are read again after each prediction that opens more. Several threads may read them.

    Args:
        folder: of the run.
        contract: of the run.
        say: called if they cannot be read; the former scores stay.
    """

    folder: RunFolder
    contract: Contract
    say: Callable[[str], None]
    _now: RowScores = field(init=False)
    _read: object = field(init=False)

    def __post_init__(self) -> None:
        self._read = self._signature()
        self._now = self._load()

    @property
    def now(self) -> RowScores:
        """Return the present scores."""
        if (signature := self._signature()) != self._read:
            self._read = signature
            try:
                self._now = self._load()
            except TallystickError as error:
                self.say(f"{error}; clients get the former scores")
        return self._now

    def __call__(self, keys_B: Sequence[bytes], own_B: Features | None) -> Answered:  # noqa: ARG002
        """Return the logits of the rows that have a score."""
        now = self.now
        place_B = now.places(keys_B)
        state_B = np.where(place_B >= 0, HERE, ABSENT).astype(np.uint8)
        return Answered(state_B=state_B, cuts_ED=[logits_of(self.contract, now.scores_NC[place_B[place_B >= 0]])])

    def days(self, keys_B: Sequence[bytes]) -> list[str | None]:
        """Return on which day each row's score was opened, None for a row without one."""
        now = self.now
        return [now.day_of(place).isoformat() if place >= 0 else None for place in now.places(keys_B).tolist()]

    def _load(self) -> RowScores:
        return RowScores.load(self.folder, outputs=self.contract.scores_of_a_row)

    def _signature(self) -> object:
        try:
            stat = (self.folder.path / ROW_SCORES).stat()
        except OSError as error:
            return error.errno
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


@dataclass(frozen=True, kw_only=True)
class HeadScorer:
    """Converts opened logits to scores, and scores other rows by the network of the label party's own columns."""

    coder: LabelCoder
    own_network: OwnNetwork | None

    @classmethod
    def of(cls, side: ServingSide, opened: OpenRun) -> "HeadScorer":
        """Read it from a run folder. Raises DamagedFile."""
        own_network = None
        if opened.encoder is not None:
            own_network = OwnNetwork.load(opened.folder, side.architecture, opened.encoder)
        return cls(coder=LabelCoder.from_json(opened.folder.read_json(opened.folder.label_coder)), own_network=own_network)

    @property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return self.coder.score_names

    def joint(self, cuts_BD: Sequence[Tensor], own_B: Features | None) -> Columns:  # noqa: ARG002
        """Return the scores of the opened logits."""
        return score_columns(self.coder, cuts_BD[0])

    @property
    def alone(self) -> ByOwnColumns | None:
        """Return the model that scores rows by own columns, or None if the label party has none."""
        return self._alone if self.own_network is not None else None

    def _alone(self, own_B: Features) -> Columns:
        assert self.own_network is not None
        index = whole_tiles(torch.arange(len(own_B)))
        logits_NC = member_logits(self.own_network.model, own_B.rows, index).mean(dim=1)[: len(own_B)]
        return score_columns(self.coder, logits_NC if self.coder.type == "multiclass" else logits_NC[:, 0])


class _Nobody:
    """A stand-in for partners: it asks no party."""

    channels: Sequence[Channel] = ()

    def probe(self) -> None:
        """Ask nobody."""
