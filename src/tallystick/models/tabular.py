"""Build the papers' model for tables: embeddings for categoricals, an MLP, cut after a given layer.

Shapes: B batch, F numeric columns, G categorical columns, E embedding width, D cut width.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Literal, Protocol

import torch
from torch import Tensor, nn

from tallystick.models.normalization import BatchNorm, through
from tallystick.models.numbers import embed_numbers
from tallystick.models.sequences import SequencePooling
from tallystick.tables.features import Features, FeatureShape

WIDEST = 16
"""Largest width of a categorical's embedding if the contract leaves its width open (docs/results/quality.md)."""
SMALL, LARGE, FREQUENT = 0.1, 0.3, 200
"""Scales of embeddings at the start if the contract leaves them open: LARGE if a category has FREQUENT training rows
on average.
"""


class TableUpdates(Protocol):
    """Code that computes the gradients and updates of a module's embedding tables in place of the party's optimizer."""

    tables: Sequence[nn.Parameter]

    def kept_of(self, table: nn.Parameter) -> dict[str, Tensor]:
        """Return the optimizer's state for a table."""
        ...

    def average_of(self, table: nn.Parameter) -> Tensor:
        """Return a table's average over the steps."""
        ...

    def make_gradients(self) -> None:
        """Store the gradients of the last batch with the tables."""
        ...

    def update(self, *, rate: float, decay: float) -> AbstractContextManager[None]:
        """Update the tables and their averages, while the block updates all other weights."""
        ...


class EmbeddingTable(nn.Embedding):
    """An embedding table. On a CPU it uses index_select, whose gradient has the same bits in a fifth of the time."""

    def forward(self, codes_B: Tensor) -> Tensor:
        """Return the rows (B, E) of these codes."""
        return super().forward(codes_B) if codes_B.is_cuda else self.weight.index_select(0, codes_B)


class Columns(nn.Module):
    """Numeric columns followed by the embeddings of the categorical ones, (B, F + G E), and of the numbers, if any.

    It contains no layers.

    Pooled sequences come last.
    """

    def __init__(
        self, shape: FeatureShape, *, embedding_width: int | Literal["auto"], embedding_scale: float | Literal["auto"] = 1.0
    ) -> None:
        super().__init__()
        built_for = embedding_widths(shape.tables_built_for, embedding_width)
        widths, of_sequences = built_for[: len(shape.cardinalities)], built_for[len(shape.cardinalities) :]
        self.embeddings = nn.ModuleList(
            EmbeddingTable(size, width) for size, width in zip(shape.cardinalities, widths, strict=True)
        )
        for place, size in enumerate(shape.cardinalities):
            self.table(place).data.mul_(starting_scale(embedding_scale, rows=shape.rows / size))
        self.numeric = shape.numeric
        self.width = shape.numeric + sum(widths)
        self.numbers = embed_numbers(shape)
        self.width += self.numbers.width if self.numbers is not None else 0
        tables = (EmbeddingTable(each.codes, width) for each, width in zip(shape.sequences, of_sequences, strict=True))
        self.sequences = nn.ModuleList(SequencePooling(table, each) for table, each in zip(tables, shape.sequences, strict=True))
        self.codes = [len(widths), *(each.columns for each in shape.sequences)]  # columns of codes: categories, then sequences
        for pooling in self.sequences:
            assert isinstance(pooling, SequencePooling)
            pooling.table.weight.data.mul_(starting_scale(embedding_scale, rows=0))
            self.width += pooling.width
        # A column's 1 becomes 0 when it is closed. Only modules that may be screened have gates: they are kept with the weights.
        self.gates: Tensor | None
        self.register_buffer("gates", torch.ones(shape.numeric + len(shape.cardinalities)) if shape.screened else None)
        self._column_of: Tensor | None
        column_of = None
        if shape.screened:  # the column of each number that ``forward`` returns, without sequences
            columns = list(range(self.numeric))
            columns += [self.numeric + place for place, width in enumerate(widths) for _ in range(width)]
            if self.numbers is not None:
                width_of_one = self.numbers.width // len(self.numbers.places)
                columns += [place for place in self.numbers.places for _ in range(width_of_one)]
            column_of = torch.tensor(columns)
        self.register_buffer("_column_of", column_of, persistent=False)
        self.embed: Callable[[Columns, Features], Tensor] = one_by_one  # see training/parallel_embedding.py
        self.updates: TableUpdates | None = None  # see training/workers/team.py

    def table(self, place: int) -> nn.Parameter:
        """Return the weights of the categorical column at this place."""
        return self.embeddings[place].get_parameter("weight")

    def forward(self, features: Features) -> Tensor:
        """Concatenate the columns' values: plain numbers, embeddings of categories, those of numbers, pooled sequences."""
        parts = [self.embed(self, features)]
        if self.numbers is not None:
            parts.append(self.numbers(features.numeric_NF))
        if self.gates is not None and self._column_of is not None:
            joined_BW = torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]
            parts = [joined_BW * self.gates.index_select(0, self._column_of)]
        if self.sequences:
            _, *codes = torch.split(features.categorical_NG, self.codes, dim=1)
            parts += [pooling(codes_BL) for pooling, codes_BL in zip(self.sequences, codes, strict=True)]
        return torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]


def screened_columns(module: nn.Module) -> Columns | None:
    """Return the module's columns if they may be closed, else None."""
    return next((part for part in module.modules() if isinstance(part, Columns) and part.gates is not None), None)


