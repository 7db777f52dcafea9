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
EVIDENCE_PENALTIES = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 100.0)
TINY, MOST_SAID = 1e-12, 500.0  # smallest error and greatest logarithm of a weight: the weight of a perfect fit stays finite
SCREENED, SCREENING_ROWS = 400, 250  # above SCREENED known rows, SCREENING_ROWS of them choose which bandwidths to fit
LEAST_MORE = 0.002  # share of the variance that one more bandwidth must explain to be fitted
FEW_DIGITS, HARDLY = 1e-6, 1e-3  # rounding error of a kernel in float32; error that a guess may have, in deviations
FLAT = 1e-10  # an eigenvalue below this share of the largest counts as 0
LEAST_REST = 0.01  # other rows count for at least this share of a row's guess
NO_WORD = 1e-3  # a fit below this share of all weights is left out of the average


def kernel_ridge(x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, bandwidths: Sequence[float] = ()) -> Tensor:
    """Fit centred targets on the known rows and predict all rows, (S, N). Each target gets the kernel and penalty of least error.

    Let G be the Gram matrix with the penalty on its diagonal, and a = G^-1 y. The leave-one-out error of row i is then
    a_i / (G^-1)_ii. If every fit of a target is worse than the mean, the prediction is the mean, 0.

    Args:
        x_KD: inputs of the known rows.
        y_KS: their targets, each minus its mean.
        x_ND: inputs of all rows.
        bandwidths: of Gaussian kernels, in units of the median distance between known rows; none for the linear kernel.
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
    """Choose the fewest bandwidths that explain about as much as all of them.

    Some of the known rows are enough for that. A fit's time grows with the cube of its rows.
    """
    some_K = torch.linspace(0, len(y_KS) - 1, SCREENING_ROWS, dtype=torch.float64).round().long()
    few_KS = y_KS[some_K] - y_KS[some_K].mean(dim=0)
    by_mean_S = few_KS.square().mean(dim=0).clamp(min=torch.finfo(y_KS.dtype).tiny)
    errors = [_left_out(kernel, few_KS)[0] for kernel in _kernels(x_KD[some_K], x_KD[:0], bandwidths)]
    explained = [(1 - error_S / by_mean_S).clamp(min=0) for error_S in errors]
    chosen, most_S = list[int](), torch.zeros_like(by_mean_S)
    while len(chosen) < len(explained):
        best = max(range(len(explained)), key=lambda place: float(torch.maximum(most_S, explained[place]).mean()))
        more_S = torch.maximum(most_S, explained[best])
        if chosen and float((more_S - most_S).mean()) < LEAST_MORE:
            break
        chosen.append(best)
        most_S = more_S
    return [bandwidths[place] for place in sorted(chosen)]


def averaged_kernel_ridge(
    x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, widths: Sequence[int], bandwidths: Sequence[float], units: bool = False
) -> Tensor:
    """Fit kernels on the first W input columns, for each width W, and average the guesses, (S, N).

    The weight of a fit is (e0 / e)^(K / 2) - 1, a ratio of two normal likelihoods: e is its mean squared leave-one-out error
    with the best penalty, e0 that of the mean. A fit that is no better than the mean has weight 0, and so has a fit whose share
    of all weights is below NO_WORD.

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


