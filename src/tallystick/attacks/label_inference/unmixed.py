"""Separate several labels of a row, using that they vary independently.

Shapes: N rows seen, K components: one per label, or fewer in a narrow cut.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.label_inference.observations import binary_only, observations, whole_run
from tallystick.attacks.label_inference.spectral import orient
from tallystick.attacks.matrix import principal_components
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError

STEPS = 100
STAYS = 1e-8  # a direction has converged if its cosine with the previous one is this close to 1
LEAST_SHARE = 1e-9  # a component with a smaller share of the first one's variance is ignored


@dataclass(frozen=True, kw_only=True)
class UnmixedAttack:
    """Rotate the mean gradients' main directions until the components are as far from normal distributions as possible.

    In no paper on labels that we know; independent component analysis (Hyvärinen and Oja 2000), by skewness and kurtosis
    together. A gradient is a sum over a row's labels of (p - y), each times a direction of its own. So mean gradients span as
    many directions as there are labels, and principal directions mix the labels. A single label has two peaks; a mixture is
    closer to a normal distribution. The rarer a label is, the more skewed is its component, and this names the components. The
    attacker knows no label, only the order of labels by frequency.

    Args:
        starts: number of random starts, at least 1; the result farthest from a normal distribution is used.
    """

    starts: int = 8

    def __post_init__(self) -> None:
        if self.starts < 1:
            raise ConfigError(f"unmixed attack: starts={self.starts}; expected at least 1")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows by the component of ``View.rarer_labels``. ``generator`` draws starts. Equal rows get equal scores."""
        binary_only(view, "unmixed attack", "clusters")
        rows, x_ND = observations(view, "cut_gradient")
        z_NK = principal_components(x_ND, min(view.labels, x_ND.shape[1])).flip(1)
        variance_K = z_NK.square().mean(dim=0)
        z_NK = z_NK[:, variance_K > LEAST_SHARE * variance_K[0]]
        if not z_NK.shape[1]:
            return whole_run(view, rows, torch.zeros(len(rows)))
        z_NK = z_NK / z_NK.square().mean(dim=0).sqrt()
        furthest, best_NK, skewness_K = -1.0, z_NK, z_NK[0]
        for _ in range(self.starts):
            turn_KK = torch.linalg.qr(torch.randn(2 * z_NK.shape[1:], generator=generator, dtype=z_NK.dtype))[0]
            for _ in range(STEPS):
                turned_NK = z_NK @ turn_KK
                square_NK = turned_NK.square()
                skew_K = (square_NK * turned_NK).mean(dim=0)
                kurtosis_K = square_NK.square().mean(dim=0) - 3
                slope_NK = skew_K / 2 * square_NK + kurtosis_K / 6 * (square_NK - 3) * turned_NK
                left_KK, _, right_KK = torch.linalg.svd(z_NK.T @ slope_NK, full_matrices=False)
                before_KK, turn_KK = turn_KK, left_KK @ right_KK
                if float((before_KK * turn_KK).sum(dim=0).abs().min()) > 1 - STAYS:
                    break
            far = float((skew_K.square() / 12 + kurtosis_K.square() / 48).sum())
            if far > furthest:
                furthest, best_NK, skewness_K = far, turned_NK, skew_K.abs()
        place = min(view.rarer_labels, len(skewness_K) - 1)
        return whole_run(view, rows, orient(best_NK[:, skewness_K.argsort(descending=True)[place]]))
