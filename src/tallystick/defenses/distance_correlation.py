"""A loss on the distance correlation of cut embeddings and labels. Shapes: B batch, D cut width, K classes in the batch."""

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
"""Added to the squared distance correlation before its logarithm is taken; it has no unit."""


@dataclass(frozen=True, kw_only=True)
class DistanceCorrelation(Defense):
    """Adds weight * log(dCor^2 + 1e-8) of a batch's cut embeddings and labels to the loss, or weight * dCor^2.

    Sun et al. 2022 (Label leakage and protection from forward embedding in vertical federated learning), equation 4; what the
    paper calls dCor is Szekely's dCor^2. The labels' distances are 0 and 1, which turns the sums over pairs into class
    means (see ``squared_distance_correlation``): exact for any batch size, and no B x B matrix is stored.

    Threat model: a feature party that follows the protocol and looks at its own embeddings. Guarantee: no formal guarantee;
    it works against linear and clustering attacks, in training, as far as the optimiser goes. Not protected: cut gradients, which
    the penalty makes depend on the labels even more (chain a gradient defence, whose noise then covers the sum).

    The log form has a narrow range of weights between doing nothing and keeping the network from learning. Attackers who know
    some labels are not stopped: an embedding that is independent of labels would be of no use.

    A batch of one class, or of embeddings that are all the same, has no distance correlation: its penalty is 0 and has no
    gradient.
    On n independent rows dCor^2 is not 0 but grows as 1 / n (.013 at n = 300): small batches push against chance.

    Args:
        weight: of the penalty beside the mean loss, above 0.
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

    weight: Annotated[Strength, Field(description="weight of the penalty beside the mean loss")]
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
        """Say that there is none."""
        return Guarantee(
            text=f"no formal guarantee: distance correlation of cut embeddings and labels in the loss, weight {self.weight:g}"
        )


def squared_distance_correlation(cut_BD: Tensor, labels_B: Tensor) -> Tensor:
    """Return dCor^2 of embeddings and class labels as a float64 scalar. It is 0 where there is none.

    The V-statistic of Szekely et al., 2007. Let d_ij be the embeddings' distances, r_i their row means and m their mean. Let
    b_ij be 1 where labels differ and else 0, and B its double centring. dCov^2(f, y) = mean(B d) takes only sums of d by row
    and within classes. dCov^2(f, f) = mean(d^2) - 2 mean(r^2) + m^2, where mean(d^2) is twice the total variance. dCov^2(y, y)
    takes the class shares.
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
