"""Clip cut embeddings and add Gaussian noise. Shapes: B batch, D cut width."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tallystick.defenses.checks import check_defense_epsilon, check_embeddings, check_positive
from tallystick.defenses.defense import Defense, Epsilon, Fraction, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, RowNoise, bits
from tallystick.defenses.straight_through import passing
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.composition import total_epsilon
from tallystick.privacy.events import GaussianDP
from tallystick.privacy.exact import check_exact_delta
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.grid import GridGaussian


@dataclass(frozen=True, kw_only=True)
class GaussianEmbeddings(Defense):
    """Clips every row's cut embedding to a norm and adds Gaussian noise before it is sent, in training and always after.

    This is the Gaussian mechanism with Balle and Wang's (2018) analytic calibration. With other columns a clipped row lies
    anywhere in the same ball, so the sensitivity is twice the clip. The sent value is an integer on a grid with integer noise
    (``privacy/grid.py``), and the rounding is part of the sensitivity, so the claim holds for the bits that are sent. The network
    learns through the noise, and so learns to use the little that passes for what the label needs.

    If noise follows from a secret (``RowNoise``, in a run), a row that the same weights send again with the same embedding has
    the same noise, with any other rows. That reveals nothing new about it, except that it has not changed.

    Threat model: an honest-but-curious label party that keeps everything it receives. Guarantee: one release of a row's embedding
    is (epsilon, delta)-DP for that row's columns *given the bottom model's weights*. So it holds for rows that the model was not
    trained on (tests, predictions), once per release. No formal guarantee for a training row and the whole run: the weights learn
    from its columns and shape all other rows' embeddings; its own embeddings cost what ``over`` returns, and the encoder's
    statistics are exact. Not
    protected: which rows exist; whether a row's embedding by the same weights equals the one sent before.

    Args:
        epsilon: the budget of one release of one row, 1e-6 to 100.
        delta: the chance that it does not hold, at least 1e-24 and below 1.
        clip: the largest norm of a row's cut embedding.

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
        check_exact_delta("gaussian-embeddings", self.delta)
        check_positive("gaussian-embeddings: clip", self.clip)

    @property
    def multiplier(self) -> float:
        """Return the noise in units of the sensitivity."""
        return gaussian_multiplier(self.epsilon, self.delta)

    def event(self, releases: int) -> GaussianDP:
        """Return the cost of ``releases`` releases of one row's embedding, given the weights of each."""
        return GaussianDP(noise_multiplier=self.multiplier, releases=releases, unit="record")

    def over(self, releases: int) -> float:
        """Return epsilon at the same delta for ``releases`` releases of one row's embedding, given the weights of each."""
        return total_epsilon([self.event(releases)], delta=self.delta, unit="record")

    def __call__(self, cut_BD: Tensor, *, generator: Randomness | RowNoise) -> Tensor:
        """Return the clipped, noisy embeddings. Gradients flow as if they had only been clipped."""
        check_embeddings(cut_BD)
        if not len(cut_BD):
            return cut_BD
        release = GridGaussian(radius=self.clip, multiplier=self.multiplier, width=cut_BD.shape[1])
        on_grid_BD = release.on_grid(cut_BD.detach().cpu().numpy())
        noisy_BD = release.noisy(on_grid_BD, bits(on_grid_BD, generator, purpose=release.purpose(self.method)))
        norm_B1 = torch.linalg.vector_norm(cut_BD, dim=1, keepdim=True)
        clipped_BD = cut_BD * (self.clip / norm_B1.clamp_min(torch.finfo(cut_BD.dtype).tiny)).clamp_max(1)
        return passing(torch.from_numpy(noisy_BD).to(clipped_BD), clipped_BD)

    def guarantee(self) -> Guarantee:
        """State the guarantee of one release, and that the run has none."""
        return Guarantee(
            text="no formal guarantee for a training row and the run, because the bottom model learns from its columns; one "
            f"release of a row's embedding is ({self.epsilon:g}, {self.delta:g})-DP for its columns given the model"
        )
