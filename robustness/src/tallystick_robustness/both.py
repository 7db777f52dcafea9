"""Run all parties of a job on disk in one process, one thread each, over TLS, and say how their calls ended."""

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
STOP_AFTER = 6  # steps of a run that is interrupted
ALONE_S = 0.4  # a head start for a party with a damaged file: if it refuses in this time, nobody waits for it


@dataclass(frozen=True, kw_only=True)
class BothEnded:
    """Keep how both parties' calls ended."""

    tried: dict[str, Attempt]
    hung: bool
    warned: str

    @property
    def failure(self) -> str:
        """Return the first failure. A party that gets another's end in clean words has no failure of its own."""
        if self.hung:
            return "a party that does not end"
        return next((tried.failure for tried in self.tried.values() if tried.failure), self.warned)

    @property
    def ended(self) -> Ended:
        """Say how a case ended that did not fail."""
        return "refused" if self.errors else "withstood"

    @property
    def detail(self) -> str:
        """Return the message of each party's call."""
        return "; ".join(f"{name}: {tried.detail or tried.error}" for name, tried in self.tried.items())

    @property
    def errors(self) -> list[TallystickError]:
        """Return the errors that were raised."""
        return [tried.error for tried in self.tried.values() if tried.error is not None]


class _Interrupted(TallystickError):
    """Raised to end the run that is to be resumed."""


class _StopsAfter(Silent):
    """End a training after some steps."""

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
    """Run the job, or resume it."""
    return both(homes, lambda name: run_process(*files_of(homes, name), watcher=Silent(), resume=resume), first=first)


def predicted(homes: Homes, *, scored: Collection[str] = (LABEL,), first: str | None = None) -> BothEnded:
    """Predict with the finished job. ``scored`` parties write scores.csv."""

    def work(name: str) -> Any:
        output = homes.home(name) / "scores.csv" if name in scored else None
        return predict_rows(*files_of(homes, name), table=None, output=output, watcher=Silent())

    return both(homes, work, first=first)


def undisturbed(ended: BothEnded) -> None:
    """Raise unless all parties ended well. A fixture is made of such runs only."""
    if ended.errors or ended.failure:
        raise TallystickError(f"the undisturbed job failed: {ended.failure or ended.errors[0]}")


def copy_of_homes(homes: Homes, root: Path) -> Homes:
    """Return a copy whose listeners have their own addresses."""
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
    """Let the parties work, one thread each. ``first`` begins alone. If it ends at once, the others do not wait for it."""
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
