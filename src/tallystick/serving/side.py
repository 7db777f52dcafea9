"""Build a serving side of any role: its runs, its rows, and sessions that are opened again when they end."""

import gc
import secrets
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

import polars as pl

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LocalOptions
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.config.serving import MOST_ALIGNMENTS, Adbc, Postgres, Redis, ServingConfig
from tallystick.config.table import TableConfig
from tallystick.errors import ConfigError, DataError, PeerError, StorageError, TallystickError
from tallystick.job.handshake import Agreement, PromotedHalf, ResumeState
from tallystick.job.job import use_threads
from tallystick.job.phases.align import align_keys
from tallystick.job.preflight import require_to_predict
from tallystick.job.process import Work, with_sessions
from tallystick.job.run_selection import chosen_run, named_run, offered
from tallystick.job.versions import Versions
from tallystick.network.channel import Channel
from tallystick.network.endpoint import Endpoint
from tallystick.run_folder.answer_journal import SERVING, AnswerLog, serving_secret
from tallystick.run_folder.embedding_charge import EmbeddingCharge, noise_on_embeddings
from tallystick.run_folder.folder import KEY_SPELLING, RunFolder
from tallystick.run_folder.noise_secret import row_noise_secret
from tallystick.run_folder.trained import Architecture, kept_encoder
from tallystick.scoring.answering import Gate
from tallystick.scoring.stores.adbc import AdbcDatabase
from tallystick.scoring.stores.boundary import Boundary
from tallystick.scoring.stores.postgres import PostgresDatabase
from tallystick.scoring.stores.queried import KEY, QueriedStore
from tallystick.scoring.stores.redis import RedisStore
from tallystick.scoring.stores.store import KeyedRows
from tallystick.scoring.stores.table import Snapshot, TableStore
from tallystick.serving.kept_alignment import KeptAlignment, meet_feature_party, meet_label_party
from tallystick.serving.serving_folder import ServingHome
from tallystick.tables.encoder import Encoder
from tallystick.tables.key_spelling import later_spelling
from tallystick.tables.keys import Keys, fingerprint, keys_of
from tallystick.tables.later_doubts import later_doubts
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.table import read_rows
from tallystick.watcher import Watcher

R = TypeVar("R")
COMMAND = "serve"
AGAIN_S = 0.5
_DAY_S = 86_400.0


class Stop(threading.Event):
    """Set to stop serving: no new round begins. ``interrupt`` also ends waits for a partner."""

    def __init__(self) -> None:
        super().__init__()
        self._network: Endpoint | None = None
        self._interrupted = False

    def interrupt(self) -> None:
        """End the present round, wherever it waits."""
        self.set()
        self._interrupted = True
        if (network := self._network) is not None:
            network.interrupt()

    def reaches(self, network: Endpoint) -> None:
        """Remember the endpoint of a round that begins."""
        self._network = network
        if self._interrupted:
            network.interrupt()


@dataclass(frozen=True, kw_only=True, eq=False)
class OpenRun:
    """A run on this side: its folder, the encoder of its columns, and its rows by key.

    Args:
        run_id: of the run.
        folder: this party's run folder.
        ids: the most that a party had when it was trained.
        encoder: the encoder of the own columns; None if there are none.
        store: rows by key, as this encoder reads them.
    """

    run_id: str
    folder: RunFolder
    ids: int
    encoder: Encoder | None
    store: KeyedRows