def kernel_ridge_by_evidence(
    x_KD: Tensor, y_KS: Tensor, x_ND: Tensor, *, bandwidths: Sequence[float], own: float = 0.5
) -> Tensor:
    """Fit a linear kernel, Gaussian ones and that of a wide layer, and average the guesses by their evidence, (S, N).

    The evidence of a kernel with a penalty is the likelihood of a target's known values if the target is a Gaussian process with
    noise (Rasmussen and Williams 2006, 5.4.1), at the likeliest variance. A target's logarithm of it counts with the share
    ``own``, and that of the mean target with the rest: few known rows say little of a single column, and all columns are read
    from the same embeddings.

    Args:
        x_KD, y_KS, x_ND, bandwidths: as for ``kernel_ridge``.
        own: between 0 and 1.
    """
    unit_KS = y_KS / y_KS.square().mean(dim=0).sqrt().clamp(min=torch.finfo(y_KS.dtype).tiny)
    penalty_P = torch.tensor(EVIDENCE_PENALTIES, dtype=y_KS.dtype)
    fits, logs = [], []
    for known_KK, all_NK in _grams(x_KD, x_ND, bandwidths):
        mean_K = known_KK.mean(dim=0)
        value_K, vector_KK = torch.linalg.eigh(known_KK - mean_K - mean_K[:, None] + mean_K.mean())
        if (scale := float(value_K.mean())) <= TINY:
            continue
        variance_PK = value_K.clamp(min=0) / scale + penalty_P[:, None]
        misfit_PS = (1 / variance_PK) @ (vector_KK.T @ unit_KS).square()
        logs.append(-(variance_PK.log().sum(dim=1)[:, None] + len(y_KS) * misfit_PS.clamp(min=TINY).log()) / 2)
        fits.append((variance_PK * scale, vector_KK, all_NK - mean_K))
    guess_SN = torch.zeros(y_KS.shape[1], len(x_ND), dtype=y_KS.dtype)
    if not fits:
        return guess_SN
    log_FPS = torch.stack(logs)
    log_FPS = own * log_FPS + (1 - own) * log_FPS.mean(dim=2, keepdim=True)
    share_FPS = log_FPS.flatten(0, 1).softmax(dim=0).view_as(log_FPS)
    for (variance_PK, vector_KK, from_mean_NK), share_PS in zip(fits, share_FPS, strict=True):
        weight_KS = vector_KK @ (((1 / variance_PK).T @ share_PS) * (vector_KK.T @ y_KS))
        guess_SN += weight_KS.T @ from_mean_NK.T
    return guess_SN


