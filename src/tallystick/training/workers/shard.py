"""Compute one worker's share of each batch, in the party's own process as in the others.

Weights are stored once, in memory that all workers share, and every worker reads them. A worker runs its rows forward and
backward, and writes its gradients next to those of the others. The gradient of an embedding table is not a sum over workers: one
of them computes it from the rows of the whole batch, in their order, so that it is never written more than once. The same worker
updates the table.

Shapes: B rows of a batch, P of this worker's part, O outputs, D cut width, F numeric columns, E width of a row's embeddings, W of
both.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor, nn

from tallystick.models.split import LabelModel
from tallystick.models.tabular import Columns, screened_columns
from tallystick.tables.features import Features
from tallystick.training.optimizers import kept_of_a_weight, optimizer_over
from tallystick.training.step import take_back
from tallystick.training.weight_stash import weights_kept
from tallystick.training.workers.plan import ALIGNED, GATES, WorkerPlan, columns_of, tables_and_others


@dataclass(kw_only=True)
class _InFlight:
    """A batch between its forward and its backward pass: the outputs, and the tensors that receive gradients."""

    output_PO: Tensor
    cuts_PD: list[Tensor]
    joined_PW: list[Tensor]  # numbers followed by embeddings; empty if the module has no table


class Shard:
    """A worker's module and its share of the work, in the shared memory.

    Args:
        module: from now on its weights are those in the memory.
        plan: plan of the training.
        memory: the tensors of the plan's Layout.
        worker: number of this worker, from 0.
        adding: how many workers, the first ones, compute the gradients of embedding tables and update these.
    """

    def __init__(self, module: nn.Module, plan: WorkerPlan, memory: Mapping[str, Tensor], *, worker: int, adding: int) -> None:
        self.module, self._plan, self._memory, self._worker = module, plan, memory, worker
        self._columns, self._settings = columns_of(module), plan.settings
        self._in_flight: dict[int, _InFlight] = {}
        self.tables, self.dense = tables_and_others(module)
        sizes = [table.numel() + plan.batch_rows * table.shape[1] for table in self.tables.values()]
        takes = shared_out(sizes, adding)
        self._taken = {name: place for place, name in enumerate(self.tables) if takes[place] == worker}
        self._added_up = 0  # the last batch whose gradients of tables are computed
        for name, weight in module.named_parameters():
            weight.data = memory[f"weight/{name}"]
        if (screened := screened_columns(module)) is not None:
            screened.gates = memory[GATES]
        self._optimizer = None
        if self._taken:
            self._optimizer = optimizer_over(self._settings, {1.0: [self.tables[name] for name in self._taken]})
            for name in self._taken:
                self._optimizer.kept[self.tables[name]] = self.kept_of(name)

    def forward(self, number: int, rows: int) -> None:
        """Run this worker's rows of a batch forward, from the memory into it. ``number`` names the batch later."""
        part, memory = self._plan.part(self._worker, rows), self._memory
        if part.start < part.stop:
            codes_GP = memory["codes"][number % self._plan.in_flight, :, part]
            own = Features(numeric_NF=memory["numeric"][part].clone(), categorical_NG=codes_GP.t())
            cuts_PD = [_aligned(memory[f"cut/{place}"][part]) for place in range(len(self._plan.cut_widths or ()))]
            memory["output"][part] = flat(self.take(number, own, cuts_PD))

    def take(self, number: int, own: Features, cuts_PD: Sequence[Tensor]) -> Tensor:
        """Run rows of a batch forward, and return the output separately."""
        leaves_PD = [cut_PD.detach().requires_grad_() for cut_PD in cuts_PD]
        with torch.enable_grad(), self._embedding() as joined_PW, weights_kept(self.module) if self._plan.late else nullcontext():
            # Not by attribute: if this is the party's own process, the loops' calls come here.
            kind = type(self.module)
            if isinstance(self.module, LabelModel):
                output_PO = kind.finish(self.module, leaves_PD, own)  # type: ignore[attr-defined]
            else:
                output_PO = kind.forward(self.module, own)
        self._in_flight[number] = _InFlight(output_PO=output_PO, cuts_PD=leaves_PD, joined_PW=joined_PW)
        output_detached: Tensor = output_PO.detach()
        return output_detached

    def backward(self, number: int, rows: int) -> None:
        """Propagate the output's gradient: to the own weights, next to those of other workers, to the cut and the embeddings."""
        part, memory = self._plan.part(self._worker, rows), self._memory
        if part.start == part.stop:
            return
        taught, cut_grads_PD = self.take_back(number, rows, _aligned(memory["output gradient"][part]))
        for name, gradient in taught.items():
            memory[f"gradient/{name}/{self._worker}"].copy_(gradient)
        for place, grad_PD in enumerate(cut_grads_PD):
            memory[f"cut gradient/{place}"][part] = grad_PD

    def take_back(self, number: int, rows: int, grad_PO: Tensor) -> tuple[dict[str, Tensor], list[Tensor]]:
        """Propagate a gradient. Return the gradients of weights by name, without tables, and those of the cuts.

        Those of the embeddings go into the memory, where the gradients of tables are computed from all workers'.
        """
        batch = self._in_flight.pop(number)
        with torch.enable_grad():  # the first worker runs this within another backward pass
            take_back(batch.output_PO, grad_PO)
        taught = {name: weight.grad for name, weight in self.dense.items() if weight.grad is not None}
        for name in taught:
            self.dense[name].grad = None
        for joined_PW in batch.joined_PW:
            assert joined_PW.grad is not None
            assert self._columns is not None
            self._memory["embeddings' gradient"][self._plan.part(self._worker, rows)] = joined_PW.grad[:, self._columns.numeric :]
        cut_grads_PD = [cut_PD.grad for cut_PD in batch.cuts_PD if cut_PD.grad is not None]
        assert len(cut_grads_PD) == len(batch.cuts_PD)
        return taught, cut_grads_PD

    def add_up(self, number: int, rows: int) -> None:
        """Compute the gradients of this worker's tables, after all workers' backward passes."""
        self._added_up = number
        codes_GB = self._memory["codes"][number % self._plan.in_flight, :, :rows]
        gradient_BE = self._memory["embeddings' gradient"][:rows]
        ends = list(accumulate((table.shape[1] for table in self.tables.values()), initial=0))
        for name, place in self._taken.items():
            part_BE = gradient_BE[:, ends[place] : ends[place + 1]]
            self._memory[f"gradient/{name}"].zero_().index_add_(0, codes_GB[place], part_BE)

    def update(self, number: int, rows: int) -> None:
        """Update this worker's tables, and their averages, by the rate and the decay in the memory."""
        if self._optimizer is None:
            return
        if self._added_up != number:
            self.add_up(number, rows)
        rate, decay = self._memory["rate and decay"].tolist()
        for name in self._taken:
            self.tables[name].grad = self._memory[f"gradient/{name}"]
        self._optimizer.step(rate)
        self._optimizer.zero_grad()
        if self._settings.ema:
            with torch.no_grad():
                averages = [self._memory[f"average/{name}"] for name in self._taken]
                torch._foreach_lerp_(averages, [self.tables[name] for name in self._taken], 1 - decay)

    def kept_of(self, name: str) -> dict[str, Tensor]:
        """Return the optimizer's state of a table, in the memory."""
        return {what: self._memory[f"kept/{name}/{what}"] for what in kept_of_a_weight(self._settings)}

    @contextmanager
    def _embedding(self) -> Iterator[list[Tensor]]:
        """Begin the graph within this block at numbers and rows of the tables, which are then in the list."""
        looked_up: list[Tensor] = []
        if self._columns is None:
            yield looked_up
            return

        def embed(columns: Columns, features: Features) -> Tensor:
            # Numbers are written next to the rows of the tables (P, F + E), each once: ``cat`` takes several times as long.
            tables, numeric_PF = [columns.table(place) for place in range(len(columns.embeddings))], features.numeric_NF
            ends = list(accumulate((table.shape[1] for table in tables), initial=columns.numeric))
            joined_PW = numeric_PF.new_empty(len(numeric_PF), ends[-1])
            joined_PW[:, : ends[0]] = numeric_PF
            with torch.no_grad():
                for place, table in enumerate(tables):
                    into_PE = joined_PW[:, ends[place] : ends[place + 1]]
                    torch.index_select(table, 0, features.categorical_NG[:, place], out=into_PE)
            looked_up.append(joined_PW.requires_grad_())
            return looked_up[-1]

        before, self._columns.embed = self._columns.embed, embed
        try:
            yield looked_up
        finally:
            self._columns.embed = before


def _aligned(part: Tensor) -> Tensor:
    """Return the part if it is aligned like every tensor of PyTorch, or else a copy, so that no bit depends on where
    it begins.
    """
    return part if part.data_ptr() % ALIGNED == 0 else part.clone()


def flat(output_PO: Tensor) -> Tensor:
    """Flatten an output, or its gradient, to one row each, as in the memory."""
    return output_PO.flatten(1) if output_PO.ndim > 1 else output_PO[:, None]


def shared_out(sizes: Sequence[int], workers: int) -> list[int]:
    """Assign pieces of work to workers: the largest first, each to the worker with the least work so far."""
    loads, worker_of = [0] * workers, [0] * len(sizes)
    for place in sorted(range(len(sizes)), key=lambda place: -sizes[place]):
        worker_of[place] = loads.index(min(loads))
        loads[worker_of[place]] += sizes[place]
    return worker_of
