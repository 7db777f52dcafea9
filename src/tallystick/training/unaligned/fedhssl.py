"""Implement fedhssl: SimSiam at each party, then a phase that makes both parties' embeddings similar. Shapes: B batch, D cut
width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity

from tallystick.config.unaligned import FedHSSLConfig
from tallystick.models.branches import BranchedModel, Synthesizing
from tallystick.models.build import BranchParts, seeded, width_of
from tallystick.models.split import LabelModel
from tallystick.models.tabular import mlp
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import OwnPart
from tallystick.training.unaligned.self_supervision import PREDICTED, simsiam
from tallystick.training.unaligned.ss_vfl import SelfSupervised


class Predictors(nn.Module):
    """Predictors of each party's embedding from the other's."""

    def __init__(self, own_width: int, cut_width: int) -> None:
        super().__init__()
        self.own_to_cut = nn.Sequential(*mlp(own_width, [PREDICTED]), nn.Linear(PREDICTED, cut_width))
        self.cut_to_own = nn.Sequential(*mlp(cut_width, [PREDICTED]), nn.Linear(PREDICTED, own_width))


@dataclass(frozen=True, kw_only=True)
class FedHSSL(SelfSupervised):
    """FedHSSL: local SimSiam, then cross-party -cos(predicted z, stopped z of the other) on aligned rows, then plain training.

    He et al. 2022. The original has the cross-party stage first, and averages the parties' local tops each epoch, which requires
    equal networks; here it does neither. The predictors are at the label party: feature parties send embeddings and receive
    gradients as in any joint step, and receive no embedding of the label party.

    Threat model: honest-but-curious parties. In the cross-party stage the cut gradients carry no label, but reveal the label
    party's embeddings to some extent. No formal guarantee. Not protected: nothing beyond what plain training does not protect.
    """

    settings: FedHSSLConfig

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build the joint model and the predictors."""
        joint = parts.joint()
        width = width_of(joint.bottom)
        with seeded(self.seed, "fedhssl"):
            predictors = Predictors(width, parts.cut_width)
        tops = parts.top(width, "local-top"), parts.top(parts.cut_width + width, "synthetic-top")
        return Synthesizing(joint, *tops, predictors)

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:  # noqa: ARG002
        """Pretrain by SimSiam on the label party's rows."""
        assert model.bottom is not None
        simsiam(model.bottom, own, self.alone("label"))

    def prepare_bottom(self, bottom: nn.Module, own: OwnPart) -> None:
        """Pretrain by SimSiam on a feature party's rows."""
        simsiam(bottom, own, self.alone("feature"))

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Return only the cosines in the first epochs, then the plain loss."""
        if batch.epoch >= self.settings.joint_epochs:
            return super().loss(model, objective, batch, cuts_BD, own)
        assert isinstance(model, Synthesizing)
        assert isinstance(model.generator, Predictors)
        with torch.no_grad():
            _, targets_B = objective(model(cuts_BD, own), batch.index_B, cuts_BD)
        theirs_BD, own_BW = torch.cat(list(cuts_BD), dim=1), model.embedded(own)
        alike = cosine_similarity(model.generator.own_to_cut(own_BW), theirs_BD.detach()).mean()
        back = cosine_similarity(model.generator.cut_to_own(theirs_BD), own_BW.detach()).mean()
        return -(alike + back) / 2, targets_B
