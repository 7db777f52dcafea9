"""Whoever shows the progress of something long: a terminal, a notebook, a log, or nobody."""

from enum import StrEnum
from typing import Protocol


class Watcher(Protocol):
    """Whoever shows a job's progress."""

    def phase(self, name: str) -> None:
        """Begin a phase."""
        ...

    def progress(self, what: str, completed: int, total: int) -> None:
        """Note that something long moved on. It is called often, so it must return at once."""
        ...

    def say(self, text: str) -> None:
        """Say one line worth reading: what was learnt, what was found."""
        ...


class Silent:
    """A watcher that shows nothing."""

    def phase(self, name: str) -> None:
        """Ignore."""

    def progress(self, what: str, completed: int, total: int) -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""


class Style(StrEnum):
    """Style of showing progress."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    none = "none"
