"""Rebuild columns from the directions of embeddings in which there is more than noise.

Shapes: N rows, K known rows, D cut width, P directions, S fitted targets.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Targets
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import kernel_ridge_by_evidence
from tallystick.attacks.matrix import centred
from tallystick.errors import ConfigError

READ = "denoised"
NOISE_SHARE = 0.25  # of all directions: at least so many hold noise alone


@dataclass(frozen=True, kw_only=True)
class DenoisedKernels:
    """Keep the directions of the mean embeddings that vary more than noise does, and fit kernels to the known rows.

    In no paper that we know; semi-supervised, because all rows together show which directions hold noise alone: those of least
    variance. The eigenvalues of noise end near a known edge (Marchenko and Pastur 1967), and what lies above is the signal's. A
    direction is scaled by the fourth root of its signal's variance, and shrunk by the share of its variance that is noise. So few
    known rows are not spent on directions that say nothing. Kernels and penalties are averaged by their evidence
    (``kernel_ridge_by_evidence``), which needs no row to be left out.

    Args:
        bandwidths: of the Gaussian kernels, in units of the median distance of known rows; above 0.
    """

    bandwidths: tuple[float, ...] = (0.7, 1.0, 2.0)

    def __post_init__(self) -> None:
        if not (self.bandwidths and min(self.bandwidths) > 0):
            raise ConfigError(f"denoised: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:  # noqa: ARG002
        """Guess every row's columns. It draws nothing at random."""
        if (READ, False) not in view.scaled:  # whichever rows are known
            view.scaled[READ, False] = _signal(view.mean_ND)
        z_NP, targets = view.scaled[READ, False], Targets.of(view.columns_K)
        mean_T, fitted_S = targets.means, targets.fitted()
        y_KS = (targets.y_KT - mean_T)[:, fitted_S]
        guess_SN = kernel_ridge_by_evidence(z_NP[view.known_K], y_KS, z_NP, bandwidths=self.bandwidths)
        return targets.reconstruction(guess_SN.add_(mean_T[fitted_S, None]), fitted_S)


def _signal(mean_ND: Tensor) -> Tensor:
    """Return the rows' places along the directions that hold more than noise, or one column of zeros if none does."""
    x_ND = centred(mean_ND)
    rows, width = x_ND.shape
    value_D, vector_DD = torch.linalg.eigh(x_ND.T @ x_ND / rows)
    spread = min((width / rows) ** 0.5, 0.9)
    noise = float(value_D[int(NOISE_SHARE * (width - 1))])
    signal_D = value_D - max(noise * (1 + spread) ** 2, torch.finfo(torch.float32).eps * float(value_D[-1]))
    is_signal_D = signal_D > 0
    if not bool(is_signal_D.any()):
        return torch.zeros_like(x_ND[:, :1])
    signal_P, value_P = signal_D[is_signal_D], value_D[is_signal_D]
    scale_P = signal_P.sqrt() * (signal_P / value_P[-1]).sqrt().sqrt() / value_P
    z_NP: Tensor = (x_ND @ vector_DD[:, is_signal_D] * scale_P).flip(1)
    return z_NP
