"""Rebuild columns quickly by ridge regression in its dual form, linear or with a Gaussian kernel.

Shapes: N rows, K known rows, D inputs, T targets, S fitted targets.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.feature_inference.inputs import Reads, Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import kernel_ridge
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class KernelRidge:
    """Fit ridge regression from embeddings to columns on the known rows, and predict all other rows by it.

    The linear form assumes that the cut embedding is a linear map of the columns; ``bandwidths`` choose a Gaussian kernel, for
    curved maps. Penalty and bandwidth are chosen for each target by the exact leave-one-out error (``kernel_ridge``). A
    category is guessed by the greatest of its indicators' regressions.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, or all.
        bandwidths: of the kernel, in units of the median distance of known rows; none for the linear kernel.
        own_columns: whether to use the label party's own columns, if the view has them.
        scaled: whether to scale each input to deviation 1; otherwise inputs of large variance count more.
    """

    reads: Reads = "last"
    bandwidths: tuple[float, ...] = ()
    own_columns: bool = False
    scaled: bool = True

    def __post_init__(self) -> None:
        if not self.scaled and (self.reads != "last" or self.own_columns):
            raise ConfigError(f"kernel ridge: scaled=False reads last embeddings alone, not {self.reads}")
        if any(not bandwidth > 0 for bandwidth in self.bandwidths):
            raise ConfigError(f"kernel ridge: bandwidths={self.bandwidths}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:  # noqa: ARG002
        """Guess every row's columns. It draws nothing at random. If the known rows are equal, all guesses are their mean."""
        x_ND = inputs(view, self.reads, own_columns=self.own_columns)
        if not self.scaled:
            x_ND = view.last_ND.double() - view.last_ND.double().mean(dim=0)
        x_KD = x_ND[view.known_K]
        targets = Targets.of(view.columns_K)
        mean_T = targets.means
        fitted_S = targets.fitted()
        y_KS = (targets.y_KT - mean_T)[:, fitted_S]
        guess_SN = kernel_ridge(x_KD, y_KS, x_ND, bandwidths=self.bandwidths).add_(mean_T[fitted_S, None])
        return targets.reconstruction(guess_SN, fitted_S)
