"""Rebuild columns from embeddings with one column shuffled, which the measurement of column importance sends.

Shapes: N rows, K known rows, C columns, D cut width, P components, U units, F inputs or numeric columns, Q quantiles, S scores,
J found clusters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Targets, even_columns
from tallystick.attacks.feature_inference.marginals import at_ranks
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import averaged_kernel_ridge, guesses_by_others
from tallystick.attacks.matrix import centred, k_means, principal_components
from tallystick.errors import ConfigError, DataError

READ = "shuffled"
COMPONENTS = 8  # of a column's change that are read
PARTS = 3  # of a number's contribution
MOST_PARTS = 8  # of a category's
UNITS = 256  # random ones, on up to so many components of the embedding
MOST_COMPONENTS = 64
ROUNDS = 20
MOST_DEVIATIONS = 5.0  # of a number's contribution: rows with few active units are read badly
LEAST_ZEROS = 0.02  # share of zeros from which a zero is taken for a unit at rest
LEAST_WEIGHT = 1e-3  # of the active units, as a share of the mean over rows or units


@dataclass(frozen=True, kw_only=True)
class ShuffledColumnsAttack:
    """Rebuild each column from the change of an embedding when that column is shuffled.

    In no paper that we know. All other columns of the row stay, so the mean change over the R repeats is the contribution of
    the row's own cell minus that of R other rows' cells; the order of the shuffle is not needed. These cells are noise with a
    known variance: 1/R of the contribution's. But the row's unshuffled embedding determines its contribution, too, and has no
    such noise. So ridge regression learns from all other rows how the change follows from the unshuffled embedding, and each
    change is drawn towards its guess, as far as the noise explains the difference (Fay and Herriot 1979).

    If the bottom begins with a linear layer, a number's contribution is the number times a weight, at each unit that is not at
    rest; later layers bend it. With known rows, Gaussian kernels on the first components map it to the cell. Without known
    rows, a number's rows are ranked by the contribution (``upward`` gives the direction) and each rank gets its quantile; a
    category's rows form clusters, named by their sizes, and are ranked by how much nearer they are to its cluster.

    Args:
        bandwidths: of the kernels, in units of the median distance of known rows; above 0.
    """

    bandwidths: tuple[float, ...] = (0.3, 1.0, 3.0)

    def __post_init__(self) -> None:
        if not (self.bandwidths and min(self.bandwidths) > 0):
            raise ConfigError(f"shuffled columns: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws random units and the clusters' starts.

        Raises DataError for a view without shuffled columns, or with neither rows nor marginals.
        """
        if view.contrast_NCD is None:
            raise DataError("feature attack: no column was shuffled, and this attack reads nothing else")
        if not len(view.known_K) and view.marginals is None:
            raise DataError("feature attack: neither a row is known nor how columns are distributed")
        zero_ND = view.last_ND == 0
        active_ND = (~zero_ND if float(zero_ND.double().mean()) > LEAST_ZEROS else torch.ones_like(zero_ND)).double()
        lefts = (centred(left_ND) for left_ND in view.contrast_NCD.unbind(dim=1))  # one at a time, to save memory
        if len(view.known_K):
            fit_targets = Targets.of(view.columns_K)
            numbers = fit_targets.numeric
            if (READ, True) not in view.scaled:  # whichever rows are known
                read = [_curves(left_ND, active_ND, bends=place < numbers) for place, left_ND in enumerate(lefts)]
                view.scaled[READ, True] = _without_noise(read, view, generator)
            few, more = (min(count, view.last_ND.shape[1]) for count in (COMPONENTS, PARTS))
            sizes = [more + few] * numbers + [few] * (view.contrast_NCD.shape[1] - numbers)
            mean_T = fit_targets.y_KT.mean(dim=0)
            numbers_KF, *codes = fit_targets.split(fit_targets.y_KT - mean_T)
            targets = [*torch.split(numbers_KF, 1, dim=1), *codes]
            guesses = []
            for z_NP, y_KT in zip(torch.split(view.scaled[READ, True], sizes, dim=1), targets, strict=True):
                widths = sorted({min(width, z_NP.shape[1]) for width in (1, 2, 4, 8)})
                known_KP = z_NP[view.known_K]
                guesses.append(averaged_kernel_ridge(known_KP, y_KT, z_NP, widths=widths, bandwidths=self.bandwidths).T)
            return fit_targets.reconstruction((torch.cat(guesses, dim=1) + mean_T).T)
        assert view.marginals is not None
        quantile_QF, shares = view.marginals.quantile_QF, view.marginals.shares
        clusters = [max(1, int((share_C * len(view.last_ND) >= 1).sum())) for share_C in shares]
        parts = [1] * quantile_QF.shape[1] + [min(MOST_PARTS, max(1, count - 1), view.last_ND.shape[1]) for count in clusters]
        read = [_contributions(left_ND, active_ND, count) for left_ND, count in zip(lefts, parts, strict=True)]
        contributions = torch.split(_without_noise(read, view, generator), parts, dim=1)
        values = []
        for quantile_Q, z_N1 in zip(quantile_QF.T, contributions, strict=False):
            order_N = z_N1[:, 0].argsort()
            wanted_N = at_ranks(quantile_Q, len(order_N))
            values.append(torch.empty_like(wanted_N).scatter_(0, order_N, wanted_N))
        codes, scores, ranked_codes = [], [], []
        for share_C, count, z_NP in zip(shares, clusters, contributions[len(values) :], strict=True):
            cluster_N = k_means(z_NP, count, generator=generator) if count != 2 else _two_groups(z_NP[:, 0], share_C)
            size_C = torch.bincount(cluster_N, minlength=count)
            by_size_C = size_C.argsort(descending=True)
            code_C = torch.empty_like(by_size_C)
            code_C[by_size_C] = share_C.argsort(descending=True)[:count]
            codes.append(code_C[cluster_N])
            (found_J,) = size_C.nonzero(as_tuple=True)
            ranked_codes.append(code_C[found_J])
            scores.append(_nearness(z_NP, cluster_N, found_J))
        none_N0 = torch.empty(len(view.contrast_NCD), 0, dtype=torch.float64)
        return Reconstruction(
            numeric_NF=torch.stack(values, dim=1) if values else none_N0,
            categorical_NG=torch.stack(codes, dim=1) if codes else none_N0.long(),
            scores=tuple(scores),
            codes=tuple(ranked_codes),
        )


