"""Ridge regression in its dual form, its penalty and its kernel chosen by the exact leave-one-out error.

Shapes: N rows, K known rows, D inputs, S fitted targets.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from torch import Tensor

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Tried, in units of the mean of the Gram matrix' diagonal."""


def kernel_ridge(x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, bandwidths: Sequence[float] = ()) -> Tensor:
    """Fit centred targets on the known rows, each by the kernel and penalty of least error, and guess all rows', (S, N).

    The error of row i, left out, is a_i / (G^-1)_ii for G the Gram matrix with the penalty on its diagonal and a = G^-1 y. A
    target that every fit predicts worse than its mean does is guessed by that: 0.

    Args:
        x_KD: known rows' inputs.
        y_KS: their targets, each less its mean.
        x_ND: all rows' inputs.
        bandwidths: of a Gaussian kernel, in units of the median distance of known rows; none for the linear kernel.
    """
    best_S = y_KS.square().mean(dim=0) * (len(y_KS) / max(1, len(y_KS) - 1)) ** 2
    best_KS, kernel_S = torch.zeros_like(y_KS), torch.full((y_KS.shape[1],), -1)
    kernels = list(_kernels(x_KD, bandwidths))
    for number, kernel in enumerate(kernels):
        gram_KK = kernel(x_KD)
        value_K, vector_KK = torch.linalg.eigh(gram_KK)
        rotated_KS = vector_KK.T @ y_KS
        scale = float(gram_KK.diagonal().mean())
        for penalty in PENALTIES if scale > 0 else ():
            inverse_K = 1 / (value_K.clamp(min=0) + penalty * scale)
            weight_KS = vector_KK @ (inverse_K[:, None] * rotated_KS)
            leverage_K = vector_KK.square() @ inverse_K
            error_S = (weight_KS / leverage_K[:, None]).square().mean(dim=0)
            better_S = error_S < best_S
            best_S[better_S], best_KS[:, better_S] = error_S[better_S], weight_KS[:, better_S]
            kernel_S[better_S] = number
    guess_SN = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype)
    for number, kernel in enumerate(kernels):
        by_it_S = kernel_S == number
        if bool(by_it_S.any()):
            guess_SN[by_it_S] = best_KS[:, by_it_S].T @ kernel(x_ND).T
    return guess_SN


def _kernels(x_KD: Tensor, bandwidths: Sequence[float]) -> Iterator[Callable[[Tensor], Tensor]]:
    """Functions that give the kernel of rows and the known rows."""
    if not bandwidths:
        centre_D = x_KD.mean(dim=0)
        yield lambda x_ND: (x_ND - centre_D) @ (x_KD - centre_D).T
        return
    near_KK = _squared_distances(x_KD, x_KD)
    positive = near_KK[near_KK > 0]
    median = float(positive.median()) if len(positive) else 1.0
    for bandwidth in bandwidths:
        yield partial(_gaussian, x_KD, 1 / (2 * bandwidth**2 * median))


def _gaussian(x_KD: Tensor, rate: float, x_ND: Tensor) -> Tensor:
    return torch.exp(-rate * _squared_distances(x_ND, x_KD))


def _squared_distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    squared = a_ND.square().sum(dim=1)[:, None] + b_KD.square().sum(dim=1) - 2 * a_ND @ b_KD.T
    return squared.clamp(min=0)
