"""Plan a training that a party's processes share: the module, the sizes, and the place of each tensor in memory.

Shapes: B rows of a batch, F numeric columns, G columns of codes, D cut width, O outputs, W workers, E width of all embeddings.
"""

from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor, nn

from tallystick.config.sections import NetworkModel, TrainingConfig
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.models.tabular import Columns, screened_columns
from tallystick.msgspec_threads import prepared
from tallystick.tables.features import FeatureShape
from tallystick.training.optimizers import kept_of_a_weight

GATES = "weight/gates"
"""Which columns are open, if they may be closed. They are not weights, but are read with them."""
ALIGNED = 64
"""Tensors begin at multiples of this many bytes, because kernels may round differently elsewhere."""


@dataclass(frozen=True, kw_only=True)
class WorkerPlan:
    """A party's part of the network as in the contract, and how its workers share a batch.

    Args:
        network: the contract's model section, in JSON.
        training: the contract's training section, in JSON.
        party: name of the party.
        own: its columns; None for a label party without columns.
        cut_widths: cut widths of the feature parties, for the label party's model; None for a feature party's bottom.
        outputs: 1, or the number of classes or levels.
        batch_rows: most rows of a batch.
        in_flight: most batches that are embedded before the gradients of the first come back.
        workers: W, including this process.
        threads: number of threads of each.
        late: whether weights change between a batch's forward pass and its backward pass.
    """

    network: str
    training: str
    party: str
    own: FeatureShape | None
    cut_widths: tuple[int, ...] | None
    outputs: int = 1
    batch_rows: int
    in_flight: int = 1
    workers: int
    threads: int
    late: bool = False

    def to_json(self) -> str:
        """Write the plan for another process."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> "WorkerPlan":
        """Read what ``to_json`` wrote."""
        return msgspec.json.decode(text, type=prepared(cls))

    def module(self) -> nn.Module:
        """Build the module, with arbitrary weights."""
        model = NetworkModel.model_validate_json(self.network)
        if self.cut_widths is not None:
            return build_label_model(model, self.party, self.own, self.cut_widths, outputs=self.outputs, seed=0)
        assert self.own is not None, "a feature party has columns"
        return build_bottom(model, self.party, self.own, seed=0, cut_width=model.cut_width)

    def part(self, worker: int, rows: int) -> slice:
        """Return a worker's rows of a batch: as many as any other worker's, or one more.

        No worker has fewer rows because of other tasks: all wait for the last one at every pass, and work for one process alone
        is done in between.
        """
        each, more = divmod(rows, self.workers)
        start = worker * each + min(worker, more)
        return slice(start, start + each + (worker < more))

    @property
    def settings(self) -> TrainingConfig:
        """Return the contract's training section."""
        return TrainingConfig.model_validate_json(self.training)

    def named(self, worker: int) -> str:
        """Name a worker in words, for errors."""
        return f"worker {worker} of the {self.workers} that train for {self.party}"

    def output_width(self, module: nn.Module) -> int:
        """Return how many numbers the module returns per row in training."""
        model = NetworkModel.model_validate_json(self.network)
        return width_of(module) if self.cut_widths is None else self.outputs * model.ensemble


def columns_of(module: nn.Module) -> Columns | None:
    """Return the module's columns with embedding tables, or None if there are none."""
    columns_parts = [part for part in module.modules() if isinstance(part, Columns) and len(part.embeddings)]
    assert len(columns_parts) <= 1, "a party's part of the network has one bottom"
    return columns_parts[0] if columns_parts else None


def tables_and_others(module: nn.Module) -> tuple[dict[str, nn.Parameter], dict[str, nn.Parameter]]:
    """Return the weights by name: the embedding tables of its columns, in their order, and the others."""
    columns = columns_of(module)
    tables = [columns.table(place) for place in range(len(columns.embeddings))] if columns is not None else []
    names = {id(weight): name for name, weight in module.named_parameters()}
    table_weights = {names[id(table)]: table for table in tables}
    return table_weights, {name: weight for name, weight in module.named_parameters() if name not in table_weights}


class Layout:
    """Places of the tensors in the memory that the workers share. Plan and module determine them, in the same way in every
    process.
    """

    def __init__(self, plan: WorkerPlan, module: nn.Module) -> None:
        self.size = 0
        self._places: dict[str, tuple[int, tuple[int, ...], torch.dtype]] = {}
        tables, other_weights = tables_and_others(module)
        for name, weight in module.named_parameters():
            self._add(f"weight/{name}", tuple(weight.shape))
        screened = screened_columns(module)
        if screened is not None and screened.gates is not None:
            self._add(GATES, tuple(screened.gates.shape))
        weights = self.size // torch.float32.itemsize
        settings = plan.settings
        for name, table in tables.items():
            self._add(f"gradient/{name}", tuple(table.shape))
            for what, is_alike in kept_of_a_weight(settings).items():
                self._add(f"kept/{name}/{what}", tuple(table.shape) if is_alike else ())
            if settings.ema:
                self._add(f"average/{name}", tuple(table.shape))
        for name, weight in other_weights.items():
            for worker in range(plan.workers):
                self._add(f"gradient/{name}/{worker}", tuple(weight.shape))
        rows, own = plan.batch_rows, plan.own or FeatureShape(numeric=0, cardinalities=())
        self._add("numeric", (rows, own.numeric))
        self._add("codes", (plan.in_flight, len(own.codes), rows), torch.int64)
        for place, width in enumerate(plan.cut_widths or ()):
            self._add(f"cut/{place}", (rows, width))
            self._add(f"cut gradient/{place}", (rows, width))
        for what in ("output", "output gradient"):
            self._add(what, (rows, plan.output_width(module)))
        self._add("embeddings' gradient", (rows, sum(table.shape[1] for table in tables.values())))
        self._add("rate and decay", (2,), torch.float64)
        self._places["weights"] = 0, (weights,), torch.float32  # all of them as one piece

    def _add(self, name: str, shape: tuple[int, ...], kind: torch.dtype = torch.float32) -> None:
        self._places[name] = self.size, shape, kind
        self.size += -(-torch.Size(shape).numel() * kind.itemsize // ALIGNED) * ALIGNED

    def tensors(self, memory: memoryview) -> dict[str, Tensor]:
        """Return the tensors in this memory, of ``size`` bytes."""
        return {
            name: torch.frombuffer(memory, dtype=kind, count=torch.Size(shape).numel(), offset=start).view(shape)
            if torch.Size(shape).numel()
            else torch.empty(shape, dtype=kind)
            for name, (start, shape, kind) in self._places.items()
        }
