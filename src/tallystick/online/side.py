"""What a side that serves is made of, whatever its role: its run, its rows, and sessions that are made again when they end."""

import gc
import secrets
import threading
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LocalOptions
from tallystick.artifacts.answers import SERVING, AnswerLog, serving_secret
from tallystick.artifacts.embedding_charge import EmbeddingCharge, noise_on_embeddings
from tallystick.artifacts.folder import RunFolder
from tallystick.artifacts.secret import row_noise_secret
from tallystick.artifacts.trained import Architecture, kept_encoder
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile, TableConfig, check_party
from tallystick.config.serving import Postgres, Redis, ServingConfig
from tallystick.data.encoder import Encoder
from tallystick.data.keys import Keys, fingerprint, keys_of
from tallystick.data.lazy import Frame
from tallystick.data.repeats import with_summaries
from tallystick.data.table import read_table
from tallystick.errors import ConfigError, DataError, TallystickError
from tallystick.job.handshake import Agreement, PromotedHalf, ResumeState
from tallystick.job.job import use_threads
from tallystick.job.phases.align import align
from tallystick.job.preflight import require_to_predict
from tallystick.job.process import Work, with_sessions
from tallystick.job.runs import chosen_run, offered
from tallystick.job.versions import Versions
from tallystick.network.channel import Channel
from tallystick.online.kept_alignment import KeptAlignment
from tallystick.serving.answering import OPEN, Gate
from tallystick.serving.journal import Journal
from tallystick.serving.meeting import meet_feature_party, meet_label_party
from tallystick.serving.stores.postgres import PostgresStore
from tallystick.serving.stores.redis import RedisStore
from tallystick.serving.stores.store import KeyedRows
from tallystick.serving.stores.table import Snapshot, TableStore
from tallystick.watcher import Watcher

COMMAND = "serve"
AGAIN_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ServingSide:
    """One side that serves: the run whose model it is, and the rows as they were at the start."""

    contract: Contract
    party: PartyFile
    serving: ServingConfig
    folder: RunFolder
    run_id: str
    promoted: tuple[PromotedHalf, ...]
    chosen: bool
    kept: Alignment
    encoder: Encoder | None
    source: TableConfig
    frame: Frame
    keys: Keys
    watcher: Watcher

    @classmethod
    def of(cls, contract: Contract, party: PartyFile, *, table: str | None, run: str | None, watcher: Watcher) -> "ServingSide":
        """Read and check all that this side can check alone; raises ConfigError or DataError."""
        if contract.serving is None:
            raise ConfigError(
                "serving: the contract allows no serving; agree on a section serving with the ways of asking, "
                "and train under that contract"
            )
        check_party(contract, party)
        check_serving(contract, party)
        source = party.table_at(table)
        # Sessions stand for long: a run is served once all sides have it as their newest promotion, and no older one meanwhile.
        promoted = () if run is not None else Versions(contract=contract, party=party).halves()[:1]
        folder = chosen_run(contract, party, promoted[0].run_id if promoted else run, say=watcher.say)
        folder.check(trained=True)
        kept = folder.load_alignment()
        if kept is None:
            raise DataError(f"{folder.path} holds no alignment; it does not look like a finished run")
        encoder = kept_encoder(folder)
        frame = with_summaries(read_table(source, text=party.text_columns), party, contract.alignment)
        keys = require_to_predict(contract, party, frame, encoder, folder=folder, charges=False)
        return cls(
            contract=contract,
            party=party,
            serving=contract.serving,
            folder=folder,
            run_id=kept[0].run_id,
            promoted=promoted,
            chosen=run is not None,
            kept=kept[1],
            encoder=encoder,
            source=source,
            frame=frame,
            keys=keys,
            watcher=watcher,
        )

    @property
    def is_label(self) -> bool:
        """Whether this is the label party."""
        return self.party.party == self.contract.label_party

    @property
    def architecture(self) -> Architecture:
        """How this party's part of the network is put together."""
        return Architecture.of(self.contract, self.party.party, secret=row_noise_secret(self.contract, self.party))

    @property
    def resume_state(self) -> ResumeState:
        """What this side says in the handshake: that it serves, and which complete runs it has, the chosen one first."""
        return offered(self.contract, self.party, command=COMMAND, run_id=self.run_id, promoted=self.promoted, chosen=self.chosen)

    def agreed(self, agreement: Agreement, peer: str) -> None:
        """Refuse another run than this side serves, and a half of it that has changed since all promoted it."""
        if agreement.align or agreement.run_id != self.run_id:
            raise ConfigError(
                f"the peers' models are of another run than {self.folder.path}; all must serve the same run's model"
            )
        if agreement.version:
            Versions(contract=self.contract, party=self.party).agree(agreement.run_id, agreement.version, peer)

    def secret(self) -> bytes:
        """32 bytes that windows and the journal's digests follow from, the same for as long as the run is served."""
        return serving_secret(self.folder)

    def answers(self) -> AnswerLog | None:
        """Where what is answered is kept; None where the party file keeps nothing."""
        config = self.party.serving.answers
        return AnswerLog(origin=self.folder.origin, secret=self.secret(), config=config) if config is not None else None

    def gate(self, *, crosses: bool = True) -> Gate:
        """This side's journal, and the contract's budgets where a row that is asked for ``crosses``."""
        limits = (self.serving.questions_a_day, self.serving.questions_a_day_per_row) if crosses else (None, None)
        if not self.party.serving.journal and limits == (None, None):
            return OPEN
        return Journal(origin=self.folder.origin, secret=self.secret(), a_day=limits[0], a_day_per_row=limits[1])

    def store(self) -> KeyedRows:
        """Where rows are found by key; raises ConfigError, and BudgetExceeded where noise on these rows was to be charged."""
        noisy = not self.is_label and self.contract.embedding_defenses().noisy
        config = self.party.serving.store
        if config is not None and noisy:
            raise ConfigError(
                "serving.store: rows that may change at any time cannot be charged to the ledger for their noise "
                "(gaussian-embeddings); leave it out, and serve the table"
            )
        if isinstance(config, Redis):
            return RedisStore(config, self.encoder, dict(self.frame.schema))
        if isinstance(config, Postgres):
            return PostgresStore(config, self.encoder, dict(self.frame.schema), text=self.party.text_columns)
        first = Snapshot.of(self.frame, self.keys, self.encoder, noisy=noisy)
        self._charge(first)
        return TableStore(
            first,
            read=partial(self._read, noisy),
            signature=partial(signature, self.source),
            refresh_s=self.party.serving.refresh_s,
            say=self.watcher.say,
        )

    def _read(self, noisy: bool) -> Snapshot:
        frame = with_summaries(read_table(self.source, text=self.party.text_columns), self.party, self.contract.alignment)
        snapshot = Snapshot.of(frame, keys_of(frame, self.party, self.contract.alignment), self.encoder, noisy=noisy)
        self._charge(snapshot)
        return snapshot

    def _charge(self, snapshot: Snapshot) -> None:
        """Charge one release of each row's noisy embedding, once for a table: the same rows get the same noise ever after."""
        if self.is_label or noise_on_embeddings(self.contract) is None:
            return
        facts, digest = self.folder.noted(SERVING), snapshot.digest()
        charged = facts.get("charged", [])
        assert isinstance(charged, list)
        if digest not in charged:
            what = f"serving with {self.folder.path.name}"
            EmbeddingCharge.of(self.contract, self.party, self.folder, what=what)("prediction")
            self.folder.note(SERVING, {**facts, "charged": [*charged, digest]}, private=True)

    def align(self, channels: dict[str, Channel]) -> Alignment:
        """The alignment of before, where all sides have kept it for their present keys; else a new one, as for a prediction."""
        kept = KeptAlignment(
            folder=self.folder.path, origin=self.folder.origin, keys=fingerprint(self.keys), say=self.watcher.say
        )
        found = kept.load()
        known = found[0] if found is not None else ""
        if self.is_label:
            peers = [channels[name] for name in self.contract.feature_parties]
            name, again = meet_label_party(known, peers, draw=secrets.token_bytes)
        else:
            name, again = meet_feature_party(known, channels[self.contract.label_party])
        if again and found is not None:
            return found[1]
        alignment = self._align_anew(channels)
        kept.save(name, alignment)
        return alignment

    def _align_anew(self, channels: dict[str, Channel]) -> Alignment:
        return align(
            self.contract,
            self.party.party,
            self.keys,
            channels,
            local=LocalOptions(threads=self.party.threads),
            expected=2 * max(self.kept.sizes.values()),
            kept=self.kept,
        )

    def in_rounds(self, work: Work[None], *, stopped: threading.Event) -> None:
        """Do the work over fresh sessions, again and again: a partner that goes away comes back to a new round."""
        use_threads(self.party.threads or 1)
        # What stands by now stays. To go through it for garbage takes a tenth of a second, in which nobody is answered.
        gc.collect()
        gc.freeze()
        contract = self.contract.model_copy(update={"network": self.contract.network.model_copy(update={"wait_s": _FOR_EVER_S})})
        said = ""
        while not stopped.is_set():
            try:
                with_sessions(contract, self.party, work, watcher=self.watcher)
            except TallystickError as error:
                if _for_good(error):
                    raise
                if str(error) != said:
                    said = str(error)
                    self.watcher.say(f"{error}; serving goes on, and the sessions are made again")
            stopped.wait(AGAIN_S)


