"""Start every party in a separate process on this machine, joined by mutual TLS over loopback.

``python -m tallystick.demo.localhost MODULE:FUNCTION NAME`` is one party. It connects to its peers and calls the function with
its context and the arguments, and the result goes back to the starter. Party and starter talk in JSON lines over the party's
standard input and output. Threads read both its pipes all the time, so no party ever waits for its starter to listen.
"""

import contextlib
import faulthandler
import importlib
import json
import queue
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import msgspec

from tallystick.demo.homes import move_in
from tallystick.errors import PeerError, TallystickError
from tallystick.network.certificates import load_identity
from tallystick.network.channel import Channel
from tallystick.network.endpoint import Endpoint
from tallystick.network.session import Limits

Peers = Mapping[str, Mapping[str, bool]]
"""For each party and peer, whether the party calls that peer (True) or waits for its call (False)."""

LABEL, FEATURE = "label", "feature"
PAIR: Peers = {LABEL: {FEATURE: False}, FEATURE: {LABEL: True}}
SAID_CHARACTERS = 3000
_START_S = 60.0  # limit for starting a process, on a very busy machine
DUMP_S = 1.0


@dataclass(frozen=True, kw_only=True)
class PartyContext:
    """Hold the tools of a party's process: its name, a channel to each peer, a folder of its own, and the start signal."""

    name: str
    channels: dict[str, Channel]
    home: Path

    def ready(self) -> None:
        """Say that this party is prepared, and wait until all are. The starter's time begins then."""
        _say({"ready": True})
        _hear()


PartyWork = Callable[[PartyContext, Any], Any]
"""The work of a party's process: a function of a module, which the process finds there by its name."""


@dataclass(frozen=True, kw_only=True)
class PartyResults:
    """Hold the results of every party, and the seconds from the start signal (or, without one, the start) to the last result."""

    results: dict[str, Any]
    seconds: float


