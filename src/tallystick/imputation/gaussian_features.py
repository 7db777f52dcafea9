"""Gaussian cut embeddings for absent rows. Shapes: B batch, D cut width."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from tallystick.errors import ConfigError
from tallystick.imputation.imputer import FeatureImputer
from tallystick.imputation.moments import MovingMoments


@dataclass(frozen=True, kw_only=True)
class GaussianFeatures(FeatureImputer):
    """Draws absent cut embeddings from N(0, (scale/d)·max‖f‖²·I), the maximum over the batch's real rows.

    FLORIST, section 3.2, fea-Gaussian: a foil. No formal guarantee. Not protected: centre, spread and sign (an embedding
    after a ReLU is never negative) all differ from real embeddings', so any look at single coordinates tells them apart;
    the paper's spectral attack does so only for some scales (docs/results/unions.md).

    Args:
        scale: the paper's s, above 0.
    """

    name: ClassVar[str] = "gaussian"
    gives: ClassVar[str] = "a cut embedding from N(0, (s/d) max‖f‖²)"
    reader: ClassVar[str] = "one pass over the embeddings names all of its rows"

    scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"synthetic features gaussian: scale={self.scale}; expected above 0")

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: MovingMoments, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Replace the embeddings of absent rows; with no real row in the batch they become 0."""
        norm_B = torch.where(present_B, cut_BD.detach().norm(dim=1), 0.0)
        deviation = norm_B.max() * (self.scale / cut_BD.shape[1]) ** 0.5
        noise_BD = deviation * torch.randn(cut_BD.shape, generator=generator, dtype=cut_BD.dtype, device=generator.device)
        return torch.where(present_B[:, None], cut_BD, noise_BD.to(cut_BD.device))
