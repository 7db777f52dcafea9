"""Add the Gaussian noise that best hides which of two classes a cut gradient belongs to. Shapes: B batch, D cut width."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from tallystick.defenses.checks import check_between, check_gradients, check_positive, positives
from tallystick.defenses.defense import BINARY, Defense, Guarantee, Stage, Strength
from tallystick.defenses.noise import Randomness, standard_normal
from tallystick.errors import ConfigError
from tallystick.lazy_torch import Tensor, torch

LEAST_SUM_KL, MOST_SUM_KL = 1e-4, 4.0
SAME_MEANS = 1e-24
"""Class means count as equal if their squared distance is below this share of the largest squared gradient norm."""
GRID, ROUNDS = 257, 7


@dataclass(frozen=True, kw_only=True)
class TwoClasses:
    """Model a batch as in Marvell: two Gaussians of equal shape.

    Args:
        u, v: the mean variance per coordinate of the negatives' and of the positives' gradients.
        gap: the squared distance of the two means.
        width: D, the number of coordinates.
        positive_share: positives over rows, between 0 and 1.
    """

    u: float
    v: float
    gap: float
    width: int
    positive_share: float


@dataclass(frozen=True, kw_only=True)
class MarvellNoise:
    """Hold four noise variances and their effect.

    The noise of a negative (0) or positive (1) row has variance ``lam1.`` along the difference of the class means and ``lam2.``
    in every direction across it. ``sum_kl`` is KL(negatives || positives) + KL(positives || negatives) of the noisy Gaussians. No
    detector has a smaller mean error over both classes than ``error_bound``, and none has a larger AUC than ``auc_bound``. These
    hold for the Gaussian model of one batch, and not for the gradients themselves.
    """

    lam10: float
    lam20: float
    lam11: float
    lam21: float
    sum_kl: float

    @property
    def error_bound(self) -> float:
        """Return the least mean of both error rates: 1/2 - sqrt(sum_kl) / 4 (Li et al. 2022, theorem 1)."""
        return max(0.0, 0.5 - math.sqrt(self.sum_kl) / 4)

    @property
    def auc_bound(self) -> float:
        """Return the largest AUC: 1/2 + t - t^2 / 2, where t = sqrt(sum_kl) / 2 bounds the total variation (Pinsker)."""
        distance = min(1.0, math.sqrt(self.sum_kl) / 2)
        return 0.5 + distance - distance**2 / 2


@dataclass(frozen=True, kw_only=True)
class Marvell(Defense):
    """Adds to the cut gradients of each class the Gaussian noise that minimises the sum of both KL divergences.

    This is Li et al. 2022 (Label leakage and protection in two-party split learning), section 4 and appendix. For gradients N(m0,
    uI) and N(m1, vI) the optimal noise of a class has one variance along the difference of the means and another across it. Its
    mean squared norm over the batch is power * |m1 - m0|^2. The paper alternates between two of the variances in float32. Here
    one is 0, another has a closed form, and the last is searched on a line, in float64.

    Threat model: a feature party that follows the protocol, models one batch's gradients as two Gaussians and scores its rows.
    Guarantee: no formal guarantee. The error bound of ``MarvellNoise`` holds for the Gaussian model of one batch, and rows come
    again in every epoch. Not protected: cut embeddings; labels. In directions without real gradients one class gets noise and the
    other none, so a row's energy there reveals its class: do not count on this defence.

    The paper does not say what happens to a batch of one class, or with equal class means, which has no difference to scale the
    power by. Here every row then gets isotropic noise of power times the batch's largest squared gradient norm, or in dynamic
    mode enough to hide classes that far apart. A batch whose gradients are all zero is sent unchanged, because its rows are
    equal.

    Args:
        power: s, the mean squared norm of the noise in units of the squared distance of the class means.
        max_sum_kl: dynamic mode instead: a batch's s starts at 1 and grows by half until ``sum_kl`` is at most this, 1e-4 to 4;
            (2 - 4 e)^2 for an error bound of e.

    Raises ConfigError for strengths out of range, DataError for labels other than 0 and 1 and gradients that are not finite.
    """

    method: ClassVar[str] = "marvell"
    stage: ClassVar[Stage] = "gradients"
    targets: ClassVar[tuple[str, ...]] = BINARY
    instead: ClassVar[Mapping[str, str]] = MappingProxyType(
        dict.fromkeys(("multiclass", "multilabel"), "use isotropic or label-dp")
    )
    needs_classes: ClassVar[bool] = True
    strength: ClassVar[str] = "power"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"power": 4.0})

    power: Annotated[Strength | None, Field(description="noise power in units of the squared distance of the class means")] = None
    max_sum_kl: Annotated[
        float | None,
        Field(
            strict=True,
            ge=LEAST_SUM_KL,
            le=MOST_SUM_KL,
            description="instead of power: raise it batch by batch until the sum of both KL divergences is at most this",
        ),
    ] = None

    def __post_init__(self) -> None:
        if (self.power is None) == (self.max_sum_kl is None):
            raise ConfigError("power, max_sum_kl: give exactly one of the two (power: 4, for example)")
        if self.power is not None:
            check_positive("marvell: power", self.power)
        if self.max_sum_kl is not None:
            check_between("marvell: max_sum_kl", self.max_sum_kl, LEAST_SUM_KL / (1 + 1e-9), MOST_SUM_KL * (1 + 1e-9))

    def __call__(self, grad_BD: Tensor, labels_B: Tensor, *, generator: Randomness) -> Tensor:
        """Return the noisy gradients."""
        check_gradients(grad_BD, labels_B)
        positive_B = positives(labels_B, "marvell")
        noise, direction_D = self.plan(grad_BD, positive_B)
        if noise.lam10 == 0 and noise.lam11 == 0:
            return grad_BD
        noisy_BD = grad_BD.clone()
        if direction_D is not None:
            extra0, extra1 = math.sqrt(noise.lam10 - noise.lam20), math.sqrt(noise.lam11 - noise.lam21)
            extra_B = torch.where(positive_B, extra1, extra0)
            along_B = standard_normal(len(grad_BD), 1, generator, like=extra_B)[:, 0] * extra_B
            noisy_BD += torch.outer(along_B, direction_D.to(along_B.dtype)).to(grad_BD.dtype)
        for rows_B, across in ((~positive_B, noise.lam20), (positive_B, noise.lam21)):
            # At most one class has noise across the difference; the other's rows need no draws.
            if across > 0 and bool(rows_B.any()):
                noise_PD = standard_normal(int(rows_B.sum()), grad_BD.shape[1], generator, like=grad_BD)
                noisy_BD[rows_B] += math.sqrt(across) * noise_PD
        return noisy_BD

    def plan(self, grad_BD: Tensor, positive_B: Tensor) -> tuple[MarvellNoise, Tensor | None]:
        """Return a batch's noise, and the unit vector along which the variances differ (None for isotropic noise)."""
        if not len(grad_BD):
            return MarvellNoise(lam10=0.0, lam20=0.0, lam11=0.0, lam21=0.0, sum_kl=0.0), None
        exact_BD = grad_BD.double()
        largest = float(exact_BD.square().sum(dim=1).max())
        count = int(positive_B.sum())
        if 0 < count < len(grad_BD):
            classes, difference_D = moments(exact_BD, positive_B)
            if classes.gap > SAME_MEANS * largest:
                scale, most = self.power or 1.0, self.max_sum_kl or math.inf
                while (noise := optimal_noise(classes, power=scale * classes.gap)).sum_kl > most:
                    scale *= 1.5
                return noise, difference_D / math.sqrt(classes.gap)
        # Solve for noise for classes as far apart as the largest gradient is long: sum_kl = distance^2 / variance
        width = grad_BD.shape[1]
        if self.power is not None:
            variance = self.power * largest / width
            sum_kl = width / self.power
        else:
            assert self.max_sum_kl is not None
            variance, sum_kl = largest / self.max_sum_kl, self.max_sum_kl
        return MarvellNoise(lam10=variance, lam20=variance, lam11=variance, lam21=variance, sum_kl=sum_kl), None

    def guarantee(self) -> Guarantee:
        """State that there is no formal guarantee."""
        strength = (
            f"power {self.power:g}" if self.power is not None else f"a sum of KL divergences of at most {self.max_sum_kl:g}"
        )
        return Guarantee(text=f"no formal guarantee: Marvell's optimal noise with {strength} on the cut gradients of each batch")


