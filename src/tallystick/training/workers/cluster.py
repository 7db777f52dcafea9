"""Run a training's additional processes on the machines of the party's own Ray cluster, each with its own memory.

A worker receives what it reads with every batch: the weights, and its rows. Its results come back. So the cluster needs no table,
and the bits are those of as many workers on one machine, if its processors round in the same way.

Shapes: P rows of a worker's part of a batch.
"""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import msgspec
import numpy as np
from torch import Tensor

from tallystick.compute.ray_cluster import RayEngine
from tallystick.compute.ray_processes import RayProcesses, ray_processes
from tallystick.compute.task import TaskFunction
from tallystick.errors import ComputeError, WorkerLost
from tallystick.training.updates import Received
from tallystick.training.workers.own_machine import ANSWER_S
from tallystick.training.workers.plan import Layout, WorkerPlan
from tallystick.training.workers.shard import Shard

_PREPARE = "tallystick.training.workers.cluster:prepare_shard"


class Cluster:
    """The additional workers as processes of a Ray cluster, with the same interface as ``OwnMachine``.

    Threat model: the cluster's machines and network are the party's own. They see rows, weights, embeddings and gradients, and
    can run code here as the same user (``ray_cluster``). Ray encrypts nothing unless configured to.

    Args:
        plan: plan of the training.
        memory: the tensors of the plan's Layout in this process.
        engine: engine of the cluster, with as many threads per process as the plan says.
    """

    adding = 1

    def __init__(self, plan: WorkerPlan, memory: Mapping[str, Tensor], engine: RayEngine) -> None:
        self._plan, self._memory = plan, memory
        self._told: tuple[str, int, int] | None = None
        self._received = Received()
        self._stack = ExitStack()
        shared = [msgspec.json.encode((worker, plan.to_json())) for worker in range(1, plan.workers)]
        self._processes: RayProcesses = self._stack.enter_context(ray_processes(engine, _PREPARE, shared))

    def tell(self, what: str, number: int, rows: int) -> None:
        """Send the batch to all workers. Adding gradients and updating tables is done by this process."""
        if what in ("add", "update"):
            return
        self._told = what, number, rows
        line = msgspec.json.encode(self._told)
        forward = what == "forward"
        if forward:
            self._processes.share(_bytes([self._memory["weights"]]))
        for worker in range(1, self._plan.workers):
            rows_of = _bytes(_read(self._memory, self._plan, worker, *self._told))
            self._processes.ask(worker - 1, line, rows_of, shared=forward)

    def hear(self) -> None:
        """Receive the results of each worker. Raises WorkerLost if one is gone."""
        if self._told is None:
            return
        (what, _, rows), self._told = self._told, None

        def take(number: int, answer: bytes) -> None:
            tensors = _made(self._memory, self._plan, 1 + number, what, rows)
            _fill(tensors, answer)
            for tensor in tensors:
                self._received.note(self._plan.named(1 + number), tensor)

        answers = self._processes.answers(take, limit_s=ANSWER_S, late="it is stopped, or its machine hangs")
        for worker in range(1, self._plan.workers):
            try:
                next(answers)
            except ComputeError as error:
                raise WorkerLost(f"{self._plan.named(worker)} is lost: {error}") from None

    def end(self) -> None:
        """End the processes."""
        self._stack.close()

    def largest(self) -> str:
        """Return the largest number from each worker in this training, because its machine may be another's."""
        return str(self._received)


def prepare_shard(payload: bytes) -> TaskFunction:
    """Prepare a worker. It then runs batches forward and backward."""
    worker, text = msgspec.json.decode(payload, type=tuple[int, str])
    plan = WorkerPlan.from_json(text)
    module = plan.module().train()
    layout = Layout(plan, module)
    memory = layout.tensors(memoryview(bytearray(layout.size)))
    shard = Shard(module, plan, memory, worker=worker, adding=Cluster.adding)
    does = {"forward": shard.forward, "backward": shard.backward}

    def work(line: bytes = b"", rows_of: bytes = b"", weights: bytes = b"") -> bytes:
        if not line:
            return b""
        what, number, rows = work = msgspec.json.decode(line, type=tuple[str, int, int])
        if weights:
            _fill([memory["weights"]], weights)
        _fill(_read(memory, plan, worker, *work), rows_of)
        does[what](number, rows)
        return _bytes(_made(memory, plan, worker, what, rows))

    return work


def _read(memory: Mapping[str, Tensor], plan: WorkerPlan, worker: int, what: str, number: int, rows: int) -> list[Tensor]:
    """Return what a worker reads of a batch, in addition to the weights."""
    part, cuts = plan.part(worker, rows), range(len(plan.cut_widths or ()))
    if what == "forward":
        codes_GP = memory["codes"][number % plan.in_flight, :, part]
        return [memory["numeric"][part], codes_GP, *(memory[f"cut/{place}"][part] for place in cuts)]
    return [memory["output gradient"][part]]


def _made(memory: Mapping[str, Tensor], plan: WorkerPlan, worker: int, what: str, rows: int) -> list[Tensor]:
    """Return a worker's results for a batch."""
    part, cuts = plan.part(worker, rows), range(len(plan.cut_widths or ()))
    if what == "forward":
        return [memory["output"][part]]
    if part.start == part.stop:
        return []
    weights = [tensor for name, tensor in memory.items() if name.startswith("gradient/") and name.endswith(f"/{worker}")]
    return [*weights, *(memory[f"cut gradient/{place}"][part] for place in cuts), memory["embeddings' gradient"][part]]


def _bytes(tensors: Sequence[Tensor]) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in tensors)


def _fill(tensors: Sequence[Tensor], payload: bytes) -> None:
    if len(payload) != (size := sum(tensor.nbytes for tensor in tensors)):
        raise ValueError(f"{len(payload)} bytes for {size}")
    start = 0
    for tensor in tensors:
        into = tensor.numpy()
        into[...] = np.frombuffer(payload, into.dtype, into.size, start).reshape(into.shape)
        start += into.nbytes
