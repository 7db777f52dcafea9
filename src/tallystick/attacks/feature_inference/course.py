"""Rebuild columns from all embeddings of a row over the training, as if the same weights had embedded all rows.

Shapes: N rows, K known rows, P principal components, T targets.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.feature_inference.inputs import Targets, inputs
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.attacks.kernels import averaged_kernel_ridge
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class CourseAttack:
    """Remove the change of the bottom model between batches, keep the directions in which rows vary, and fit curves to the
    known rows.

    In no paper that we know; semi-supervised, because unknown rows show how embeddings vary. Within an epoch, each batch is
    embedded with other weights, and the label party knows the batch of each row. The change of embeddings with time is learned
    from all rows (``aligned``), and subtracted. The rest varies in few directions: each principal component is scaled to the root
    of its deviation. Kernels on the first few components, then on more and more, up to ``share`` times the number of known rows,
    are fitted to the known rows: Gaussian ones, and the kernel of an infinitely wide layer of ReLU units (Cho and Saul 2009).
    Their guesses are averaged, weighted by leave-one-out errors.

    If fewer than three embeddings per row were kept, as for a wide cut, the components are those of the mean embeddings, whose
    small components are mostly noise.

    Args:
        bandwidths: of the Gaussian kernels, in units of the median distance of known rows; above 0.
        share: greatest number of components per known row; above 0.
    """

    bandwidths: tuple[float, ...] = (1.0,)
    share: float = 0.6

    def __post_init__(self) -> None:
        if not (self.bandwidths and min(self.bandwidths) > 0 and self.share > 0):
            raise ConfigError(f"course: bandwidths={self.bandwidths}, share={self.share}; expected numbers above 0")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:  # noqa: ARG002
        """Guess every row's columns. It draws nothing at random."""
        z_NP, targets = inputs(view, "uneven-course", own_columns=False), Targets.of(view.columns_K)
        most = max(1, min(z_NP.shape[1], int(self.share * len(view.known_K))))
        mean_T = targets.means
        fitted_S = targets.fitted()
        y_KS = (targets.y_KT - mean_T)[:, fitted_S]
        widths = [min(most, 4)]  # numbers of components to try, each twice the one before
        while widths[-1] < most:
            widths.append(min(2 * widths[-1], most))
        known_KP = z_NP[view.known_K]
        guess_SN = averaged_kernel_ridge(known_KP, y_KS, z_NP, widths=widths, bandwidths=self.bandwidths, units=True)
        return targets.reconstruction(guess_SN.add_(mean_T[fitted_S, None]), fitted_S)