def embedding_widths(cardinalities: Sequence[int], setting: int | Literal["auto"]) -> list[int]:
    """Return the width of each categorical's embedding. ``auto`` is its number of codes, as for one-hot, but at most WIDEST."""
    return [min(size, WIDEST) if setting == "auto" else setting for size in cardinalities]


def starting_scale(setting: float | Literal["auto"], *, rows: float) -> float:
    """Return the standard deviation of a categorical's embedding at the start, for the mean number of training rows per code."""
    if setting != "auto":
        return setting
    return LARGE if rows >= FREQUENT else SMALL


def one_by_one(columns: Columns, features: Features) -> Tensor:
    """Look up numbers and rows of the tables as PyTorch does."""
    embedded = [table(features.categorical_NG[:, g]) for g, table in enumerate(columns.embeddings)]
    return torch.cat([features.numeric_NF, *embedded], dim=1) if embedded else features.numeric_NF


class TabularBottom(nn.Module):
    """Embeddings and the layers below the cut, each Linear and ReLU, with normalisation between them if asked for.

    It returns the cut embedding.
    """

    def __init__(
        self,
        shape: FeatureShape,
        *,
        embedding_width: int | Literal["auto"],
        hidden: Sequence[int],
        embedding_scale: float | Literal["auto"] = 1.0,
        normalized: bool = False,
    ) -> None:
        super().__init__()
        self.columns = Columns(shape, embedding_width=embedding_width, embedding_scale=embedding_scale)
        self.layers = mlp(self.columns.width, hidden, normalized=normalized)
        self.width = hidden[-1] if hidden else self.columns.width

    def forward(self, features: Features, norms: nn.ModuleList | None = None) -> Tensor:
        """Embed a batch: (B, D), by another branch's ``norms`` if given."""
        if norms is not None:
            return through(self.layers, self.columns(features), norms)
        cut_BD: Tensor = self.layers(self.columns(features))
        return cut_BD


class ReopeningReLU(nn.ReLU):
    """A ReLU with the same output bits, whose closed units also receive a gradient that would open them.

    Before rounding, a unit with few levels is the same in every row until it crosses a level. Until the top model has learnt the
    frequency of a class, all rows push the unit in the same direction. A unit that this closes for every row would stay closed
    with a plain ReLU.
    """

    def forward(self, values_BD: Tensor) -> Tensor:
        """Return positive values as they are, and 0 for all others."""
        if not values_BD.requires_grad:
            return super().forward(values_BD)
        open_BD: Tensor = _Reopening.apply(values_BD)  # type: ignore[no-untyped-call]
        return open_BD


class _Reopening(torch.autograd.Function):
    """A function that passes a gradient into open units, and into closed units that a step against it would raise."""

    @staticmethod
    def forward(ctx: Any, values_BD: Tensor) -> Tensor:
        ctx.save_for_backward(values_BD)
        return values_BD.relu()

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> Tensor:
        (values_BD,) = ctx.saved_tensors
        return torch.where((values_BD > 0) | (grad[0] < 0), grad[0], 0)


def reopening(bottom: nn.Module) -> None:
    """Let units of a built-in bottom's last layer open again (``ReopeningReLU``). Other modules do not change."""
    for part in bottom.modules():
        if isinstance(part, TabularBottom) and len(part.layers):
            part.layers[-1] = ReopeningReLU()


class TabularTop(nn.Module):
    """The layers above the cut and a linear output."""

    def __init__(self, width: int, *, hidden: Sequence[int], outputs: int) -> None:
        super().__init__()
        self.layers = mlp(width, hidden)
        self.output = nn.Linear(hidden[-1] if hidden else width, outputs)

    def forward(self, joined_BD: Tensor) -> Tensor:
        """Compute the logits (B, outputs) of the concatenated cut embeddings."""
        logits: Tensor = self.output(self.layers(joined_BD))
        return logits


class Wide(nn.Module):
    """The wide half of wide-and-deep: each own column reaches the logit linearly.

    It exists only for the label party's columns and never crosses the wire: a feature party's wide logit would carry p - y in its
    gradient, which is the label (see the facts on FLORIST).
    """

    def __init__(self, shape: FeatureShape, *, outputs: int) -> None:
        super().__init__()
        self.numeric = nn.Linear(shape.numeric, outputs, bias=False) if shape.numeric else None
        self.categorical = nn.ModuleList(EmbeddingTable(size, outputs) for size in shape.cardinalities)
        for table in self.categorical:
            assert isinstance(table, EmbeddingTable)
            nn.init.zeros_(table.weight)

    def forward(self, features: Features) -> Tensor:
        """Compute the linear part of the logits (B, outputs)."""
        parts = [table(features.categorical_NG[:, g]) for g, table in enumerate(self.categorical)]
        if self.numeric is not None:
            parts.append(self.numeric(features.numeric_NF))
        total: Tensor = torch.stack(parts).sum(dim=0)
        return total


def mlp(width: int, hidden: Sequence[int], *, normalized: bool = False) -> nn.Sequential:
    """Build a linear layer and ReLU for each given width, with batch normalisation between them if asked for."""
    layers: list[nn.Module] = []
    for before, after in zip([width, *hidden[:-1]], hidden, strict=True) if hidden else ():
        layers += [nn.Linear(before, after), *([BatchNorm(after)] if normalized else []), nn.ReLU()]
    return nn.Sequential(*layers)
