"""Implement average: offset and multi-task on one cut embedding, with averaged logits. Shapes: B batch, D cut width."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from tallystick.config.unaligned import AverageConfig
from tallystick.models.branches import Averaged, BranchedModel, FromLocal, SharedBottom
from tallystick.models.build import BranchParts, width_of
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import LocalBatches, OwnPart
from tallystick.training.unaligned.warm_start import ALONE, start_from_unaligned_rows, train_on_unaligned_rows


@dataclass(frozen=True, kw_only=True)
class Average(LocalBatches):
    """Two label models on one cut: one started from unaligned rows (offset), one that keeps learning from them (multi-task).

    It is not in FedAds. Both reach the joint model's accuracy in different ways, so their errors differ, and the mean of their
    logits has a smaller error. The feature parties' bottom models are shared, and a row's cut embedding crosses once. A third top
    reads only the cut embeddings, in training only, as FedCVT's does: otherwise bottom models that first add nothing to a good
    model of own columns would learn slowly.

    Threat model: honest-but-curious feature parties, who see nothing of unaligned rows but the time that they take; a cut
    gradient is half the sum of the three tops'. No formal guarantee. Not protected: the effect of these labels on the weights is
    visible in later cut gradients.
    """

    settings: AverageConfig

    @property
    def rates(self) -> Mapping[str, float]:
        """Return each branch's own rates."""
        local = self.local_rate
        return {
            "first.bottom": self.settings.warm_rate,
            "first.alone": 0.0,
            "second.bottom": local,
            "second.local_top": local,
        }

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build both branches, each with its own bottom."""
        second = parts.joint("second")
        shared = SharedBottom(second, parts.top(width_of(second.bottom), "second/local-top"))
        first = FromLocal(parts.joint(), parts.alone(ALONE), offset=True, frozen=self.settings.warm_rate == 0)
        return Averaged(first, shared, parts.top(parts.cut_width, "cut-top"))

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Train the first branch's first model."""
        assert isinstance(model, Averaged)
        assert isinstance(model.first, FromLocal)
        start_from_unaligned_rows(self, model.first, objective, own, epochs=self.settings.epochs)

    def prepare_again(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Continue to train the first branch's first model."""
        assert isinstance(model, Averaged)
        assert isinstance(model.first, FromLocal)
        train_on_unaligned_rows(self, model.first, objective, own, epochs=self.settings.epochs)

    def joint_loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Add half of each branch's loss: each must be right by itself, and so must the cut embedding."""
        assert isinstance(model, Averaged)
        first, targets_B = objective(model.first(cuts_BD, own), batch.index_B, cuts_BD)
        second, _ = objective(model.second(cuts_BD, own), batch.index_B, cuts_BD)
        of_cut, _ = objective(model.of_cut(cuts_BD), batch.index_B, cuts_BD)
        return (first + second + of_cut) / 2, targets_B

    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the second branch's loss, which counts half, as in a joint batch."""
        assert isinstance(model, Averaged)
        loss, targets_B = objective(model.second.local(own), batch.index_B)
        return loss / 2, targets_B
