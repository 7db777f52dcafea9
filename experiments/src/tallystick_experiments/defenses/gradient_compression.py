"""Send only the largest coordinates of a batch's cut gradients. Shapes: B batch, D cut width."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tallystick.defenses.checks import check_between, check_gradients
from tallystick.defenses.defense import Defense, Fraction, Guarantee, Stage
from tallystick.defenses.known_attacks import ReadBy
from tallystick.defenses.noise import Randomness

READ_BY = ReadBy(attack="surrogate-top", auc=0.999)


@dataclass(frozen=True, kw_only=True)
class GradientCompression(Defense):
    """Sends the coordinates of a batch's cut gradients that are largest in size, and 0 for all others.

    This is Aji and Heafield 2017 (sparse communication) without the residual that they carry over to the next step, because a row
    comes once an epoch. Fu et al. 2022 (Label inference attacks against vertical federated learning) test it as a defence of
    labels. It is as in their published code, except that the number of coordinates is rounded up.

    Threat model: a feature party that follows the protocol and studies small gradients. Guarantee: no formal guarantee; it draws
    nothing, so it leaves the same information each time. Not protected: the rows with the largest gradients, which the model gets
    wrong and which are often of the rarer class, keep their direction and most of their norm; cut embeddings.

    It does not read labels, so it works with any target. Coordinates of equal size are sent or withheld together.

    Args:
        keep: the share of coordinates that is sent, above 0 and below 1; at least one is sent.

    Raises ConfigError for a share out of range, DataError for gradients that are not finite.
    """

    method: ClassVar[str] = "gradient-compression"
    stage: ClassVar[Stage] = "gradients"
    strength: ClassVar[str] = "keep"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"keep": 0.1})

    keep: Annotated[Fraction, Field(description="share of the batch's gradient coordinates that is sent, the largest in size")]

    def __post_init__(self) -> None:
        check_between("gradient-compression: keep", self.keep, 0, 1)

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:  # noqa: ARG002
        """Return the gradients with their small coordinates set to 0."""
        check_gradients(grad_BD, labels_B)
        if not grad_BD.numel():
            return grad_BD
        size_BD = grad_BD.abs()
        least = size_BD.flatten().topk(math.ceil(self.keep * size_BD.numel())).values[-1]
        return torch.where(size_BD >= least, grad_BD, 0.0)

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: of each batch's cut gradients the largest coordinates are sent, {self.keep:g} of all; "
            f"{READ_BY.sentence}"
        )
