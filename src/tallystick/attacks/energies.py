"""How much of each row's gradient lies where a batch's gradients vary least, and where they vary most.

Shapes: B rows of a step's batch, D cut width, H the two halves of the directions: low and high.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.matrix import centred

HALVES = ("low", "high")
REFRESH = 8  # steps at least that one basis serves: finding it takes longer than all else here


@dataclass(kw_only=True)
class DirectionEnergies:
    """Minus the logarithm of each row's energy in the lower and in the upper half of the gradients' principal directions.

    The directions are those of a running sum of the centred gradients' second moments, which each new basis halves: so batches
    that are smaller than the cut is wide have a low half, too. A direction in which nothing varies is in neither.

    Args:
        moments_DD: the running sum, once a step was seen.
        basis_HDD: of each half its directions, side by side; those of the other half are 0.
        steps: seen since the basis was found.
    """

    moments_DD: Tensor | None = None
    basis_HDD: Tensor | None = None
    steps: int = 0

    def __call__(self, gradient_BD: Tensor) -> Tensor:
        """The two numbers (B, H) of each row, less their batch's mean, float32; NaN where a gradient is not finite."""
        x_BD = centred(gradient_BD, dtype=torch.float32)
        largest = float(x_BD.abs().max()) if x_BD.numel() else 0.0
        if not 0 < largest < torch.inf:
            return torch.full((len(x_BD), len(HALVES)), 0.0 if largest == 0 else torch.nan)
        x_BD /= largest  # a squared gradient of a trained model must not vanish
        moments_DD = x_BD.T @ x_BD
        self.moments_DD = moments_DD if self.moments_DD is None else self.moments_DD.add_(moments_DD)
        if self.basis_HDD is None or self.steps >= max(REFRESH, x_BD.shape[1] // 16):
            self.basis_HDD, self.steps = _halves(self.moments_DD), 0
            self.moments_DD /= 2
        self.steps += 1
        energy_BH = torch.stack([(x_BD @ basis_DD).square().sum(dim=1) for basis_DD in self.basis_HDD], dim=1)
        told_BH = -energy_BH.clamp(min=torch.finfo(torch.float32).tiny).log()
        return told_BH - told_BH.mean(dim=0)


def _halves(moments_DD: Tensor) -> Tensor:
    """The principal directions of these moments, those of the least first, in two halves as wide as one another."""
    value_D, vector_DD = torch.linalg.eigh(moments_DD.double())
    varies_D = value_D > 1e-10 * value_D[-1]
    place_D = varies_D.cumsum(dim=0)
    low_D = varies_D & (place_D <= int(varies_D.sum()) // 2)
    return torch.stack([vector_DD * low_D, vector_DD * (varies_D & ~low_D)]).float()
