"""Implement fedcvt: attention over aligned rows gives the missing embedding. Shapes: B batch, D cut width, W own width, A kept
rows.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tallystick.models.branches import BranchedModel, Synthesizing
from tallystick.models.build import BranchParts, width_of
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import LocalBatches

KEPT = 1024  # greatest number of aligned rows for the attention
SHARED_WEIGHT, ORTHOGONAL_WEIGHT = 0.1, 0.01  # FedCVT's


class AlignedRows(nn.Module):
    """The latest joint batch: own embeddings as keys, cut embeddings as values, and a top on the values alone."""

    def __init__(self, rows: int, own_width: int, cut_width: int, feature_top: nn.Module) -> None:
        super().__init__()
        self.feature_top = feature_top
        self.register_buffer("key_AW", torch.zeros(rows, own_width))
        self.register_buffer("value_AD", torch.zeros(rows, cut_width))
        self.register_buffer("filled", torch.ones((), dtype=torch.int64))

    key_AW: Tensor
    value_AD: Tensor
    filled: Tensor

    def keep(self, key_BW: Tensor, value_BD: Tensor) -> None:
        """Store these rows, as many as there is room for."""
        rows = min(len(key_BW), len(self.key_AW))
        self.key_AW[:rows], self.value_AD[:rows] = key_BW.detach()[:rows], value_BD.detach()[:rows]
        self.filled.fill_(rows)

    def forward(self, query_BW: Tensor) -> Tensor:
        """Compute softmax(Q K' / sqrt(W)) V."""
        key_AW, value_AD = self.key_AW[: int(self.filled)], self.value_AD[: int(self.filled)]
        weights_BA = torch.softmax(query_BW @ key_AW.T / math.sqrt(query_BW.shape[1]), dim=1)
        return weights_BA @ value_AD


@dataclass(frozen=True, kw_only=True)
class FedCVT(LocalBatches):
    """FedCVT as in FedAds: attention over aligned rows makes embeddings up, and three classifiers train together.

    Kang et al. 2022. The first half of each embedding is common to both parties, the rest unique: common halves are made similar
    (.1), common and unique ones orthogonal (.01). Unaligned rows have labels here, so no pseudo-labels are needed. Attention is
    over the latest joint batch (FedAds, footnote 3, also drops candidates at random).

    Threat model: honest-but-curious parties. In addition to the loss's gradient, the gradients of the common halves' distance and
    of a classifier on cut embeddings alone cross. No formal guarantee. Not protected: the latter's gradient is collinear if its
    top is linear, so it reveals labels as plainly as possible.
    """

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates: parts that local batches train have their rate."""
        return {"bottom": self.local_rate, "local_top": self.local_rate}

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build one bottom, and tops on both embeddings, on the own and on the cut's."""
        joint = parts.joint()
        width = width_of(joint.bottom)
        rows = AlignedRows(KEPT, width, parts.cut_width, parts.top(parts.cut_width, "feature-top"))
        return Synthesizing(joint, parts.top(width, "local-top"), parts.top(parts.cut_width + width, "synthetic-top"), rows)

    def joint_loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Add three classifiers' losses, and the terms for common and unique halves."""
        assert isinstance(model, Synthesizing)
        assert isinstance(model.generator, AlignedRows)
        (cut_BD,) = cuts_BD
        embedded_BW = model.embedded(own)
        model.generator.keep(embedded_BW, cut_BD)
        joint, targets_B = objective(model.joined(cut_BD, embedded_BW), batch.index_B, cuts_BD)
        alone, _ = objective(model.alone(embedded_BW), batch.index_B)
        feature_loss, _ = objective(model.generator.feature_top(cut_BD).squeeze(1), batch.index_B)
        half = min(cut_BD.shape[1], embedded_BW.shape[1]) // 2
        shared = (cut_BD[:, :half] - embedded_BW[:, :half]).square().sum(dim=1).mean()
        apart = sum(((part[:, :half] * part[:, half : 2 * half]).sum(dim=1)).square().mean() for part in (cut_BD, embedded_BW))
        return joint + alone + feature_loss + SHARED_WEIGHT * shared + ORTHOGONAL_WEIGHT * apart, targets_B

    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the losses of the joint classifier, with the made-up embedding, and of the own one."""
        assert isinstance(model, Synthesizing)
        embedded_BW = model.embedded(own, local=True)
        alone, targets_B = objective(model.alone(embedded_BW), batch.index_B)
        joint, _ = objective(model.joined(model.generator(embedded_BW), embedded_BW), batch.index_B)
        return joint + alone, targets_B
