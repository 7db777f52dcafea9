"""Implement jpl: a mapping from own embeddings to the missing ones, learnt with the model. Shapes: B batch, D cut width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, mse_loss

from tallystick.models.branches import BranchedModel, Synthesizing
from tallystick.models.build import BranchParts, seeded, width_of
from tallystick.models.split import LabelModel
from tallystick.models.tabular import mlp
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import LocalBatches
from tallystick.training.unaligned.synthesis import HIDDEN

RANK_WEIGHT = 0.1


@dataclass(frozen=True, kw_only=True)
class JointPrivilegedLearning(LocalBatches):
    """JPL: maps h_L to a stand-in for h_N, which should equal it on aligned rows and rank rows as the joint model does.

    Li et al. 2022, as FedAds runs it (section 5.1.3, footnote 4): alternate training instead of its distillation. Equivalence is
    the squared distance, rank alignment the cross-entropy of pairwise orders, both on aligned rows; label discrimination is the
    loss on unaligned rows. FedAds does not state weights; equivalence counts 1, ranks .1.

    Threat model: honest-but-curious parties; nothing crosses beyond plain training. The mapping learns from the joint model's
    outputs and sends no gradient to a cut embedding. No formal guarantee. Not protected: the mapping is a model of the feature
    parties' embeddings, which stays with the label party.
    """

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates: parts that local batches train have their rate."""
        return dict.fromkeys(("bottom", "synthetic_top", "local_top"), self.local_rate)

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build one bottom below three tops, and the mapping."""
        joint = parts.joint()
        width = width_of(joint.bottom)
        with seeded(self.seed, "jpl"):
            mapping = nn.Sequential(*mlp(width, [HIDDEN]), nn.Linear(HIDDEN, parts.cut_width))
        synthetic_top = parts.top(parts.cut_width + width, "synthetic-top")
        return Synthesizing(joint, parts.top(width, "local-top"), synthetic_top, mapping)

    def joint_loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the plain loss, with equivalence and rank alignment of the stand-in."""
        assert isinstance(model, Synthesizing)
        logits = model(cuts_BD, own)
        loss, targets_B = objective(logits, batch.index_B, cuts_BD)
        embedded_BW = model.embedded(own)
        made_BD = model.generator(embedded_BW)
        equivalence = mse_loss(made_BD, torch.cat([cut_BD.detach() for cut_BD in cuts_BD], dim=1))
        ranks = rank_alignment(model.synthetic(made_BD, embedded_BW), logits.detach())
        return loss + equivalence + RANK_WEIGHT * ranks, targets_B

    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the loss with the stand-in, and that of the top that scores rows without one."""
        assert isinstance(model, Synthesizing)
        embedded_BW = model.embedded(own, local=True)
        alone, targets_B = objective(model.alone(embedded_BW.detach()), batch.index_B)
        loss, _ = objective(model.synthetic(model.generator(embedded_BW), embedded_BW), batch.index_B)
        return loss + alone, targets_B


def rank_alignment(logits: Tensor, teacher: Tensor) -> Tensor:
    """Compute the cross-entropy between the pairwise orders of two sets of logits. Each row is paired with the next one."""
    student_gap, teacher_gap = logits - logits.roll(1, dims=0), teacher - teacher.roll(1, dims=0)
    return binary_cross_entropy_with_logits(student_gap, torch.sigmoid(teacher_gap))
