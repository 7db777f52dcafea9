"""Clean what is shown on a terminal: words from tables, peers and received files cannot act on it, whoever prints them."""

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from tallystick.errors import printable


def printable_lines(words: str) -> str:
    """Make each line of some words printable; the lines stay."""
    return "\n".join(printable(line) for line in words.split("\n"))


class PlainWordsConsole(Console):
    """Rich's console, on which styles, bars and tables are its own doing alone.

    Every word that it is about to write goes through ``printable``, so that no caller has to think of it.
    """

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as ever, in printable words."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable_lines(segment.text))
