"""Implement multi-task: unaligned rows train the label party's bottom model through a separate top. Shapes: B batch."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from tallystick.models.branches import BranchedModel, SharedBottom
from tallystick.models.build import BranchParts, width_of
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import LocalBatches


@dataclass(frozen=True, kw_only=True)
class MultiTask(LocalBatches):
    """Alternate training on joint and unaligned rows, without synthetic embeddings. FedAds lacks this ablation.

    FedAds, section 4.1.2, whose two branches share the label party's bottom model; here the local branch reads only its output.
    Threat model: honest-but-curious feature parties. They see nothing of local steps, but know their number from the contract,
    and the number of unaligned rows from the alignment's counts. No formal guarantee. Not protected: the effect of these
    labels on the shared weights is visible in later cut gradients.
    """

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates: parts that local batches train have their rate."""
        return {"bottom": self.local_rate, "local_top": self.local_rate}

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build one bottom below two tops."""
        joint = parts.joint()
        return SharedBottom(joint, parts.top(width_of(joint.bottom), "local-top"))

    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the loss of own columns' logits."""
        assert isinstance(model, SharedBottom)
        return objective(model.local(own), batch.index_B)