def moments(exact_BD: Tensor, positive_B: Tensor) -> tuple[TwoClasses, Tensor]:
    """Return the two classes' variances and gap, and the difference of their means, positive minus negative."""
    member_B2 = torch.stack([~positive_B, positive_B], dim=1).to(exact_BD.dtype)
    count_2 = member_B2.sum(dim=0)
    mean_2D = member_B2.T @ exact_BD / count_2[:, None]
    # Two passes: means first, so that no variance is lost to cancellation.
    spread_B = torch.addmm(exact_BD, member_B2, mean_2D, alpha=-1).square_().sum(dim=1)
    variance_2 = member_B2.T @ spread_B / count_2 / exact_BD.shape[1]
    # A class of one row has no variance, even if its mean is rounded.
    u, v = (float(variance) if count > 1 else 0.0 for variance, count in zip(variance_2, count_2, strict=True))
    difference_D = mean_2D[1] - mean_2D[0]
    classes = TwoClasses(
        u=u,
        v=v,
        gap=float(difference_D.square().sum()),
        width=exact_BD.shape[1],
        positive_share=float(count_2[1]) / len(exact_BD),
    )
    return classes, difference_D


def sum_kl(classes: TwoClasses, *, lam10: float, lam20: float, lam11: float, lam21: float) -> float:
    """Return KL in both directions between the two classes' Gaussians with this noise added."""
    across0, across1 = lam20 + classes.u, lam21 + classes.v
    along0, along1 = lam10 + classes.u, lam11 + classes.v
    along = _over((along0 - along1) ** 2 + classes.gap * (along0 + along1), along0 * along1)
    return ((classes.width - 1) * _over((across0 - across1) ** 2, across0 * across1) + along) / 2


