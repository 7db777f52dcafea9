"""Run tasks on an existing Ray cluster: a process of this machine joins it, and never starts one.

Anyone who reaches a Ray cluster's ports can run code on it, and the operator of its machines sees what the tasks see. Ray
unpickles what a worker returns, so any of its machines can run code in the process that joined. Therefore that is a separate
process (``ray_driver``), which holds no key, session or table, and only forwards bytes. It runs as the same user, who may read
the party's files. So the cluster must be the party's own, in a network of its own.
"""

import importlib.util
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tallystick.compute.ray_driver import LEAVE_S
from tallystick.compute.ray_messages import (
    SLOWEST,
    Alive,
    GivenUp,
    JoinCluster,
    Joined,
    Lost,
    Machines,
    Measure,
    Reply,
    Request,
    Share,
    Task,
    TaskAnswer,
    Wait,
    receive,
    send,
)
from tallystick.compute.task import Output, Work, numbered, output_of, own_versions
from tallystick.errors import ComputeError, ConfigError, printable
from tallystick.machine import size_in_words

ANSWER_S = 10.0
"""Time limit for any answer of a cluster."""
JOIN_S = 60.0
"""Time limit for joining."""
LOST_S = 120.0
"""How long a task waits for a machine if the cluster has none for it."""
HEAD_S = 20.0
"""How long a head may be away."""
NO_PULSE_S = 120.0
"""How long a running task's worker may be silent. It gives a sign every few seconds, however long the task takes."""
SILENT_S = 60.0
"""How long the process that joined may be silent during a request, for example in a call that hangs."""
_DRIVER = "from tallystick.compute.ray_driver import main; main()"  # so that the code of Ray's workers has a module's name
_ENVIRONMENT = ("HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "NO_PROXY", "PATH", "TMPDIR", "TZ", "USER", "no_proxy")
_PREFIXES = ("GRPC_", "RAY_")


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Tasks of a Ray cluster. If a worker or machine dies, Ray does its task again, on another machine if necessary.

    Args:
        address: address of the cluster: auto if this machine belongs to one; host:port of its head, on a machine of the cluster;
            ray://host:port of its head, on any other machine.
        workers: how many tasks run at the same time.
        threads: how many threads each computes with, and how many of the cluster's CPUs it needs.
        resources: other resources of Ray that each task needs, by name.
    """

    address: str = "auto"
    workers: int
    threads: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)

    def map(self, work: Work, inputs: Iterable[bytes | None], read: Callable[[bytes], Output]) -> Iterator[tuple[int, Output]]:
        """Yield the number and the output of each input, as they are done. See ``Engine``."""
        due, waiting = numbered(inputs), set[int]()
        with self.joined(room=1) as cluster:
            cluster.tell(Share(), work.shared)
            while True:
                while len(waiting) < self.workers and (task := next(due, None)) is not None:
                    waiting.add(task[0])
                    cluster.tell(Task(number=task[0], prepare=work.prepare), task[1])
                if not waiting:
                    return
                reply, answer = cluster.answer(waiting)
                waiting.remove(reply.number)
                if isinstance(reply, GivenUp):
                    raise ComputeError(f"task {reply.number} was abandoned by Ray: {printable(f'{reply.kind}: {reply.words}')}")
                machine = f"a machine of the Ray cluster at {self.address}"
                yield reply.number, output_of(answer, reply.number, read=read, machine=machine)

    def check(self, loads: str) -> str:
        """Run a task that loads a module on every machine. Raises ComputeError if the cluster cannot do the work."""
        with self.joined(room=self.workers) as cluster:
            machines = cluster.machines(loads)
        each = max(machines.took)
        if self.workers * each > machines.memory:
            raise ComputeError(
                f"compute: {self.workers} workers take {size_in_words(self.workers * each)} before any data, and the Ray cluster "
                f"has {size_in_words(machines.memory)}; use at most {machines.memory // each}"
            )
        return (
            f"the Ray cluster at {self.address} answers with {len(machines.took)} machine(s), each with the versions of this "
            f"one; a task takes {size_in_words(each)} before any data; its machines see what tasks see, and can run code here as "
            "this user"
        )

    @contextmanager
    def joined(self, *, room: int) -> "Iterator[JoinedCluster]":
        """Join the cluster for the block. Raises ComputeError if it has no room for this many tasks."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("compute.engine = ray: Ray is not installed; run: pip install 'tallystick[ray]'")
        join = JoinCluster(
            address=self.address,
            threads=self.threads,
            resources=dict(self.resources),
            versions=own_versions(),
            room=room,
            answer_s=ANSWER_S,
            head_s=HEAD_S,
            lost_s=LOST_S,
            pulse_s=NO_PULSE_S,
        )
        cluster = JoinedCluster(self.address)
        try:
            cluster.join(join)
            yield cluster
        finally:
            cluster.end()


class JoinedCluster:
    """The process that joined a cluster, and this side of its pipe.

    Each method raises ComputeError if the cluster is lost, or if that process ends, is silent for too long, or sends an invalid
    message.
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._sent = 0
        """Bytes since its last message, which it needs time to forward."""
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        self._pipe, theirs = socket.socketpair()
        environment = {name: value for name, value in os.environ.items() if name in _ENVIRONMENT or name.startswith(_PREFIXES)}
        modules = os.pathsep.join(str(Path(each).absolute()) for each in sys.path if each)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", _DRIVER],
            stdin=theirs.fileno(),
            stdout=theirs.fileno(),
            stderr=self._said.fileno(),
            env=environment | {"PYTHONPATH": modules},
            start_new_session=True,  # so that Ctrl-C reaches only this process, which ends the other one
        )
        theirs.close()

    def join(self, join: JoinCluster) -> None:
        """Join the cluster. This is the first request."""
        self.tell(join)
        reply, _ = self._hear(JOIN_S, "did not join")
        if not isinstance(reply, Joined):
            raise self._no_message()

    def tell(self, request: Request, *blocks: bytes) -> None:
        """Send a request, whose answer may be awaited later."""
        try:
            send(self._pipe, request, *blocks, limit_s=SILENT_S)
        except TimeoutError:
            raise self._silent(SILENT_S, "took nothing") from None
        except EOFError:
            raise self._ended() from None
        except ValueError as error:
            raise ComputeError(f"compute.address = {self._address}: {error}") from None
        self._sent += sum(memoryview(block).nbytes for block in blocks)

    def answer(self, numbers: set[int], *, until: float | None = None) -> tuple[TaskAnswer | GivenUp, bytes]:
        """Return one answer of these tasks or processes. Raises TimeoutError if there is none by that time."""
        self.tell(Wait())
        reply, body = self._heard(until)
        if not isinstance(reply, TaskAnswer | GivenUp) or reply.number not in numbers:
            raise self._no_message()
        return reply, bytes(body)

    def machines(self, loads: str) -> Machines:
        """Return the memory of a task that loads a module, on each machine."""
        self.tell(Measure(loads=loads))
        reply, _ = self._heard(None)
        if not isinstance(reply, Machines) or not reply.took:
            raise self._no_message()
        return reply

    def end(self) -> None:
        """Leave the cluster, for which the process has a few seconds, and end the process."""
        self._pipe.close()
        try:
            self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._kill()
            self._said.close()

    def _heard(self, until: float | None) -> tuple[Reply, bytearray]:
        while True:
            reply, body = self._hear(SILENT_S, "said nothing")
            if not isinstance(reply, Alive):
                return reply, body
            if until is not None and time.monotonic() > until:
                raise TimeoutError

    def _hear(self, limit_s: float, what: str) -> tuple[Reply, bytearray]:
        limit_s += self._sent / SLOWEST
        try:
            reply, body = receive(self._pipe, Reply, limit_s=limit_s)
        except TimeoutError:
            raise self._silent(limit_s, what) from None
        except EOFError:
            raise self._ended() from None
        except ValueError:  # msgspec's errors are ValueErrors
            raise self._no_message() from None
        self._sent = 0
        if isinstance(reply, Lost):
            raise ComputeError(printable(reply.why))
        return reply, body

    def _silent(self, limit_s: float, what: str) -> ComputeError:
        self._kill()
        return ComputeError(
            f"compute.address = {self._address}: the process that belongs to the Ray cluster {what} for {limit_s:.0f} s, and was "
            "ended; the cluster's head may hang (ray status)"
        )

    def _ended(self) -> ComputeError:
        """Say how the process ended, with the last line of its output."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(LEAVE_S)
        self._kill()
        code = self._process.returncode
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with exit code {code}"
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - 2000))
        lines = self._said.read(2000).decode(errors="replace").strip().splitlines()
        last_words = f"; it said: {printable(lines[-1], most=400)}" if lines else ""
        return ComputeError(
            f"compute.address = {self._address}: the process that belongs to the Ray cluster ended {how}{last_words}"
        )

    def _no_message(self) -> ComputeError:
        self._kill()
        return ComputeError(
            f"compute.address = {self._address}: the process that belongs to the Ray cluster sent something that is not a "
            "message of tallystick: a machine of the cluster may run code there; check who can reach the cluster"
        )

    def _kill(self) -> None:
        """End the process and its children."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