@dataclass(frozen=True, kw_only=True)
class ServingSide:
    """One serving side, for any run: its files, and the rows as they were at the start.

    Args:
        contract, party: the contract that it serves, and its party file.
        serving: the contract's section of it.
        first: the run to begin with: the named one, else the newest promotion, else the latest complete run.
        chosen: whether the user named the run; then no promotion is followed.
        versions: this party's promotions.
        home: the folder that keeps its serving state.
        source: of the rows.
        frame, keys: the rows.
        watcher: gets messages.
        aligned_at: times of the latest new alignments, by the monotonic clock.
    """

    contract: Contract
    party: PartyFile
    serving: ServingConfig
    first: RunFolder
    chosen: bool
    versions: Versions
    home: ServingHome
    source: TableConfig
    frame: Frame
    keys: Keys
    watcher: Watcher
    aligned_at: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_ALIGNMENTS), init=False)

    @classmethod
    def of(cls, contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> "ServingSide":
        """Read and check everything that this side can check alone. Raises ConfigError or DataError."""
        if contract.serving is None:
            raise ConfigError(
                "serving: the contract allows no serving; agree on a section serving with the ways of asking, "
                "and train under that contract"
            )
        check_party(contract, party)
        check_serving(contract, party)
        source = party.table_at(table)
        versions = Versions(contract=contract, party=party)
        promoted = versions.halves()[:1] if run is None else ()
        if promoted:
            versions.require_usable()
        folder = chosen_run(contract, party, promoted[0].run_id if promoted else run, say=watcher.say)
        candidate = versions.candidate() if run is None and not promoted else None
        if candidate is not None and candidate.run_id == folder.run_id:
            raise ConfigError(
                f"run {folder.run_id} is only a candidate here, and no run is promoted; promote the run to use on all sides, "
                "or name one with --run"
            )
        encoder = kept_encoder(folder)
        frame = _read(source, contract, party, encoder)
        # Sorted: a partner that meets this side again sees whether its keys changed, but not the table's order.
        keys = require_to_predict(contract, party, frame, encoder, folder=folder, charges=False).sorted()
        if run is not None:  # the last local step: a command that was refused before has not named a run to anybody
            versions.enter_named(folder, option="serve --run")
        return cls(
            contract=contract,
            party=party,
            serving=contract.serving,
            first=folder,
            chosen=run is not None,
            versions=versions,
            home=ServingHome.of(contract, party),
            source=source,
            frame=frame,
            keys=keys,
            watcher=watcher,
        )

    @property
    def is_label(self) -> bool:
        """Tell whether this is the label party."""
        return self.party.party == self.contract.label_party

    @property
    def architecture(self) -> Architecture:
        """Return the architecture of this party's part of the network."""
        return Architecture.of(self.contract, self.party.party, secret=row_noise_secret(self.contract, self.party))

    @property
    def follows(self) -> bool:
        """Tell whether this side follows promotions that are made while it serves.

        Without gradients the label party keeps those that it began with: a switch to another run would show when and whether
        that run's training ended.
        """
        return not self.chosen and (self.contract.sends_gradients or not self.is_label)

    def resume_state(self, promoted: tuple[PromotedHalf, ...]) -> ResumeState:
        """Return what this side says in the handshake: its promotions, and its complete runs."""
        run_id = promoted[0].run_id if promoted else self.first.run_id
        return offered(self.contract, self.party, command=COMMAND, run_id=run_id, promoted=promoted, chosen=self.chosen)

    def promotion_of(self, run_id: str) -> tuple[PromotedHalf, ...]:
        """Return this run's promotion, if any, for a side that follows no later promotions."""
        return () if self.chosen else tuple(half for half in self.versions.halves() if half.run_id == run_id)

    def agreed(self, agreement: Agreement, peer: str, *, expected: str | None = None) -> str:
        """Return the id of the run to begin with.

        Raises PeerError if it is not the ``expected`` run, or if a half of it has changed since all promoted it.
        """
        if agreement.align or expected not in (None, agreement.run_id):
            raise PeerError(peer, "the peers' models come from other runs; all must serve the same run's model")
        if agreement.version:
            self.versions.agree(agreement.run_id, agreement.version, peer)
        return agreement.run_id

    def gate(self, *, crosses: bool = True) -> Gate:
        """Return this side's journal, with the contract's budgets if a requested row ``crosses`` to another party."""
        return self.home.gate(
            a_day=self.serving.questions_a_day if crosses else None,
            a_day_per_row=self.serving.questions_a_day_per_row if crosses else None,
            journal=self.party.serving.journal,
        )

    def load_agreed(self, load: Callable[[str], R], run_id: str) -> R:
        """Load the run that the handshake chose. Raises StorageError if it is not usable, because that can be mended while
        serving goes on.
        """
        try:
            return load(run_id)
        except (ConfigError, DataError) as error:
            raise StorageError(f"run {run_id} cannot be served: {error}") from None

    def answers(self, run: OpenRun) -> AnswerLog | None:
        """Return the store of a run's answers, or None if the party file saves none."""
        config = self.party.serving.answers
        if config is None:
            return None
        return AnswerLog(origin=run.folder.origin, secret=serving_secret(run.folder), config=config)

    def open(self, run_id: str, *, anew: bool = True) -> OpenRun:
        """Open a run's folder, and read the rows for its encoder: ``anew``, or, for the first run, as they were at the start.

        Raises ConfigError, DataError or StorageError if it is not usable, BudgetExceeded if noise on its rows cannot be
        charged.
        """
        folder = named_run(self.contract, self.party, run_id, option="run") if anew else self.first
        folder.check(trained=True)
        saved = folder.load_alignment()
        if saved is None or not folder.trained:
            raise DataError(f"{folder.path} holds no trained model: its training has not ended")
        encoder = kept_encoder(folder)
        frame = _read(self.source, self.contract, self.party, encoder) if anew else self.frame
        return OpenRun(
            run_id=run_id,
            folder=folder,
            ids=max(saved[1].sizes.values()),
            encoder=encoder,
            store=Boundary(self._store(folder, encoder, frame), say=self.watcher.say),
        )

    def _store(self, folder: RunFolder, encoder: Encoder | None, frame: Frame) -> KeyedRows:
        """Return the store of rows by key. Raises ConfigError, and BudgetExceeded if noise on these rows cannot be charged."""
        noisy = not self.is_label and self.contract.embedding_defenses().noisy
        config = self.party.serving.store
        if config is not None and noisy:
            raise ConfigError(
                "serving.store: rows that may change at any time cannot be charged to the ledger for their noise "
                "(gaussian-embeddings); leave it out, and serve the table"
            )
        if isinstance(config, Redis):
            return RedisStore(config, encoder, _types(self.frame, encoder))
        if isinstance(config, Postgres):
            text = (KEY, *self.party.text_columns, *(encoder.text_columns if encoder is not None else ()))
            return QueriedStore(PostgresDatabase(config, text=text), encoder, _types(self.frame, encoder))
        if isinstance(config, Adbc):
            return QueriedStore(AdbcDatabase(config), encoder, _types(self.frame, encoder))

        said = set[str]()

        def snapshot_of(frame: Frame) -> Snapshot:
            keys = keys_of(frame, self.party, self.contract.alignment)
            spelling = later_spelling(
                frame, columns=self.party.keys, alignment=self.contract.alignment, spelling=folder.noted(KEY_SPELLING)
            )
            for doubt in (*keys.report.doubtful, *spelling, *later_doubts(frame, encoder)):
                if doubt not in said:
                    said.add(doubt)
                    self.watcher.say(doubt)
            snapshot = Snapshot.of(frame, keys, encoder, noisy=noisy)
            if not self.is_label and noise_on_embeddings(self.contract) is not None:
                facts, digest = folder.noted(SERVING), snapshot.digest()
                charged = facts.get("charged", [])
                assert isinstance(charged, list)
                if digest not in charged:
                    what = f"serving with {folder.path.name}"
                    EmbeddingCharge.of(self.contract, self.party, folder, what=what)("prediction")
                    folder.note(SERVING, {**facts, "charged": [*charged, digest]}, private=True)
            return snapshot

        return TableStore(
            snapshot_of(frame),
            read=lambda: snapshot_of(_read(self.source, self.contract, self.party, encoder)),
            signature=partial(signature, self.source),
            refresh_s=self.party.serving.refresh_s,
            say=self.watcher.say,
        )

    def align(self, channels: dict[str, Channel], ids: int) -> Alignment:
        """Return the former alignment, if all sides have saved it for their present keys.

        Otherwise align again, as for a prediction.

        All runs use the same rows. A peer may bring at most twice as many ids as ``ids``.

        Raises PeerError after MOST_ALIGNMENTS new ones: sessions are opened again unattended, and a peer with another list each
        time could ask about any number of ids.
        """
        keys = f"{self.contract.hash} {fingerprint(self.keys)}"
        store = KeptAlignment(folder=self.home.path, origin=self.home.origin, keys=keys, say=self.watcher.say)
        loaded = store.load()
        known_name = loaded[0] if loaded is not None else ""
        if self.is_label:
            peers = [channels[name] for name in self.contract.feature_parties]
            name, again = meet_label_party(known_name, peers, draw=secrets.token_bytes)
        else:
            name, again = meet_feature_party(known_name, channels[self.contract.label_party])
        if again and loaded is not None:
            return loaded[1]
        now = time.monotonic()
        if len(self.aligned_at) == MOST_ALIGNMENTS and now - self.aligned_at[0] < _DAY_S:
            raise PeerError(
                next(iter(channels)),
                f"the sides have aligned anew {MOST_ALIGNMENTS} times in a day, which is the most that `serve` does without "
                "an operator: find out whose keys change so often, then start `tallystick serve` again",
            )
        self.aligned_at.append(now)
        options = LocalOptions(threads=self.party.threads)
        alignment = align_keys(self.contract, self.party.party, self.keys, channels, local=options, expected=2 * ids)
        store.save(name, alignment)
        return alignment

    def in_rounds(self, work: Work[None], *, stopped: Stop) -> None:
        """Do the work over fresh sessions, again and again: a partner that was lost joins a new round.

        Tables that do not fit together end serving in the first round only. Later, a partner has changed its table, and may
        change it back.
        """
        use_threads(self.party.threads or 1)
        # Present objects stay: collecting garbage among them would take a tenth of a second, in which nobody is answered.
        gc.collect()
        gc.freeze()
        contract = self.contract.model_copy(update={"network": self.contract.network.model_copy(update={"wait_s": _FOR_EVER_S})})
        last_said = ""
        for_good: tuple[type[TallystickError], ...] = (ConfigError, DataError)
        while not stopped.is_set():
            try:
                with_sessions(contract, self.party, work, watcher=self.watcher, opened=stopped.reaches)
            except TallystickError as error:
                if isinstance(error, for_good):
                    raise
                if str(error) != last_said:
                    last_said = str(error)
                    self.watcher.say(f"{error}; serving goes on, and the sessions are opened again")
            except Exception as error:  # a bug of ours, which a partner may have triggered
                where = traceback.extract_tb(error.__traceback__)[-1]
                text = f"a session failed unexpectedly ({type(error).__name__} in {Path(where.filename).name}:{where.lineno})"
                if text != last_said:
                    last_said = text
                    self.watcher.say(f"{text}; serving goes on, and the sessions are opened again")
            for_good = (ConfigError,)
            stopped.wait(AGAIN_S)


_FOR_EVER_S = 604_800.0


def _read(source: TableConfig, contract: Contract, party: PartyFile, encoder: Encoder | None) -> Frame:
    return with_summaries(read_rows(source, party, trained=encoder), party, contract.alignment)


def _types(frame: Frame, encoder: Encoder | None) -> dict[str, pl.DataType]:
    """Return the types of a table's columns; for columns that the model reads, the types of the training."""
    return dict(frame.schema) | (encoder.types if encoder is not None else {})


_OF_ANY_SIDE = {"store", "refresh_s", "journal"}
"""Options of a side without clients."""


def check_serving(contract: Contract, party: PartyFile) -> None:
    """Check that a party file's serving section fits its role. Raises ConfigError with a line for each problem."""
    options, is_label = party.serving, party.party == contract.label_party
    assert contract.serving is not None
    problems = []
    asks = is_label is not contract.serving.feature_party_asks
    who = contract.feature_parties[0] if contract.serving.feature_party_asks else contract.label_party
    if asks and options.listen is None:
        problems.append(f'serving.listen: is missing; {who} answers clients there, for example on "127.0.0.1:8443"')
    if not asks:
        options_given = options.model_fields_set - _OF_ANY_SIDE
        problems += [
            f"serving.{name}: by {' and '.join(contract.serving.ways)} only {who} answers clients; leave it out"
            for name in sorted(options_given)
        ]
    # whether this side's rows are found by position only, as they were at the start
    by_positions = contract.linkage.imputes and not is_label
    if contract.serving.feature_party_asks:
        by_positions = is_label or (options.way or contract.serving.ways[0]) == "agreed-batch"
    if options.store is not None and by_positions:
        problems.append(
            f"serving.store: by {' or '.join(contract.serving.ways)} rows of {party.party} are those of its table when serving "
            "begins; leave it out"
        )
    if options.way is not None and options.way not in contract.serving.ways:
        problems.append(f"serving.way = {options.way}: the contract allows {', '.join(contract.serving.ways)}")
    if problems:
        raise ConfigError("\n".join(f"party file: {problem}" for problem in problems))


def signature(source: TableConfig) -> Hashable:
    """Return a value that changes when a table's files change. Queries and object stores are read again at each look."""
    if not isinstance(source.path, Path):
        return object()
    anchor = Path(source.path.anchor)
    paths = sorted(source.path.iterdir() if source.path.is_dir() else anchor.glob(str(source.path.relative_to(anchor))))
    stats = ((path, path.stat()) for path in paths)
    return tuple((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in stats)
