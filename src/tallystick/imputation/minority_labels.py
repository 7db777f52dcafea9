"""The rarer class for every absent label. Shapes: B batch, K draws."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tallystick.imputation.imputer import LabelBatch, LabelImputer


@dataclass(frozen=True, kw_only=True)
class MinorityLabels(LabelImputer):
    """Gives every absent label the rarer class.

    FLORIST, section 3.1, label-minority: a foil. No formal guarantee. Not protected: every gradient that looks like the
    commoner class's is certainly of a shared row, which betrays a share 1 - π of the intersection without a false alarm.
    """

    name: ClassVar[str] = "minority"
    gives: ClassVar[str] = "the rarer class"
    reader: ClassVar[str] = "the direction of gradients names .776 of the rows"

    def imputed_rate(self, positive_rate: float) -> float:
        """Return 0 if positives are the commoner class, else 1."""
        return float(positive_rate <= 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute the rarer class."""
        return batch.imputed(self.imputed_rate(batch.positive_rate))
