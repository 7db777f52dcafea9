"""Show a job's progress by watchers. They write to standard error. Standard output is for results."""

import json
import sys
import time
from typing import Any

from rich.progress import TaskID

from tallystick.job.watchers import REDRAW_S, Bars, progress_bars
from tallystick.terminal import PlainWordsConsole, printable_lines
from tallystick.watcher import Silent, Style, Watcher


def watcher_of(style: Style) -> Watcher:
    """Return the watcher of a style. Auto is a bar on a terminal and plain lines otherwise."""
    if style is Style.auto:
        style = Style.bar if sys.stderr.isatty() else Style.plain
    styles: dict[Style, type[Watcher]] = {Style.bar: Bars, Style.plain: Lines, Style.json: JsonLines, Style.none: Silent}
    return styles[style]()


class Lines:
    """Plain lines, for logs: phases, messages, and progress every ten seconds."""

    EVERY_S = 10.0

    def __init__(self) -> None:
        self._last = time.monotonic()

    def phase(self, name: str) -> None:
        """Name the phase."""
        self._write(name)

    def progress(self, what: str, completed: int, total: int) -> None:
        """Report the progress every few seconds."""
        if time.monotonic() - self._last > self.EVERY_S:
            self._write(f"  {what}: {completed} of {total}")

    def say(self, text: str) -> None:
        """Write the line."""
        self._write(f"  {text}")

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        sys.stderr.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {printable_lines(text)}\n")
        sys.stderr.flush()


class JsonLines:
    """One JSON object per line, for schedulers and for the demo, which shows several parties."""

    def __init__(self) -> None:
        self._written = 0.0

    def phase(self, name: str) -> None:
        """Name the phase."""
        self._write({"phase": name})

    def progress(self, what: str, completed: int, total: int) -> None:
        """Report the progress, at most ten times a second."""
        now = time.monotonic()
        if now - self._written > REDRAW_S or completed == total:
            self._written = now
            self._write({"what": what, "done": completed, "total": total})

    def say(self, text: str) -> None:
        """Pass the line on."""
        self._write({"say": text})

    def _write(self, event: dict[str, object]) -> None:
        sys.stderr.write(json.dumps(event) + "\n")
        sys.stderr.flush()


def demo_watcher(style: Style) -> "ProgressOfParties":
    """Return the watcher of a demo in the given style."""
    if style is Style.auto:
        style = Style.bar if sys.stderr.isatty() else Style.plain
    return ProgressOfParties(style)


class ProgressOfParties:
    """Several parties side by side: a bar each, or lines that begin with the party's name."""

    def __init__(self, style: Style) -> None:
        self._style = style
        self._console = PlainWordsConsole(stderr=True, highlight=False)
        self._bars = progress_bars(self._console)
        self._tasks: dict[str, TaskID] = {}
        self._lines: dict[str, Lines] = {}
        self._phases: dict[str, str] = {}

    def __enter__(self) -> "ProgressOfParties":
        if self._style is Style.bar:
            self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._style is Style.bar:
            self._bars.stop()

    def on_event(self, party: str, event: dict[str, Any]) -> None:
        """Show one event of a party's JSON lines."""
        if self._style is Style.none:
            return
        if self._style is Style.json:
            sys.stderr.write(json.dumps({"party": party, **event}) + "\n")
        elif self._style is Style.bar:
            if party not in self._tasks:
                self._tasks[party] = self._bars.add_task(party, total=None)
            task = self._tasks[party]
            if "say" in event:
                self._console.print(f"{party}: {event['say']}", markup=False)
            elif "phase" in event:
                self._phases[party] = event["phase"]
                self._bars.reset(task, description=f"{party}: {event['phase']}", total=None)
            else:
                self._bars.update(task, description=f"{party}: {event['what']}", completed=event["done"], total=event["total"])
        else:
            lines = self._lines.setdefault(party, Lines())
            if "what" in event:
                lines.progress(f"{party}: {event['what']}", event["done"], event["total"])
            else:
                lines.say(f"{party}: {event.get('phase') or event.get('say')}")
