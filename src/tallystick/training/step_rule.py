"""Define how the label party learns from a batch. A method for unaligned rows changes this part of a step, and nothing else.

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
    """The plain rule: the objective of the model's logits. Its subclasses are in ``unaligned/``."""

    @property
    def rates(self) -> Mapping[str, float]:
        """Return shares of the learning rate by the prefix of a parameter's name. All others have the full rate."""
        return {}

    def start(self, model: LabelModel, own: FeatureSource, train_N: Tensor) -> None:
        """Prepare values that are the same in all steps. It is called before the first step, and again when a run is resumed."""

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the batch's loss and its targets (B,), as ``Objective`` returns them."""
        return objective(model.finish(cuts_BD, own), batch.index_B, cuts_BD)

    def fit(
        self,
        model: LabelModel,
        objective: Objective,
        own: FeatureSource,
        index_N: Tensor,
        cuts_ND: Tensor,
    ) -> None:
        """Fit to the embeddings made before an epoch (``Schedule.embeds_before``): every training position's cut embedding.

        It is not abstract: the plain rule is used with schedules that embed nothing before an epoch, and is never asked.
        """
        raise NotImplementedError("this schedule embeds nothing before an epoch")


PLAIN = StepRule()
