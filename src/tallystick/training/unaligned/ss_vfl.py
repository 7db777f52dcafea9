"""Implement ss-vfl: each party pretrains its bottom model on all its own rows, without labels. Shapes: B batch."""

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from tallystick.config.unaligned import FedHSSLConfig, SSVFLConfig
from tallystick.models.branches import BranchedModel, SharedBottom
from tallystick.models.build import BranchParts, width_of
from tallystick.models.split import LabelModel
from tallystick.training.objective import Objective
from tallystick.training.unaligned.method import OwnPart, UnalignedMethod
from tallystick.training.unaligned.self_supervision import SelfSupervision, momentum_contrast


@dataclass(frozen=True, kw_only=True)
class SelfSupervised(UnalignedMethod):
    """SS-VFL: momentum contrast on each party's own rows, then plain training on aligned ones.

    Castiglia et al. 2022, in one round. Threat model: honest-but-curious parties; nothing crosses before the first joint step. No
    formal guarantee. Not protected: bottom models also carry what they learnt from unaligned rows. A row without a partner's row
    gets no score, because no label of such a row was used.
    """

    settings: SSVFLConfig | FedHSSLConfig

    scores_alone: ClassVar[bool] = False

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build the plain joint model. The second top is not trained."""
        joint = parts.joint()
        return SharedBottom(joint, parts.top(width_of(joint.bottom), "local-top"))

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:  # noqa: ARG002
        """Pretrain the label party's bottom."""
        assert model.bottom is not None
        momentum_contrast(model.bottom, own, self.alone("label"))

    def prepare_bottom(self, bottom: nn.Module, own: OwnPart) -> None:
        """Pretrain a feature party's bottom."""
        momentum_contrast(bottom, own, self.alone("feature"))

    def alone(self, name: str) -> SelfSupervision:
        """Return how the party with this name trains before the first joint step."""
        return SelfSupervision(settings=self.settings, name=name)
