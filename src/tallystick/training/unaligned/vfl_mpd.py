"""Implement vfl-mpd: the bottom models first learn to tell matched pairs of embeddings from mismatched ones. Shapes: B batch."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.config.unaligned import VFLMPDConfig
from tallystick.models.branches import BranchedModel, Synthesizing
from tallystick.models.build import BranchParts, seeded, width_of
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularTop
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import UnalignedMethod
from tallystick.training.unaligned.synthesis import HIDDEN


@dataclass(frozen=True, kw_only=True)
class MatchedPairs(UnalignedMethod):
    """VFL-MPD: before labels are used, both bottoms learn whether two embeddings belong to one row.

    Li et al. 2021. The original pretrains on aligned rows without labels, which do not exist in FedAds' setting. Here the task
    uses the aligned training rows themselves, so no unaligned row is used. A mismatched pair is a row with the next one's own
    embedding.

    Threat model: honest-but-curious parties. In the first epochs the cut gradients carry no label, but reveal the label party's
    embeddings to some extent. No formal guarantee. Not protected: nothing beyond what plain training does not protect.
    """

    settings: VFLMPDConfig

    scores_alone: ClassVar[bool] = False

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build the joint model and a top that judges pairs."""
        joint = parts.joint()
        width = width_of(joint.bottom)
        with seeded(self.seed, "vfl-mpd"):
            judge = TabularTop(parts.cut_width + width, hidden=[HIDDEN], outputs=1)
        return Synthesizing(joint, parts.top(width, "local-top"), parts.top(parts.cut_width + width, "synthetic-top"), judge)

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Return only the loss of pairs in the first epochs, then the plain loss."""
        if batch.epoch >= self.settings.joint_epochs:
            return super().loss(model, objective, batch, cuts_BD, own)
        assert isinstance(model, Synthesizing)
        with torch.no_grad():
            _, targets_B = objective(model(cuts_BD, own), batch.index_B, cuts_BD)
        theirs_BD, own_BW = torch.cat(list(cuts_BD), dim=1), model.embedded(own)
        pairs = torch.cat([torch.cat([theirs_BD, own_BW], dim=1), torch.cat([theirs_BD, own_BW.roll(1, dims=0)], dim=1)])
        matched = torch.cat([torch.ones(len(own)), torch.zeros(len(own))])
        return binary_cross_entropy_with_logits(model.generator(pairs).squeeze(1), matched), targets_B
