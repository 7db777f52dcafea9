"""Compute a loss from labels and another model's scores of scored rows. Shapes: N positions, B batch, C classes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tallystick.training.objective import Supervised


@dataclass(frozen=True, kw_only=True)
class Distilled:
    """The loss for labels that are mixed with a teacher's probabilities. Rows without its score have only their label.

    Hinton, Vinyals and Dean 2015, section 2, at temperature 1. If the teacher sees more columns, it is the generalised
    distillation of Lopez-Paz, Bottou, Schölkopf and Vapnik 2016. Weights are compared by labels alone.

    Args:
        labels: the loss for labels.
        teacher_N: the teacher's logits, (N,) or (N, C); anything finite for rows without a score.
        has_score_N: whether each row has a score.
        share: share of the teacher in a scored row's target, from 0 to 1.
    """

    labels: Supervised
    teacher_N: Tensor = field(repr=False)
    has_score_N: Tensor = field(repr=False)
    share: float

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the loss, and the labels."""
        share_B = self.has_score_N.index_select(0, index_B).to(torch.float32) * self.share
        prior = self.teacher_N.index_select(0, index_B)
        return self.labels.towards(logits, index_B, prior, share=share_B if prior.ndim == 1 else share_B[:, None])

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Compute the loss for labels."""
        return self.labels.validation_loss(logits, index_N)

    def fitted(self) -> dict[str, float]:
        """Return nothing: there is nothing to fit."""
        return {}
