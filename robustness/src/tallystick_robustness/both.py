"""All parties of a job on disk in one process, a thread each over TLS: what they run, and how their calls ended."""

import shutil
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tallystick.config.contract import Contract, load_contract
from tallystick.config.party import PartyFile, load_party
from tallystick.errors import TallystickError
from tallystick.job.predict import predict_rows
from tallystick.job.process import run_process
from tallystick.network.addresses import free_port
from tallystick.watcher import Silent
from tallystick_robustness.fixture_job import HELPER, LABEL, Homes
from tallystick_robustness.outcome import Attempt, Ended, attempt, hearing_warnings

BOUND_S = 50.0
STOP_AFTER = 6  # steps, of an interrupted run
ALONE_S = 0.4  # that a party with a damaged file has to itself: where it refuses by then, nobody waits for it


@dataclass(frozen=True, kw_only=True)
class BothEnded:
    """Ends of both parties' calls."""

    tried: dict[str, Attempt]
    hung: bool
    warned: str

    @property
    def failure(self) -> str:
        """Return the first failure. A party that hears of another's end in clean words has none of its own."""
        if self.hung:
            return "a party that does not end"
        return next((tried.failure for tried in self.tried.values() if tried.failure), self.warned)

    @property
    def ended(self) -> Ended:
        """Return how a case ended that did not fail."""
        return "refused" if self.errors else "withstood"

    @property
    def detail(self) -> str:
        """Return what each party's call said."""
        return "; ".join(f"{name}: {tried.detail or tried.error}" for name, tried in self.tried.items())

    @property
    def errors(self) -> list[TallystickError]:
        """Return what was raised."""
        return [tried.error for tried in self.tried.values() if tried.error is not None]


class _Interrupted(TallystickError):
    """Ends the run that is to be resumed."""


class _StopsAfter(Silent):
    """Ends a training after some steps."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Raise once the step is reached."""
        if what == "training" and done >= STOP_AFTER:
            raise _Interrupted(f"stopped after {done} of {total} steps")


def files_of(homes: Homes, name: str) -> tuple[Contract, PartyFile]:
    """Read a party's contract and its own file."""
    home = homes.home(name)
    return load_contract(home / "contract.yaml"), load_party(home / "party.yaml")


def interrupted(homes: Homes) -> None:
    """Run the job until some steps are done."""
    both(homes, lambda name: run_process(*files_of(homes, name), watcher=_StopsAfter()))


def ran(homes: Homes, *, resume: bool = False, first: str | None = None) -> BothEnded:
    """Run the job, or go on with it."""
    return both(homes, lambda name: run_process(*files_of(homes, name), watcher=Silent(), resume=resume), first=first)


def predicted(homes: Homes, *, scored: Collection[str] = (LABEL,), first: str | None = None) -> BothEnded:
    """Predict by the finished job. ``scored`` parties write scores.csv."""

    def work(name: str) -> Any:
        output = homes.home(name) / "scores.csv" if name in scored else None
        return predict_rows(*files_of(homes, name), table=None, output=output, watcher=Silent())

    return both(homes, work, first=first)


def undisturbed(ended: BothEnded) -> None:
    """Raise unless all ended well: what a fixture is made of."""
    if ended.errors or ended.failure:
        raise TallystickError(f"the undisturbed job failed: {ended.failure or ended.errors[0]}")


def copy_of_homes(homes: Homes, root: Path) -> Homes:
    """Return a copy whose listeners have addresses of their own."""
    copy = Homes(root=root)
    shutil.copytree(homes.root, root)
    at = {name: f"127.0.0.1:{free_port()}" for name in (LABEL, HELPER)}
    for name in copy.parties():
        values = yaml.safe_load((copy.home(name) / "party.yaml").read_text())
        if name in at:
            values["listen"] = at[name]
        for peer in values.get("peers", {}):
            values["peers"][peer] = {"address": at[peer]}
        copy.write_party(name, values)
    return copy


def both(homes: Homes, work: Callable[[str], Any], *, first: str | None = None) -> BothEnded:
    """Let the parties work, a thread each. ``first`` begins alone and, if it ends at once, is not waited for by the others."""
    attempts: dict[str, Attempt] = {}

    def one(name: str) -> None:
        attempts[name] = attempt(lambda: work(name), bound_s=BOUND_S)

    order = sorted(homes.parties(), key=lambda name: name != first)
    threads = {name: threading.Thread(target=one, args=(name,), daemon=True, name=f"faults-{name}") for name in order}
    until = time.monotonic() + 2 * BOUND_S
    with hearing_warnings() as warned:
        for name, thread in threads.items():
            thread.start()
            if name == first:
                thread.join(ALONE_S)
                if not thread.is_alive():
                    break
        for thread in threads.values():
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
    hung = any(thread.is_alive() for thread in threads.values())
    return BothEnded(tried=dict(attempts), hung=hung, warned="".join(warned[:1]))
