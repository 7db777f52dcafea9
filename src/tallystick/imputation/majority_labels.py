"""The commoner class for every absent label. Shapes: B batch, K draws."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tallystick.imputation.imputer import ANY_CALIBRATION, LabelBatch, LabelImputer, When


@dataclass(frozen=True, kw_only=True)
class MajorityLabels(LabelImputer):
    """Gives every absent label the commoner class.

    FLORIST, section 3.1, label-majority. No formal guarantee. Not protected: every gradient that looks like the rarer
    class's is certainly of a shared row, so its sign alone betrays a share π of the intersection without a single
    false alarm.
    """

    name: ClassVar[str] = "majority"
    gives: ClassVar[str] = "the commoner class"
    reader: ClassVar[str] = "the direction of gradients names .225 of the rows"
    calibrated: ClassVar[tuple[When, ...]] = ANY_CALIBRATION

    def imputed_rate(self, positive_rate: float) -> float:
        """Return 1 if positives are the commoner class, else 0."""
        return float(positive_rate > 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the commoner class."""
        return batch.imputed(self.imputed_rate(batch.positive_rate))