def _two_groups(z_N: Tensor, share_C: Tensor) -> Tensor:
    """Return 1 for as many rows as the second most frequent category has, at the end where the distribution has its tail, and 0
    for others. Unlike clusters, these rows are of the rarer category more often even if noise hides most of the change.
    """
    centred_N = z_N - z_N.mean()
    rarer = round(float(share_C.sort(descending=True).values[1]) * len(z_N))
    order_N = (centred_N * centred_N.pow(3).sum().sign()).argsort(descending=True)
    return torch.zeros_like(order_N).index_fill_(0, order_N[:rarer], 1)


def _nearness(z_NP: Tensor, cluster_N: Tensor, found_J: Tensor) -> Tensor:
    """Return, for each found cluster and row, the squared distance to the nearest other cluster's mean, minus that to the mean of
    this cluster (J, N).
    """
    mean_JP = torch.stack([z_NP[cluster_N == cluster].mean(dim=0) for cluster in found_J.tolist()])
    apart_JN = torch.cdist(mean_JP, z_NP).square()
    least_2N = apart_JN.topk(min(2, len(apart_JN)), dim=0, largest=False)[0]
    return torch.where(apart_JN == least_2N[0], least_2N[-1], least_2N[0]) - apart_JN


def _without_noise(scores: Sequence[Tensor], view: FeatureView, generator: torch.Generator) -> Tensor:
    """Draw scores of the mean changes, side by side, towards what rows' unshuffled embeddings say, as far as noise explains.

    Of a score's variance one part in R + 1 is that of the other rows' cells. A guess that misses by no more than this is right.
    """
    score_NS = torch.cat([score_NP - score_NP.mean(dim=0) for score_NP in scores], dim=1)
    x_ND = even_columns(view.last_ND.double())
    z_NP = principal_components(x_ND, min(MOST_COMPONENTS, x_ND.shape[1]))
    length = z_NP.square().sum(dim=1).mean().sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    weight_PU = torch.randn(z_NP.shape[1], UNITS, generator=generator, dtype=z_NP.dtype)
    bias_U = torch.randn(UNITS, generator=generator, dtype=z_NP.dtype)
    # The unshuffled embeddings, and random units that bend, are inputs of a linear regression.
    inputs = torch.cat([x_ND / x_ND.shape[1] ** 0.5, (z_NP @ weight_PU / length + bias_U).relu() / UNITS**0.5], dim=1)
    error_NS = score_NS - guesses_by_others(inputs, score_NS)
    noise_S = score_NS.square().mean(dim=0) / (view.shuffles + 1)
    share_S = noise_S / error_NS.square().mean(dim=0).clamp(min=torch.finfo(torch.float64).tiny)
    return score_NS - share_S.clamp(max=1) * error_NS