def _grams(x_KD: Tensor, x_ND: Tensor, bandwidths: Sequence[float]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the linear kernel, a Gaussian one for each bandwidth, and a wide layer's, of the known rows and of all with these."""
    scale = x_KD.square().sum(dim=1).mean().sqrt().clamp(min=TINY)
    known_KD, all_ND = x_KD / scale, x_ND / scale
    yield known_KD @ known_KD.T, all_ND @ known_KD.T
    near_KK, far_NK = _squared_distances(known_KD, known_KD), _squared_distances(all_ND, known_KD)
    positive = near_KK[near_KK > 0]
    median = float(positive.median()) if len(positive) else 1.0
    for bandwidth in bandwidths:
        rate = 1 / (2 * bandwidth**2 * median)
        yield torch.exp(-rate * near_KK), torch.exp(-rate * far_NK)
    known_KE, all_NE = (torch.nn.functional.pad(each, (0, 1), value=1.0) for each in (known_KD, all_ND))
    yield _arc_cosine(known_KE, known_KE), _arc_cosine(all_NE, known_KE)


def guesses_by_others(x_NF: Tensor, y_NS: Tensor) -> Tensor:
    """Guess each row's centred targets by ridge regression on all other rows, with the penalty of least error, (N, S).

    Args:
        x_NF: inputs.
        y_NS: targets, each minus its mean.
    """
    centred_NF = x_NF - x_NF.mean(dim=0)
    kernel = _Kernel.of_features(centred_NF, lambda: centred_NF)
    least_S = _left_out(kernel, y_NS)[1]
    share_RS = kernel.value_R[:, None] / (kernel.value_R[:, None] + least_S)
    fit_NS = kernel.vector_KR @ (share_RS * (kernel.vector_KR.T @ y_NS)) if len(share_RS) else torch.zeros_like(y_NS)
    own_NS = kernel.vector_KR.square() @ share_RS + 1 / len(y_NS)  # each row's share in its own fit and in the mean
    return (fit_NS - own_NS * y_NS) / (1 - own_NS).clamp(min=LEAST_REST)


class _Kernel(NamedTuple):
    """A kernel of known rows, as the eigenvalues and eigenvectors of their Gram matrix.

    Args:
        value_R, vector_KR: the eigenvalues and eigenvectors; if there are fewer than K, the other eigenvalues are 0.
        scale: mean of the Gram matrix' diagonal.
        guess: computes guesses (S, N) for all rows from weights (K, S) of the known rows.
    """

    value_R: Tensor
    vector_KR: Tensor
    scale: float
    guess: Callable[[Tensor], Tensor]

    @classmethod
    def of_gram(cls, known_KK: Tensor, all_NK: Callable[[], Tensor]) -> "_Kernel":
        """Make the kernel from its Gram matrix. ``all_NK`` computes the kernel between all rows and the known ones."""
        scale = float(known_KK.diagonal().mean())
        # PyTorch, not SciPy: on a busy machine SciPy's threads wait for each other and take twenty times as long
        value_K, vector_KK = torch.linalg.eigh(known_KK)
        return cls(value_K.clamp(min=0), vector_KK, scale, lambda weight_KS: weight_KS.T @ all_NK().T)

    @classmethod
    def of_features(cls, known_KF: Tensor, all_NF: Callable[[], Tensor]) -> "_Kernel":
        """Make the kernel of inner products from features, where there are fewer features than known rows."""
        value_F, vector_FF = torch.linalg.eigh(known_KF.T @ known_KF)
        is_varying_F = value_F > FLAT * value_F[-1:].clamp(min=0)
        value_R = value_F[is_varying_F]
        vector_KR = known_KF @ vector_FF[:, is_varying_F] / value_R.sqrt()
        scale = float(known_KF.square().sum(dim=1).mean())
        return cls(value_R, vector_KR, scale, lambda weight_KS: (known_KF.T @ weight_KS).T @ all_NF().T)


def _left_out(kernel: _Kernel, y_KS: Tensor) -> tuple[Tensor, Tensor]:
    """Find for each target the least mean squared leave-one-out error over all penalties, and the penalty that attains it."""
    if kernel.scale <= 0:
        return torch.full_like(y_KS[0], torch.inf), torch.ones_like(y_KS[0])
    rotated_RS, squared_KR = kernel.vector_KR.T @ y_KS, kernel.vector_KR.square()
    least_P = torch.tensor(PENALTIES, dtype=y_KS.dtype) * kernel.scale
    inverse_PR = 1 / (kernel.value_R + least_P[:, None])
    own_KP = squared_KR @ inverse_PR.T
    # float32 takes half the time. Its seven digits are enough, because the errors only serve to choose.
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
    """Compute the weights (K, S) of the known rows, with each target's own penalty."""
    rotated_RS = kernel.vector_KR.T @ y_KS
    weight_KS = kernel.vector_KR @ (rotated_RS / (kernel.value_R[:, None] + least_S))
    if len(kernel.value_R) < len(y_KS):
        weight_KS += (y_KS - kernel.vector_KR @ rotated_RS) / least_S
    return weight_KS


def _kernels(x_KD: Tensor, x_ND: Tensor, bandwidths: Sequence[float]) -> Iterator[_Kernel]:
    """Yield the linear kernel, or a Gaussian kernel for each bandwidth; these share their distances.

    The linear kernel is computed from the input columns if there are fewer of them than known rows.
    """
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
    """Guess in float32, in a third of the time, for those targets whose weights are so small that rounding does not matter."""
    if float(weight_KS.square().sum(dim=0).max()) ** 0.5 * FEW_DIGITS > HARDLY:
        return exact(weight_KS)
    return (weight_KS.float().T @ few_digits_NK().T).to(weight_KS.dtype)


def _gaussian(squared: Callable[[], Tensor], rate: float) -> Tensor:
    return torch.exp(-rate * squared())


def _squared_distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    squared = a_ND.square().sum(dim=1)[:, None] + b_KD.square().sum(dim=1) - 2 * a_ND @ b_KD.T
    return squared.clamp(min=0)
