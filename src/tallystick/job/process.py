"""Run one party as a process: open the sessions, do the job, and end so that both sides know what happened."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from tallystick import __version__
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import dialled
from tallystick.errors import (
    ConfigError,
    ContractMismatch,
    DataError,
    IdentityError,
    PeerError,
    PeerLost,
    PeerStopped,
    StorageError,
    TallystickError,
    category_of,
    of_the_machine,
    told_of,
)
from tallystick.job.beginning import align_party
from tallystick.job.job import ALIGNS_ALONE, ALL_PHASES, EXPLORE, Job
from tallystick.job.log import LOG, Logbook, RunLog
from tallystick.job.phases.align import linked_contract
from tallystick.job.side_checks import identity_of, proxy_of, require_to_align
from tallystick.network.channel import Channel
from tallystick.network.endpoint import Endpoint
from tallystick.network.messages import MEBIBYTE
from tallystick.network.session import Limits
from tallystick.privacy.ledger import BudgetExceeded
from tallystick.results import Result
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.keys import Keys
from tallystick.tables.lazy_table import Frame
from tallystick.watcher import Watcher

T = TypeVar("T")
_INTERRUPTED = "interrupted; the peers that had joined were told"
_ASK = f"ask them for {LOG} of their run folder, which says when and where"


class JobFailed(TallystickError):
    """A job ended early. Its line says which peer, which phase, the last step that both sides committed, and how to go on."""

    def __init__(
        self, message: str, *, cause: str, peer: str | None, phase: str, committed: int, differences: list[str] | None = None
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.peer = peer
        self.phase = phase
        self.committed = committed
        self.differences = differences


def run_process(
    contract: Contract,
    party: PartyFile,
    *,
    watcher: Watcher,
    command: str = "run",
    resume: bool = False,
    start_from: str | None = None,
    phases: tuple[str, ...] = ALL_PHASES,
    how_to_resume: str = "run both sides again with --resume",
) -> tuple[Result, RunFolder]:
    """Run this party's side over the network. Return the result and its folder.

    ``start_from`` names a finished run, by id or folder, whose weights a new run starts from.

    Raises JobFailed for anything that ends the job after the sessions are open, and ConfigError or DataError before;
    BudgetExceeded, a ConfigError, for a label party whose privacy budget the run would exceed.
    """
    started = _Start.of(contract, party, command=command, resume=resume, start_from=start_from, phases=phases, say=watcher.say)
    folder = started.folder
    log = RunLog(watcher)
    log.note(f"tallystick {__version__}: {command} of contract {contract.name} ({contract.hash[:8]}) as {party.party}")
    logbook = Logbook(party=party.party, watcher=log)
    stack = ExitStack()

    def hold(folder: RunFolder) -> RunFolder:
        stack.enter_context(folder.locked())
        return folder

    def run(channels: dict[str, Channel], leave: Callable[[], None]) -> tuple[Result, RunFolder]:
        job = Job(
            contract=contract,
            party=party,
            frame=started.frame,
            keys=started.keys,
            channels=channels,
            folder=folder or started.begun(hold),
            logbook=logbook,
            command=command,
            resume=resume or "alignment" not in phases,
            phases=phases,
            leave=leave,
        )
        log.keep_in(job.folder.path)
        log.say(f"run folder: {job.folder.path}")
        return work_of(command, phases)(job), job.folder

    def again() -> str:
        has_begun = folder is not None or logbook.phase not in ("start", "handshake")
        return how_to_resume if has_begun else "run both sides again"

    with stack, _ending(log, logbook, again):
        if folder is not None:
            hold(folder).check(trained="training" not in phases and "alignment" not in phases)
            log.keep_in(folder.path)
        return with_sessions(contract, party, run, watcher=log)


def work_of(command: str, phases: tuple[str, ...]) -> Callable[[Job], Result]:
    """Return the function that does a party's work for a command. Training code is loaded only for commands that train."""
    if phases == ALIGNS_ALONE:
        return align_party
    from tallystick.job.run import explore_party, run_party

    return explore_party if command == EXPLORE else run_party


