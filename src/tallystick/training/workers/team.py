"""Train a party's part in several processes: each batch's rows are shared out, and the results are combined.

The protocol, the loops and all code that uses a whole batch are unaware of this. The party's own process is the first worker and
the only one that talks to peers. A weight's gradients are added in the workers' order, so bits depend on their number and not on
which is ready first.

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
    """A context in which a module runs training batches by all workers of the plan. Its weights stay the module's own.

    Results without gradients, for validation and in use, are computed by the party's own process, as without workers.

    Threat model: none within the party itself. Processes of one machine belong to one user, and their shared memory has no name
    in the file system. For those of a cluster see ``Cluster``.

    Args:
        module: a feature party's bottom, or the label party's model.
        plan: plan of the training.
        engine: the cluster with the machines of the additional workers; None for this machine.

    Raises WorkerLost if a worker ends, ComputeError if the cluster cannot start them.
    """

    def __init__(self, module: nn.Module, plan: WorkerPlan, engine: RayEngine | None = None) -> None:
        self._module, self._plan, self._engine = module, plan, engine
        self._method = "finish" if isinstance(module, LabelModel) else "forward"
        self._begun = 0
        self._last = (0, 0)  # the batch of the last backward pass, and its rows
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
        for weight in self._module.parameters():  # back into this process's own memory
            weight.data, weight.grad = weight.data.clone(), None
        if (screened := screened_columns(self._module)) is not None and screened.gates is not None:
            screened.gates = screened.gates.clone()

    # Replacements of the module's own methods

    def _call(self, *given: Any) -> Tensor:
        *cuts, own = given
        cuts_BD: Sequence[Tensor] = cuts[0] if cuts else ()
        if not (torch.is_grad_enabled() and self._module.training):
            alone: Tensor = getattr(type(self._module), self._method)(self._module, *given)
            return alone
        anchor = torch.zeros((), requires_grad=True)  # so that autograd comes back here if no cut requires it
        output: Tensor = _Together.apply(self, own, anchor, *cuts_BD)  # type: ignore[no-untyped-call]
        return output

    def forward(self, own: Features, cuts_BD: Sequence[Tensor]) -> tuple[int, Tensor]:
        """Run a batch forward by all workers. Return its number and the output."""
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
        """Run a batch backward: leave the weights' gradients with the module, and return those of the cuts."""
        rows, memory = len(gradient), self._memory
        here, other_rows = self._parts(rows)
        memory["output gradient"][other_rows] = flat(gradient[other_rows])
        self._crew.tell("backward", number, rows)
        taught, cut_grads_PD = self._shard.take_back(number, rows, gradient[here].contiguous())
        self._crew.hear()
        self._last = number, rows
        for name, total in taught.items():
            for worker in range(1, min(self._plan.workers, rows)):  # with fewer rows than workers the last workers have none
                total += memory[f"gradient/{name}/{worker}"]
            self._shard.dense[name].grad = total
        return [torch.cat([grad_PD, memory[f"cut gradient/{place}"][other_rows]]) for place, grad_PD in enumerate(cut_grads_PD)]

    def _parts(self, rows: int) -> tuple[slice, slice]:
        """Return the rows of a batch for this process, the first ones, and those for all others."""
        here = self._plan.part(0, rows)
        return here, slice(here.stop, rows)

    # Replacements of the optimizer for tables

    def kept_of(self, table: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimizer's state of a table."""
        return self._shard.kept_of(self._name_of(table))

    def average_of(self, table: nn.Parameter) -> Tensor:
        """Return a table's average over the steps."""
        return self._memory[f"average/{self._name_of(table)}"]

    def make_gradients(self) -> None:
        """Store the gradients of the last batch with the tables."""
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
    """A module's pass by all workers, as seen by autograd."""

    @staticmethod
    def forward(ctx: Any, team: Team, own: Features, _anchor: Tensor, *cuts_BD: Tensor) -> Tensor:
        ctx.team = team
        ctx.number, output = team.forward(own, cuts_BD)
        return output

    @staticmethod
    def backward(ctx: Any, *gradient: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *ctx.team.backward(ctx.number, gradient[0])
