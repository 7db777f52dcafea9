"""Define how the label party learns from a batch: what a method for unaligned rows changes of a step, and of nothing else.

Shapes: N training positions, B batch, D cut width.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor

from tallystick.cut.forward import FeatureSource
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch


class StepRule:
    """The plain way: the objective of the model's logits. Its subclasses are in ``unaligned/``."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Return shares of the learning rate by the start of a parameter's name. The rest has all of it."""
        return {}

    def start(self, model: LabelModel, own: FeatureSource, train_N: Tensor) -> None:
        """Take what stays the same over all steps. It is called before the first one, and again where a run is resumed."""

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the batch's loss, and the targets (B,) by which it was taken, as ``Objective`` gives them."""
        return objective(model.finish(cuts_BD, own), batch.index_B, cuts_BD)

    def fit(
        self,
        model: LabelModel,
        objective: Objective,
        own: FeatureSource,
        index_N: Tensor,
        cuts_ND: Tensor,
    ) -> None:
        """Take what was embedded before an epoch (``Schedule.embeds_before``): every training position's cut embedding.

        Not abstract: the plain rule goes with schedules that embed nothing before an epoch, and is never asked.
        """
        raise NotImplementedError("this schedule embeds nothing before an epoch")


PLAIN = StepRule()
