"""Report a job's progress: to its watcher, in the phases of its report, and in the log of its run folder.

The log is a file that a peer may ask for, so it holds no value of a row. The message of an error in this side's own data or
settings may name such values: it is shown to this side's operator alone, and the log has only the kind of error and the place
in the code. The log does say what keys look like and how training went, so read it before you pass it on.
"""

import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from tallystick.errors import PeerError, StorageError, category_of, printable
from tallystick.network.channel import Channel, Traffic
from tallystick.results import PhaseRecord
from tallystick.watcher import Watcher

LOG, SERVING_LOG = "run.log", "serving.log"
MAX_LOG_BYTES = 1 << 20
"""The largest log file. Then it becomes run.log.1, of which there is only one."""
EARLY_LINES = 200
PROGRESS_S = 10.0
FRAMES = 8


@dataclass(kw_only=True)
class Logbook:
    """Progress of a job: the phase, the last step that all parties committed, and the phases so far."""

    party: str
    watcher: Watcher
    phase: str = "start"
    committed: int = 0
    began: float = field(default_factory=time.monotonic)
    phases: list[PhaseRecord] = field(default_factory=list)

    def commit(self, step: int) -> None:
        """Note that all parties have committed this step."""
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
            PhaseRecord(
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


class RunLog:
    """A watcher that passes everything on and also logs it: in memory until there is a run folder, then in its file.

    A log that cannot be written does not end the run: a warning says so once, and the run goes on without a log.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._early: deque[str] = deque(maxlen=EARLY_LINES)
        self._path: Path | None = None
        self._broken = False
        self._progress_at = 0.0
        self._writing = threading.Lock()  # a serving party logs from several threads

    def keep_in(self, folder: Path, *, name: str = LOG) -> None:
        """Write to the folder's log from here on, beginning with the lines so far."""
        self._path = folder / name
        early, self._early = "".join(self._early), deque(maxlen=EARLY_LINES)
        self._write(early)

    def phase(self, name: str) -> None:
        """Pass on and log."""
        self.note(f"phase {name}")
        self._watcher.phase(name)

    def progress(self, what: str, completed: int, total: int) -> None:
        """Pass on, and log it from time to time."""
        now = time.monotonic()
        if now - self._progress_at > PROGRESS_S or completed == total:
            self._progress_at = now
            self.note(f"{what}: {completed} of {total}")
        self._watcher.progress(what, completed, total)

    def say(self, text: str) -> None:
        """Pass on and keep."""
        self.note(text)
        self._watcher.say(text)

    def note(self, text: str) -> None:
        """Log a line without showing it."""
        line = f"{datetime.now(UTC).isoformat(timespec='milliseconds')} {printable(text)}\n"
        if self._path is None:
            self._early.append(line)
        else:
            self._write(line)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Log how the block ends: normally, interrupted, or by which error."""
        try:
            yield
        except Exception as error:
            if isinstance(error, PeerError | StorageError):
                self.note(f"error {type(error).__name__}: {error}")
                for note in getattr(error, "__notes__", ()):
                    self.note(f"  {note}")
            else:
                self.note(f"error {type(error).__name__}: {category_of(error)}; its message was shown to the operator only")
            for frame in traceback.extract_tb(error.__traceback__)[-FRAMES:]:
                self.note(f"  at {Path(frame.filename).name}:{frame.lineno} in {frame.name}")
            raise
        except KeyboardInterrupt:
            self.note("interrupted by the operator")
            raise
        self.note("ended well")

    def _write(self, text: str) -> None:
        if self._path is None or self._broken:
            return
        try:
            with self._writing:
                if self._path.exists() and self._path.stat().st_size + len(text) > MAX_LOG_BYTES:
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
                handle = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
                with os.fdopen(handle, "a", encoding="utf-8") as file:
                    file.write(text)
        except OSError as error:
            self._broken = True
            self._watcher.say(f"no log is kept from here on: cannot write {self._path}: {error.strerror or error}")
