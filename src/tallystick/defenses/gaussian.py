"""Clip cut gradients and add Gaussian noise. Shapes: B batch, D cut width."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tallystick.defenses.checks import check_defense_epsilon, check_gradients, check_positive
from tallystick.defenses.defense import Defense, Epsilon, Fraction, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, bits
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.exact import check_exact_delta
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.grid import GridGaussian


@dataclass(frozen=True, kw_only=True)
class GaussianGradients(Defense):
    """Clips every row's gradient and adds Gaussian noise that makes one step's release (epsilon, delta)-label-DP.

    This is the Gaussian mechanism with Balle and Wang's (2018) analytic calibration. A cut gradient is that of the batch's mean
    loss, so B times it is the gradient of the row's own loss. ``clip`` bounds the norm of that gradient, for any batch size. With
    another label a clipped row lies anywhere in the same ball, so its sensitivity is 2 clip / B. The sent value is an integer on
    a grid with integer noise (``privacy/grid.py``), and the rounding is part of the sensitivity, so the claim holds for the bits
    that are sent.

    Threat model: a feature party that follows the protocol, for one step. Guarantee: (epsilon, delta)-label-DP for each row of
    one step's release *given the top model*. On a union the rate of positives is given as well, by which labels are imputed and
    logits shifted. A label must enter only its own row's loss. So a contract refuses penalties that couple the rows, such as the
    distance correlation, and imputation by the vote of other rows. No formal guarantee for the run: the top model learns from the
    exact labels, and every epoch releases each row again. Not protected: cut embeddings.

    It does not read labels, so it works with any target, and no batch is a special case, because the noise does not depend on the
    data.

    Args:
        epsilon: the budget of one step, 1e-6 to 100.
        delta: the chance that it does not hold, at least 1e-24 and below 1.
        clip: the largest norm of one row's gradient of its own loss.

    Raises ConfigError for values out of range, DataError for gradients that are not finite.
    """

    method: ClassVar[str] = "gaussian"
    stage: ClassVar[Stage] = "gradients"
    own_target_only: ClassVar[bool] = True
    strength: ClassVar[str] = "epsilon"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon": 1.0, "delta": 1e-6, "clip": 1.0})

    epsilon: Annotated[Epsilon, Field(description="label-DP budget of one step's cut gradients, 1e-6 to 100")]
    delta: Annotated[Fraction, Field(description="chance that the budget does not hold; well below one over the number of rows")]
    clip: Annotated[
        Strength, Field(description="largest norm of one row's gradient of its own loss (batch size times its cut gradient)")
    ]

    def __post_init__(self) -> None:
        check_defense_epsilon("gaussian", self.epsilon)
        check_exact_delta("gaussian", self.delta)
        check_positive("gaussian: clip", self.clip)

    @property
    def deviation(self) -> float:
        """Return the least standard deviation per coordinate, for the gradient of a row's own loss. The grid adds up to 1/200."""
        return 2 * self.clip * gaussian_multiplier(self.epsilon, self.delta)

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the clipped, noisy gradients."""
        check_gradients(grad_BD, labels_B)
        if not len(grad_BD):
            return grad_BD
        rows, width = grad_BD.shape
        multiplier = gaussian_multiplier(self.epsilon, self.delta)
        release = GridGaussian(radius=self.clip / rows, multiplier=multiplier, width=width)
        on_grid_BD = release.on_grid(grad_BD.detach().cpu().numpy())
        noisy_BD = release.noisy(on_grid_BD, bits(on_grid_BD, generator, purpose=release.purpose(self.method)))
        return torch.from_numpy(noisy_BD).to(grad_BD)

    def guarantee(self) -> Guarantee:
        """State the guarantee of one step, and that the run has none."""
        return Guarantee(
            text="no formal guarantee for the run, because the top model learns from exact labels and every epoch releases "
            f"each row again; one step's cut gradients alone are ({self.epsilon:g}, {self.delta:g})-label-DP given the top model"
        )
