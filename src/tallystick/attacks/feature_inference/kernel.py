"""Ridge regression in its dual form, linear or with a Gaussian kernel: the quick reconstructions.

Shapes: N rows, K known rows, D inputs, T targets, S of them that are fitted.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Reads, Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError

PENALTIES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1.0, 10.0)
"""Tried, in units of the mean of the Gram matrix' diagonal."""


@dataclass(frozen=True, kw_only=True)
class KernelRidge:
    """Fit ridge regression from embeddings to columns on the known rows, and read all other rows off it.

    What "the cut embedding is a linear map of the columns" amounts to for an attacker with a few rows; with ``bandwidths`` a
    Gaussian kernel, for what is bent. Penalty and bandwidth are chosen for each target by the exact leave-one-out error: that of
    row i is a_i / (G^-1)_ii for G the Gram matrix with the penalty on its diagonal and a = G^-1 y. A category is guessed
    by the greatest of its indicators' regressions.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, or all.
        bandwidths: of the kernel, in units of the median distance of known rows; none for the linear kernel.
        own_columns: whether the label party's own columns help, where the view has them.
    """

    reads: Reads = "last"
    bandwidths: tuple[float, ...] = ()
    own_columns: bool = False

    def __post_init__(self) -> None:
        if any(not bandwidth > 0 for bandwidth in self.bandwidths):
            raise ConfigError(f"kernel ridge: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:  # noqa: ARG002
        """Guess every row's columns; no randomness is used. One known row, or equal ones, give their mean."""
        x_ND = inputs(view, self.reads, own_columns=self.own_columns)
        x_KD = x_ND[view.known_K]
        wanted = Targets.of(view.columns_K)
        mean_T = wanted.y_KT.mean(dim=0)
        # left out, the one known row of a category has nothing to be predicted by: its mean does as well
        seen_T = (wanted.y_KT != 0).sum(dim=0) > 1
        seen_T[: wanted.numeric] = True
        (fitted_S,) = seen_T.nonzero(as_tuple=True)
        y_KS = (wanted.y_KT - mean_T)[:, fitted_S]
        # a fit that predicts left-out rows worse than their mean does is none
        best_S = y_KS.square().mean(dim=0) * (len(y_KS) / max(1, len(y_KS) - 1)) ** 2
        best_KS, kernel_S = torch.zeros_like(y_KS), torch.full((len(fitted_S),), -1)
        kernels = list(self._kernels(x_KD))
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
        guess_TN = mean_T[:, None].repeat(1, len(x_ND))
        for number, kernel in enumerate(kernels):
            by_it_S = kernel_S == number
            if bool(by_it_S.any()):
                guess_TN[fitted_S[by_it_S]] += best_KS[:, by_it_S].T @ kernel(x_ND).T
        return wanted.reconstruction(guess_TN.T)

    def _kernels(self, x_KD: Tensor) -> Iterator[Callable[[Tensor], Tensor]]:
        """Functions that give the kernel of rows and the known rows."""
        if not self.bandwidths:
            centre_D = x_KD.mean(dim=0)
            yield lambda x_ND: (x_ND - centre_D) @ (x_KD - centre_D).T
            return
        near_KK = _squared_distances(x_KD, x_KD)
        positive = near_KK[near_KK > 0]
        median = float(positive.median()) if len(positive) else 1.0
        for bandwidth in self.bandwidths:
            yield partial(_gaussian, x_KD, 1 / (2 * bandwidth**2 * median))


def _gaussian(x_KD: Tensor, rate: float, x_ND: Tensor) -> Tensor:
    return torch.exp(-rate * _squared_distances(x_ND, x_KD))


def _squared_distances(a_ND: Tensor, b_KD: Tensor) -> Tensor:
    squared = a_ND.square().sum(dim=1)[:, None] + b_KD.square().sum(dim=1) - 2 * a_ND @ b_KD.T
    return squared.clamp(min=0)
