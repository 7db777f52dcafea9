"""The phases of a job: where it stands, how long each took and what crossed the network in it."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.network.channel import Channel, Traffic
from tallystick.report.result import Phase


class Watcher(Protocol):
    """Whoever shows a job's progress."""

    def phase(self, name: str) -> None:
        """A phase begins."""
        ...

    def progress(self, what: str, done: int, total: int) -> None:
        """Something long moved on; called often, must return at once."""
        ...

    def say(self, text: str) -> None:
        """One line worth reading: what was learnt, what was found."""
        ...


class Silent:
    """A watcher that shows nothing."""

    def phase(self, name: str) -> None:
        """Ignore."""

    def progress(self, what: str, done: int, total: int) -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""


@dataclass(kw_only=True)
class Logbook:
    """Where a job stands: the phase, the last step that all parties committed, and the phases so far."""

    party: str
    watcher: Watcher
    phase: str = "start"
    committed: int = 0
    began: float = field(default_factory=time.monotonic)
    phases: list[Phase] = field(default_factory=list)

    def commit(self, step: int) -> None:
        """All parties have committed this step."""
        self.committed = step

    @contextmanager
    def during(self, name: str, channels: Sequence[Channel]) -> Iterator[None]:
        """Run a phase: name it to the watcher, time it, count what crossed."""
        self.phase = name
        self.watcher.phase(name)
        started, before = time.monotonic(), _total(channels)
        yield
        after = _total(channels)
        self.phases.append(
            Phase(
                name=name,
                party=self.party,
                started=started - self.began,
                seconds=time.monotonic() - started,
                bytes_sent=after.bytes_sent - before.bytes_sent,
                bytes_received=after.bytes_received - before.bytes_received,
                messages=after.messages_sent + after.messages_received - before.messages_sent - before.messages_received,
            )
        )


def _total(channels: Sequence[Channel]) -> Traffic:
    traffics = [channel.traffic for channel in channels]
    return Traffic(
        bytes_sent=sum(traffic.bytes_sent for traffic in traffics),
        bytes_received=sum(traffic.bytes_received for traffic in traffics),
        messages_sent=sum(traffic.messages_sent for traffic in traffics),
        messages_received=sum(traffic.messages_received for traffic in traffics),
    )
