"""Join a Ray cluster on behalf of a party. This process is the only one that runs Ray.

Ray unpickles what a worker returns, so any machine of the cluster can run code here. Therefore this process is started
separately, with a few variables of the environment and no open file but its pipe: it holds no key, session or table, only the
tasks' inputs. It ends when the process that started it ends.
"""

import itertools
import logging
import os
import platform
import re
import select
import signal
import socket
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeAlias

from tallystick.compute.ray_messages import (
    Alive,
    Ask,
    GivenUp,
    JoinCluster,
    Joined,
    Keep,
    Lost,
    Machines,
    Measure,
    Request,
    Share,
    Task,
    TaskAnswer,
    Wait,
    receive,
    send,
)
from tallystick.compute.task import ATTEMPTS, Work, idle_work, output_of, perform
from tallystick.errors import ComputeError, printable

LOOK_S = 2.0
"""How often the cluster is checked while its answers are awaited."""
PULSE_S = 5.0
"""How often a task reports that its worker runs."""
LEAVE_S = 10.0
"""Time limit for leaving a cluster."""
CLIENT = "ray://"
_WORDS = 1000

Ray: TypeAlias = Any  # the library, which is loaded when it is used


def main() -> None:
    """Serve the process at the other end of standard input, until that end is closed."""
    connection = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(2, 1)  # so that output of libraries is not taken for messages
    threading.Thread(target=_end_with, args=(connection,), daemon=True).start()
    with suppress(EOFError):  # the other end is closed
        join, _ = receive(connection, JoinCluster)
        telling = partial(_failures_told, connection, join.address)
        with telling(), _Cluster(join).joined() as cluster, telling():  # before the cluster is left, which may take long
            cluster.require_room()
            send(connection, Joined())

            def alive() -> None:
                send(connection, Alive())

            while True:
                request, body = receive(connection, Request)
                match request:
                    case Share():
                        cluster.share(bytes(body))
                    case Task():
                        cluster.begin(request.number, request.prepare, bytes(body))
                    case Keep():
                        cluster.keep(request.number, request.prepare, bytes(body))
                    case Ask():
                        cluster.ask(request, memoryview(body))
                    case Measure():
                        send(connection, cluster.measured(request.loads, alive))
                    case Wait():
                        reply, answer = cluster.answered(alive)
                        send(connection, reply, answer)
                    case _:
                        raise ComputeError("the process that joined a Ray cluster was asked to join another")


@contextmanager
def _failures_told(connection: socket.socket, address: str) -> Iterator[None]:
    """Send errors in the block to the other side, as the last message. Then raise EOFError."""
    try:
        yield
    except EOFError:
        raise
    except ComputeError as error:
        why = _line(error)
    except ConnectionError as error:
        why = _lost(address, _line(error).rstrip("."))
    except Exception as error:  # Ray's errors have many types
        why = f"compute.address = {address}: Ray failed: {type(error).__name__}: {_line(error)}"
    else:
        return
    send(connection, Lost(why=why))
    raise EOFError


def _end_with(connection: socket.socket) -> None:
    """End this process soon after the one at the other end, even if a call of Ray never returns."""
    poll = select.poll()
    poll.register(connection, 0)  # a closed other end is always reported
    poll.poll()
    time.sleep(LEAVE_S)
    os.kill(os.getpid(), signal.SIGKILL)


