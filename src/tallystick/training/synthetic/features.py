"""Inputs or cut embeddings for union rows that a side has no features of; one small object per strategy.

Shapes: B rows of a batch, D cut width.

A strategy acts in two places, and each leaves one of them alone: ``inputs`` chooses which own row is fed to the bottom
model for an absent one, ``cut`` replaces cut embeddings after it. Common threat model: an honest-but-curious label
party that reads the cut embeddings next to its labels and wants to know which of its own rows the feature party has.
No strategy here carries a formal guarantee, and none hides the sizes of the two sides and of their intersection.
The label party uses the same objects for its own features on rows that it lacks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from tallystick.errors import ConfigError, DataError


class MovingMoments(nn.Module):
    """Moving mean and variance of real cut embeddings, as buffers so that they travel with a checkpoint."""

    mean_D: Tensor
    variance_D: Tensor
    steps: Tensor

    def __init__(self, width: int, *, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean_D", torch.zeros(width))
        self.register_buffer("variance_D", torch.ones(width))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def update(self, real_RD: Tensor) -> None:
        """Take in one batch's real rows (fewer than two tell no variance and are left out); the first batch sets the moments."""
        if real_RD.shape[0] < 2:
            return
        weight = 1.0 if self.steps == 0 else self.momentum
        self.mean_D.lerp_(real_RD.mean(dim=0), weight)
        self.variance_D.lerp_(real_RD.var(dim=0), weight)
        self.steps += 1


class FeatureFill(Protocol):
    """A strategy for absent features."""

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:
        """Give an own row for every row of the batch; ``own_B`` is -1 where the side lacks it."""
        ...

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: MovingMoments, generator: torch.Generator) -> Tensor:
        """Give the cut embeddings that are sent."""
        ...


@dataclass(frozen=True, kw_only=True)
class SamplingFeatures:
    """Stands a whole real row of the side, chosen at random, in for an absent one.

    FLORIST, section 2.4 (theorem 2: of all draws that ignore the label, the marginal is nearest to the truth),
    fea-sampling. No formal guarantee. Not protected: a stand-in has the same embedding as its donor, in one batch to
    the bit and elsewhere nearly so; drawn anew each epoch, a filled row's embedding jumps where a real row's drifts;
    and the pair of embedding and label is independent, where a real pair is not.

    Args:
        distinct: choose donors that neither occur in the batch themselves nor serve twice in it, as far as there are enough.
    """

    distinct: bool = True

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:
        """Replace -1 by a donor.

        Args:
            own_B: own row of each batch row, -1 where absent.
            own_rows: rows that the side has.
            uniform_B: a number in [0, 1) per batch row that chooses the donor.

        Raises:
            DataError: the side has no row at all.
        """
        if own_rows < 1:
            raise DataError("synthetic features sampling: this side has no rows to sample from; it needs at least one")
        absent_B = own_B < 0
        donor_B = torch.where(absent_B, (uniform_B.double() * own_rows).long().clamp(max=own_rows - 1), own_B)
        if self.distinct and own_B.shape[0] <= own_rows:
            donor_B[absent_B] = _distinct(donor_B[absent_B], taken=own_B[~absent_B], own_rows=own_rows)
        return donor_B

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: MovingMoments, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Leave the embeddings alone."""
        return cut_BD


def _distinct(donor_A: Tensor, *, taken: Tensor, own_rows: int) -> Tensor:
    """Move each donor that is taken or repeated to the next free row (linear probing), the first of equals staying."""
    used = set(taken.tolist())
    chosen = []
    for donor in donor_A.tolist():
        while donor in used:
            donor = (donor + 1) % own_rows
        used.add(donor)
        chosen.append(donor)
    return donor_A.new_tensor(chosen)


class _FillsCut:
    """Feeds row 0 for an absent one; its embedding is replaced and passes no gradient."""

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:  # noqa: ARG002
        """Replace -1 by row 0."""
        return own_B.clamp(min=0)


@dataclass(frozen=True, kw_only=True)
class GaussianFeatures(_FillsCut):
    """Draws absent cut embeddings from N(0, (scale/d)·max‖f‖²·I), the maximum over the batch's real rows.

    FLORIST, section 3.2, fea-Gaussian: a foil. No formal guarantee. Not protected: centre, spread and sign (an embedding
    after a ReLU is never negative) all differ from real embeddings', so any look at single coordinates tells them apart;
    the paper's spectral attack does so only for some scales (docs/union.md).

    Args:
        scale: the paper's s, above 0.
    """

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


@dataclass(frozen=True, kw_only=True)
class RandomFeatures(_FillsCut):
    """Draws absent cut embeddings coordinate by coordinate from the moving mean and deviation of real ones.

    FLORIST, section 3.2, fea-random: a foil. No formal guarantee. Not protected: real coordinates are correlated and, after
    a ReLU, never negative; these are neither, and outlier detection separates them.
    """

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: MovingMoments, generator: torch.Generator) -> Tensor:
        """Replace the embeddings of absent rows; ``moments`` must have seen this batch's real rows."""
        noise_BD = torch.randn(cut_BD.shape, generator=generator, dtype=cut_BD.dtype, device=generator.device).to(cut_BD.device)
        return torch.where(present_B[:, None], cut_BD, moments.mean_D + moments.variance_D.sqrt() * noise_BD)


FEATURE_FILLS: Mapping[str, type[FeatureFill]] = {
    "gaussian": GaussianFeatures,
    "random": RandomFeatures,
    "sampling": SamplingFeatures,
}
