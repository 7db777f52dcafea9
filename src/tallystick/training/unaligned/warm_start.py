"""warm-start and offset: a model of unaligned rows comes first, and the joint one begins where it ended. Shapes: B batch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from tallystick.models.branches import BranchedModel, FromLocal
from tallystick.models.build import BranchParts, seeded
from tallystick.models.dropout import Dropout
from tallystick.models.split import LabelModel
from tallystick.training.objective import Objective
from tallystick.training.unaligned.method import OwnPart, UnalignedMethod

ALONE = "unaligned"  # name of the model that comes first


@dataclass(frozen=True, kw_only=True)
class WarmStart(UnalignedMethod):
    """A model of the label party's own columns is trained on unaligned rows; the joint model's bottom starts from its weights.

    Not in FedAds. Aligned rows are few, and a network with large embedding tables forgets on them what it could learn of own
    columns from all rows: the bottom goes on at ``warm_rate`` of the learning rate, or stays frozen at 0. The top, which aligned
    rows alone train, soon fits their noise; each step leaves out ``dropout`` of its inputs (Srivastava et al. 2014).

    Threat model: honest-but-curious feature parties, who see nothing of the training before: no message, only time that passes.
    No formal guarantee. Not protected: what these labels did to the weights shows in later cut gradients.
    """

    name: ClassVar[str] = "warm-start"
    offset: ClassVar[bool] = False

    @property
    def rates(self) -> Mapping[str, float]:
        """The bottom goes slowly; the first model stays as it is."""
        return {"bottom": self.settings.warm_rate, "alone": 0.0}

    def model(self, parts: BranchParts) -> BranchedModel:
        """A joint model beside the one that comes first."""
        with seeded(self.seed, "dropout"):
            dropout = Dropout(self.settings.dropout)
        frozen = self.settings.warm_rate == 0
        return FromLocal(parts.joint(), parts.alone(ALONE), offset=self.offset, dropout=dropout, frozen=frozen)

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Train the first model on unaligned rows and start the joint one's bottom from it."""
        assert isinstance(model, FromLocal)
        start_from_unaligned_rows(self, model, objective, own)


@dataclass(frozen=True, kw_only=True)
class Offset(WarmStart):
    """As warm-start, and the joint logit is the first model's logit plus a correction that aligned rows teach.

    Not in FedAds. The first model never saw an aligned row, so its logit is as good there as on new rows, and the correction is
    learnt out of sample: boosting by one round. Threat model and guarantee are those of WarmStart.
    """

    name: ClassVar[str] = "offset"
    offset: ClassVar[bool] = True


def start_from_unaligned_rows(method: UnalignedMethod, model: FromLocal, objective: Objective, own: OwnPart) -> None:
    """Train the model of own columns on unaligned rows alone, then copy its bottom into the joint model."""
    size = max(1, round(method.batch_size * method.local_rate))
    own.train(model.alone, objective, ALONE, epochs=method.settings.epochs, batch_size=size, rate=method.local_rate)
    model.bottom.load_state_dict(model.alone.bottom.state_dict())
