"""Ridge regression in its dual form, its penalty and its kernel chosen by the exact leave-one-out error.

Shapes: N rows, K known rows, D inputs, S fitted targets, F features, R eigenvalues that are not 0.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Tried, in units of the mean of the Gram matrix' diagonal."""
TINY, MOST_SAID = 1e-12, 500.0  # so that a perfect fit's weight stays a number
FLAT = 1e-10  # an eigenvalue below this share of the largest is taken for 0


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
    kernels = list(_kernels(x_KD, x_ND, bandwidths))
    for number, kernel in enumerate(kernels):
        error_S, weight_KS = _left_out(kernel, y_KS)
        better_S = error_S < best_S
        best_S[better_S], best_KS[:, better_S] = error_S[better_S], weight_KS[:, better_S]
        kernel_S[better_S] = number
    guess_SN = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype)
    for number, kernel in enumerate(kernels):
        by_it_S = kernel_S == number
        if bool(by_it_S.any()):
            guess_SN[by_it_S] = kernel.guess(best_KS[:, by_it_S])
    return guess_SN


def averaged_kernel_ridge(
    x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, widths: Sequence[int], bandwidths: Sequence[float]
) -> Tensor:
    """Fit Gaussian kernels on the first columns of the inputs, so many or so many, and average all rows' guesses, (S, N).

    A fit weighs (e0 / e)^(K / 2) - 1, for e its mean squared error when each known row is left out, with the best penalty, and e0
    that of the mean: the ratio of two normal likelihoods. A fit that does no better than the mean has no weight.

    Args:
        x_KD, y_KS, x_ND, bandwidths: as for ``kernel_ridge``.
        widths: numbers of columns, each at least 1.
    """
    rows = len(y_KS)
    by_mean_S = y_KS.square().mean(dim=0) * (rows / max(1, rows - 1)) ** 2
    sum_SN, weight_S = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype), torch.zeros_like(by_mean_S)
    for width in widths:
        for kernel in _kernels(x_KD[:, :width], x_ND[:, :width], bandwidths):
            error_S, weight_KS = _left_out(kernel, y_KS)
            ratio_S = (by_mean_S / error_S.clamp(min=TINY * by_mean_S)).clamp(min=1)
            says_S = torch.expm1((ratio_S.log() * rows / 2).clamp(max=MOST_SAID)).nan_to_num(nan=0.0)
            sum_SN += says_S[:, None] * kernel.guess(weight_KS)
            weight_S += says_S
    return torch.where(weight_S[:, None] > 0, sum_SN / weight_S[:, None].clamp(min=torch.finfo(y_KS.dtype).tiny), 0)


class _Kernel(NamedTuple):
    """A kernel of known rows, by the eigenvectors of their Gram matrix.

    Args:
        value_R, vector_KR: its eigenvalues, and vectors; where these are fewer than K, the others' eigenvalues are 0.
        scale: the mean of its diagonal.
        guess: takes weights (K, S) of the known rows to guesses (S, N) at all rows.
    """

    value_R: Tensor
    vector_KR: Tensor
    scale: float
    guess: Callable[[Tensor], Tensor]

    @classmethod
    def of_gram(cls, known_KK: Tensor, all_NK: Callable[[], Tensor]) -> "_Kernel":
        """Take the kernel from the Gram matrix, and what gives the kernel of all rows with the known ones."""
        value_K, vector_KK = torch.linalg.eigh(known_KK)
        scale = float(known_KK.diagonal().mean())
        return cls(value_K.clamp(min=0), vector_KK, scale, lambda weight_KS: weight_KS.T @ all_NK().T)

    @classmethod
    def of_features(cls, known_KF: Tensor, all_NF: Callable[[], Tensor]) -> "_Kernel":
        """Take the kernel from fewer features than known rows, whose inner products it is."""
        value_F, vector_FF = torch.linalg.eigh(known_KF.T @ known_KF)
        is_varying_F = value_F > FLAT * value_F[-1:].clamp(min=0)
        value_R = value_F[is_varying_F]
        vector_KR = known_KF @ vector_FF[:, is_varying_F] / value_R.sqrt()
        scale = float(known_KF.square().sum(dim=1).mean())
        return cls(value_R, vector_KR, scale, lambda weight_KS: (known_KF.T @ weight_KS).T @ all_NF().T)


def _left_out(kernel: _Kernel, y_KS: Tensor) -> tuple[Tensor, Tensor]:
    """Find for each target the least mean squared error of rows left out, over all penalties, and the weights (K, S) that have
    it.
    """
    rotated_RS, squared_KR = kernel.vector_KR.T @ y_KS, kernel.vector_KR.square()
    is_whole = len(kernel.value_R) == len(y_KS)
    rest_KS = torch.zeros_like(y_KS) if is_whole else y_KS - kernel.vector_KR @ rotated_RS
    rest_K = torch.zeros_like(y_KS[:, 0]) if is_whole else (1 - squared_KR.sum(dim=1)).clamp(min=0)
    best_S, best_KS = torch.full_like(y_KS[0], torch.inf), torch.zeros_like(y_KS)
    for penalty in PENALTIES if kernel.scale > 0 else ():
        least = penalty * kernel.scale
        inverse_R = 1 / (kernel.value_R + least)
        weight_KS = kernel.vector_KR @ (inverse_R[:, None] * rotated_RS) + rest_KS / least
        error_S = (weight_KS / (squared_KR @ inverse_R + rest_K / least)[:, None]).square().mean(dim=0)
        better_S = error_S < best_S
        best_S[better_S], best_KS[:, better_S] = error_S[better_S], weight_KS[:, better_S]
    return best_S, best_KS


def _kernels(x_KD: Tensor, x_ND: Tensor, bandwidths: Sequence[float]) -> Iterator[_Kernel]:
    """Yield the linear kernel, by its columns where these are fewer than known rows, or Gaussian ones, which share distances."""
    if not bandwidths:
        centre_D = x_KD.mean(dim=0)
        centred_KD = x_KD - centre_D
        if centred_KD.shape[1] < len(x_KD):
            yield _Kernel.of_features(centred_KD, lambda: x_ND - centre_D)
        else:
            yield _Kernel.of_gram(centred_KD @ centred_KD.T, lambda: (x_ND - centre_D) @ centred_KD.T)
        return
    near_KK, far_NK = _squared_distances(x_KD, x_KD), cache(partial(_squared_distances, x_ND, x_KD))
    positive = near_KK[near_KK > 0]
    median = float(positive.median()) if len(positive) else 1.0
    for bandwidth in bandwidths:
        rate = 1 / (2 * bandwidth**2 * median)
        yield _Kernel.of_gram(torch.exp(-rate * near_KK), partial(_gaussian, far_NK, rate))


def _gaussian(squared: Callable[[], Tensor], rate: float) -> Tensor:
    return torch.exp(-rate * squared())


def _squared_distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    squared = a_ND.square().sum(dim=1)[:, None] + b_KD.square().sum(dim=1) - 2 * a_ND @ b_KD.T
    return squared.clamp(min=0)