def _over(squares: float, product: float) -> float:
    """Divide. Two classes without any variance are equal, and one alone without variance is separated with certainty."""
    return squares / product if product > 0 else (math.inf if squares > 0 else 0.0)


def optimal_noise(classes: TwoClasses, *, power: float) -> MarvellNoise:
    """Return the variances that minimise ``sum_kl`` under (1 - p)(lam10 + (D-1) lam20) + p (lam11 + (D-1) lam21) = power.

    The class of larger variance needs no noise across the difference. For each variance x across it of the other class, the best
    split of the remaining power along the difference has a closed form (``_best_along``). A grid that zooms in finds x itself.
    """
    check_positive("marvell: noise power", power)
    swap = classes.u > classes.v
    low, high = (classes.v, classes.u) if swap else (classes.u, classes.v)
    low_share = classes.positive_share if swap else 1 - classes.positive_share
    # In units of the gap, because the answer scales with the gradients' squared size.
    low, high, budget = low / classes.gap, high / classes.gap, power / classes.gap
    width = classes.width
    most = min(high - low, budget / (low_share * width)) if width > 1 else 0.0
    # Linear and geometric steps, because the best x may be anything from a tiny part of the range to all of it.
    x_G = np.union1d(np.linspace(0, most, GRID), most * np.geomspace(1e-16, 1, GRID))
    for _ in range(ROUNDS):
        value_G = _objective(x_G, low, high, width, low_share, budget)
        best = int(np.argmin(value_G))
        x_low, right = x_G[max(best - 1, 0)], x_G[min(best + 1, len(x_G) - 1)]
        if not right > x_low:
            break
        x_G = np.union1d(np.linspace(x_low, right, GRID), x_G[best])
    x_1 = x_G[[int(np.argmin(_objective(x_G, low, high, width, low_share, budget)))]]
    along_low_1, along_high_1 = _best_along(x_1, low, high, width, low_share, budget)
    x = float(x_1[0])
    along_low, along_high = max(float(along_low_1[0]) - low, x), max(float(along_high_1[0]) - high, 0.0)
    lam1_low, lam2_low, lam1_high, lam2_high = (part * classes.gap for part in (along_low, x, along_high, 0.0))
    lam = (
        {"lam10": lam1_high, "lam20": lam2_high, "lam11": lam1_low, "lam21": lam2_low}
        if swap
        else {"lam10": lam1_low, "lam20": lam2_low, "lam11": lam1_high, "lam21": lam2_high}
    )
    return MarvellNoise(**lam, sum_kl=sum_kl(classes, **lam))


def _best_along(
    x_G: NDArray[np.float64], low: float, high: float, width: int, low_share: float, budget: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return both classes' total variance along the difference (gradient and noise), for each variance across it.

    Let A and H be those of the low and the high class. c = low_share A + (1 - low_share) H is given. (A + 1)/H + (H + 1)/A is
    convex in e = H / A, with its minimum at e^2 = (c + low_share) / (c + 1 - low_share). So e is that, or the nearest value with
    A >= low + x and H >= high.
    """
    high_share = 1 - low_share
    c_G = budget - low_share * (width - 1) * x_G + low_share * low + high_share * high
    ratio_G = np.sqrt((c_G + low_share) / (c_G + high_share))
    along_low_G = c_G / (low_share + high_share * ratio_G)
    along_low_G = np.clip(along_low_G, low + x_G, np.maximum((c_G - high_share * high) / low_share, low + x_G))
    return along_low_G, (c_G - low_share * along_low_G) / high_share


def _objective(
    x_G: NDArray[np.float64], low: float, high: float, width: int, low_share: float, budget: float
) -> NDArray[np.float64]:
    along_low_G, along_high_G = _best_along(x_G, low, high, width, low_share, budget)
    with np.errstate(divide="ignore", invalid="ignore"):
        across_G = (high - low - x_G) ** 2 / (high * (low + x_G)) if high > 0 else np.zeros_like(x_G)  # ratio + 1/ratio - 2
        along_G = ((along_low_G - along_high_G) ** 2 + along_low_G + along_high_G) / (along_low_G * along_high_G)
    value_G: NDArray[np.float64] = (width - 1) * across_G + along_G
    return np.where(np.isnan(value_G), np.inf, value_G)
