"""Define a watcher: an object that shows the progress of a long job in a terminal, a notebook or a log, or not at all."""

from enum import StrEnum
from typing import Protocol


class Watcher(Protocol):
    """Show a job's progress."""

    def phase(self, name: str) -> None:
        """Begin a phase."""
        ...

    def progress(self, what: str, completed: int, total: int) -> None:
        """Note that a long step moved on. It is called often, so it must return at once."""
        ...

    def say(self, text: str) -> None:
        """Show one line worth reading, such as a finding."""
        ...


class Silent:
    """Watch a job and show nothing."""

    def phase(self, name: str) -> None:
        """Ignore."""

    def progress(self, what: str, completed: int, total: int) -> None:
        """Ignore."""

    def say(self, text: str) -> None:
        """Ignore."""


class Style(StrEnum):
    """Choose how progress is shown."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    none = "none"
