"""Mix cut gradients in pairs and turn them towards their mean (MixPro). Shapes: B batch, D cut width."""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar

from pydantic import Field

from tallystick.defenses.checks import check_between, check_gradients, check_positive
from tallystick.defenses.defense import Defense, Fraction, Guarantee, Stage
from tallystick.defenses.noise import Randomness, standard_normal, uniform
from tallystick.lazy_torch import Tensor, torch

_LOST = 1e-6
"""A row counts as antiparallel to the mean if less than this share of its norm is across it."""


@dataclass(frozen=True, kw_only=True)
class MixPro(Defense):
    """Mixes every gradient with another row's and turns it until its cosine to the batch's mean is at least ``goal``.

    This is FedAds (Wei et al. 2023), section 4.2: g_mixed = l g_b + (1 - l) g_r with l ~ Beta(alpha, alpha), l >= 1/2, drawn per
    row (the paper does not say whether per row or per batch), then equation 11. It has three guards that the paper lacks:

    - equation 11 sends a gradient that points against the mean to exactly 0, which a norm attack detects perfectly. A row beyond
      -goal keeps the norm of its mixed gradient. A row that is exactly antiparallel leaves the line in a random direction;
    - a mean of zero has no direction, so a random one replaces it;
    - a batch of one row has no partner, so zeros are sent.

    Threat model: a feature party that follows the protocol and studies norms and directions of the cut gradients. Guarantee: no
    formal guarantee. Not protected: cut embeddings; and turned rows are at exactly ``goal`` from the mean while the others are
    not, which reveals something about their labels.

    It does not read labels, so it works with any target.

    Args:
        goal: the least cosine to the mean gradient, between 0 and 1.
        alpha: the parameter of the Beta distribution, above 0; the larger it is, the nearer the weights are to one half.

    Raises ConfigError for values out of range, DataError for gradients that are not finite.
    """

    method: ClassVar[str] = "mixpro"
    stage: ClassVar[Stage] = "gradients"
    strength: ClassVar[str] = "goal"

    goal: Annotated[Fraction, Field(description="least cosine to the batch's mean gradient, above 0 and below 1")] = 0.75**0.5
    alpha: Annotated[float, Field(strict=True, ge=1e-3, le=1e3, description="mixing weights are Beta(alpha, alpha)")] = 0.6

    def __post_init__(self) -> None:
        check_between("mixpro: goal", self.goal, 0, 1)
        check_positive("mixpro: alpha", self.alpha)

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the mixed and turned gradients."""
        check_gradients(grad_BD, labels_B)
        if len(grad_BD) < 2:
            return torch.zeros_like(grad_BD)
        exact_BD = grad_BD.double()
        mean_D = exact_BD.mean(dim=0)
        if float(mean_D.norm()) <= 1e-12 * float(exact_BD.norm(dim=1).max()):
            mean_D = standard_normal(1, grad_BD.shape[1], generator, like=exact_BD)[0]
        mixed_BD = self._mixed(exact_BD, labels_B, generator)
        mean_D = mean_D / mean_D.norm()
        along_B = mixed_BD @ mean_D
        norm_B = mixed_BD.norm(dim=1)
        across_BD = torch.addr(mixed_BD, along_B, mean_D, alpha=-1)
        across_B = across_BD.norm(dim=1)
        turn_B = along_B < self.goal * norm_B
        lost_B = turn_B & (across_B <= _LOST * norm_B)
        sine = math.sqrt(1 - self.goal**2)
        # Equation 11 keeps the part across the mean; its norm is |across| / sine, which is below |mixed| only beyond -goal.
        length_B = torch.maximum(torch.where(lost_B, 0.0, across_B / sine), norm_B)
        if bool(lost_B.any()):
            random_BD = standard_normal(int(lost_B.sum()), mixed_BD.shape[1], generator, like=mixed_BD)
            across_BD[lost_B] = torch.addr(random_BD, random_BD @ mean_D, mean_D, alpha=-1)
            across_B[lost_B] = across_BD[lost_B].norm(dim=1)
        # With one coordinate nothing is across the mean, and a turned row is all along it.
        stretch_B = torch.where(turn_B, torch.where(across_B > 0, length_B * sine / across_B, 0.0), 1.0)
        turned_BD = across_BD.mul_(stretch_B[:, None]).addr_(torch.where(turn_B, length_B * self.goal, along_B), mean_D)
        return turned_BD.to(grad_BD.dtype)

    def partners(self, labels_B: Tensor, generator: Randomness) -> Tensor:
        """Return the row that each row is mixed with: a shift of 1 to B - 1, which gives any row except the own."""
        rows = len(labels_B)
        shift_B = (uniform(rows, generator) * (rows - 1)).long().clamp_max_(rows - 2) + 1
        return (torch.arange(rows) + shift_B) % rows

    def _mixed(self, grad_BD: Tensor, labels_B: Tensor, generator: Randomness) -> Tensor:
        from scipy.special import betaincinv

        weight = torch.from_numpy(betaincinv(self.alpha, self.alpha, uniform(len(grad_BD), generator).numpy()))
        other_B = torch.minimum(weight, 1 - weight).to(grad_BD.device)[:, None]
        partner_B = self.partners(labels_B, generator).to(grad_BD.device)
        return torch.lerp(grad_BD, grad_BD.index_select(0, partner_B), other_B)

    def guarantee(self) -> Guarantee:
        """Say that there is none."""
        return Guarantee(
            text="no formal guarantee: cut gradients mixed in pairs and turned to a cosine of at least "
            f"{self.goal:.3f} to their mean"
        )