@dataclass(frozen=True, kw_only=True)
class _Start:
    """The start of a command: the folder that it resumes, rows and keys, and the run whose weights it starts from."""

    contract: Contract
    party: PartyFile
    use: str  # the folder's lock
    folder: RunFolder | None
    earlier: RunFolder | None
    frame: Frame
    keys: Keys | None

    @classmethod
    def of(
        cls,
        contract: Contract,
        party: PartyFile,
        *,
        command: str,
        resume: bool,
        start_from: str | None,
        phases: tuple[str, ...],
        say: Callable[[str], None],
    ) -> "_Start":
        """Find and read these, and check everything that can be checked before a session is open."""
        if phases == ALIGNS_ALONE:
            folder = RunFolder.latest(party.runs, contract, party.party, key=party.run_key) if resume else None
            frame, keys = require_to_align(contract, party, folder=folder)
            return cls(contract=contract, party=party, use="", folder=folder, earlier=None, frame=frame, keys=keys)
        from tallystick.job.phases.tuning import allowed_keys, trials_left
        from tallystick.job.preflight import require
        from tallystick.job.start_from import run_to_start_from
        from tallystick.job.versions import Versions
        from tallystick.run_folder.initial_weights import starting_point

        tunes, folder = "tuning" in phases, None
        use = command if tunes or command == EXPLORE else ""
        if resume or "alignment" not in phases:
            folder = RunFolder.latest(party.runs, contract, party.party, use=use, key=party.run_key)
        if tunes:
            allowed_keys(contract, party)
        if resume and start_from is not None:
            raise ConfigError("--start-from, --resume: a run that goes on knows what it started from; give one of the two")
        earlier = run_to_start_from(contract, party, start_from) if start_from is not None else None
        trials = trials_left(contract, party, folder) if tunes else None
        frame, keys = require(contract, party, folder=folder, trials=trials, point=starting_point(folder, earlier), say=say)
        if contract.shares_head and not {"alignment", "training"} & set(phases):
            raise ConfigError(
                f"{command}: training.gradients = shared scores validation and test rows once, when the head is trained; the "
                "report of that run has the figures"
            )
        is_label = contract.role_of(party.party) == "label"
        if folder is not None and keys is not None and is_label and (tunes or "training" in phases):
            _check_labels(contract, party, folder, frame, keys)
        if earlier is not None:  # the last step that this side can do alone: a refused command reveals no run to anybody
            Versions(contract=earlier.contract(), party=party).enter_named(earlier, option="--start-from")
        return cls(contract=contract, party=party, use=use, folder=folder, earlier=earlier, frame=frame, keys=keys)

    def begun(self, hold: Callable[[RunFolder], RunFolder]) -> RunFolder:
        """Make a new folder, lock it, and copy the weights that the run starts from."""
        folder = hold(RunFolder.new(self.party.runs, self.contract, self.party.party, use=self.use, key=self.party.run_key))
        if self.earlier is not None:
            from tallystick.run_folder.initial_weights import keep_starting_point

            keep_starting_point(self.earlier, folder)
        return folder


def _check_labels(contract: Contract, party: PartyFile, folder: RunFolder, frame: Frame, keys: Keys) -> None:
    """Refuse to resume a run, or an unfinished trial, with other labels than it was charged for. Raises DataError."""
    from tallystick.dataset.own_rows import OwnRows
    from tallystick.job.phases.defense import check_charged_labels
    from tallystick.job.phases.tuning import open_trials

    if (saved := folder.load_alignment()) is None:
        return
    contract = linked_contract(contract, party.party, saved[1])
    own = OwnRows(party=party, is_label=True, frame=frame, keys=keys, alignment=saved[1])
    for place in (folder, *open_trials(folder)):
        check_charged_labels(contract, place, own.used_labels(contract))


@contextmanager
def _ending(log: RunLog, logbook: Logbook, again: Callable[[], str]) -> Iterator[None]:
    """Log how a job ends, and turn an early end into a line that says how to go on."""
    try:
        with log.recording():
            yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{_INTERRUPTED}; to go on: {again()}") from None
    except TallystickError as error:
        if logbook.phase == "start" and isinstance(error, ConfigError | DataError | StorageError):
            raise
        raise _failure(error, logbook, _way_on(error, logbook, again())) from error
    except Exception as error:
        if (known := of_the_machine(error)) is None:
            raise
        raise _failure(known, logbook, _way_on(known, logbook, again())) from error


Work = Callable[[dict[str, Channel], Callable[[], None]], T]
"""A party's work with its channels by peer. The second argument lets it end the sessions before it is done."""


