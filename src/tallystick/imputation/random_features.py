"""Cut embeddings of real ones' moments for absent rows. Shapes: B batch, D cut width."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tallystick.imputation.imputer import FeatureImputer
from tallystick.imputation.moments import MovingMoments


@dataclass(frozen=True, kw_only=True)
class RandomFeatures(FeatureImputer):
    """Draws absent cut embeddings coordinate by coordinate from the moving mean and deviation of real ones.

    FLORIST, section 3.2, fea-random: a foil. No formal guarantee. Not protected: real coordinates are correlated and, after
    a ReLU, never negative; these are neither, and outlier detection separates them.
    """

    name: ClassVar[str] = "random"
    gives: ClassVar[str] = "a cut embedding from the moving mean and deviation of real ones"
    reader: ClassVar[str] = "one pass over the embeddings names all of its rows"

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: MovingMoments, generator: torch.Generator) -> Tensor:
        """Replace the embeddings of absent rows; ``moments`` must have seen this batch's real rows."""
        noise_BD = torch.randn(cut_BD.shape, generator=generator, dtype=cut_BD.dtype, device=generator.device).to(cut_BD.device)
        return torch.where(present_B[:, None], cut_BD, moments.mean_D + moments.variance_D.sqrt() * noise_BD)