def _curves(left_ND: Tensor, active_ND: Tensor, *, bends: bool) -> Tensor:
    """Return the first principal components of a column's change, each with its deviation, and before them, if the column is
    a number, its contribution.
    """
    z_NP = principal_components(left_ND, min(COMPONENTS, left_ND.shape[1])).flip(1)
    if not bends:
        return z_NP
    factor_NP = _contributions(left_ND, active_ND, min(PARTS, left_ND.shape[1]), most=MOST_DEVIATIONS)
    scale = z_NP[:, 0].std(correction=0) / factor_NP[:, 0].std(correction=0).clamp(min=torch.finfo(torch.float32).tiny)
    return torch.cat([factor_NP * scale, z_NP], dim=1)


def _contributions(left_ND: Tensor, active_ND: Tensor, parts: int, *, most: float = torch.inf) -> Tensor:
    """Return what a column contributes in each row: the factors of its change, where only active units have their weights.

    By least squares, in turn of the weights and of the rows, from the first principal components on. The first part varies most.
    ``most`` is how many deviations a row may be from the mean.
    """
    first_NP = principal_components(left_ND, parts).flip(1)
    factor_NP, read_ND = first_NP, active_ND * left_ND
    for _ in range(ROUNDS):
        factor_NP = torch.linalg.qr(factor_NP)[0]
        weight_DP = _solved(torch.einsum("np,nq,nd->dpq", factor_NP, factor_NP, active_ND), read_ND.T @ factor_NP)
        factor_NP = _solved(torch.einsum("dp,dq,nd->npq", weight_DP, weight_DP, active_ND), read_ND @ weight_DP)
    limit_P = most * factor_NP.square().mean(dim=0).sqrt()
    z_NP = principal_components(factor_NP.clamp(-limit_P, limit_P), factor_NP.shape[1]).flip(1)
    sign_P = torch.where((z_NP * first_NP).sum(dim=0) < 0, -1.0, 1.0)
    return z_NP * sign_P * _signs(left_ND, first_NP)


def _signs(left_ND: Tensor, z_NP: Tensor) -> Tensor:
    """Return signs for components of a change, so that the opposite change has the opposite components.

    A change and its opposite have the same Gram matrix of rows, which is used if there are fewer rows than cut columns.
    """
    weight_DP = left_ND.double().T @ z_NP
    largest_P = weight_DP.gather(0, weight_DP.abs().argmax(dim=0, keepdim=True))[0]
    return torch.where(largest_P < 0, -1.0, 1.0)


def _solved(gram_MPP: Tensor, right_MP: Tensor) -> Tensor:
    """Solve least squares for each of M rows, where weights that are hardly seen become small."""
    mean = gram_MPP.diagonal(dim1=1, dim2=2).mean().clamp(min=torch.finfo(torch.float32).tiny)
    ridge_PP = LEAST_WEIGHT * mean * torch.eye(right_MP.shape[1], dtype=right_MP.dtype)
    solved_MP: Tensor = torch.linalg.solve(gram_MPP + ridge_PP, right_MP)
    return solved_MP


def upward(left_NCD: Tensor, numeric_NF: Tensor) -> Tensor:
    """Orient the change by shuffling of each number so that its first principal component ascends with the number.

    An attacker who knows no row is given this bit per column: one row known to have the lowest or the highest value would give
    it.
    """
    turned_NCD = left_NCD.clone()
    for place, value_N in enumerate(numeric_NF.double().T):
        along_N1 = principal_components(left_NCD[:, place], 1)
        along_N1 = along_N1 * _signs(left_NCD[:, place], along_N1)
        if float(torch.dot(along_N1[:, 0], value_N - value_N.mean())) < 0:
            turned_NCD[:, place] *= -1
    return turned_NCD
