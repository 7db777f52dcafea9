"""Clipping and Gaussian noise on cut embeddings. Shapes: B batch, D cut width."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from tallystick.defenses.checks import check_defense_epsilon, check_embeddings, check_positive
from tallystick.defenses.defense import Defense, Epsilon, Fraction, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, standard_normal
from tallystick.privacy.events import GaussianDP, check_delta, total_epsilon
from tallystick.privacy.gaussian import gaussian_multiplier


@dataclass(frozen=True, kw_only=True)
class GaussianEmbeddings(Defense):
    """Clips every row's cut embedding to a norm and adds Gaussian noise before it is sent, in training and ever after.

    The Gaussian mechanism with Balle and Wang's (2018) analytic calibration: with other columns a clipped row lies anywhere in
    the same ball, so the sensitivity is twice the clip. The network learns through the noise, and so to spend what little gets
    through on what the label needs.

    Threat model: an honest-but-curious label party that keeps all it receives. Guarantee: one release of a row's embedding is
    (epsilon, delta)-DP for that row's columns *given the bottom model's weights*. So it holds as it stands for rows that the
    model was not trained on (tests, predictions), once per release. No formal guarantee for a training row and the whole run:
    the weights learn from its columns and shape what is sent of all others; its own embeddings cost what ``over`` says, and
    the encoder's statistics are exact. Not protected: which rows there are.

    Args:
        epsilon: of one release of one row, 1e-6 to 100.
        delta: chance that it does not hold, in (0, 1).
        clip: largest norm of a row's cut embedding.

    Raises ConfigError for values out of range, DataError for embeddings that are not finite.
    """

    method: ClassVar[str] = "gaussian-embeddings"
    stage: ClassVar[Stage] = "embeddings"
    strength: ClassVar[str] = "epsilon"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon": 10.0, "delta": 1e-6, "clip": 1.0})

    epsilon: Annotated[Epsilon, Field(description="DP budget of one release of one row's cut embedding, 1e-6 to 100")]
    delta: Annotated[Fraction, Field(description="chance that the budget does not hold; well below one over the number of rows")]
    clip: Annotated[Strength, Field(description="largest norm of one row's cut embedding")]

    def __post_init__(self) -> None:
        check_defense_epsilon("gaussian-embeddings", self.epsilon)
        check_delta(self.delta)
        check_positive("gaussian-embeddings: clip", self.clip)

    @property
    def multiplier(self) -> float:
        """Noise in units of the sensitivity."""
        return gaussian_multiplier(self.epsilon, self.delta)

    def event(self, releases: int) -> GaussianDP:
        """What so many releases of one row's embedding cost, given the weights of each."""
        return GaussianDP(noise_multiplier=self.multiplier, releases=releases, unit="record")

    def over(self, releases: int) -> float:
        """Epsilon at the same delta of so many releases of one row's embedding, given the weights of each."""
        return total_epsilon([self.event(releases)], delta=self.delta, unit="record")

    def __call__(self, cut_BD: Tensor, *, generator: Randomness) -> Tensor:
        """Give the clipped, noisy embeddings."""
        check_embeddings(cut_BD)
        norm_B1 = torch.linalg.vector_norm(cut_BD, dim=1, keepdim=True)
        clipped_BD = cut_BD * (self.clip / norm_B1.clamp_min(torch.finfo(cut_BD.dtype).tiny)).clamp_max(1)
        noise_BD = standard_normal(len(cut_BD), cut_BD.shape[1], generator, like=cut_BD)
        noisy_BD: Tensor = clipped_BD + 2 * self.clip * self.multiplier * noise_BD
        return noisy_BD

    def guarantee(self) -> Guarantee:
        """Say what one release keeps, and that the run has no guarantee."""
        return Guarantee(
            text="no formal guarantee for a training row and the run, because the bottom model learns from its columns; one "
            f"release of a row's embedding is ({self.epsilon:g}, {self.delta:g})-DP for its columns given the model"
        )
