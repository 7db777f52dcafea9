"""Fit ridge regression in its dual form, and choose its penalty and kernel by the exact leave-one-out error.

Shapes: N rows, K known rows, D inputs, S fitted targets, F features or fits, P penalties, R eigenvalues that are not 0.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Penalties to try, in units of the mean of the Gram matrix' diagonal."""
TINY, MOST_SAID = 1e-12, 500.0  # so that a perfect fit's weight stays a number
SCREENED, SCREENING_ROWS = 400, 250  # of more known rows than the former so many choose the bandwidths that are fitted
LEAST_MORE = 0.002  # of the variance, that a further bandwidth has to tell
FEW_DIGITS, HARDLY = 1e-6, 1e-3  # error of a kernel in float32, and that of a guess, in deviations, that it may have
FLAT = 1e-10  # an eigenvalue below this share of the largest is taken for 0
LEAST_REST = 0.01  # of a row's leverage, the least that other rows have of its guess
NO_WORD = 1e-3  # of all weights of an average, below which a fit is left out


def kernel_ridge(x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, bandwidths: Sequence[float] = ()) -> Tensor:
    """Fit centred targets on the known rows, each with the kernel and penalty of least error, and predict all rows, (S, N).

    The error of row i, left out, is a_i / (G^-1)_ii for G the Gram matrix with the penalty on its diagonal and a = G^-1 y. If
    every fit of a target is worse than its mean, the prediction is the mean: 0.

    Args:
        x_KD: known rows' inputs.
        y_KS: their targets, each less its mean.
        x_ND: all rows' inputs.
        bandwidths: of a Gaussian kernel, in units of the median distance of known rows; none for the linear kernel.
    """
    best_S = y_KS.square().mean(dim=0) * (len(y_KS) / max(1, len(y_KS) - 1)) ** 2
    if len(bandwidths) > 1 and len(y_KS) > SCREENED:
        bandwidths = _screened(x_KD, y_KS, bandwidths)
    least_S, kernel_S = torch.zeros_like(best_S), torch.full((y_KS.shape[1],), -1)
    kernels = list(_kernels(x_KD, x_ND, bandwidths))
    for number, kernel in enumerate(kernels):
        error_S, penalty_S = _left_out(kernel, y_KS)
        better_S = error_S < best_S
        best_S[better_S], least_S[better_S] = error_S[better_S], penalty_S[better_S]
        kernel_S[better_S] = number
    guess_SN = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype)
    for number, kernel in enumerate(kernels):
        by_it_S = kernel_S == number
        if bool(by_it_S.any()):
            guess_SN[by_it_S] = kernel.guess(_weights(kernel, y_KS[:, by_it_S], least_S[by_it_S]))
    return guess_SN


def _screened(x_KD: Tensor, y_KS: Tensor, bandwidths: Sequence[float]) -> Sequence[float]:
    """Choose the fewest bandwidths that tell about as much as all do, by some of the known rows: each takes the cube of them."""
    some_K = torch.linspace(0, len(y_KS) - 1, SCREENING_ROWS, dtype=torch.float64).round().long()
    few_KS = y_KS[some_K] - y_KS[some_K].mean(dim=0)
    by_mean_S = few_KS.square().mean(dim=0).clamp(min=torch.finfo(y_KS.dtype).tiny)
    errors = [_left_out(kernel, few_KS)[0] for kernel in _kernels(x_KD[some_K], x_KD[:0], bandwidths)]
    told = [(1 - error_S / by_mean_S).clamp(min=0) for error_S in errors]
    chosen, most_S = list[int](), torch.zeros_like(by_mean_S)
    while len(chosen) < len(told):
        best = max(range(len(told)), key=lambda place: float(torch.maximum(most_S, told[place]).mean()))
        more_S = torch.maximum(most_S, told[best])
        if chosen and float((more_S - most_S).mean()) < LEAST_MORE:
            break
        chosen.append(best)
        most_S = more_S
    return [bandwidths[place] for place in sorted(chosen)]


