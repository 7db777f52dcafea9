"""Add isotropic Gaussian noise to cut gradients. Shapes: B batch, D cut width."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tallystick.defenses.checks import check_gradients, check_positive
from tallystick.defenses.defense import Defense, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, standard_normal
from tallystick.lazy_torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Isotropic(Defense):
    """Adds N(0, (power / D) max_b |g_b|^2 I) to every row: the baseline ``iso`` of Li et al. 2022 (Marvell), section 5.

    Threat model: a feature party that follows the protocol and studies norms and directions of the cut gradients. Guarantee: no
    formal guarantee. The noise is in units of the batch's largest gradient, and no gradient is clipped. Not protected: cut
    embeddings; labels against an adversary who averages over many epochs. The noise is in all D directions, of which one matters.
    If both classes have the same spread, it takes D times the power of Marvell for the same sum of KL divergences.

    It does not read labels, so it works with any target, and a batch of one class, one row or equal gradients needs no special
    case. A batch whose gradients are all zero is sent unchanged, because its rows are equal.

    Args:
        power: expected squared norm of a row's noise, in units of the batch's largest squared gradient norm; above 0.

    Raises ConfigError for a power out of range, DataError for gradients that are not finite.
    """

    method: ClassVar[str] = "isotropic"
    stage: ClassVar[Stage] = "gradients"
    strength: ClassVar[str] = "power"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"power": 4.0})

    power: Annotated[Strength, Field(description="noise power in units of the batch's largest squared gradient norm")]

    def __post_init__(self) -> None:
        check_positive("isotropic: power", self.power)

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the noisy gradients."""
        check_gradients(grad_BD, labels_B)
        if not len(grad_BD):
            return grad_BD
        rows, width = grad_BD.shape
        largest = float(grad_BD.double().norm(dim=1).max())
        deviation = largest * math.sqrt(self.power / width)
        return grad_BD + deviation * standard_normal(rows, width, generator, like=grad_BD)

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: Gaussian noise of {self.power:g} times the batch's largest squared gradient norm "
            "on every cut gradient"
        )
