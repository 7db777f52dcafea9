"""Rebuild columns by several kernels on all inputs together. Shapes: N rows, K known rows, D inputs, S fitted targets."""

from dataclasses import dataclass

import torch

from tallystick.attacks.feature_inference.inputs import Targets
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import averaged_kernel_ridge
from tallystick.attacks.matrix import centred
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class AveragedKernels:
    """Fit Gaussian kernels, and that of a wide layer of ReLU units, to the known rows, and average their guesses.

    It reads last embeddings as they are scaled: whoever lays inputs side by side says by their size how much they count.

    Args:
        bandwidths: of the Gaussian kernels, in units of the median distance of known rows; above 0.
    """

    bandwidths: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        if not (self.bandwidths and min(self.bandwidths) > 0):
            raise ConfigError(f"averaged kernels: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:  # noqa: ARG002
        """Guess every row's columns. It draws nothing at random."""
        x_ND, targets = centred(view.last_ND), Targets.of(view.columns_K)
        mean_T, fitted_S = targets.means, targets.fitted()
        y_KS, known_KD = (targets.y_KT - mean_T)[:, fitted_S], x_ND[view.known_K]
        width = x_ND.shape[1]
        guess_SN = averaged_kernel_ridge(known_KD, y_KS, x_ND, widths=[width], bandwidths=self.bandwidths, units=True)
        return targets.reconstruction(guess_SN.add_(mean_T[fitted_S, None]), fitted_S)
