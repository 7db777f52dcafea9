"""Run real processes quickly: fork commands from a process that has loaded everything, and check how each of them ends."""

import itertools
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tallystick.errors import TallystickError
from tallystick_robustness.fixture_job import Homes, contract, lay_out, tables
from tallystick_robustness.outcome import Campaign, unclean

_START_S = 120.0
_POLL_S = 0.02
CODES = (0, 2, 3, 130)  # docs/reference/command-line.md
CLEAN_STARTS = ("error: ", "interrupted")


@dataclass(kw_only=True)
class Process:
    """Follow one process from its start to its end."""

    name: str
    out: Path
    err: Path
    fork_server: "ForkServer"
    pid: int = 0
    started: float = 0.0
    ended: float | None = None
    code: int | None = None
    over: threading.Event = field(default_factory=threading.Event)

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        self.fork_server.ask({"signal": number, "pid": self.pid})

    def kill(self) -> None:
        """Kill the process and wait."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        self.over.wait(10)

    def wait(self, until: float) -> bool:
        """Wait for the end, at most until this moment of the monotonic clock."""
        return self.over.wait(max(0.0, until - time.monotonic()))

    def await_handlers(self) -> None:
        """Wait until the process handles signals, or is over. Before that, a signal would end it without a message."""
        status, until = Path(f"/proc/{self.pid}/status"), time.monotonic() + _START_S
        while status.exists() and time.monotonic() < until and not self.over.wait(_POLL_S):
            with suppress(OSError):
                if int(status.read_text().partition("SigCgt:")[2].split()[0], 16) >> (signal.SIGTERM - 1) & 1:
                    return

    @property
    def said(self) -> str:
        """Return the process's output on standard error."""
        return self.err.read_text(errors="replace") if self.err.exists() else ""

    @property
    def line(self) -> str:
        """Return the last line on standard error."""
        lines = self.said.strip().splitlines()
        return lines[-1] if lines else ""

    def problem(self) -> str:
        """Say what is wrong with how the process ended. It is empty if nothing is, or if the process was killed from outside."""
        if self.code is None:
            return f"a process that does not end: {self.name}"
        if self.code == -signal.SIGKILL:
            return ""
        error_text = self.said
        if "Traceback" in error_text:
            last = [line for line in error_text.splitlines() if line and not line.startswith(" ")][-1]
            return f"a traceback: {last.partition(':')[0]}"
        if self.code not in CODES:
            return f"exit code {self.code}"
        lines = error_text.splitlines()
        if self.code == 0:
            return f"words on success: {error_text[:200]!r}" if lines else ""
        if len(lines) != 1:
            return f"{len(lines)} lines on standard error after exit code {self.code} instead of one"
        if not lines[0].startswith(CLEAN_STARTS):
            return f"a line of another kind: {lines[0][:80]!r}"
        return unclean(lines[0])


class _Piped(subprocess.Popen[bytes]):
    """A process that gets requests on its standard input and answers on its standard output."""

    stdin: IO[bytes]
    stdout: IO[bytes]


class ForkServer:
    """Fork processes from one that has loaded everything. As a context manager, it ends the remaining ones."""

    def __init__(self, scratch: Path) -> None:
        """Start the server and wait until it has loaded everything. Output of processes goes under ``scratch``."""
        self._scratch = scratch
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._waiting: dict[int, tuple[Process, queue.SimpleQueue[bool]]] = {}
        self._running: dict[int, Process] = {}
        self._process = _Piped(
            [sys.executable, "-m", "tallystick_robustness.fork_server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,  # an interrupt at the terminal is for this process, which ends the others
        )
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(_START_S) or self._process.poll() is not None:
            self.close()
            raise TallystickError("the process that starts the parties did not come up; its words are above")

    def start(self, name: str, module: str, arguments: list[str], folder: Path, **options: Any) -> Process:
        """Fork ``python -m module arguments`` in a folder.

        The options are ``tally``, ``die_at`` and ``cold`` of fork_server.py.
        """
        number = next(self._numbers)
        out, err = (self._scratch / f"{number}-{name}.{stream}" for stream in ("out", "err"))
        process = Process(name=name, out=out, err=err, fork_server=self)
        ready: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._waiting[number] = (process, ready)
        request = {"request": number, "module": module, "arguments": arguments, "folder": str(folder), **options}
        self.ask({**request, "out": str(out), "err": str(err)})
        ready.get(timeout=_START_S)
        return process

    def ask(self, request: dict[str, Any]) -> None:
        """Send one request."""
        with self._lock:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        for line in self._process.stdout:
            event = json.loads(line)
            if "started" in event:
                process, ready = self._waiting.pop(event["started"])
                process.pid, process.started = event["pid"], event["at"]
                self._running[process.pid] = process
                ready.put(True)
            elif "ended" in event:
                process = self._running.pop(event["ended"])
                process.code, process.ended = event["code"], event["at"]
                process.over.set()
            else:
                self._ready.set()
        self._ready.set()

    def close(self) -> None:
        """End the server and everything that it started."""
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5)
        self._process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


ROWS = 700
GRACE_S = 4.0  # after the deadline, from one death to the other side's exit; or the time of an undisturbed run if that is more
PATIENCE_S = 90.0  # then it is a hang


class ProcessCampaign(Campaign):
    """Base of campaigns whose cases run both parties as separate processes. Its fixture is the fork server."""

    in_workers, chunk = False, 1

    def __init__(self, scratch: Path, *, seed: int, fork_server: ForkServer | None = None) -> None:
        """Start the fork server, if there is none yet, and measure the undisturbed run."""
        super().__init__(scratch, seed=seed)
        self._frames, self._contract = tables(ROWS), contract()
        self.fork_server, self._owns = fork_server or ForkServer(scratch), fork_server is None
        try:
            self.measure()
        except BaseException:  # also for an interrupt, because only this object ends a fork server that it started
            self.close()
            raise

    @abstractmethod
    def measure(self) -> None:
        """Run the job undisturbed, and keep the results."""

    def close(self) -> None:
        """End the fork server, unless another object owns it."""
        if self._owns:
            self.fork_server.close()

    @contextmanager
    def job(self, mark: object, *, listen: str, call: str | None = None) -> Iterator[Homes]:
        """Write the job to a folder that is removed at the end."""
        folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-{mark}-", dir=self._scratch))
        try:
            yield lay_out(folder, self._contract, self._frames, listen=listen, call=call)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def start(self, homes: Homes, name: str, *, resume: bool = False, **options: Any) -> Process:
        """Start a party. The options are those of ForkServer.start."""
        arguments = ["run", "contract.yaml", "--party", "party.yaml", "--progress", "none", "--json"]
        return self.fork_server.start(name, "tallystick", arguments + ["--resume"] * resume, homes.home(name), **options)


def ended_well(running: Mapping[str, Process]) -> None:
    """Wait for processes. Raises TallystickError unless all end well."""
    for process in running.values():
        if not process.wait(time.monotonic() + PATIENCE_S) or process.code != 0:
            raise TallystickError(f"the undisturbed run of {process.name} failed: {process.line or 'it does not end'}")


def problems_of(running: Mapping[str, Process]) -> list[str]:
    """Wait for processes, kill those that do not end, and say what is wrong with how each ended."""
    until = time.monotonic() + PATIENCE_S
    for process in running.values():
        process.wait(until)
    problems = [process.problem() for process in running.values()]
    for process in running.values():
        if process.code is None:
            process.kill()
    return [problem for problem in problems if problem]