_FOR_EVER_S = 604_800.0


def _for_good(error: TallystickError) -> bool:
    """Whether no new session helps."""
    return isinstance(error, ConfigError | DataError)


_OF_ANY_SIDE = {"store", "refresh_s", "journal"}
"""Options of a side that has no clients."""


def check_serving(contract: Contract, party: PartyFile) -> None:
    """Check that a party file's serving section fits its role; raises ConfigError with one line per problem."""
    options, is_label = party.serving, party.party == contract.label_party
    assert contract.serving is not None
    problems = []
    asks = is_label is not contract.serving.feature_party_asks
    who = contract.feature_parties[0] if contract.serving.feature_party_asks else contract.label_party
    if asks and options.listen is None:
        problems.append(f'serving.listen: is missing; {who} answers clients there, for example on "127.0.0.1:8443"')
    if not asks:
        given = options.model_fields_set - _OF_ANY_SIDE
        problems += [
            f"serving.{name}: by {' and '.join(contract.serving.ways)} only {who} answers clients; leave it out"
            for name in sorted(given)
        ]
    if options.way is not None and options.way not in contract.serving.ways:
        problems.append(f"serving.way = {options.way}: the contract allows {', '.join(contract.serving.ways)}")
    if problems:
        raise ConfigError("\n".join(f"party file: {problem}" for problem in problems))


def signature(source: TableConfig) -> Hashable:
    """What differs once a table's files have changed; what a query or an object store gives is read again at every look."""
    if not isinstance(source.path, Path):
        return object()
    anchor = Path(source.path.anchor)
    paths = sorted(source.path.iterdir() if source.path.is_dir() else anchor.glob(str(source.path.relative_to(anchor))))
    stats = ((path, path.stat()) for path in paths)
    return tuple((str(path), stat.st_mtime_ns, stat.st_size, stat.st_ino) for path, stat in stats)
