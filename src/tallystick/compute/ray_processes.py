"""Processes of a Ray cluster that stay while work goes on: unlike tasks, each keeps what it was made ready with.

One that dies takes that with it, so nothing is done again by itself.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tallystick.compute.ray_cluster import LOOK_S, Patience, Ray, RayEngine
from tallystick.compute.task import Work, output_of, own_versions, perform
from tallystick.errors import ComputeError

READY_S = 120.0
"""How long the cluster may take to begin the processes."""


class RayProcesses:
    """The processes, in the order of their numbers; each is asked, and then all answers are taken.

    Args:
        engine: of the cluster.
        ray: the library, which has joined it.
        actors: as Ray calls such processes.
    """

    def __init__(self, engine: RayEngine, ray: Ray, actors: Sequence[Any]) -> None:
        self._engine, self._ray, self._actors = engine, ray, actors
        self._asked: dict[int, Any] = {}

    def shared(self, block: bytes) -> Any:
        """Hand the cluster what several of them are given, so that it crosses to each machine once."""
        return self._ray.put(block)

    def ask(self, number: int, *blocks: Any) -> None:
        """Ask a process that has answered what it was asked before."""
        self._asked[number] = self._actors[number].do.remote(*blocks)

    def answers(self, *, limit_s: float | None = None) -> Iterator[bytes]:
        """Give the answer of each that was asked, in the order of asking.

        Raises what a process raised, and ComputeError for one that is gone, a cluster that is lost, or no answer in time.
        """
        asked, self._asked = self._asked, {}
        patience = Patience()
        for number, answer in asked.items():
            while not self._ray.wait([answer], timeout=LOOK_S)[0]:
                self._engine.look_after(self._ray, patience)
                if limit_s is not None and not patience.lasts("answer", limit_s, ok=False):
                    raise ComputeError(
                        f"compute.address = {self._engine.address}: the Ray cluster began no process within {limit_s:g} s; "
                        "other work may hold its CPUs (ray status)"
                    )
            try:
                output = self._ray.get(answer)
            except Exception as error:  # Ray reads a pickle, which may raise anything
                raise ComputeError(
                    f"Ray gave it up ({type(error).__name__}); perhaps memory ran out, or its machine is gone"
                ) from None
            yield output_of(output, number, machine=f"worker {number} on the Ray cluster at {self._engine.address}")


@contextmanager
def ray_processes(engine: RayEngine, prepare: str, shared: Sequence[bytes]) -> Iterator[RayProcesses]:
    """Within this block have a process for each of ``shared``, on as many machines as may be; see ``Work`` for ``prepare``.

    Raises ComputeError where the cluster has no room for them, or does not begin them in time.
    """
    with engine.joined() as ray:
        engine.require_room(ray, len(shared))
        kept = ray.remote(_Process).options(
            num_cpus=engine.threads, resources=dict(engine.resources), max_restarts=0, scheduling_strategy="SPREAD"
        )
        actors = [kept.remote(prepare, each, engine.threads, own_versions()) for each in shared]
        processes = RayProcesses(engine, ray, actors)
        for number in range(len(actors)):
            processes.ask(number)
        for _ in processes.answers(limit_s=READY_S):
            pass
        yield processes


class _Process:
    """What Ray keeps on one of its machines."""

    def __init__(self, prepare: str, shared: bytes, threads: int, versions: str) -> None:
        self._work, self._threads, self._versions = Work(prepare=prepare, shared=shared), threads, versions

    def do(self, *blocks: bytes) -> bytes:
        """Make ready, the first time, and answer."""
        return perform(self._work, *blocks, threads=self._threads, versions=self._versions)