class _Cluster:
    """A cluster that this process joined, and the requests to it."""

    def __init__(self, join: JoinCluster) -> None:
        self._join = join
        self._ray: Ray = None
        self._task: Any = None
        self._shared: Any = None
        self._actors: dict[int, Any] = {}
        self._waiting: dict[Any, int] = {}
        self._lacking: dict[str, float] = {}
        """Since when something necessary has been missing."""
        self._pulses = f"tallystick:{uuid.uuid4().hex}:"
        """Prefix of the names under which this process's tasks leave their pulses on the cluster's head."""
        self._last_pulses: dict[int, tuple[bytes, float]] = {}
        """The last pulse of each started task, and when it was first seen."""

    @contextmanager
    def joined(self) -> "Iterator[_Cluster]":
        """Join the cluster for the block. Work that still runs at its end is ended."""
        address = self._join.address
        if address != "auto" and not _answers(address, self._join.answer_s):  # Ray itself would try for minutes
            raise ComputeError(
                f"compute.address = {address}: no Ray cluster answered within {self._join.answer_s:g} s; is its head up "
                "(ray status), and is this the port of its head (6379 for host:port, 10001 for ray://)?"
            )
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before it is loaded, so that it reports nothing
        import ray

        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (Exception, SystemExit) as error:  # there are many types: no cluster here, another version, a machine outside it
            advice = "; install the same versions on all machines" if "ersion mismatch" in str(error) else ""
            raise ComputeError(f"compute.address = {address}: Ray could not join: {_line(error)}{advice}") from None
        self._ray = ray
        try:
            yield self
        finally:
            for each in self._waiting:
                with suppress(Exception):  # it may be finished, or the cluster may be gone
                    ray.cancel(each, force=True)
            ray.shutdown()

    def share(self, block: bytes) -> None:
        """Give the cluster bytes that several tasks share, so that they cross to each machine once."""
        self._shared = self._ray.put(block)

    def begin(self, number: int, prepare: str, payload: bytes) -> None:
        """Start a task. If its worker or machine dies, Ray does it again, on another machine if necessary."""
        self._task = self._task or self._remote()  # otherwise Ray sends the function to the head for each task
        task = self._task.remote(
            prepare, self._shared, payload, self._join.threads, self._join.versions, self._pulses + str(number), PULSE_S
        )
        self._waiting[task] = number

    def keep(self, number: int, prepare: str, shared: bytes) -> None:
        """Start a process that stays, spread over the machines. It is not restarted."""
        holder = self._ray.remote(_Process).options(
            num_cpus=self._join.threads, resources=self._join.resources, max_restarts=0, scheduling_strategy="SPREAD"
        )
        self._actors[number] = holder.remote(prepare, shared, self._join.threads, self._join.versions)

    def ask(self, request: Ask, body: memoryview) -> None:
        """Send a request to a process that stays."""
        blocks, start = [], 0
        for size in request.sizes:
            blocks.append(bytes(body[start : start + size]))
            start += size
        shared = [self._shared] if request.shared else []
        self._waiting[self._actors[request.number].do.remote(*blocks, *shared)] = request.number

    def answered(self, alive: Any) -> tuple[TaskAnswer | GivenUp, bytes]:
        """Wait for the next answer, and check the cluster meanwhile. ``alive`` is called from time to time."""
        while not (done := self._ray.wait(list(self._waiting), num_returns=1, timeout=LOOK_S)[0]):
            # Ray itself would end this process without our message, or wait forever
            address = self._join.address
            head = address if address.startswith(CLIENT) else str(self._ray.get_runtime_context().gcs_address)
            if not self._lasts("head", self._join.head_s, ok=_answers(head, LOOK_S)):
                raise ComputeError(_lost(address, "its head does not answer"))
            if "head" not in self._lacking and not self._lasts("machine", self._join.lost_s, ok=self._room() > 0):
                raise ComputeError(self._no_room())
            if "head" not in self._lacking:  # only the head knows pulses, and a request to a head that hangs waits forever
                self._feel_pulses()
            alive()
        number = self._waiting.pop(done[0])
        if self._last_pulses.pop(number, None) is not None:
            with suppress(Exception):  # the head may be gone, which does not matter for an answer that is here
                _key_values()._internal_kv_del(self._pulses + str(number))
        try:
            answer = self._ray.get(done[0])
        except Exception as error:  # Ray reads a pickle, which may raise anything
            return GivenUp(number=number, kind=printable(type(error).__name__, most=_WORDS), words=_line(error)), b""
        return TaskAnswer(number=number), answer if isinstance(answer, bytes) else b""  # which is not a valid answer of a task

    def measured(self, loads: str, alive: Any) -> Machines:
        """Run a task that loads a module on every machine."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        idle = idle_work(loads)
        for place, node in enumerate(_alive(self._ray)):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = self._remote(num_cpus=0, resources={}, scheduling_strategy=there)
            task = remote.remote(
                idle.prepare, idle.shared, b"", self._join.threads, self._join.versions, f"{self._pulses}{place}", PULSE_S
            )
            self._waiting[task] = place
        took = []
        while self._waiting:
            reply, answer = self.answered(alive)
            if isinstance(reply, GivenUp):
                raise ComputeError(f"compute.address = {self._join.address}: a machine gave up: {reply.kind}: {reply.words}")
            took.append(
                output_of(answer, reply.number, read=int, machine=f"a machine of the Ray cluster at {self._join.address}")
            )
        return Machines(took=took, memory=int(self._ray.cluster_resources().get("memory", 0)))

    def _remote(self, **options: Any) -> Any:
        usual = {"num_cpus": self._join.threads, "resources": self._join.resources, "max_retries": ATTEMPTS - 1}
        return self._ray.remote(**usual | options)(_perform_on_ray)

    def _feel_pulses(self) -> None:
        """Raise ComputeError for a task whose worker exists and hangs: Ray waits for a stopped worker forever.

        A task without a pulse has not started. If its machine is gone, Ray starts the task again, which may take time.
        """
        machines = {node["NodeID"] for node in _alive(self._ray)}
        for number in self._waiting.values():
            pulse = _key_values()._internal_kv_get(self._pulses + str(number))
            last, since = self._last_pulses.get(number, (None, 0.0))
            if pulse is None:
                continue
            _, machine, where = [*pulse.decode(errors="replace").split(" ", 2), "", ""][:3]
            if pulse != last or (where and machine not in machines):
                self._last_pulses[number] = pulse, time.monotonic()
            elif (silent_s := time.monotonic() - since) > self._join.pulse_s:
                worker = f"the worker of task {number} on {printable(where, most=100) or 'a machine'}"
                raise ComputeError(
                    f"compute.address = {self._join.address}: {worker} has not answered for {silent_s:.0f} s; it may be "
                    "stopped, or its machine may hang: end it there, and begin again"
                )

    def _lasts(self, what: str, limit_s: float, *, ok: bool) -> bool:
        """Tell whether something is there, or was there a short time ago."""
        if ok:
            self._lacking.pop(what, None)
            return True
        return time.monotonic() - self._lacking.setdefault(what, time.monotonic()) <= limit_s

    def require_room(self) -> None:
        """Raise ComputeError if the cluster has no room for the requested number of tasks at the same time."""
        if self._room() < self._join.room:
            raise ComputeError(self._no_room())

    def _room(self) -> int:
        """Return how many tasks at the same time the cluster has room for."""
        needs = {"CPU": float(self._join.threads), **self._join.resources}
        return sum(
            int(min(node["Resources"].get(name, 0.0) / need for name, need in needs.items() if need))
            for node in _alive(self._ray)
        )

    def _no_room(self) -> str:
        needs = ", ".join(f"{name} {need:g}" for name, need in {"CPU": self._join.threads, **self._join.resources}.items())
        return (
            f"compute: {self._join.room} workers at a time are asked for; the Ray cluster at {self._join.address} has "
            f"{len(_alive(self._ray))} machine(s), with room for {self._room()}, each with {needs}; start more machines, or "
            "use fewer workers"
        )


def _perform_on_ray(
    prepare: str, shared: bytes, payload: bytes, threads: int, versions: str, pulse: str, pulse_s: float
) -> bytes:
    """Run a task on Ray's workers, with names and bytes as on every engine.

    Meanwhile a thread writes a new pulse under that name every ``pulse_s`` seconds: a count, Ray's id of this machine, its name
    and the process.
    """
    import ray

    machine, over = f"{ray.get_runtime_context().get_node_id()} {platform.node()},process={os.getpid()}", threading.Event()

    def beat() -> None:
        for count in itertools.count():
            with suppress(Exception):  # the head may be away for a while
                _key_values()._internal_kv_put(pulse, f"{count}.{os.getpid()} {machine}".encode(), overwrite=True)
            if over.wait(pulse_s):
                return

    threading.Thread(target=beat, daemon=True).start()
    try:
        return perform(Work(prepare=prepare, shared=shared), payload, threads=threads, versions=versions)
    finally:
        over.set()


def _key_values() -> Any:
    """Return Ray's module for the head's key-value store of bytes. Nothing is pickled."""
    from ray.experimental import internal_kv

    return internal_kv


class _Process:
    """Work that Ray keeps on one of its machines."""

    def __init__(self, prepare: str, shared: bytes, threads: int, versions: str) -> None:
        self._work, self._threads, self._versions = Work(prepare=prepare, shared=shared), threads, versions

    def do(self, *blocks: bytes) -> bytes:
        """Prepare the work, the first time, and answer."""
        return perform(self._work, *blocks, threads=self._threads, versions=self._versions)


def _alive(ray: Ray) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _answers(address: str, limit_s: float) -> bool:
    """Tell whether something speaks Ray's protocol there. If Ray uses TLS, tell whether something accepts connections."""
    where = address.removeprefix(CLIENT)
    if os.environ.get("RAY_USE_TLS") == "1":
        host, _, port = where.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=limit_s).close()
        except OSError:
            return False
        return True
    import grpc

    with grpc.insecure_channel(where, options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=limit_s)
        except grpc.FutureTimeoutError:
            return False
    return True


def _lost(address: str, why: str) -> str:
    return f"compute.address = {address}: the Ray cluster is lost: {why}; start it again, and then this command"


def _line(error: BaseException) -> str:
    """Return an error's text without colours and line ends."""
    return printable(" ".join(re.sub("\x1b\\[[0-9;]*m", "", str(error)).split()), most=_WORDS)