class PartyProcess(subprocess.Popen[str]):
    """A party's process, whose standard input, output and error are pipes of text."""

    stdin: IO[str]
    stdout: IO[str]
    stderr: IO[str]

    def __init__(self, work: PartyWork, name: str) -> None:
        command = [sys.executable, "-m", __name__, f"{work.__module__}:{work.__name__}", name]
        super().__init__(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class PartyProcesses:
    """Run parties. As a context manager, it ends the processes that still run."""

    def __init__(
        self,
        folder: Path,
        work: PartyWork,
        peers: Peers,
        arguments: Mapping[str, Any],
        *,
        limits: Limits | None = None,
        route: Callable[[int], int] | None = None,
    ) -> None:
        """Give every party a home under ``folder`` with its own certificates, and start it.

        Args:
            folder: the folder of the homes.
            work: the work of every party, which returns a value that JSON can hold.
            peers: which parties talk with each other.
            arguments: plain data, the same for all parties.
            limits: the limits of the network.
            route: gives the port that callers dial instead of a listener's, such as a slow line's; if None, they dial the
                listener.
        """
        self.limits = limits or Limits()
        self._route = route
        self._said: dict[str, list[str]] = {name: [] for name in peers}
        self._lines: queue.Queue[tuple[str, dict[str, Any] | None]] = queue.Queue()
        self._processes: dict[str, PartyProcess] = {}
        self._threads: list[threading.Thread] = []
        homes = move_in(folder, list(peers))
        with contextlib.ExitStack() as unfinished:
            unfinished.callback(self._end)
            for name, home in homes.items():
                process = self._processes[name] = PartyProcess(work, name)
                for read in (self._read_lines, self._read_words):
                    thread = threading.Thread(target=read, args=(name, process), daemon=True)
                    thread.start()
                    self._threads.append(thread)
                settings = {"peers": dict(peers[name]), "limits": msgspec.to_builtins(self.limits)}
                self._tell(name, {**settings, "home": str(home), "arguments": arguments})
            unfinished.pop_all()

    @property
    def pids(self) -> dict[str, int]:
        """List the parties' process ids."""
        return {name: process.pid for name, process in self._processes.items()}

    def run(self, *, timeout_s: float) -> PartyResults:
        """Wait for every party's result.

        Raises TallystickError if one fails or is killed, if possible for a failure that no peer caused. The others then end by
        themselves within the network's deadline. Also raises it, with the place of each party, if they do not end, or take longer
        than ``timeout_s`` after all are connected.
        """
        started = finished = time.perf_counter()
        until = time.monotonic() + self.limits.wait_s + _START_S
        ports: dict[str, int | None] = {}
        results: dict[str, Any] = {}
        failures: dict[str, str] = {}
        of_peers: set[str] = set()
        connected: set[str] = set()
        ready: set[str] = set()
        ended: set[str] = set()
        names = set(self._processes)
        while ended != names:
            name, line = self._next(until, names - ended, failures)
            if line is None:
                ended.add(name)
                if name not in results and name not in failures:
                    code = self._processes[name].wait()
                    how = f"by signal {-code}" if code < 0 else f"with {code}"
                    failures[name] = f"its process ended {how} without a result{self._tail(name)}"
            elif "listening" in line:
                port: int | None = line["listening"]
                ports[name] = port if port is None or self._route is None else self._route(port)
                if set(ports) == names:
                    self._tell_all({"ports": ports})
            elif "connected" in line:
                connected.add(name)
                if connected == names:
                    until = time.monotonic() + timeout_s
            elif "ready" in line:
                ready.add(name)
                if ready == names:
                    started = time.perf_counter()
                    self._tell_all({"go": True})
            elif "result" in line:
                results[name], finished = line["result"], time.perf_counter()
            elif "error" in line:
                failures[name] = line["error"]
                if line["of_peer"]:
                    of_peers.add(name)
            if failures:
                until = min(until, time.monotonic() + self.limits.deadline_s + _START_S)
                if connected != names or (ready and ready != names):
                    break  # the others wait for it, or for our signal, and no channel tells them
        if failures:
            first = sorted(failures, key=of_peers.__contains__)  # two pipes do not show who failed first
            raise TallystickError("; ".join(f"{name}: {failures[name]}" for name in first))
        return PartyResults(results={name: results[name] for name in self._processes}, seconds=finished - started)

    def _read_lines(self, name: str, process: PartyProcess) -> None:
        for text in process.stdout:
            try:
                line = json.loads(text)
            except ValueError:
                line = None
            if isinstance(line, dict):
                self._lines.put((name, line))
            else:
                self._said[name].append(text)  # a library's output, not ours
        self._lines.put((name, None))

    def _read_words(self, name: str, process: PartyProcess) -> None:
        for text in process.stderr:
            self._said[name].append(text)
            del self._said[name][:-200]

    def _next(self, until: float, running: set[str], failures: dict[str, str]) -> tuple[str, dict[str, Any] | None]:
        try:
            return self._lines.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            pass
        for name in running:
            self._processes[name].send_signal(signal.SIGUSR1)  # the party then prints where it is
        time.sleep(DUMP_S)
        lines = [f"{name}: {why}" for name, why in failures.items()]
        lines += [f"{name} had not ended in time: {self._tail(name)}" for name in sorted(running)]
        raise TallystickError("; ".join(lines))

    def _tail(self, name: str) -> str:
        lines = "".join(self._said[name]).strip()
        return f"\n{lines[-SAID_CHARACTERS:]}" if lines else ""

    def _tell_all(self, line: dict[str, Any]) -> None:
        for name in self._processes:
            self._tell(name, line)

    def _tell(self, name: str, line: dict[str, Any]) -> None:
        stdin = self._processes[name].stdin
        with contextlib.suppress(BrokenPipeError):  # it has ended, which its standard output says too
            stdin.write(json.dumps(line) + "\n")
            stdin.flush()

    def _end(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for thread in self._threads:
            thread.join()
        for process in self._processes.values():
            for pipe in (process.stdin, process.stdout, process.stderr):
                with contextlib.suppress(BrokenPipeError):  # words that an ended party did not hear
                    pipe.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end()


def run_parties(
    folder: Path,
    work: PartyWork,
    peers: Peers,
    arguments: Mapping[str, Any],
    *,
    timeout_s: float,
    limits: Limits | None = None,
    route: Callable[[int], int] | None = None,
) -> PartyResults:
    """Start the parties, wait for their results and end them."""
    with PartyProcesses(folder, work, peers, arguments, limits=limits, route=route) as parties:
        return parties.run(timeout_s=timeout_s)


# --- in the party's process


def main(place: str, name: str) -> int:
    """Run one party, and return the exit code."""
    faulthandler.register(signal.SIGUSR1)
    settings = _hear()
    home = Path(settings["home"])
    identity = load_identity(name, ca=home / "ca.pem", certificate=home / "own.pem", key=home / "own.key")
    peers: dict[str, bool] = settings["peers"]
    network = Endpoint(
        identity,
        limits=Limits(**settings["limits"]),
        listen=None if all(peers.values()) else "127.0.0.1:0",
    )
    try:
        _say({"listening": network.port})
        ports = _hear()["ports"]
        addresses = {peer: f"127.0.0.1:{ports[peer]}" if calls else None for peer, calls in peers.items()}
        stage = PartyContext(name=name, channels=dict(network.connect(addresses)), home=home)
        _say({"connected": True})
        module, _, function = place.partition(":")
        result = getattr(importlib.import_module(module), function)(stage, settings["arguments"])
    except TallystickError as error:
        reason = str(error) if isinstance(error, PeerError) else type(error).__name__  # a local error may name private values
        _say({"error": "; ".join([str(error), *getattr(error, "__notes__", [])]), "of_peer": isinstance(error, PeerError)})
        network.close(f"{name} had to stop: {reason}")
        return 1
    except Exception as error:
        _say({"error": f"failed unexpectedly\n{traceback.format_exc()[-SAID_CHARACTERS:]}", "of_peer": False})
        network.close(f"{name} failed unexpectedly ({type(error).__name__})")
        return 1
    except KeyboardInterrupt:
        network.close(f"{name} was interrupted")
        raise
    _say({"result": result})
    network.close()
    return 0


def _say(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _hear() -> dict[str, Any]:
    heard = sys.stdin.readline()
    if not heard:
        raise SystemExit("the starter has gone")
    line: dict[str, Any] = json.loads(heard)
    return line


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
