"""Rebuild columns from embeddings with one column shuffled, which the measurement of column importance sends.

Shapes: N rows, K known rows, C columns, D cut width, F numeric columns, G categorical columns, Q quantiles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Targets
from tallystick.attacks.feature_inference.marginals import at_ranks
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import averaged_kernel_ridge
from tallystick.attacks.matrix import centred, k_means, principal_components
from tallystick.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class ShuffledColumnsAttack:
    """Rebuild each column from the change of an embedding when that column is shuffled.

    In no paper that we know. All other columns of the row stay, so the mean change over the repeats is the contribution of the
    row's own cell minus that of an average cell; the order of the shuffle is not needed. If the bottom begins with a linear
    layer, this lies on a straight line, which later layers bend. With known rows, Gaussian kernels on the first components map
    it to the cell. Without known rows, a number's rows are ranked along the first principal component (``upward`` gives the
    direction) and each rank gets its quantile; a category's rows form clusters, named by their sizes.

    Args:
        bandwidths: of the kernels, in units of the median distance of known rows; above 0.
    """

    bandwidths: tuple[float, ...] = (0.3, 1.0, 3.0)

    def __post_init__(self) -> None:
        if not (self.bandwidths and min(self.bandwidths) > 0):
            raise ConfigError(f"shuffled columns: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. Raises DataError for a view without shuffled columns, or with neither rows nor marginals."""
        if view.contrast_NCD is None:
            raise DataError("feature attack: no column was shuffled, and this attack reads nothing else")
        lefts = (centred(left_ND) for left_ND in view.contrast_NCD.unbind(dim=1))  # one at a time, to save memory
        if len(view.known_K):
            fit_targets = Targets.of(view.columns_K)
            mean_T = fit_targets.y_KT.mean(dim=0)
            numbers_KF, *codes = fit_targets.split(fit_targets.y_KT - mean_T)
            targets = [*torch.split(numbers_KF, 1, dim=1), *codes]
            guesses = []
            for left_ND, y_KT in zip(lefts, targets, strict=True):
                # the first principal components, largest first, each with its own deviation
                z_NP = principal_components(left_ND, min(8, left_ND.shape[1])).flip(1)
                widths = sorted({min(width, z_NP.shape[1]) for width in (1, 2, 4, 8)})
                known_KP = z_NP[view.known_K]
                guesses.append(averaged_kernel_ridge(known_KP, y_KT, z_NP, widths=widths, bandwidths=self.bandwidths).T)
            return fit_targets.reconstruction((torch.cat(guesses, dim=1) + mean_T).T)
        if view.marginals is None:
            raise DataError("feature attack: neither a row is known nor how columns are distributed")
        numbers = []
        for quantile_Q in view.marginals.quantile_QF.T:  # by the rows' ranks along the first component
            order_N = principal_components(next(lefts), 1)[:, 0].argsort()
            wanted_N = at_ranks(quantile_Q, len(order_N))
            numbers.append(torch.empty_like(wanted_N).scatter_(0, order_N, wanted_N))
        codes = []
        for left_ND, share_C in zip(lefts, view.marginals.shares, strict=True):
            by_share_C = share_C.argsort(descending=True)
            clusters = max(1, int((share_C * len(left_ND) >= 1).sum()))
            cluster_N = k_means(left_ND, clusters, generator=generator)
            by_size_C = torch.bincount(cluster_N, minlength=clusters).argsort(descending=True)
            code_C = torch.empty_like(by_size_C)
            code_C[by_size_C] = by_share_C[:clusters]
            codes.append(code_C[cluster_N])
        none_N0 = torch.empty(len(view.contrast_NCD), 0, dtype=torch.float64)
        return Reconstruction(
            numeric_NF=torch.stack(numbers, dim=1) if numbers else none_N0,
            categorical_NG=torch.stack(codes, dim=1) if codes else none_N0.long(),
        )


def upward(left_NCD: Tensor, numeric_NF: Tensor) -> Tensor:
    """Orient the change by shuffling of each number so that its first principal component ascends with the number.

    An attacker who knows no row is given this bit per column: one row known to have the lowest or the highest value would give
    it.
    """
    turned_NCD = left_NCD.clone()
    for place, value_N in enumerate(numeric_NF.double().T):
        along_N = principal_components(left_NCD[:, place], 1)[:, 0]
        if float(torch.dot(along_N, value_N - value_N.mean())) < 0:
            turned_NCD[:, place] *= -1
    return turned_NCD
