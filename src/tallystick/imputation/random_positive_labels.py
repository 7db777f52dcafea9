"""Absent labels drawn from the rate of positives. Shapes: B batch, K draws."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tallystick.imputation.imputer import LabelBatch, LabelImputer


@dataclass(frozen=True, kw_only=True)
class RandomPositiveLabels(LabelImputer):
    """Draws absent labels from the rate of positives on the label party's own rows.

    FLORIST, section 3.1, label-random-pos. No formal guarantee. Not protected: labels that do not follow x stand out
    where the model is sure, and a label drawn anew each epoch changes its gradient's sign, which real labels never do
    (draw once per row).
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
