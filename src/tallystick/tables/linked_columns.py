"""Hold columns of rows that are linked to several candidate rows of each feature party.

Shapes: B batch, K candidates of a row, R distinct candidates of a batch, N positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.tables.features import Features


@dataclass(frozen=True, kw_only=True)
class CandidateLinks:
    """The candidates of one feature party for some rows: places among the candidates that cross, and similarities."""

    place_BK: Tensor
    """int64, in [0, R); -1 pads if fewer than K rows are linked."""
    similarity_BK: Tensor
    """float32; standardised, 0 at pads."""

    @property
    def present(self) -> Tensor:
        """Mark the candidates that are rows and not pads (B, K)."""
        return self.place_BK >= 0

    def gather(self, cut_RD: Tensor) -> Tensor:
        """Gather the candidates' cut embeddings (B, K, D), zeros at pads.

        The backward pass adds up the gradients of a row's links.
        """
        batch, candidates = self.place_BK.shape
        cut_BKD = cut_RD.index_select(0, self.place_BK.clamp(min=0).flatten()).view(batch, candidates, cut_RD.shape[1])
        return cut_BKD if bool(self.present.all()) else cut_BKD * self.present[:, :, None]

    def mean(self, values_RD: Tensor) -> Tensor:
        """Average over each row's candidates (B, D). A row without candidates gets zeros."""
        count_B = self.present.sum(dim=1).clamp(min=1)
        return self.gather(values_RD).sum(dim=1) / count_B[:, None]

    def rows(self, index_B: Tensor) -> "CandidateLinks":
        """Select the candidates of these rows, among the same R that cross."""
        return CandidateLinks(place_BK=self.place_BK[index_B], similarity_BK=self.similarity_BK[index_B])


@dataclass(frozen=True, kw_only=True)
class LinkedFeatures(Features):
    """A label party's columns, perhaps none, and the candidates of each feature party in the contract's order."""

    linked: tuple[CandidateLinks, ...]

    def rows(self, index_B: Tensor) -> "LinkedFeatures":
        """Pick rows. Their candidates keep their places among all rows that cross."""
        picked = super().rows(index_B)
        return LinkedFeatures(
            numeric_NF=picked.numeric_NF,
            categorical_NG=picked.categorical_NG,
            linked=tuple(linked.rows(index_B) for linked in self.linked),
        )

    def crossing(self, cuts_RD: Sequence[Tensor], index_B: Tensor) -> list[Tensor]:  # noqa: ARG002
        """Return all rows that cross, because the picked rows keep their places among these."""
        return list(cuts_RD)


def distinct_candidates(numbers_BK: Tensor, *, rows: int) -> tuple[Tensor, Tensor]:
    """Return a batch's distinct candidates in ascending order (R,), and the place of each of ``numbers_BK`` among them (B, K).

    Both sides know the numbers and draw the same batch, so they get the same R rows in the same order without a message. In a
    batch without candidates row 0 crosses, unused, because a message must not be empty.

    Args:
        numbers_BK: numbers of candidates in [0, rows), -1 at pads.
        rows: number of rows that may be candidates.
    """
    place_R = torch.full((rows + 1,), -1, dtype=torch.int64, device=numbers_BK.device)  # the last entry is for pads
    place_R[numbers_BK.flatten()] = 0
    place_R[rows] = -1
    numbers_R = (place_R == 0).nonzero().flatten()
    place_R[numbers_R] = torch.arange(len(numbers_R), device=numbers_BK.device)
    return (numbers_R if len(numbers_R) else numbers_BK.new_zeros(1)), place_R[numbers_BK]
