"""A party's training in several processes: each batch's rows are shared out, and what they make of it is put together again.

The protocol, the loops and whatever looks at a whole batch know nothing of it. The party's own process is the first worker and
the only one that talks to peers. The sum of a weight's gradients is taken in the workers' order, so that bits depend on their
number and not on who is ready first.

Shapes: B rows of a batch, D cut width.
"""

import mmap
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from tallystick.compute.ray_cluster import RayEngine
from tallystick.errors import Diverged
from tallystick.models.split import LabelModel
from tallystick.models.tabular import screened_columns
from tallystick.tables.features import Features
from tallystick.training.workers.cluster import Cluster
from tallystick.training.workers.own_machine import OwnMachine
from tallystick.training.workers.plan import GATES, Layout, WorkerPlan, columns_of
from tallystick.training.workers.shard import Shard, flat


class Team:
    """Within this block a module takes training batches by all workers of the plan. Its weights are those it had, and has after.

    What it gives without gradients, for validation and in use, is computed by the party's own process, as without workers.

    Threat model: none beside the party's own. Processes of one machine are one user's, and what they share has no name in the
    file system. Those of a cluster: see ``Cluster``.

    Args:
        module: a feature party's bottom, or the label party's model.
        plan: of the training.
        engine: the cluster whose machines the further workers are on; None for this machine.

    Raises WorkerLost where a worker ends, ComputeError where the cluster cannot begin them.
    """

    def __init__(self, module: nn.Module, plan: WorkerPlan, engine: RayEngine | None = None) -> None:
        self._module, self._plan, self._engine = module, plan, engine
        self._method = "finish" if isinstance(module, LabelModel) else "forward"
        self._begun = 0
        self._last = (0, 0)  # the batch that went back last, and its rows
        self.tables: Sequence[nn.Parameter] = ()

    def __enter__(self) -> Self:
        layout = Layout(self._plan, self._module)
        file = os.memfd_create("tallystick-training")
        try:
            os.ftruncate(file, layout.size)
            self._memory = layout.tensors(memoryview(mmap.mmap(file, layout.size)))
            for name, weight in self._module.named_parameters():
                self._memory[f"weight/{name}"].copy_(weight.detach())
            if (screened := screened_columns(self._module)) is not None and screened.gates is not None:
                self._memory[GATES].copy_(screened.gates)
            self._crew = OwnMachine(self._plan, file) if self._engine is None else Cluster(self._plan, self._memory, self._engine)
        finally:
            os.close(file)
        self._shard = Shard(self._module, self._plan, self._memory, worker=0, adding=self._crew.adding)
        self._threads = torch.get_num_threads()
        torch.set_num_threads(self._plan.threads)
        setattr(self._module, self._method, self._call)
        if (columns := columns_of(self._module)) is not None:
            columns.updates, self.tables = self, tuple(self._shard.tables.values())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        delattr(self._module, self._method)
        if (columns := columns_of(self._module)) is not None:
            columns.updates = None
        torch.set_num_threads(self._threads)
        if isinstance(error, Diverged) and (largest := self._crew.largest()):
            error.args = (f"{error}; the largest number that this party's workers sent: {largest}",)
        self._crew.end()
        for weight in self._module.parameters():  # back into memory of this process's own
            weight.data, weight.grad = weight.data.clone(), None
        if (screened := screened_columns(self._module)) is not None and screened.gates is not None:
            screened.gates = screened.gates.clone()

    # What takes the place of the module's own method

    def _call(self, *given: Any) -> Tensor:
        *cuts, own = given
        cuts_BD: Sequence[Tensor] = cuts[0] if cuts else ()
        if not (torch.is_grad_enabled() and self._module.training):
            alone: Tensor = getattr(type(self._module), self._method)(self._module, *given)
            return alone
        anchor = torch.zeros((), requires_grad=True)  # so that autograd comes back, where no cut asks for it
        output: Tensor = _Together.apply(self, own, anchor, *cuts_BD)  # type: ignore[no-untyped-call]
        return output

    def forward(self, own: Features, cuts_BD: Sequence[Tensor]) -> tuple[int, Tensor]:
        """Take a batch forward by all workers, and return its number and the output."""
        self._begun += 1
        number, rows, memory = self._begun, len(own), self._memory
        here, other_rows = self._parts(rows)
        codes_GB = memory["codes"][number % self._plan.in_flight]
        memory["numeric"][other_rows] = own.numeric_NF[other_rows]
        codes_GB[:, other_rows] = own.categorical_NG[other_rows].t()
        for place, cut_BD in enumerate(cuts_BD):
            memory[f"cut/{place}"][other_rows] = cut_BD[other_rows].detach()
        self._crew.tell("forward", number, rows)
        codes_GB[:, here] = own.categorical_NG[here].t()
        own_here = Features(numeric_NF=own.numeric_NF[here], categorical_NG=codes_GB[:, here].t())
        output_PO = self._shard.take(number, own_here, [cut_BD[here] for cut_BD in cuts_BD])
        self._crew.hear()
        return number, torch.cat([output_PO, memory["output"][other_rows].view(-1, *output_PO.shape[1:])])

    def backward(self, number: int, gradient: Tensor) -> list[Tensor]:
        """Take a batch back: leaves the weights' gradients with the module, gives those of the cuts."""
        rows, memory = len(gradient), self._memory
        here, other_rows = self._parts(rows)
        memory["output gradient"][other_rows] = flat(gradient[other_rows])
        self._crew.tell("backward", number, rows)
        taught, cut_grads_PD = self._shard.take_back(number, rows, gradient[here].contiguous())
        self._crew.hear()
        self._last = number, rows
        for name, total in taught.items():
            for worker in range(1, min(self._plan.workers, rows)):  # fewer rows than workers leave the last ones without any
                total += memory[f"gradient/{name}/{worker}"]
            self._shard.dense[name].grad = total
        return [torch.cat([grad_PD, memory[f"cut gradient/{place}"][other_rows]]) for place, grad_PD in enumerate(cut_grads_PD)]

    def _parts(self, rows: int) -> tuple[slice, slice]:
        """Return the rows of a batch that this process takes, the first ones, and those of all others."""
        here = self._plan.part(0, rows)
        return here, slice(here.stop, rows)

    # What takes the place of the optimizer, for tables

    def kept_of(self, table: nn.Parameter) -> dict[str, Tensor]:
        """Return what the optimizer keeps of a table."""
        return self._shard.kept_of(self._name_of(table))

    def average_of(self, table: nn.Parameter) -> Tensor:
        """Return a table's average over the steps."""
        return self._memory[f"average/{self._name_of(table)}"]

    def make_gradients(self) -> None:
        """Leave the gradients of the last batch with the tables."""
        self._crew.tell("add", *self._last)
        self._shard.add_up(*self._last)
        self._crew.hear()
        for name, table in self._shard.tables.items():
            table.grad = self._memory[f"gradient/{name}"]

    @contextmanager
    def update(self, *, rate: float, decay: float) -> Iterator[None]:
        """Update each table by one of the workers, and all other weights by the block."""
        for table in self.tables:
            table.grad = None
        self._memory["rate and decay"].copy_(torch.tensor([rate, decay], dtype=torch.float64))
        self._crew.tell("update", *self._last)
        yield
        self._shard.update(*self._last)
        self._crew.hear()

    def _name_of(self, table: nn.Parameter) -> str:
        return next(name for name, its in self._shard.tables.items() if its is table)


class _Together(torch.autograd.Function):
    """A module's pass by all workers, as autograd sees it."""

    @staticmethod
    def forward(ctx: Any, team: Team, own: Features, _anchor: Tensor, *cuts_BD: Tensor) -> Tensor:
        ctx.team = team
        ctx.number, output = team.forward(own, cuts_BD)
        return output

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.team.backward(ctx.number, gradient[0])
