"""Rebuild columns by inverting a stand-in for the bottom model.

Shapes: N rows, K known rows, M rows to guess, D inputs, T targets, A own columns.
"""

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Reads, Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError

FOLDS = 5
OWN_PENALTIES = (0.1, 1.0, 10.0)  # penalty of the regression of other columns on own columns
TINY = 1e-6


@dataclass(frozen=True, kw_only=True)
class SurrogateInversion:
    """Learn a stand-in for the bottom model, from columns to embeddings, on the known rows, and invert it for all others.

    Generative inversion: He et al. 2019, section 4.4, invert a shadow model; in Luo et al. 2021 own columns help a generator of
    the others. Here both are linear and Gaussian, so the likeliest columns have a closed form: the expectation from own columns
    (or the known rows' mean), corrected by the embedding. A few columns determine many coordinates, so a few rows are enough to
    fit the stand-in, while a direct inverse has more unknowns than rows. The stand-in also shows how much of an embedding is
    noise.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, or all.
        own_columns: whether to use the label party's own columns, if the view has them.
        penalties: factors of the stand-in's squared weights to try; above 0.
        doubts: factors of its squared errors to try, because it is linear and the bottom model is not; above 0.
    """

    reads: Reads = "mean"
    own_columns: bool = False
    penalties: tuple[float, ...] = (0.01, 0.1, 1.0)
    doubts: tuple[float, ...] = (1.0, 10.0, 100.0)

    def __post_init__(self) -> None:
        if not (self.penalties and self.doubts and min(*self.penalties, *self.doubts) > 0):
            raise ConfigError(f"surrogate inversion: penalties={self.penalties}, doubts={self.doubts}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws the folds that choose penalty and doubt."""
        targets = Targets.of(view.columns_K)
        fitted_T = targets.fitted(least=1)
        fitted_KT = targets.y_KT[:, fitted_T]
        mean_T, deviation_T = fitted_KT.mean(dim=0), fitted_KT.std(dim=0, correction=0)
        y_KT = (fitted_KT - mean_T) / deviation_T.masked_fill(deviation_T <= TINY, torch.inf)
        x_ND = inputs(view, self.reads, own_columns=False)
        own_NA = x_ND[:, :0]
        if self.own_columns and view.own_NA is not None:
            own_NA = inputs(view, self.reads, own_columns=True)[:, x_ND.shape[1] :]
        x_KD, own_KA = x_ND[view.known_K], own_NA[view.known_K]
        fold_K = torch.randperm(len(y_KT), generator=generator) % FOLDS

        def left_out(penalty: float) -> list[float]:
            """Compute the squared error of rows that were left out, for each doubt."""
            total = [0.0] * len(self.doubts)
            for out_K in fold_K == torch.arange(FOLDS)[:, None]:
                surrogate = _Surrogate(y_KT[~out_K], x_KD[~out_K], own_KA[~out_K], penalty=penalty)
                for place, doubt in enumerate(self.doubts):
                    found_MT = surrogate.inverse(x_KD[out_K], own_KA[out_K], doubt=doubt)
                    total[place] += float((found_MT - y_KT[out_K]).square().sum())
            return total

        penalty, doubt = self.penalties[-1], self.doubts[-1]
        if len(y_KT) > FOLDS:
            pairs = list(product(self.penalties, self.doubts))
            errors = [error for penalty in self.penalties for error in left_out(penalty)]
            penalty, doubt = pairs[errors.index(min(errors))]
        guess_NT = _Surrogate(y_KT, x_KD, own_KA, penalty=penalty).inverse(x_ND, own_NA, doubt=doubt)
        return targets.reconstruction((guess_NT * deviation_T + mean_T).T, fitted_T)


class _Surrogate:
    """x = centre + y W + noise, and y = own V + spread, both fitted by ridge regression to the known rows.

    Rare categories make far more targets than known rows or coordinates, so no matrix here is T by T.
    """

    def __init__(self, y_KT: Tensor, x_KD: Tensor, own_KA: Tensor, *, penalty: float) -> None:
        self.y_T, self.x_D, self.own_A = y_KT.mean(dim=0), x_KD.mean(dim=0), own_KA.mean(dim=0)
        y_KT, x_KD, own_KA = y_KT - self.y_T, x_KD - self.x_D, own_KA - self.own_A
        self.own_AT, spread_KT = torch.zeros(own_KA.shape[1], y_KT.shape[1], dtype=y_KT.dtype), y_KT
        if own_KA.shape[1]:
            fits = [_ridge(own_KA, y_KT, each) for each in OWN_PENALTIES]
            own_AT, left_KT = min(fits, key=lambda fit: float(fit[1].square().sum()))
            if float(left_KT.square().sum()) < float(y_KT.square().sum()):  # own columns predict better than the mean
                self.own_AT, spread_KT = own_AT, left_KT
        self.weight_TD, error_KD = _ridge(y_KT, x_KD, penalty)
        self.variance_D = error_KD.square().mean(dim=0).clamp(min=TINY)
        rows, targets = spread_KT.shape
        shrunk = 0.5 * min(1.0, targets / rows)  # how far the spread's covariance is shrunk towards its diagonal
        alone_T = shrunk * spread_KT.square().mean(dim=0) + TINY
        together_TD = spread_KT.T @ (spread_KT @ self.weight_TD) * ((1 - shrunk) / rows)
        self.covariance_TD = together_TD + alone_T[:, None] * self.weight_TD  # covariance of targets and their effect
        self.explained_DD = self.weight_TD.T @ self.covariance_TD

    def inverse(self, x_MD: Tensor, own_MA: Tensor, *, doubt: float) -> Tensor:
        """Return the likeliest targets of rows, if the noise is this multiple of the fit's."""
        own_MA = own_MA - self.own_A
        against_MD = x_MD - self.x_D
        if own_MA.shape[1]:
            against_MD = against_MD - own_MA @ (self.own_AT @ self.weight_TD)
        told_DM = torch.linalg.solve(self.explained_DD + doubt * torch.diag(self.variance_D), against_MD.T)
        found_MT = torch.addmm(self.y_T, told_DM.T, self.covariance_TD.T)
        return found_MT.addmm_(own_MA, self.own_AT) if own_MA.shape[1] else found_MT


def _ridge(from_KA: Tensor, to_KT: Tensor, penalty: float) -> tuple[Tensor, Tensor]:
    """Return weights (A, T) for centred columns, and the leave-one-out error of each row.

    It uses the smaller of the two Gram matrices.
    """
    rows, columns = from_KA.shape
    few = columns <= rows
    gram = from_KA.T @ from_KA if few else from_KA @ from_KA.T
    gram.diagonal().add_(penalty * rows)
    hat_AK = torch.linalg.solve(gram, from_KA.T) if few else torch.linalg.solve(gram, from_KA).T
    leverage_K = (from_KA * hat_AK.T).sum(dim=1) + 1 / rows
    weight_AT = hat_AK @ to_KT
    return weight_AT, (to_KT - from_KA @ weight_AT) / (1 - leverage_K).clamp(min=0.01)[:, None]
