"""Absent labels by the vote of neighbours. Shapes: B batch, D cut width, K draws, A absent rows, P present rows."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.errors import ConfigError
from tallystick.imputation.imputer import LabelBatch, LabelImputer


@dataclass(frozen=True, kw_only=True)
class NeighborLabels(LabelImputer):
    """Gives an absent label the vote of the nearest rows of the batch whose labels are real.

    FLORIST, section 3.1, label-neighbors: k = 3, cosine similarity of cut embeddings. No formal guarantee. Not
    protected: votes agree with the model more than real labels do, so imputed rows have small gradients, and with rare
    positives they look almost like majority's.

    Args:
        k: neighbours that vote, at least 1; with fewer real rows in the batch all vote, with none the commoner class wins.
    """

    name: ClassVar[str] = "neighbors"
    gives: ClassVar[str] = "the vote of the 3 nearest real rows of the batch, by cosine of cut embeddings"
    couples_rows: ClassVar[bool] = True

    k: int = 3

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"synthetic labels neighbors: k={self.k}; expected at least 1")

    @property
    def soft_targets(self) -> bool:
        """Return True: a tie gives one half."""
        return True

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None: the rate follows x."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the majority vote; a tie gives one half."""
        present_B = batch.present_B
        if not present_B.any():
            return batch.imputed(float(batch.positive_rate > 0.5))
        if present_B.all():
            return batch.labels_B
        unit_BD = normalize(batch.cut_BD, dim=1)
        similarity_AP = unit_BD[~present_B] @ unit_BD[present_B].T
        nearest_AK = similarity_AP.topk(min(self.k, similarity_AP.shape[1]), dim=1).indices
        share_A = batch.labels_B[present_B][nearest_AK].mean(dim=1)
        targets_B = batch.labels_B.clone()
        targets_B[~present_B] = (torch.sign(share_A - 0.5) + 1) / 2
        return targets_B
