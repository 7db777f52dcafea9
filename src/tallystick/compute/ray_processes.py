"""Keep processes on a Ray cluster during work: unlike tasks, each keeps what it was prepared with.

If one dies, that is lost, so nothing is repeated automatically.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from tallystick.compute.ray_cluster import JoinedCluster, RayEngine
from tallystick.compute.ray_messages import Ask, GivenUp, Keep, Share, TaskAnswer
from tallystick.compute.task import Output, output_of
from tallystick.errors import ComputeError, printable

READY_S = 120.0
"""How long the cluster may take to start the processes."""
_HELD = "other work may hold its CPUs (ray status)"


class RayProcesses:
    """The processes, in the order of their numbers. Each gets a request, and then all answers are read.

    Args:
        engine: engine of the cluster.
        cluster: the joined cluster.
    """

    def __init__(self, engine: RayEngine, cluster: JoinedCluster) -> None:
        self._engine, self._cluster = engine, cluster
        self._asked: list[int] = []

    def share(self, block: bytes) -> None:
        """Give the cluster bytes that several processes get after their own blocks, so that they cross to each machine once."""
        self._cluster.tell(Share(), block)

    def ask(self, number: int, *blocks: bytes, shared: bool = False) -> None:
        """Send a request to a process that has answered the last one. ``shared`` adds the bytes that were shared last."""
        self._asked.append(number)
        self._cluster.tell(Ask(number=number, sizes=[len(block) for block in blocks], shared=shared), *blocks)

    def answers(self, read: Callable[[int, bytes], Output], *, limit_s: float, late: str) -> Iterator[Output]:
        """Yield the answer to each request, in order. ``read`` turns a number and bytes into the result.

        ``late`` says what a late answer may mean.

        Raises what a process raised, and ComputeError for a process that is gone, a lost cluster, or a late answer.
        """
        pending, self._asked = self._asked, []
        until = time.monotonic() + limit_s
        waiting, early = set(pending), dict[int, tuple[TaskAnswer | GivenUp, bytes]]()
        for number in pending:
            while number not in early:
                try:
                    reply, answer = self._cluster.answer(waiting, until=until)
                except TimeoutError:
                    raise ComputeError(
                        f"compute.address = {self._engine.address}: a process of the Ray cluster has not answered for "
                        f"{limit_s:g} s; {late}"
                    ) from None
                waiting.remove(reply.number)
                early[reply.number] = reply, answer
            reply, answer = early.pop(number)
            if isinstance(reply, GivenUp):
                kind = printable(reply.kind, most=100)
                raise ComputeError(f"Ray gave it up ({kind}); perhaps memory ran out, or its machine is gone")
            machine = f"worker {number} on the Ray cluster at {self._engine.address}"
            yield output_of(answer, number, read=partial(read, number), machine=machine)


@contextmanager
def ray_processes(engine: RayEngine, prepare: str, shared: Sequence[bytes]) -> Iterator[RayProcesses]:
    """Start a process for each of ``shared`` for this block, on as many machines as possible. See ``Work`` for ``prepare``.

    Raises ComputeError if the cluster has no room for them, or does not start them in time.
    """
    with engine.joined(room=len(shared)) as cluster:
        for number, each in enumerate(shared):
            cluster.tell(Keep(number=number, prepare=prepare), each)
        processes = RayProcesses(engine, cluster)
        for number in range(len(shared)):
            processes.ask(number)
        for _ in processes.answers(lambda _number, _output: None, limit_s=READY_S, late=_HELD):
            pass
        yield processes
