"""Learn an inverse from made-up rows. Shapes: N rows, K known rows, M made-up rows, P components, T targets, H hidden units."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import kernel_ridge
from tallystick.errors import ConfigError

BANDWIDTHS = (1.0, 2.0, 4.0, 8.0)
FOLDS = 5
PER_COMPONENT, LEAST_COMPONENTS, MOST_COMPONENTS = 5, 4, 12
HIDDEN, PENALTY = 128, 0.1


@dataclass(frozen=True, kw_only=True)
class BootstrapInversion:
    """Learn how known rows are embedded, embed thousands of made-up rows in the same way, and learn the inverse from these.

    In no paper that we know. Few known rows are enough to learn the map from columns to embeddings, because columns determine
    embeddings and not the other way round. With it any number of rows can be made to learn the inverse. Made-up rows are known
    rows, drawn with replacement, with a little noise on each column (a smoothed bootstrap). Kernel ridge regression embeds them
    in the first components of the course. It adds errors drawn from those of known rows that were left out of the fit, so the
    inverse learns what is noise.

    Args:
        rows: M, at least 1.
        noise: on made-up rows, in deviations of a column, between 0 and 1; the rest of the variance is the drawn row's.
    """

    rows: int = 2000
    noise: float = 0.3

    def __post_init__(self) -> None:
        if not (self.rows >= 1 and 0 < self.noise < 1):
            raise ConfigError(f"bootstrap: rows={self.rows}, noise={self.noise}; expected at least 1, and between 0 and 1")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws made-up rows, folds, first weights and batches."""
        targets, known_count = Targets.of(view.columns_K), len(view.known_K)
        components = min(MOST_COMPONENTS, max(LEAST_COMPONENTS, known_count // PER_COMPONENT))
        z_NP = inputs(view, "course", own_columns=False)[:, :components]
        mean_T, deviation_T = targets.y_KT.mean(dim=0), targets.y_KT.std(dim=0, correction=0)
        deviation_T = torch.where(deviation_T > 0, deviation_T, 1.0)
        y_KT, z_KP = (targets.y_KT - mean_T) / deviation_T, z_NP[view.known_K]
        drawn_M = torch.randint(known_count, (self.rows,), generator=generator)
        fresh_MT = torch.randn(self.rows, y_KT.shape[1], generator=generator, dtype=y_KT.dtype)
        made_MT = (1 - self.noise**2) ** 0.5 * y_KT[drawn_M] + self.noise * fresh_MT
        error_KP, fold_K = torch.zeros_like(z_KP), torch.randperm(known_count, generator=generator) % FOLDS
        for fold in range(min(FOLDS, known_count)):
            left_K = fold_K == fold
            error_KP[left_K] = z_KP[left_K] - _embedded(y_KT[~left_K], z_KP[~left_K], y_KT[left_K])
        errors_MP = error_KP[torch.randint(known_count, (self.rows,), generator=generator)]
        made_MP = _embedded(y_KT, z_KP, made_MT) + errors_MP
        weight_PH = torch.randn(made_MP.shape[1], HIDDEN, generator=generator, dtype=made_MP.dtype) / made_MP.shape[1] ** 0.5
        bias_H = torch.randn(HIDDEN, generator=generator, dtype=made_MP.dtype)
        unit_MH, unit_NH = (torch.cat([z, (z @ weight_PH + bias_H).relu()], dim=1) for z in (made_MP, z_NP))
        mean_H, mean_of_T = unit_MH.mean(dim=0), made_MT.mean(dim=0)
        unit_MH = unit_MH - mean_H
        gram_HH = unit_MH.T @ unit_MH
        gram_HH.diagonal().add_(PENALTY * len(unit_MH))
        slope_HT = torch.linalg.solve(gram_HH, unit_MH.T @ (made_MT - mean_of_T))
        guess_NT: Tensor = mean_of_T + (unit_NH - mean_H) @ slope_HT
        return targets.reconstruction((guess_NT * deviation_T + mean_T).T)


def _embedded(y_KT: Tensor, z_KP: Tensor, y_MT: Tensor) -> Tensor:
    """Embed rows with these columns, as learnt from the known rows."""
    if not len(y_KT):
        return torch.zeros(len(y_MT), z_KP.shape[1], dtype=z_KP.dtype)
    mean_P = z_KP.mean(dim=0)
    return kernel_ridge(y_KT, z_KP - mean_P, y_MT, bandwidths=BANDWIDTHS).T + mean_P
