"""Tasks on a Ray cluster that is there already: this joins it, and never begins one.

Whoever reaches a Ray cluster's ports can run code on it, and whoever runs its machines sees what the tasks see. Ray unpickles
what a worker returns, in the process that joined the cluster: any of its machines can run code there, beside the party's TLS key,
table and sessions. The cluster has to be the party's own, in a network of its own; nothing here protects from its machines.
"""

import importlib.util
import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tallystick.compute.task import (
    ATTEMPTS,
    IDLE,
    Work,
    numbered,
    output_of,
    own_versions,
    perform,
)
from tallystick.errors import ComputeError, ConfigError
from tallystick.machine import size_in_words

ANSWER_S = 10.0
"""How long a cluster may take to answer."""
LOST_S = 120.0
"""How long a task waits for a machine while the cluster has none for it."""
HEAD_S = 20.0
"""How long a head may be away."""
LOOK_S = 2.0
_CLIENT = "ray://"

Ray: TypeAlias = Any  # the library, which is loaded where it is used


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Tasks of a Ray cluster; Ray does a task again, on another machine if need be, whose worker or machine died.

    Args:
        address: of the cluster: auto for the one that this machine belongs to; host:port of its head, on a machine that belongs
            to it; ray://host:port of its head, on one that does not.
        workers: tasks at a time.
        threads: that each computes with, and as many of the cluster's CPUs.
        resources: Ray's resources that each task needs besides, by name.
    """

    address: str = "auto"
    workers: int
    threads: int = 1
    resources: Mapping[str, float] = field(default_factory=dict)

    def map(self, work: Work, inputs: Iterable[bytes | None]) -> Iterator[tuple[int, bytes]]:
        """Give the number and the output of each input, as they are done; see ``Engine``."""
        with self.joined() as ray:
            self.require_room(ray, 1)
            shared = ray.put(work.shared)
            remote = self._remote(ray)

            def begun() -> Iterator[tuple[int, Any] | None]:
                for each in numbered(inputs):
                    if each is None:
                        yield None
                    else:
                        yield each[0], remote.remote(work.prepare, shared, each[1], self.threads, own_versions())

            yield from self._outputs(ray, begun())

    def check(self) -> str:
        """Run a task that does nothing on every machine; raises ComputeError for a cluster that cannot do the work."""
        with self.joined() as ray:
            self.require_room(ray, self.workers)
            machines = self._machines(ray)
            memory = int(ray.cluster_resources().get("memory", 0))
        each = max(machines)
        if self.workers * each > memory:
            raise ComputeError(
                f"compute: {self.workers} workers take {size_in_words(self.workers * each)} before any data, and the Ray cluster "
                f"has {size_in_words(memory)}; have at most {memory // each}"
            )
        return (
            f"the Ray cluster at {self.address} answers with {len(machines)} machine(s), each with the versions of this one; "
            f"a task takes {size_in_words(each)} before any data"
        )

    def _machines(self, ray: Ray) -> list[int]:
        """How many bytes a worker on each machine takes before any data."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        begun = []
        for node in _alive(ray):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            remote = self._remote(ray, num_cpus=0, resources={}, scheduling_strategy=there)
            begun.append(remote.remote(IDLE.prepare, IDLE.shared, b"", self.threads, own_versions()))
        return [int(output) for _, output in self._outputs(ray, enumerate(begun), at_once=len(begun))]

    def _remote(self, ray: Ray, **options: Any) -> Any:
        usual = {"num_cpus": self.threads, "resources": dict(self.resources), "max_retries": ATTEMPTS - 1}
        return ray.remote(**usual | options)(_perform_on_ray)

    def _outputs(
        self, ray: Ray, begun: Iterator[tuple[int, Any] | None], *, at_once: int | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """Have so many tasks at a time, and give their outputs as they come; what still runs at the end is ended."""
        waiting: dict[Any, int] = {}
        patience = Patience()
        try:
            while True:
                while len(waiting) < (at_once or self.workers) and (task := next(begun, None)) is not None:
                    waiting[task[1]] = task[0]
                if not waiting:
                    return
                done, _ = ray.wait(list(waiting), num_returns=1, timeout=LOOK_S)
                if not done:
                    self.look_after(ray, patience)
                for each in done:
                    number = waiting.pop(each)
                    machine = f"a machine of the Ray cluster at {self.address}"
                    yield number, output_of(_got(ray, each, number), number, machine=machine)
        finally:
            for each in waiting:
                with suppress(Exception):  # it may be over, or the cluster gone
                    ray.cancel(each, force=True)

    def look_after(self, ray: Ray, patience: "Patience") -> None:
        """Raise ComputeError where the cluster has had no head, or no machine for a task, for too long: Ray itself would end this
        process without a word of ours, or wait for ever.
        """
        if not patience.lasts("head", HEAD_S, ok=self.address.startswith(_CLIENT) or _listens(_head_of(ray))):
            raise ComputeError(self._lost("its head does not answer"))
        if "head" not in patience.since and not patience.lasts("machine", LOST_S, ok=self._room(ray) > 0):
            raise ComputeError(self._no_room(ray, self.workers))

    def _lost(self, why: str) -> str:
        return f"compute.address = {self.address}: the Ray cluster is lost: {why}; begin it again, and then this command"

    @contextmanager
    def joined(self) -> Iterator[Ray]:
        """Belong to the cluster within the block."""
        if importlib.util.find_spec("ray") is None:
            raise ConfigError("compute.engine = ray: Ray is not installed; run: pip install 'tallystick[ray]'")
        if self.address != "auto":
            _require_answer(self.address)
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before it is loaded: it tells nobody
        import ray

        try:
            with _signals_kept():
                ray.init(address=self.address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        except (Exception, SystemExit) as error:  # of many kinds: no cluster here, another version, no machine of it
            raise ComputeError(
                f"compute.address = {self.address}: Ray could not join: {in_a_line(error)}{_advice(error)}"
            ) from None
        try:
            yield ray
        except ConnectionError as error:
            raise ComputeError(self._lost(in_a_line(error).rstrip("."))) from None
        finally:
            with _signals_kept():
                ray.shutdown()

    def require_room(self, ray: Ray, number: int) -> None:
        """Raise ComputeError for a cluster that has no room for so many tasks at a time."""
        if self._room(ray) < number:
            raise ComputeError(self._no_room(ray, number))

    def _room(self, ray: Ray) -> int:
        """For how many tasks at a time the cluster has room."""
        needs = {"CPU": float(self.threads), **self.resources}
        return sum(
            int(min(node["Resources"].get(name, 0.0) / need for name, need in needs.items() if need)) for node in _alive(ray)
        )

    def _no_room(self, ray: Ray, number: int) -> str:
        needs = ", ".join(f"{name} {need:g}" for name, need in {"CPU": self.threads, **self.resources}.items())
        return (
            f"compute: {number} workers at a time are asked for; the Ray cluster at {self.address} has {len(_alive(ray))} "
            f"machine(s), with room for {self._room(ray)}, each with {needs}; begin more machines, or have fewer workers"
        )


class Patience:
    """Since when what a cluster needs has not been there."""

    def __init__(self) -> None:
        self.since: dict[str, float] = {}

    def lasts(self, what: str, limit_s: float, *, ok: bool) -> bool:
        """Note whether it is there; False once it has not been for that long."""
        if ok:
            self.since.pop(what, None)
            return True
        return time.monotonic() - self.since.setdefault(what, time.monotonic()) <= limit_s


def _head_of(ray: Ray) -> str:
    return str(ray.get_runtime_context().gcs_address)


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=LOOK_S).close()
    except OSError:
        return False
    return True


def _perform_on_ray(prepare: str, shared: bytes, given: bytes, threads: int, versions: str) -> bytes:
    """What Ray's workers run: names and bytes, as every engine's do."""
    return perform(Work(prepare=prepare, shared=shared), given, threads=threads, versions=versions)


def _got(ray: Ray, answer: Any, number: int) -> object:
    """Give what a task answered; raises ComputeError where Ray gave it up, or cannot read it."""
    try:
        return ray.get(answer)
    except Exception as error:  # Ray reads a pickle, which may raise anything
        raise ComputeError(f"task {number} was given up by Ray: {type(error).__name__}: {in_a_line(error)}") from None


def _alive(ray: Ray) -> list[dict[str, Any]]:
    return [node for node in ray.nodes() if node["Alive"]]


def _require_answer(address: str) -> None:
    """Raise ComputeError for an address at which nothing speaks Ray's protocol: Ray itself would try for minutes."""
    import grpc

    if os.environ.get("RAY_USE_TLS") == "1":
        return
    with grpc.insecure_channel(address.removeprefix(_CLIENT)) as channel:
        try:
            grpc.channel_ready_future(channel).result(timeout=ANSWER_S)
        except grpc.FutureTimeoutError:
            raise ComputeError(
                f"compute.address = {address}: no Ray cluster answered within {ANSWER_S:g} s; is its head up (ray status), and "
                "is this the port of its head (6379 for host:port, 10001 for ray://)?"
            ) from None


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray sets handlers of its own; Ctrl-C and SIGTERM stay this command's."""
    numbers = (signal.SIGINT, signal.SIGTERM) if threading.current_thread() is threading.main_thread() else ()
    before = {number: signal.getsignal(number) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _advice(error: BaseException) -> str:
    return "; install the same versions on all machines" if "ersion mismatch" in str(error) else ""


def in_a_line(error: BaseException) -> str:
    """What an error of Ray says, without colours and line ends."""
    return " ".join(re.sub("\x1b\\[[0-9;]*m", "", str(error)).split())[:400]
