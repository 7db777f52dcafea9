"""Absent labels drawn from the current predictions. Shapes: B batch, K draws."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tallystick.errors import ConfigError
from tallystick.imputation.imputer import LabelBatch, LabelImputer


@dataclass(frozen=True, kw_only=True)
class RandomPredictedLabels(LabelImputer):
    """Draws absent labels from the model's current predictions; k draws are averaged.

    FLORIST, section 3.1 and appendix H, label-random-pred; table 5 for k. The expected gradient of an imputed row is 0, so
    imputed rows do not pull the model. No formal guarantee. Not protected: with k > 1 the averaged gradients shrink
    towards 0, which marks them; drawn anew each step, an imputed row's gradient changes sign between epochs, which a real
    row's never does (draw once per row: the target then changes only where the prediction crosses the row's number).

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
        """Tell whether targets may lie between the classes: means of several draws do."""
        return self.k > 1

    @property
    def draws(self) -> int:
        """Return K draws."""
        return self.k

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None: the rate follows x, so there is nothing to calibrate."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Impute the mean of K draws from Bernoulli(sigmoid(logit)): gradients are linear in the target."""
        positive_BK = uniform_BK < torch.sigmoid(batch.logits_B)[:, None]
        return batch.imputed(positive_BK.to(batch.labels_B.dtype).mean(dim=1))
