"""Implement warm-start and offset: a model of unaligned rows is trained first, and the joint one starts from it. Shapes: N
positions, B batch, D cut width.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tallystick.config.unaligned import OffsetConfig, WarmStartConfig
from tallystick.cut.forward import FeatureSource
from tallystick.models.branches import BranchedModel, FromLocal
from tallystick.models.build import BranchParts, seeded
from tallystick.models.dropout import Dropout
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularTop
from tallystick.tables.features import Features
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Batch
from tallystick.training.unaligned.method import OwnPart, UnalignedMethod

ALONE = "unaligned"  # name of the first model
TOP_RATE = 3.0  # learning rate of the joint top, as a share of the usual
PRIOR = 0.1  # share of the first model's probability in each target
PASS = 4096  # rows of a pass without training
CUT_SHARE = 0.5  # weight of the loss of the top on cut embeddings alone


@dataclass(frozen=True, kw_only=True)
class WarmStart(UnalignedMethod):
    """A model of the label party's own columns is trained on unaligned rows. The joint model starts from its weights.

    It is not in FedAds. Aligned rows are few, and on them a network with large embedding tables forgets what it could learn about
    own columns from all rows: the bottom continues at ``warm_rate`` of the learning rate, or is frozen at 0. The top, which only
    aligned rows train, soon overfits, so it is held back in four ways:

    - the built-in top starts with the first model's weights for own columns, and continues at three times the rate;
    - each step drops ``dropout`` of its inputs (Srivastava et al. 2014);
    - a tenth of each target is the first model's probability, which was fitted to other rows (Hinton et al. 2015);
    - the loss of another top, which reads only the cut embeddings, counts half as much, in training only (as FedCVT's does), so
      that the feature parties' bottom models learn what their columns can predict by themselves.

    Threat model: honest-but-curious feature parties, who see nothing of the first training: no message, only time that passes; a
    cut gradient is the sum of both tops'. No formal guarantee. Not protected: the effect of these labels on the weights is
    visible in later cut gradients.
    """

    settings: WarmStartConfig

    _prior: list[Tensor] = field(init=False, repr=False, compare=False, default_factory=list)  # logits by position, once started

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates: the bottom is slow, the top fast, and the first model is frozen."""
        return {"bottom": self.settings.warm_rate, "alone": 0.0, "top": TOP_RATE}

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build a joint model, the first model, and a top on the cut alone."""
        return _beside_the_first(self, parts, offset=False, cut_top=parts.top(parts.cut_width, "cut-top"))

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Train the first model on unaligned rows and start the joint one from it."""
        assert isinstance(model, FromLocal)
        start_from_unaligned_rows(self, model, objective, own, epochs=self.settings.epochs)
        joint, alone = model.top, model.alone.top
        if not isinstance(joint, TabularTop):
            return  # a user's top may use its inputs in any way, so it is not changed
        # Copy the weights for own columns, which are last among the joint top's inputs, and those of all layers above
        with torch.no_grad():
            for weight, of_own in zip(joint.parameters(), alone.parameters(), strict=True):
                weight[..., -of_own.shape[-1] :] = of_own

    def prepare_again(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Continue to train the first model."""
        assert isinstance(model, FromLocal)
        train_on_unaligned_rows(self, model, objective, own, epochs=self.settings.epochs)

    @torch.no_grad()
    def start(self, model: LabelModel, own: FeatureSource, train_N: Tensor) -> None:
        """Keep the first model's logit of every aligned row, which is the same in all steps."""
        assert isinstance(model, FromLocal)
        model.alone.eval()
        logits_N = torch.cat([model.local(own(index_B)) for index_B in torch.split(train_N, PASS)])
        prior_N = logits_N.new_zeros(int(train_N.max()) + 1, *logits_N.shape[1:])
        self._prior[:] = [prior_N.index_copy(0, train_N, logits_N)]

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the losses of the joint logits and of the cut's, with targets that are partly the first model's."""
        assert isinstance(model, FromLocal)
        assert isinstance(objective, Supervised), "the contract allows nothing else with unaligned rows"
        prior = self._prior[0].index_select(0, batch.index_B)
        joint, targets_B = objective.towards(model.finish(cuts_BD, own), batch.index_B, prior, share=PRIOR)
        of_cut, _ = objective.towards(model.of_cut(cuts_BD), batch.index_B, prior, share=PRIOR)
        return joint + CUT_SHARE * of_cut, targets_B


@dataclass(frozen=True, kw_only=True)
class Offset(UnalignedMethod):
    """The joint bottom starts from a model of unaligned rows, whose logit a model trained on aligned rows corrects.

    It is not in FedAds. The first model never saw an aligned row, so its logit is as good there as on new rows, and the
    correction is learnt out of sample: boosting with one round. The bottom continues at ``warm_rate`` of the learning rate, and
    each step drops ``dropout`` of the top's inputs. Threat model and guarantee are those of WarmStart.
    """

    settings: OffsetConfig

    @property
    def rates(self) -> Mapping[str, float]:
        """Return the rates: the bottom is slow, and the first model is frozen."""
        return {"bottom": self.settings.warm_rate, "alone": 0.0}

    def model(self, parts: BranchParts) -> BranchedModel:
        """Build a joint model and the first model."""
        return _beside_the_first(self, parts, offset=True)

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Train the first model on unaligned rows and start the joint one's bottom from it."""
        assert isinstance(model, FromLocal)
        start_from_unaligned_rows(self, model, objective, own, epochs=self.settings.epochs)

    def prepare_again(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Continue to train the first model."""
        assert isinstance(model, FromLocal)
        train_on_unaligned_rows(self, model, objective, own, epochs=self.settings.epochs)


def _beside_the_first(
    method: WarmStart | Offset, parts: BranchParts, *, offset: bool, cut_top: nn.Module | None = None
) -> FromLocal:
    with seeded(method.seed, "dropout"):
        dropout = Dropout(method.settings.dropout)
    frozen = method.settings.warm_rate == 0
    return FromLocal(parts.joint(), parts.alone(ALONE), offset=offset, dropout=dropout, frozen=frozen, cut_top=cut_top)


def start_from_unaligned_rows(
    method: UnalignedMethod, model: FromLocal, objective: Objective, own: OwnPart, *, epochs: int
) -> None:
    """Train the model of own columns on unaligned rows alone, then copy its bottom into the joint model."""
    train_on_unaligned_rows(method, model, objective, own, epochs=epochs)
    model.bottom.load_state_dict(model.alone.bottom.state_dict())


def train_on_unaligned_rows(
    method: UnalignedMethod, model: FromLocal, objective: Objective, own: OwnPart, *, epochs: int
) -> None:
    """Train the model of own columns on unaligned rows alone, from its current weights."""
    size = max(1, round(method.batch_size * method.local_rate))
    own.train(model.alone, objective, ALONE, epochs=epochs, batch_size=size, rate=method.local_rate)
