"""Impute absent labels.

Shapes: B batch, D cut width, K draws, A absent rows, P present rows.
"""

from dataclasses import dataclass
from typing import ClassVar

from tallystick.errors import ConfigError
from tallystick.imputation.imputer import ANY_CALIBRATION, LabelBatch, LabelImputer, When
from tallystick.lazy_torch import Tensor, torch


@dataclass(frozen=True, kw_only=True)
class MajorityLabels(LabelImputer):
    """Gives every absent label the more frequent class.

    FLORIST, section 3.1, label-majority. No formal guarantee. Not protected: every gradient that looks like the rarer class's
    certainly belongs to a shared row, so its sign alone reveals a share π of the intersection without a single false alarm.
    """

    name: ClassVar[str] = "majority"
    gives: ClassVar[str] = "the commoner class"
    reader: ClassVar[str] = "the direction of gradients names .225 of the rows"
    calibrated: ClassVar[tuple[When, ...]] = ANY_CALIBRATION

    def imputed_rate(self, positive_rate: float) -> float:
        """Return 1 if positives are the more frequent class, else 0."""
        return float(positive_rate > 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the more frequent class."""
        return batch.imputed(self.imputed_rate(batch.positive_rate))


@dataclass(frozen=True, kw_only=True)
class MinorityLabels(LabelImputer):
    """Gives every absent label the rarer class.

    FLORIST, section 3.1, label-minority. It is only for comparison. No formal guarantee. Not protected: every gradient that looks
    like the more frequent class's certainly belongs to a shared row, which reveals a share 1 - π of the intersection without a
    false alarm.
    """

    name: ClassVar[str] = "minority"
    gives: ClassVar[str] = "the rarer class"
    reader: ClassVar[str] = "the direction of gradients names .776 of the rows"

    def imputed_rate(self, positive_rate: float) -> float:
        """Return 0 if positives are the more frequent class, else 1."""
        return float(positive_rate <= 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the rarer class."""
        return batch.imputed(self.imputed_rate(batch.positive_rate))


@dataclass(frozen=True, kw_only=True)
class RandomPositiveLabels(LabelImputer):
    """Draws absent labels from the rate of positives on the label party's own rows.

    FLORIST, section 3.1, label-random-pos. No formal guarantee. Not protected: labels that do not depend on x stand out if the
    model is sure, and a label drawn again each epoch changes its gradient's sign, which real labels never do (draw once per row).
    """

    name: ClassVar[str] = "random-pos"
    gives: ClassVar[str] = "a draw from its rate of positives"
    reader: ClassVar[str] = "a label that is drawn anew flips, and a real one does not"

    @property
    def draws(self) -> int:
        """Return one draw."""
        return 1

    def imputed_rate(self, positive_rate: float) -> float:
        """Return the rate itself."""
        return positive_rate

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Impute Bernoulli(π)."""
        return batch.imputed((uniform_BK[:, 0] < batch.positive_rate).to(batch.labels_B.dtype))


@dataclass(frozen=True, kw_only=True)
class RandomPredictedLabels(LabelImputer):
    """Draws absent labels from the model's current predictions. ``k`` draws are averaged.

    FLORIST, section 3.1 and appendix H, label-random-pred; table 5 for k. The expected gradient of an imputed row is 0, so
    imputed rows do not pull the model. No formal guarantee. Not protected: with k > 1 the averaged gradients shrink towards 0,
    which marks them. If labels are drawn again each step, an imputed row's gradient changes its sign between epochs, and a real
    row's never does. If they are drawn once per row, the target changes only when the prediction crosses the row's number.

    Args:
        k: draws to average, at least 1.
    """

    name: ClassVar[str] = "random-pred"
    gives: ClassVar[str] = "a draw from the current prediction"
    reader: ClassVar[str] = "a label that is drawn anew flips, and a real one does not: AUC .738"

    k: int = 1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"synthetic labels random-pred: k={self.k} draws; expected at least 1")

    @property
    def soft_targets(self) -> bool:
        """Tell whether targets may lie between the classes, as means of several draws do."""
        return self.k > 1

    @property
    def draws(self) -> int:
        """Return K draws."""
        return self.k

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None, because the rate depends on x, so there is nothing to calibrate."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Impute the mean of K draws from Bernoulli(sigmoid(logit)), because gradients are linear in the target."""
        positive_BK = uniform_BK < torch.sigmoid(batch.logits_B)[:, None]
        return batch.imputed(positive_BK.to(batch.labels_B.dtype).mean(dim=1))


@dataclass(frozen=True, kw_only=True)
class NeighborLabels(LabelImputer):
    """Gives an absent label the vote of the nearest rows of the batch with real labels.

    FLORIST, section 3.1, label-neighbors: k = 3, cosine similarity of cut embeddings. No formal guarantee. Not protected: votes
    agree with the model more than real labels do, so imputed rows have small gradients, and with rare positives they look almost
    like majority's.

    Args:
        k: neighbours that vote, at least 1; with fewer real rows in the batch all vote, and with none the more frequent class
            wins.
    """

    name: ClassVar[str] = "neighbors"
    gives: ClassVar[str] = "the vote of the 3 nearest real rows of the batch, by cosine of cut embeddings"
    couples_rows: ClassVar[bool] = True

    k: int = 3

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"synthetic labels neighbors: k={self.k}; expected at least 1")

    @property
    def soft_targets(self) -> bool:
        """Return True, because a tie gives one half."""
        return True

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None, because the rate depends on x."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the majority vote. A tie gives one half."""
        present_B = batch.present_B
        if not present_B.any():
            return batch.imputed(float(batch.positive_rate > 0.5))
        if present_B.all():
            return batch.labels_B
        unit_BD = torch.nn.functional.normalize(batch.cut_BD, dim=1)
        similarity_AP = unit_BD[~present_B] @ unit_BD[present_B].T
        nearest_AK = similarity_AP.topk(min(self.k, similarity_AP.shape[1]), dim=1).indices
        share_A = batch.labels_B[present_B][nearest_AK].mean(dim=1)
        targets_B = batch.labels_B.clone()
        targets_B[~present_B] = (torch.sign(share_A - 0.5) + 1) / 2
        return targets_B


@dataclass(frozen=True, kw_only=True)
class SettledLabels(LabelImputer):
    """Gives an absent label one draw from the prediction of a model trained before the first cut gradient, and keeps it.

    It is not in FLORIST. The feature party embeds the training rows once before training. The label party trains its own model on
    these embeddings and its real labels, sends nothing of it, and draws every absent label from its predictions by its secret. So
    an imputed label depends on x, as random-pred's does, and never changes, as a real one never does. No formal guarantee. Not
    protected: this model knows less than the trained one, so real labels depend on x a little more than imputed ones do. A
    feature party that reads labels off gradients and boosts its own columns on them separates real ones with an AUC of .54 to
    .56. An audit has its embeddings and not its columns, and finds .52 to .53.
    """

    name: ClassVar[str] = "settled"
    gives: ClassVar[str] = "a draw, kept for the whole run, from what a model of the first embeddings predicts"
    settles_first: ClassVar[bool] = True

    @property
    def draws(self) -> int:
        """Return one draw."""
        return 1

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None, because the rate depends on x, so there is nothing to calibrate."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the labels that were drawn before training."""
        assert batch.settled_B is not None, "labels are drawn before the first step"
        return batch.imputed(batch.settled_B)
