"""Define objectives: the loss that the label party computes from logits and the batch's positions, and its targets.

Shapes: N aligned positions, B batch, C classes, L levels, K labels of a row.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tallystick.metrics import TargetType
from tallystick.tables.target import SURVIVAL_SHIFT


class Objective(Protocol):
    """A loss of batches. It knows the labels by position, so it may also make up missing labels."""

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Return the scalar loss of logits (B,) or (B, C) for these aligned positions, and its targets (B,).
        Logits of an ensemble in training are (B, M) or (B, M, C), and the loss is the mean of its members'. ``cuts_BD`` are the
        batch's cut embeddings. Defences hide these targets, not others.
        """
        ...

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Return the scalar loss that compares epochs, on validation positions."""
        ...

    def fitted(self) -> dict[str, float]:
        """Return the last validation's fitted values for prediction, to be kept with the weights; empty if nothing was fitted."""
        ...


class Supervised:
    """Cross-entropy for classes, squared error for numbers, Poisson loss for counts, log-logistic likelihood for survival.

    For quantiles it is the pinball loss of ``levels``, for several labels the mean of their cross-entropies. Means are weighted
    if rows have weights.
    """

    def __init__(
        self, kind: TargetType, target_N: Tensor, weight_N: Tensor | None = None, *, levels: Sequence[float] = ()
    ) -> None:
        self._kind = kind
        self._loss = partial(quantile_loss, levels=levels) if kind == "quantile" else _LOSSES[kind]
        self._has_columns = kind in ("multiclass", "multilabel") or len(levels) > 1
        self._target_N = target_N
        self._weight_N = weight_N

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        """Return the loss for the labels at these positions, and the labels."""
        target_B = self._target_N.index_select(0, index_B)
        return self._mean(logits, target_B, index_B), target_B

    def towards(self, logits: Tensor, index_B: Tensor, prior: Tensor, *, share: float | Tensor) -> tuple[Tensor, Tensor]:
        """Return the same as a call, with a share of each target replaced by the probabilities of another model's logits
        ``prior``.

        The returned labels are not mixed. A share for each row is (B,), or (B, 1) for classes.

        So the loss has (1 - share) of the loss for labels, and share of that for the other model's probabilities or, for numbers,
        its predictions (Hinton, Vinyals and Dean 2015, section 2).
        """
        target_B = self._target_N.index_select(0, index_B)
        likely = _LIKELY[self._kind](prior.detach())
        hard = functional.one_hot(target_B, likely.shape[1]).to(likely.dtype) if self._kind == "multiclass" else target_B
        if self._kind == "multilabel":
            hard = label_columns(target_B, likely.shape[1])
        if self._kind == "quantile" and likely.ndim == 2:
            hard = target_B[:, None].expand_as(likely)  # a quantile of this mixture is the same mixture of both quantiles
        return self._mean(logits, torch.lerp(hard, likely, share), index_B), target_B

    def _mean(self, logits: Tensor, target: Tensor, index_B: Tensor) -> Tensor:
        if logits.ndim > (2 if self._has_columns else 1):  # for an ensemble: each member has to be right separately
            members = logits.shape[1]
            logits, target = logits.flatten(0, 1), target.repeat_interleave(members, dim=0)
            index_B = index_B.repeat_interleave(members)
        if self._weight_N is None:
            return self._loss(logits, target)
        weight_B = self._weight_N.index_select(0, index_B)
        # Nothing is learnt from a batch of zero weight: its loss is 0, not 0/0.
        return (self._loss(logits, target, reduction="none") * weight_B).sum() / weight_B.sum().clamp_min(
            torch.finfo(weight_B.dtype).tiny
        )

    def deviations(self, index_B: Tensor) -> Tensor:
        """Return the labels' distances from their mean, times the rows' weights: (B, 1), or (B, C) for classes or labels."""
        target_B = self._target_N.index_select(0, index_B)
        classes = int(self._target_N.max()) + 1 if self._kind == "multiclass" else 0
        number_BC = functional.one_hot(target_B.long(), classes).float() if classes else target_B.float()[:, None]
        if self._kind == "multilabel":
            number_BC = label_columns(target_B, int(self._target_N.max()).bit_length())
        if self._weight_N is None:
            return number_BC - number_BC.mean(dim=0)
        weight_B1 = self._weight_N.index_select(0, index_B)[:, None]
        mean_C = (number_BC * weight_B1).sum(dim=0) / weight_B1.sum().clamp_min(torch.finfo(weight_B1.dtype).tiny)
        return (number_BC - mean_C) * weight_B1

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Compute the same loss."""
        return self(logits, index_N)[0]

    def fitted(self) -> dict[str, float]:
        """Return nothing: there is nothing to fit."""
        return {}


def mean_cross_entropy(logits: Tensor, target_B: Tensor) -> Tensor:
    """Compute the mean binary cross-entropy of logits (B,), or of an ensemble's (B, M), whose members share a row's target."""
    target = target_B if logits.ndim == 1 else target_B[:, None].expand_as(logits)
    return functional.binary_cross_entropy_with_logits(logits, target)


def log_logistic_loss(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the negative log-likelihood of times that may be censored, in a log-logistic model of accelerated failure time.

    Bennett 1983. With z = the logarithm of the time, in the model's scale, minus the output: an event's density is sigmoid(z)
    sigmoid(-z), and the chance of no event yet is sigmoid(-z). So no row's gradient is above 1.

    ``target`` are survival times as ``LabelCoder`` encodes them.
    """
    z = target.abs() - SURVIVAL_SHIFT - output
    loss = functional.softplus(z) + torch.where(target > 0, functional.softplus(-z), 0.0)
    return loss.mean() if reduction == "mean" else loss


