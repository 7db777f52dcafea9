"""Add the distance correlation of cut embeddings and labels to the loss. Shapes: B batch, D cut width, K classes in the batch."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from tallystick.defenses.checks import check_labels, check_positive
from tallystick.defenses.defense import CLASSES, Defense, Guarantee, Stage, Strength
from tallystick.errors import ConfigError, DataError
from tallystick.lazy_torch import Tensor, torch

FLOOR = 1e-8
"""Added to the squared distance correlation before its logarithm is taken. It has no unit."""


@dataclass(frozen=True, kw_only=True)
class DistanceCorrelation(Defense):
    """Adds weight * log(dCor^2 + 1e-8) of a batch's cut embeddings and labels to the loss, or weight * dCor^2.

    This is Sun et al. 2022 (Label leakage and protection from forward embedding in vertical federated learning), equation 4. The
    paper's dCor is Szekely's dCor^2. The labels' distances are 0 and 1, which turns the sums over pairs into class means (see
    ``squared_distance_correlation``): exact for any batch size, without storing a B x B matrix.

    Threat model: a feature party that follows the protocol and studies its own embeddings. Guarantee: no formal guarantee; it
    works against linear and clustering attacks, in training, as far as the optimiser goes. Not protected: cut gradients, which
    the penalty makes depend on the labels even more (chain a gradient defence, whose noise then covers the sum).

    The log form has a narrow range of weights between no effect and a network that cannot learn. It does not stop attackers who
    know some labels, because an embedding that is independent of labels is of no use.

    A batch of one class, or with equal embeddings, has no distance correlation, so its penalty is 0 and has no gradient. On n
    independent rows dCor^2 is not 0 but grows as 1 / n (.013 at n = 300), so small batches push against chance.

    Args:
        weight: the penalty's weight, relative to the mean loss; above 0.
        form: the logarithm, as in the paper, whose gradient does not fade with the correlation; or dCor^2 itself.
        warm_up: epochs over which the weight rises from 0.

    Raises ConfigError for values out of range, DataError for embeddings that are not finite.
    """

    method: ClassVar[str] = "distance-correlation"
    stage: ClassVar[Stage] = "penalties"
    targets: ClassVar[tuple[str, ...]] = CLASSES
    needs_classes: ClassVar[bool] = True
    strength: ClassVar[str] = "weight"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"weight": 0.3})

    weight: Annotated[Strength, Field(description="weight of the penalty relative to the mean loss")]
    form: Annotated[
        Literal["log", "plain"], Field(description="the distance correlation itself, or its logarithm as in the paper")
    ] = "plain"
    warm_up: Annotated[float, Field(strict=True, ge=0, le=65_535, description="epochs over which the weight rises from 0")] = 0.0

    def __post_init__(self) -> None:
        check_positive("distance-correlation: weight", self.weight)
        if self.form not in ("log", "plain"):
            raise ConfigError(f"distance-correlation: form is {self.form!r}; it must be log or plain")
        if not (math.isfinite(self.warm_up) and self.warm_up >= 0):
            raise ConfigError(f"distance-correlation: warm_up is {self.warm_up!r}; it must be a number of epochs, 0 or more")

    def __call__(self, cut_BD: Tensor, labels_B: Tensor, *, epoch: float = math.inf) -> Tensor:
        """Return the scalar penalty."""
        weight = self.weight if epoch >= self.warm_up else self.weight * epoch / self.warm_up
        correlation = squared_distance_correlation(cut_BD, labels_B)
        if self.form == "log" and correlation.item() > 0:
            correlation = torch.log(correlation + FLOOR)
        return weight * correlation.to(cut_BD.dtype)

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: distance correlation of cut embeddings and labels in the loss, weight {self.weight:g}"
        )


def squared_distance_correlation(cut_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Return dCor^2 of embeddings and class labels as a float64 scalar. It is 0 if there is no correlation.

    This is the V-statistic of Szekely et al., 2007. Let d_ij be the embeddings' distances, r_i their row means and m their mean.
    Let b_ij be 1 if labels differ and else 0, and B its double centring. dCov^2(f, y) = mean(B d) needs only sums of d by row and
    within classes. dCov^2(f, f) = mean(d^2) - 2 mean(r^2) + m^2, where mean(d^2) is twice the total variance. dCov^2(y, y) needs
    the class shares.
    """
    if cut_BD.dim() != 2 or not cut_BD.is_floating_point():
        raise DataError(f"cut embeddings have shape {tuple(cut_BD.shape)} and type {cut_BD.dtype}; expected floats (B, D)")
    check_labels(labels_B, len(cut_BD))
    if not bool(cut_BD.isfinite().all()):
        raise DataError("cut embeddings: NaN or infinite; lower training.learning_rate, or look for NaN among the columns")
    if len(cut_BD) == 0 or bool((labels_B == labels_B[0]).all()):
        return torch.zeros((), dtype=torch.float64, device=cut_BD.device)
    from tallystick.defenses.squared_distance_correlation import SquaredDistanceCorrelation

    result: Tensor = SquaredDistanceCorrelation.apply(cut_BD, labels_B)  # type: ignore[no-untyped-call]
    return result
