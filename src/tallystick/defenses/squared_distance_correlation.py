"""Compute the squared distance correlation as a function of autograd. Shapes: B batch, D cut width, K classes in the batch."""

import math
from typing import Any

import torch
from torch import Tensor

from tallystick.defenses.pairwise import distance_sums, weighted_differences

SAME = 1e-20
"""Embeddings count as equal if their distance variance is below this share of their variance."""


class SquaredDistanceCorrelation(torch.autograd.Function):
    """Forward sums distances by row. Backward goes over the pairs once more, with weights that depend on those sums."""

    @staticmethod
    def forward(ctx: Any, cut_BD: Tensor, labels_B: Tensor) -> Tensor:
        """Return the squared correlation, a scalar."""
        order_B = torch.argsort(labels_B, stable=True)
        _, count_K = torch.unique(labels_B, return_counts=True)
        centred_BD = (cut_BD - cut_BD.mean(dim=0)).index_select(0, order_B)
        starts = [0, *torch.cumsum(count_K, 0).tolist()]
        sums = distance_sums(centred_BD, starts)

        n = len(cut_BD)
        share_K = count_K.double() / n
        label_mean_B = (1 - share_K).repeat_interleave(count_K)  # b's row means
        label_mean = float(1 - share_K.square().sum())
        row_mean_B = sums.rows_n / n
        mean = float(row_mean_B.mean())
        covariance = (
            (float(sums.rows_n.sum()) - sums.within) / n**2 - 2 * float((label_mean_B * row_mean_B).mean()) + label_mean * mean
        )
        spread = sums.squares / n**2
        variance = spread - 2 * float(row_mean_B.square().mean()) + mean**2
        label_variance = label_mean - 2 * float(label_mean_B.square().mean()) + label_mean**2
        ctx.same = not variance > SAME * spread
        value = 0.0 if ctx.same else max(covariance, 0.0) / math.sqrt(variance * label_variance)
        by_covariance = 0.0 if ctx.same else 1 / math.sqrt(variance * label_variance)
        by_variance = 0.0 if ctx.same else -value / (2 * variance)
        weight_B = (by_covariance * (label_mean / 2 - label_mean_B) + by_variance * (mean - 2 * row_mean_B)) / n**2
        ctx.save_for_backward(centred_BD, order_B, weight_B)
        ctx.starts, ctx.between, ctx.by_spread = starts, by_covariance / n**2, by_variance
        return torch.tensor(value, dtype=torch.float64, device=cut_BD.device)

    @staticmethod
    def backward(ctx: Any, *grad: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the embeddings."""
        centred_BD, order_B, weight_B = ctx.saved_tensors
        gradient_BD = torch.zeros_like(centred_BD)
        if not ctx.same:
            sorted_BD = 2 * weighted_differences(centred_BD, weight_B.to(centred_BD.dtype), ctx.between, ctx.starts)
            sorted_BD += 4 / len(centred_BD) * ctx.by_spread * centred_BD
            gradient_BD[order_B] = sorted_BD
        return gradient_BD * grad[0].to(gradient_BD.dtype), None