def quantile_loss(output: Tensor, target: Tensor, reduction: str = "mean", *, levels: Sequence[float]) -> Tensor:
    """Compute the pinball loss of quantiles (B, L), or (B,) for one level: its mean over levels. No row's gradient is above 1.

    Koenker and Bassett 1978. ``target`` is the label (B,), or one for each level.
    """
    output_BL = output.reshape(len(output), len(levels))
    above_BL = (target[:, None] if target.ndim == 1 else target) - output_BL
    level_L = torch.tensor(levels, dtype=above_BL.dtype, device=above_BL.device)
    loss_B = torch.maximum(level_L * above_BL, (level_L - 1) * above_BL).mean(dim=1)
    return loss_B.mean() if reduction == "mean" else loss_B


def label_columns(patterns_B: Tensor, labels: int) -> Tensor:
    """Return each label of a row, 0 or 1 (B, K), from the ``LabelCoder``'s code of several labels."""
    return ((patterns_B[:, None] >> torch.arange(labels, device=patterns_B.device)) & 1).float()


def label_loss(logits_BK: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Compute the mean over labels of their cross-entropies. ``target`` are patterns (B,), or a probability for each label."""
    target_BK = label_columns(target, logits_BK.shape[1]) if target.ndim == 1 else target
    loss_B = functional.binary_cross_entropy_with_logits(logits_BK, target_BK, reduction="none").mean(dim=1)
    return loss_B.mean() if reduction == "mean" else loss_B


_LOSSES: dict[str, Callable[..., Tensor]] = {
    "binary": functional.binary_cross_entropy_with_logits,
    "multiclass": functional.cross_entropy,
    "multilabel": label_loss,
    "regression": functional.mse_loss,
    "count": functional.poisson_nll_loss,  # exp(output) - target * output
    "survival": log_logistic_loss,
}

_LIKELY: dict[str, Callable[[Tensor], Tensor]] = {
    "binary": torch.sigmoid,
    "multiclass": partial(torch.softmax, dim=1),
    "multilabel": torch.sigmoid,
    "regression": torch.Tensor.detach,
    "count": torch.exp,
    "quantile": torch.Tensor.detach,
}
