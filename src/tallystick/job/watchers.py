"""Watch one job: bars on a terminal, a line in a notebook."""

import html
import sys
import time
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tallystick.terminal import PlainWordsConsole
from tallystick.watcher import Silent, Watcher

SHOW_AFTER_S = 2.0
REDRAW_S = 0.1


def watcher_here() -> Watcher:
    """Return the watcher that suits the caller: a line in a notebook's cell, bars on a terminal, silence elsewhere."""
    interactive = sys.modules.get("IPython")
    shell = interactive.get_ipython() if interactive is not None else None
    if shell is not None and hasattr(shell, "kernel"):
        from IPython.display import display

        return Notebook(display)
    return Bars() if sys.stderr.isatty() else Silent()


class Notebook:
    """One line under the cell. It is rewritten as the job goes on, and stays after its end."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None
        self._drawn = 0.0
        self._began = time.monotonic()
        self._phase = ""

    def phase(self, name: str) -> None:
        """Name the phase."""
        self._phase = name
        self._draw(name)

    def progress(self, what: str, completed: int, total: int) -> None:
        """Move the bar, at most ten times a second."""
        if completed < total and time.monotonic() - self._drawn < REDRAW_S:
            return
        self._draw(f"{self._phase}: {what}", completed, total)

    def say(self, text: str) -> None:
        """Show nothing: the result repeats all of it."""

    def _draw(self, text: str, completed: int = 0, total: int = 0) -> None:
        self._drawn = time.monotonic()
        seconds = f"{self._drawn - self._began:.0f} s"
        bar = f" <progress value='{completed}' max='{total}'></progress> {completed:,} of {total:,}" if total else ""
        content = {"text/html": f"{html.escape(text)}{bar}, {seconds}", "text/plain": f"{text}, {seconds}"}
        if self._handle is None:
            self._handle = self._display(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)


def progress_bars(console: Console) -> Progress:
    """Build the bars of a single job, and of the demo, which has one per party."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )


class Bars:
    """A bar for each task that takes longer than two seconds."""

    def __init__(self) -> None:
        self._console = PlainWordsConsole(stderr=True, highlight=False)
        self._bars = progress_bars(self._console)
        self._task: TaskID | None = None
        self._what = ""
        self._since = self._drawn = 0.0

    def phase(self, name: str) -> None:
        """Name the phase."""
        self._clear()
        self._console.print(f"[bold]{name}[/bold]")

    def progress(self, what: str, completed: int, total: int) -> None:
        """Move the bar."""
        now = time.monotonic()
        if what != self._what:
            self._clear()
            self._what, self._since = what, now
        if completed >= total:
            self._clear()
            return
        if now - self._drawn < REDRAW_S or now - self._since < SHOW_AFTER_S:
            return
        self._drawn = now
        if self._task is None:
            self._bars.start()
            self._task = self._bars.add_task(what, total=total)
        self._bars.update(self._task, completed=completed, total=total)

    def say(self, text: str) -> None:
        """Print a line above the bar."""
        self._console.print(f"  {text}", markup=False)

    def _clear(self) -> None:
        if self._task is not None:
            self._bars.remove_task(self._task)
            self._bars.stop()
            self._task = None
        self._what = ""
