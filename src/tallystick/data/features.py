"""Features: a party's encoded columns, ready for a bottom model.

Shapes: N rows, B rows of a batch, F numeric columns, G categorical columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Numbers = Literal["plain", "piecewise-linear", "periodic"]
"""How a bottom model takes numeric columns: as they are, or with an embedding of each beside them."""


@dataclass(frozen=True, kw_only=True)
class FeatureShape:
    """What a model must know of a party's encoded columns: how many numeric, how many codes each categorical has.

    Args:
        numeric: F.
        cardinalities: codes of each categorical column.
        numbers: how the built-in bottom embeds the numeric columns.
        edges: of each numeric column the edges of its bins, ascending, in the units of the encoded numbers; none for one that
            stays a plain number. For ``periodic`` only whether there are any counts.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    numbers: Numbers = "plain"
    edges: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Features:
    """Encoded rows: standardised numbers and category codes."""

    numeric_NF: Tensor  # float32
    categorical_NG: Tensor  # int64, column g in [0, cardinalities[g])

    def __len__(self) -> int:
        return self.numeric_NF.shape[0]

    def rows(self, index_B: Tensor) -> "Features":
        """Pick rows, in the order of the index."""
        return Features(
            numeric_NF=self.numeric_NF.index_select(0, index_B), categorical_NG=self.categorical_NG.index_select(0, index_B)
        )

    def crossing(self, cuts_ND: Sequence[Tensor], index_B: Tensor) -> list[Tensor]:
        """Of the feature parties' cut embeddings that go with these rows, those that go with the picked ones."""
        return [cut_ND.index_select(0, index_B) for cut_ND in cuts_ND]

    def to(self, device: torch.device) -> "Features":
        """Move to a device."""
        return Features(numeric_NF=self.numeric_NF.to(device), categorical_NG=self.categorical_NG.to(device))