def averaged_kernel_ridge(
    x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, widths: Sequence[int], bandwidths: Sequence[float], units: bool = False
) -> Tensor:
    """Fit kernels on the first columns of the inputs, so many or so many, and average all rows' guesses, (S, N).

    A fit weighs (e0 / e)^(K / 2) - 1, for e its mean squared error when each known row is left out, with the best penalty, and e0
    that of the mean: the ratio of two normal likelihoods. A fit that does no better than the mean has no weight, nor has one of
    less than a share NO_WORD of all weights.

    Args:
        x_KD, y_KS, x_ND, bandwidths: as for ``kernel_ridge``.
        widths: numbers of columns, each at least 1.
        units: whether a wide layer's kernel is fitted, too.
    """
    rows = len(y_KS)
    by_mean_S = y_KS.square().mean(dim=0) * (rows / max(1, rows - 1)) ** 2
    kernels = []
    for width in widths:
        known_KP, all_NP = x_KD[:, :width], x_ND[:, :width]
        kernels += [*_kernels(known_KP, all_NP, bandwidths), *([_wide_layer(known_KP, all_NP)] if units else [])]
    fits = [_left_out(kernel, y_KS) for kernel in kernels]
    error_FS, penalty_FS = (torch.stack(each) for each in zip(*fits, strict=True))
    ratio_FS = (by_mean_S / error_FS.clamp(min=TINY * by_mean_S)).clamp(min=1)
    says_FS = torch.expm1((ratio_FS.log() * rows / 2).clamp(max=MOST_SAID)).nan_to_num(nan=0.0)
    says_FS[says_FS < NO_WORD * says_FS.sum(dim=0)] = 0
    share_FS = says_FS / says_FS.sum(dim=0).clamp(min=torch.finfo(y_KS.dtype).tiny)
    guess_SN = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype)
    for kernel, share_S, penalty_S in zip(kernels, share_FS, penalty_FS, strict=True):
        (heard_S,) = (share_S > 0).nonzero(as_tuple=True)
        if len(heard_S):
            weight_KS = _weights(kernel, y_KS[:, heard_S], penalty_S[heard_S]) * share_S[heard_S]
            guess_SN.index_add_(0, heard_S, kernel.guess(weight_KS))
    return guess_SN


def guesses_by_others(x_NF: Tensor, y_NS: Tensor) -> Tensor:
    """Guess each row's centred targets by ridge regression on all other rows, with the penalty of least error, (N, S).

    Args:
        x_NF: inputs.
        y_NS: targets, each less its mean.
    """
    centred_NF = x_NF - x_NF.mean(dim=0)
    kernel = _Kernel.of_features(centred_NF, lambda: centred_NF)
    least_S = _left_out(kernel, y_NS)[1]
    share_RS = kernel.value_R[:, None] / (kernel.value_R[:, None] + least_S)
    fit_NS = kernel.vector_KR @ (share_RS * (kernel.vector_KR.T @ y_NS)) if len(share_RS) else torch.zeros_like(y_NS)
    own_NS = kernel.vector_KR.square() @ share_RS + 1 / len(y_NS)  # what the mean takes of each row, too
    return (fit_NS - own_NS * y_NS) / (1 - own_NS).clamp(min=LEAST_REST)


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
        scale = float(known_KK.diagonal().mean())
        # By PyTorch: SciPy's threads wait for each other at matrices so small, twenty times as long where the machine is at work
        value_K, vector_KK = torch.linalg.eigh(known_KK)
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
    """Find for each target the least mean squared error of rows left out, over all penalties, and the penalty that has it."""
    if kernel.scale <= 0:
        return torch.full_like(y_KS[0], torch.inf), torch.ones_like(y_KS[0])
    rotated_RS, squared_KR = kernel.vector_KR.T @ y_KS, kernel.vector_KR.square()
    least_P = torch.tensor(PENALTIES, dtype=y_KS.dtype) * kernel.scale
    inverse_PR = 1 / (kernel.value_R + least_P[:, None])
    own_KP = squared_KR @ inverse_PR.T
    # Errors only choose, and each of their summands is exact to seven digits in float32, which takes half the time
    rotated_RPS = inverse_PR.T.float()[:, :, None] * rotated_RS.float()[:, None]
    weight_KPS = (kernel.vector_KR.float() @ rotated_RPS.flatten(1)).view(len(y_KS), len(least_P), -1)
    if len(kernel.value_R) < len(y_KS):
        rest_KS, rest_K = y_KS - kernel.vector_KR @ rotated_RS, (1 - squared_KR.sum(dim=1)).clamp(min=0)
        own_KP = own_KP + rest_K[:, None] / least_P
        weight_KPS += rest_KS.float()[:, None] / least_P.float()[:, None]
    error_PS = weight_KPS.div_(own_KP.float()[:, :, None]).square_().mean(dim=0).to(y_KS.dtype)
    error_S, place_S = error_PS.nan_to_num(nan=torch.inf).min(dim=0)
    return error_S, least_P[place_S]