def with_sessions(
    contract: Contract, party: PartyFile, work: Work[T], *, watcher: Watcher, opened: Callable[[Endpoint], None] | None = None
) -> T:
    """Open this party's sessions of the contract, do the work, and close them. On failure tell the peers why.

    ``opened`` gets the endpoint before this party waits for a peer, so that another thread can interrupt it.
    """
    limits = contract.network
    identity = identity_of(party)
    if identity.warning is not None:
        watcher.say(f"warning: {identity.warning}")
    network = Endpoint(
        identity,
        limits=Limits(
            heartbeat_s=limits.heartbeat_s,
            deadline_s=limits.deadline_s,
            wait_s=limits.wait_s,
            max_message_bytes=limits.max_message_mib * MEBIBYTE,
        ),
        listen=party.listen,
        proxy=proxy_of(party),
    )
    addresses = {name: party.peers[name].address for name in dialled(contract, party.party)}
    peers = [
        name
        for name in contract.parties
        if name != party.party and (name in dialled(contract, party.party) or party.party in dialled(contract, name))
    ]
    try:
        if opened is not None:
            opened(network)
        channels: dict[str, Channel] = dict(
            network.connect(
                {name: addresses.get(name) for name in peers},
                waiting=_Waiting(watcher, wait_s=limits.wait_s),
                notice=watcher.say,
            )
        )
        outcome = work(channels, network.close)
    except PeerError as error:
        loss = error
        network.close(lambda to: f"{party.party} lost the run: {told_of(loss, to)}")
        raise
    except TallystickError as error:
        # A local error may name private columns or values: the peer only learns its category.
        network.close(f"{party.party} had to stop: {category_of(error)}; {_ASK}", final=_needs_mending(error))
        raise
    except KeyboardInterrupt:
        network.close(f"{party.party} was interrupted by its operator")
        raise
    except Exception as error:
        network.close(f"{party.party} had to stop: {category_of(error)}; {_ASK}")
        raise
    network.close()
    return outcome


class _Waiting:
    """Says once which peers this party waits for. Then counts the seconds."""

    def __init__(self, watcher: Watcher, *, wait_s: float) -> None:
        self._watcher, self._wait_s = watcher, wait_s
        self._began = time.monotonic()
        self._said = ""

    def __call__(self, missing: list[str]) -> None:
        what = f"waiting for {', '.join(missing)}"
        if what != self._said:
            self._said = what
            self._watcher.say(f"{what}, at most {self._wait_s:g} s")
        self._watcher.progress(f"{what} (s)", int(time.monotonic() - self._began), max(int(self._wait_s), 1))


def way_on(error: TallystickError, how_to_resume: str) -> str:
    """Say how to go on: a run can be resumed if its tables and its contract need no change."""
    anew = "start a new run on all sides, without --resume"
    if isinstance(error, ContractMismatch):
        return f"agree on one contract and give every side the same file, then {anew}"
    if isinstance(error, IdentityError):
        return f"give both sides certificates of one CA, each with its party's name, then {anew}"
    if _needs_mending(error):
        return f"put right what this line names, then {anew}"
    if isinstance(error, PeerStopped) and error.final:
        return f"once that is put right, {anew}"
    if isinstance(error, PeerStopped):
        return f"{how_to_resume}; if a table or the contract has to change, {anew}"
    return how_to_resume


def _way_on(error: TallystickError, logbook: Logbook, how_to_resume: str) -> str:
    """Say how to go on if the peer may not have heard from this side: a party that refuses to begin calls nobody."""
    if logbook.phase == "start" and isinstance(error, PeerLost):
        return f"see what {error.peer} says: if it refused to begin, put that right first; then {how_to_resume}"
    return way_on(error, how_to_resume)


def _needs_mending(error: TallystickError) -> bool:
    """Tell whether a table, a contract or a party file has to change first, so that resuming would not help."""
    return isinstance(error, ConfigError | DataError) and not isinstance(error, BudgetExceeded)


def _failure(error: TallystickError, logbook: Logbook, how_to_resume: str) -> JobFailed:
    peer = error.peer if isinstance(error, PeerError) else None
    # before the handshake nobody knows that step
    step = "" if logbook.phase in ("start", "handshake") else f"; last step both sides committed: {logbook.committed}"
    return JobFailed(
        f"{error} [phase: {logbook.phase}{step}; to go on: {how_to_resume}]",
        cause=type(error).__name__,
        peer=peer,
        phase=logbook.phase,
        committed=logbook.committed,
        differences=error.differences if isinstance(error, ContractMismatch) else None,
    )
