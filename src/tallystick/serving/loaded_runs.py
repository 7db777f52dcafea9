"""Keep a side's loaded runs, and look regularly at its promotions."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from tallystick.errors import TallystickError
from tallystick.job.handshake import PromotedHalf
from tallystick.job.versions import Versions

MOST_LOADED = 3
"""Runs that are loaded at a time: the one that scores, the one before or after it, and a candidate."""
LOOK_S = 1.0
"""Seconds between looks at the promotions. A look is one call of ``stat``, and nobody need reach a process to signal it."""
GRACE_S = 30.0
"""Seconds for which a run is still answered after this side has withdrawn it. Requests in progress end in this time."""
_DRAIN_S = 0.05
END_S = 2.0
AGAIN_S = 30.0
"""Seconds until another attempt to load a run that could not be loaded."""


class Loaded(Protocol):
    """A loaded run."""

    @property
    def run_id(self) -> str:
        """Return its id."""
        ...

    def retire(self) -> bool:
        """Retire the run: it takes no new users. Return False while somebody still waits for its scores."""
        ...

    def close(self) -> None:
        """Release what it holds."""
        ...


R = TypeVar("R", bound=Loaded)


@dataclass(frozen=True, kw_only=True)
class Promoted:
    """This party's promotions, newest first, and its candidate."""

    halves: tuple[PromotedHalf, ...] = ()
    candidate: PromotedHalf | None = None

    @property
    def ids(self) -> list[str]:
        """Return the ids of all these runs."""
        return [each.run_id for each in (*self.halves, *([self.candidate] if self.candidate is not None else []))]


class LoadedRuns(Generic[R]):
    """Loads runs in a thread of its own while others are used.

    At most MOST_LOADED are kept, and for a while as many more for which requests wait.

    Loading a run does not wait for requests to another run: a partner could tell from the delay that there are some.

    Args:
        versions: this party's promotions; None if a run was named, so that no promotion is followed.
        load: opens a run; raises TallystickError.
        say: called for each change.
        follows: whether later promotions count, or only those at the start.
    """

    def __init__(
        self, versions: Versions | None, load: Callable[[str], R], *, say: Callable[[str], None], follows: bool = True
    ) -> None:
        self._versions, self._load, self._say = versions, load, say
        self._runs: dict[str, R] = {}
        self._wanted: tuple[str, ...] = ()
        self._failed: dict[str, float] = {}
        self._withdrawn: dict[str, float] = {}
        self._seen: object = None
        self._said = ""
        self._work = threading.Lock()
        self._news = threading.Event()
        self._closed = False
        self.promoted = Promoted()
        self.look()
        self._versions = versions if follows else None
        self._thread = threading.Thread(target=self._keep_up, name="tallystick-versions", daemon=True)

    def __getitem__(self, run_id: str) -> R:
        """Return the run of this id. Raises KeyError if it is not loaded."""
        return self._runs[run_id]

    @property
    def loaded(self) -> tuple[R, ...]:
        """Return all loaded runs."""
        return tuple(self._runs.values())

    @property
    def failed(self) -> tuple[str, ...]:
        """Return the wanted runs that could not be loaded."""
        return tuple(run_id for run_id in self._wanted if run_id in self._failed)

    def begin(self, first: R) -> None:
        """Add the first run, which is loaded already, and start to load others in a thread."""
        self._runs, self._wanted = {first.run_id: first}, (first.run_id,)
        self._thread.start()

    def require(self, run_id: str, *, beside: Sequence[str] = ()) -> R:
        """Load a run at once. If there is no room, drop all others except those ``beside`` it. Raises TallystickError."""
        with self._work:
            self._wanted = (run_id, *beside)
            self._drop()
            while len(self._runs) >= MOST_LOADED and run_id not in self._runs:
                time.sleep(_DRAIN_S)
                self._drop()
            if run_id not in self._runs:
                self._runs = {**self._runs, run_id: self._load(run_id)}
            return self._runs[run_id]

    def want(self, run_ids: Sequence[str]) -> None:
        """Say which runs to load. The others are dropped when nobody waits for them."""
        run_ids_wanted = tuple(dict.fromkeys(run_ids))[:MOST_LOADED]
        if run_ids_wanted != self._wanted or set(run_ids_wanted) - set(self._runs):
            self._wanted = run_ids_wanted
            self._news.set()

    def allows(self, run_id: str) -> bool:
        """Tell whether this side promoted a run, named it as its candidate, or withdrew it a moment ago."""
        since = self._withdrawn.get(run_id)
        return run_id in self.promoted.ids or (since is not None and time.monotonic() - since < GRACE_S)

    def withdrew(self, run_id: str) -> bool:
        """Tell whether this side withdrew a promotion of the run since it began to serve."""
        return run_id in self._withdrawn

    def look(self) -> None:
        """Read the promotions if they have changed. If they cannot be read, keep the former ones."""
        if self._versions is None:
            return
        signature_now: object
        try:
            stat = self._versions.path.stat()
            signature_now = stat.st_mtime_ns, stat.st_size, stat.st_ino
        except OSError as error:  # reading it raises what is wrong, or finds none
            signature_now = error.errno
        if signature_now == self._seen:
            return
        try:
            halves, candidate = self._versions.halves(), self._versions.candidate_half()
        except TallystickError as error:
            self._seen = signature_now
            self._tell(f"{error}; versions stay as they are")
            return
        before = self.promoted
        self.promoted, self._seen = Promoted(halves=halves, candidate=candidate), signature_now
        self._failed = {}
        now, present = time.monotonic(), set(self.promoted.ids)
        withdrawn_now = {run_id: now for run_id in before.ids if run_id not in present}
        self._withdrawn = {run_id: at for run_id, at in {**withdrawn_now, **self._withdrawn}.items() if run_id not in present}

    def close(self) -> None:
        """Release all runs."""
        self._closed = True
        self._news.set()
        if self._thread.is_alive():
            self._thread.join(END_S)  # a thread that still loads a run is a daemon
        for run in self.loaded:
            run.close()

    def _keep_up(self) -> None:
        while not self._closed:
            self.look()
            with self._work:
                self._drop()
                self._load_one()
            self._news.wait(LOOK_S)
            self._news.clear()

    def _drop(self) -> None:
        run_ids_wanted = self._wanted
        retired = [run for run in self.loaded if run.run_id not in run_ids_wanted and run.retire()]
        self._runs = {run_id: run for run_id, run in self._runs.items() if run not in retired}
        for run in retired:
            run.close()

    def _load_one(self) -> None:
        """Load one of the wanted runs. Each look loads only one, so that no peer can make this side load without end."""
        now = time.monotonic()
        for run_id in self._wanted:
            if run_id in self._runs or now - self._failed.get(run_id, -AGAIN_S) < AGAIN_S:
                continue
            if len(self._runs) >= 2 * MOST_LOADED:
                return
            try:
                run = self._load(run_id)
            except TallystickError as error:
                self._failed[run_id] = now
                self._tell(f"run {run_id} cannot be loaded: {error}")
                return
            except Exception as error:  # after any error the loaded runs and this thread go on
                self._failed[run_id] = now
                self._tell(f"run {run_id} cannot be loaded: it failed unexpectedly ({type(error).__name__})")
                return
            self._runs = {**self._runs, run_id: run}
            return

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._say(text)