def _weights(kernel: _Kernel, y_KS: Tensor, least_S: Tensor) -> Tensor:
    """Compute the weights (K, S) of the known rows, each target's with its own penalty."""
    rotated_RS = kernel.vector_KR.T @ y_KS
    weight_KS = kernel.vector_KR @ (rotated_RS / (kernel.value_R[:, None] + least_S))
    if len(kernel.value_R) < len(y_KS):
        weight_KS += (y_KS - kernel.vector_KR @ rotated_RS) / least_S
    return weight_KS


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
    near_far_NK = cache(partial(_squared_distances, x_ND.float(), x_KD.float()))
    positive = near_KK[near_KK > 0]
    median = float(positive.median()) if len(positive) else 1.0
    for bandwidth in bandwidths:
        rate = 1 / (2 * bandwidth**2 * median)
        kernel = _Kernel.of_gram(torch.exp(-rate * near_KK), partial(_gaussian, far_NK, rate))
        yield kernel._replace(guess=partial(_guess, kernel.guess, partial(_gaussian, near_far_NK, rate)))


def _wide_layer(x_KD: Tensor, x_ND: Tensor) -> _Kernel:
    """Build the arc-cosine kernel of degree 1: that of infinitely many ReLU units with random weights and biases."""
    scale = x_KD.square().sum(dim=1).mean().sqrt().clamp(min=TINY)
    known_KE, all_NE = (torch.nn.functional.pad(each / scale, (0, 1), value=1.0) for each in (x_KD, x_ND))
    kernel = _Kernel.of_gram(_arc_cosine(known_KE, known_KE), lambda: _arc_cosine(all_NE, known_KE))
    return kernel._replace(guess=partial(_guess, kernel.guess, lambda: _arc_cosine(all_NE.float(), known_KE.float())))


def _arc_cosine(a_NE: Tensor, b_KE: Tensor) -> Tensor:
    length_NK = torch.linalg.vector_norm(a_NE, dim=1)[:, None] * torch.linalg.vector_norm(b_KE, dim=1)
    cosine_NK = (a_NE @ b_KE.T / length_NK).clamp(-1, 1)
    kernel_NK: Tensor = length_NK * ((1 - cosine_NK.square()).sqrt() + (torch.pi - cosine_NK.arccos()) * cosine_NK) / torch.pi
    return kernel_NK


def _guess(exact: Callable[[Tensor], Tensor], few_digits_NK: Callable[[], Tensor], weight_KS: Tensor) -> Tensor:
    """Guess in float32, which takes a third of the time, where weights are so small that its rounding does not show."""
    if float(weight_KS.square().sum(dim=0).max()) ** 0.5 * FEW_DIGITS > HARDLY:
        return exact(weight_KS)
    return (weight_KS.float().T @ few_digits_NK().T).to(weight_KS.dtype)


def _gaussian(squared: Callable[[], Tensor], rate: float) -> Tensor:
    return torch.exp(-rate * squared())


def _squared_distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    squared = a_ND.square().sum(dim=1)[:, None] + b_KD.square().sum(dim=1) - 2 * a_ND @ b_KD.T
    return squared.clamp(min=0)
