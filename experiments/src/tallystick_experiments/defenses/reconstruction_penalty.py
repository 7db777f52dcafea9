"""Add to the loss how well columns can be rebuilt from cut embeddings. Shapes: B rows, D cut width, F, G, T columns."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tallystick.defenses.checks import check_embeddings, check_positive
from tallystick.defenses.defense import Defense, Guarantee, Stage, Strength

RIDGE = 1e-3  # penalty of the adversary, in units of the embeddings' mean variance
CODES = 16  # number of codes of a categorical column that are used; the encoder numbers them by frequency
BENDS = 64  # cosines of random combinations that the adversary reads with the embeddings


@dataclass(frozen=True, kw_only=True)
class ReconstructionPenalty(Defense):
    """Adds weight * R^2 to the feature party's share of the loss: how much of its columns an adversary rebuilds from the batch.

    This is adversarial training against reconstruction (as Li et al. 2019, DeepObfuscator, and others) with an adversary that
    needs no training: ridge regression from embeddings, and from 64 random cosines of them, to all columns. It is fitted to every
    batch again in closed form, so it is always the best one of its kind and its gradient is exact. Nothing beyond the usual
    messages crosses.

    Threat model: an honest-but-curious label party. Guarantee: no formal guarantee; another adversary may see more. Not
    protected: information of the columns that the label needs.

    Args:
        weight: the penalty's weight, relative to the mean loss; above 0.

    Raises ConfigError for a weight out of range, DataError for embeddings that are not finite.
    """

    method: ClassVar[str] = "reconstruction-penalty"
    stage: ClassVar[Stage] = "embedding penalties"
    strength: ClassVar[str] = "weight"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"weight": 0.1})

    weight: Annotated[Strength, Field(description="weight of the penalty beside the mean loss")]

    def __post_init__(self) -> None:
        check_positive("reconstruction-penalty: weight", self.weight)

    def __call__(self, cut_BD: Tensor, numeric_BF: Tensor, codes_BG: Tensor) -> Tensor:
        """Return the scalar penalty, or 0 without a gradient if nothing varies."""
        check_embeddings(cut_BD)
        codes = torch.arange(CODES, device=codes_BG.device)
        indicators = [(codes_BG[:, g, None] == codes).to(numeric_BF) for g in range(codes_BG.shape[1])]
        return self.weight * explained(_bent(cut_BD), torch.cat([numeric_BF, *indicators], dim=1))

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        return Guarantee(
            text=f"no formal guarantee: how well a batch's columns can be rebuilt is in the loss, weight {self.weight:g}"
        )


def explained(x_BD: Tensor, y_BT: Tensor) -> Tensor:
    """Return the share of the columns' variance that ridge regression on x explains on the batch itself, each column counting
    alike.
    """
    x_BD = x_BD - x_BD.mean(dim=0)
    y_BT = y_BT - y_BT.mean(dim=0)
    deviation_T = y_BT.square().mean(dim=0).sqrt()
    y_BT = y_BT[:, deviation_T > 0] / deviation_T[deviation_T > 0]
    variance = x_BD.square().mean()
    if not y_BT.shape[1] or not bool(variance > 0) or len(x_BD) < 2:
        return x_BD.new_zeros(())
    rows, width = x_BD.shape
    gram_DD = x_BD.T @ x_BD / rows + RIDGE * variance * torch.eye(width, dtype=x_BD.dtype, device=x_BD.device)
    cross_DT = x_BD.T @ y_BT / rows
    share: Tensor = (cross_DT * torch.linalg.solve(gram_DD, cross_DT)).sum() / y_BT.shape[1]
    return share


def _bent(cut_BD: Tensor) -> Tensor:
    """Return the standardised embeddings, and cosines of fixed random combinations of them (Rahimi and Recht 2007)."""
    centred_BD = cut_BD - cut_BD.mean(dim=0)
    variance_D = centred_BD.square().mean(dim=0)
    # a column that hardly varies is not scaled up, and the root's gradient stays finite at 0
    scaled_BD = centred_BD / (variance_D + 1e-6 * variance_D.mean() + 1e-12).sqrt()
    width = cut_BD.shape[1]
    generator = torch.Generator().manual_seed(width)
    turn_DE = torch.randn(width, BENDS, generator=generator).to(cut_BD) / width**0.5
    phase_E = (2 * torch.pi * torch.rand(BENDS, generator=generator)).to(cut_BD)
    return torch.cat([scaled_BD, torch.cos(scaled_BD @ turn_DE + phase_E)], dim=1)
