"""Add the distance correlation of own columns and cut embeddings to the loss. Shapes: B rows, D cut width, F, G columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tallystick.defenses.checks import check_embeddings, check_positive
from tallystick.defenses.defense import Defense, Guarantee, Stage, Strength

MOST_ROWS = 512  # only so many rows of a batch are used, the first ones in the schedule's random order
_FLOOR = 1e-8


@dataclass(frozen=True, kw_only=True)
class FeatureDistanceCorrelation(Defense):
    """Adds weight * dCor^2 of a batch's raw columns and cut embeddings to the feature party's share of the loss.

    This is Vepakomma et al. 2020 (NoPeek: Information leakage reduction to share activations in distributed deep learning),
    equation 1, computed by the feature party itself, so its columns never leave. The penalty is added to the cut gradient that
    comes back, so nothing else crosses. The distance of two rows' columns is that of their standardised numbers, and a category
    that differs counts like two numbers that are one deviation apart.

    Threat model: an honest-but-curious label party. Guarantee: no formal guarantee; dCor is 0 for independent vectors only, but
    it is taken on the first 512 rows of a batch, in training, as far as the optimiser goes. Not protected: information of the
    columns that the label needs. Narrow cuts need small weights.

    Args:
        weight: the penalty's weight, relative to the mean loss; above 0.

    Raises ConfigError for a weight out of range, DataError for embeddings that are not finite.
    """

    method: ClassVar[str] = "feature-distance-correlation"
    stage: ClassVar[Stage] = "embedding penalties"
    strength: ClassVar[str] = "weight"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"weight": 0.1})

    weight: Annotated[Strength, Field(description="weight of the penalty beside the mean loss")]

    def __post_init__(self) -> None:
        check_positive("feature-distance-correlation: weight", self.weight)

    def __call__(self, cut_BD: Tensor, numeric_BF: Tensor, codes_BG: Tensor) -> Tensor:
        """Return the scalar penalty, or 0 without a gradient if all rows or embeddings of a batch are the same."""
        check_embeddings(cut_BD)
        cut_BD, numeric_BF, codes_BG = cut_BD[:MOST_ROWS], numeric_BF[:MOST_ROWS], codes_BG[:MOST_ROWS]
        return self.weight * correlation_of_distances(_distances(cut_BD), column_distances(numeric_BF, codes_BG))

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: distance correlation of columns and cut embeddings in the loss, weight {self.weight:g}"
        )


def column_distances(numeric_BF: Tensor, codes_BG: Tensor) -> Tensor:
    """Return the distances (B, B) of rows by their columns."""
    squared_BB = _squared(numeric_BF)
    for g in range(codes_BG.shape[1]):
        squared_BB = squared_BB + 2.0 * (codes_BG[:, g, None] != codes_BG[None, :, g])
    return squared_BB.clamp_min(0).sqrt()


def correlation_of_distances(a_BB: Tensor, b_BB: Tensor) -> Tensor:
    """Return dCor^2 (V-statistic, Szekely et al. 2007) of two distance matrices. It is 0 if one of them is constant."""
    a_BB, b_BB = _centred(a_BB), _centred(b_BB)
    product = (a_BB.square().mean() * b_BB.square().mean()).sqrt()
    if not bool(product > 0):
        return a_BB.new_zeros(())
    return (a_BB * b_BB).mean().clamp_min(0) / product


def _centred(distance_BB: Tensor) -> Tensor:
    return distance_BB - distance_BB.mean(dim=0) - distance_BB.mean(dim=1, keepdim=True) + distance_BB.mean()


def _squared(x_BD: Tensor) -> Tensor:
    centred_BD = x_BD - x_BD.mean(dim=0)
    norm_B = centred_BD.square().sum(dim=1)
    return norm_B[:, None] + norm_B - 2 * centred_BD @ centred_BD.T


def _distances(x_BD: Tensor) -> Tensor:
    """Return distances whose gradient stays finite if rows are equal: for these, and on the diagonal, it is 0."""
    squared_BB = _squared(x_BD)
    scale = squared_BB.detach().mean()
    apart_BB = squared_BB > _FLOOR * scale
    return torch.where(apart_BB, squared_BB, 1.0).sqrt() * apart_BB
