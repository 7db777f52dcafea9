"""Objectives: the loss that the label party computes from logits and the batch's positions, and the targets it is about.

Shapes: N aligned positions, B batch, C classes.
"""

from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional


class Objective(Protocol):
    """Gives the batch's loss; it knows the labels by position, so a loss may also make labels up where there are none."""

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Scalar loss of logits (B,) or (B, C) for the given aligned positions, and the targets (B,) that it was taken by.

        ``cuts_BD`` are the batch's cut embeddings. Defences of what is sent hide these targets, not others.
        """
        ...

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Scalar loss by which epochs are compared, on validation positions."""
        ...

    def fitted(self) -> dict[str, float]:
        """What the last validation fitted for prediction, to be kept with the weights; empty where nothing is."""
        ...


class Supervised:
    """Cross-entropy for classes, squared error for numbers; a weighted mean where rows have weights."""

    def __init__(
        self, kind: Literal["binary", "multiclass", "regression"], target_N: Tensor, weight_N: Tensor | None = None
    ) -> None:
        self._loss = _LOSSES[kind]
        self._target_N = target_N
        self._weight_N = weight_N

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Loss by the labels at these positions, and those labels."""
        target_B = self._target_N.index_select(0, index_B)
        if self._weight_N is None:
            return self._loss(logits, target_B), target_B
        weight_B = self._weight_N.index_select(0, index_B)
        # A batch of zero weight teaches nothing: its loss is 0, not 0/0.
        loss = (self._loss(logits, target_B, reduction="none") * weight_B).sum() / weight_B.sum().clamp_min(
            torch.finfo(weight_B.dtype).tiny
        )
        return loss, target_B

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """The same loss."""
        return self(logits, index_N)[0]

    def fitted(self) -> dict[str, float]:
        """Nothing."""
        return {}


_LOSSES: dict[str, Callable[..., Tensor]] = {
    "binary": functional.binary_cross_entropy_with_logits,
    "multiclass": functional.cross_entropy,
    "regression": functional.mse_loss,
}
