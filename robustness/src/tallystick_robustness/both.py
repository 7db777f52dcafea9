"""All parties of a job in one process, a thread each, and how their calls ended."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tallystick.errors import TallystickError
from tallystick_robustness.fixture_job import PARTIES
from tallystick_robustness.outcome import Attempt, attempt, hearing_warnings

BOUND_S = 30.0
ALONE_S = 0.4  # that a party with a damaged file has to itself: where it refuses by then, nobody waits for it


@dataclass(frozen=True, kw_only=True)
class BothEnded:
    """How both parties' calls ended."""

    tried: dict[str, Attempt]
    hung: bool
    warned: str

    @property
    def failure(self) -> str:
        """The first failure; a party that hears of another's end in clean words has none of its own."""
        if self.hung:
            return "a party that does not end"
        return next((tried.failure for tried in self.tried.values() if tried.failure), self.warned)

    @property
    def errors(self) -> list[TallystickError]:
        """What was raised."""
        return [tried.error for tried in self.tried.values() if tried.error is not None]


def both(
    work: Callable[[str], Any], *, first: str | None = None, names: Sequence[str] = PARTIES, bound_s: float = BOUND_S
) -> BothEnded:
    """Let the parties work, a thread each; ``first`` begins alone and, if it ends at once, is not waited for by the others."""
    tried: dict[str, Attempt] = {}

    def one(name: str) -> None:
        tried[name] = attempt(lambda: work(name), bound_s=bound_s)

    order = [first, *(name for name in names if name != first)] if first is not None else list(names)
    threads = {name: threading.Thread(target=one, args=(name,), daemon=True, name=f"faults-{name}") for name in order}
    until = time.monotonic() + 2 * bound_s
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
    return BothEnded(tried=dict(tried), hung=hung, warned="".join(warned[:1]))
