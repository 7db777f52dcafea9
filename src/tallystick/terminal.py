"""Clean text for a terminal, so that words from tables, peers and received files cannot act on it, whatever code prints them."""

from collections.abc import Iterable
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tallystick.errors import printable


def printable_lines(words: str) -> str:
    """Make each line of a text printable. Line breaks stay."""
    return "\n".join(printable(line) for line in words.split("\n"))


class PlainWordsConsole(Console):
    """Rich's console, on which only its own styles, bars and tables use control characters.

    It passes every word that it writes through ``printable``, so that no caller has to think of it.
    """

    def print(self, *objects: Any, **options: Any) -> None:
        """Print as Rich does, but do not wrap lines that go into a file: a path that is cut in two cannot be copied."""
        if not self.is_terminal and all(isinstance(each, str) for each in objects):
            options.setdefault("soft_wrap", True)
        super().print(*objects, **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as Rich does, with printable words."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))
