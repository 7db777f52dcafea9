"""Implement mechanism 5: two statistics over public mid-ranks, and mechanism 2: randomised response, with the same estimator.

With centred mid-ranks r in [-1/2, 1/2] (shares of all M rows), S = sum of r over the positives, P positives and N = M - P
negatives,
    AUC = 1/2 + M S / (P N),
exactly: the AUC is one linear query and the number of positives.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tallystick.errors import ConfigError
from tallystick.evaluation.private.bins import RANK_GRID_BINS, Floats, Ints, Population, ScoreBins, paper_thresholds
from tallystick.evaluation.private.histogram import laplace_or_share
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.privacy.events import Event, PureDP, check_epsilon
from tallystick.privacy.noise import WIDEST_SHARE, NoiseSource, discrete_laplace_variance

RANK_UNITS = 4096
"""Greatest number of units per rank of 1. S is released in integers of this size; each row's term is rounded without bias."""

MOST_FLIPPED_EPSILON = 30.0


@dataclass(frozen=True, kw_only=True)
class TwoStatistics(CountingMechanism):
    """S and P with discrete Laplace noise, the budget split between them.

    Threat model: a server that sees each client's two noisy numbers. Guarantee: epsilon label DP: a flipped label changes S by at
    most 1/2 (share ``split`` of epsilon) and P by 1 (the rest). Not protected: the score histogram on the fine grid, from which
    the mid-ranks come (each client's own unless summed securely; a single label party keeps it, and only the two numbers are
    sent). It has the least error of all mechanisms here, but gives only the AUC and the class balance.
    """

    name: ClassVar[str] = "two-statistics"
    protects: ClassVar[str] = "labels"
    reveals: ClassVar[str] = (
        "two noisy numbers; with several clients also the score histogram (per client; in sum with secure aggregation)"
    )
    shares_scores: ClassVar[bool] = False
    grid_bins: ClassVar[int] = RANK_GRID_BINS
    interval_from_noise: ClassVar[bool] = True
    needs_totals: ClassVar[bool] = True
    picked: ClassVar[bool] = True

    epsilon: float
    split: float = 0.7

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if not 0 < self.split < 1:
            raise ConfigError(f"split is {self.split!r}; the share of epsilon for the rank sum must lie in (0, 1)")

    @classmethod
    def tuned(cls, epsilon: float, population: Population) -> "TwoStatistics":
        """Choose the best split of the budget for an assumed population: in proportion to the cube roots of the variances'
        weights.
        """
        ranks = (_weight_of_ranks(population) / 2) ** (2 / 3)
        positives = abs(_weight_of_positives(population)) ** (2 / 3)
        return cls(epsilon=epsilon, split=min(max(ranks / (ranks + positives), 0.5), 0.98))

    @property
    def sensitivity(self) -> float:
        """Return the sensitivity of S, in ranks. The sensitivity of P is 1."""
        return 0.5

    @property
    def units(self) -> int:
        """Return the units per rank of 1: a power of two. For a small epsilon it is smaller, so that the noise on S can be drawn
        in shares. The loss by rounding is small compared with noise that wide.
        """
        units = RANK_UNITS
        while units > 2 and units * self.sensitivity / (self.split * self.epsilon) > WIDEST_SHARE:
            units //= 2
        return units

    @property
    def scales(self) -> tuple[float, float]:
        """Return the scales of the noise on S (in units) and on P."""
        return self.units * self.sensitivity / (self.split * self.epsilon), 1 / ((1 - self.split) * self.epsilon)

    @property
    def widest_scale(self) -> float:
        """Return the wider of the two scales."""
        return max(self.scales)

    @property
    def event(self) -> Event:
        """Return the event: pure label DP."""
        return PureDP(epsilon=self.epsilon)

    def bins(self, grid: ScoreBins) -> ScoreBins:
        """Return the grid unchanged."""
        return grid

    def bins_of(self, scores_N: Floats) -> ScoreBins:
        """Give each distinct score its own bin, for exact ranks."""
        return ScoreBins.exact(scores_N)

    def order_within(self, total_L: Ints, bins: ScoreBins) -> float:  # noqa: ARG002
        """Bound the error of half credit within bins if ranks come from bins instead of scores.

        A bin with a share t of the rows hides an order that is worth at most t^2 / 2 of the AUC. Half of that counts as its
        standard deviation, independent over bins, and the result is two deviations of the sum: almost nothing for smooth scores,
        more if a few frequent values share bins.
        """
        if bins.distinct:
            return 0.0
        shares_B = bins.totals() / max(bins.rows, 1)
        return float(np.sqrt(np.sum(shares_B**4)) / 2)

    def rounding(self, total_L: Ints, shape: tuple[int, ...], *, source: NoiseSource) -> Ints:
        """Return the effect of rounding: S is rounded with one coin per positive, at most as uncertain as a fair coin."""
        coins = max(int(total_L[1]), 0)
        ranks = source.binomial(np.full(shape, coins), 0.5) - coins // 2
        return np.stack([ranks, np.zeros_like(ranks)], axis=-1)

    def predicted_error(self, assumed: Population) -> float:
        """Predict no error from bins: its ranks are exact, so nothing is hidden."""
        return self.predicted_sd(assumed)

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:  # noqa: ARG002
        """Return S in units and P (2). The rounding's coins need not be secret: the sensitivity holds for all their results."""
        units_B = bins.centred_ranks() * self.units
        floor_B = np.floor(units_B)
        rounded_up = noise.binomial(positives_B, units_B - floor_B)
        ranks = (positives_B * floor_B.astype(np.int64) + rounded_up).sum(-1)
        return np.stack([ranks, positives_B.sum(-1)], axis=-1)

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:  # noqa: ARG002
        """Draw noise for S and for P."""
        return np.stack([laplace_or_share(scale, shape, source=source, shares=shares) for scale in self.scales], axis=-1)

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Put the two numbers into the formula."""
        positives = total_L[..., 1].astype(np.float64)
        return auc_of_rank_sum(total_L[..., 0] / self.units, positives, bins.rows), positives

    def predicted_sd(self, population: Population) -> float:
        """Propagate both noises and the rounding (1/6 of a unit squared per positive) through the formula."""
        noise_ranks, noise_positives = (population.clients * discrete_laplace_variance(scale) for scale in self.scales)
        ranks = (noise_ranks + population.positives / 6) / self.units**2
        return math.sqrt(ranks * _weight_of_ranks(population) ** 2 + noise_positives * _weight_of_positives(population) ** 2)


@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(CountingMechanism):
    """Every label is flipped once with probability 1/(1 + e^epsilon), and the AUC is debiased (DPAUC_RR; Menon et al. 2015).

    Threat model: a server that sees the counts of flipped labels per score bin. Guarantee: epsilon label DP, also for any further
    use of the same flipped labels. Not protected: the exact number of scores between any two thresholds, per client (the paper's
    own warning). The paper's debiasing by alpha, beta and pi is algebraically S/(1-2q) and (P - qM)/(1-2q) in the formula above.
    The result is unbounded. Raises ConfigError for an epsilon over 30, because 53-bit coins no longer have the exact chance
    e^-epsilon.
    """

    name: ClassVar[str] = "randomised-response"
    protects: ClassVar[str] = "labels"
    reveals: ClassVar[str] = "each client's exact score histogram, and its flipped labels by score bin"
    shares_scores: ClassVar[bool] = True
    needs_totals: ClassVar[bool] = False

    epsilon: float
    thresholds: int = 200

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.epsilon > MOST_FLIPPED_EPSILON:
            raise ConfigError(
                f"epsilon is {self.epsilon!r}; randomised response takes at most {MOST_FLIPPED_EPSILON:g}: beyond that it "
                "hardly ever flips a label; choose a smaller epsilon or another mechanism"
            )
        paper_thresholds(self.thresholds)

    @property
    def draws_shares(self) -> bool:
        """Return False: flips cannot be drawn in shares."""
        return False

    @property
    def flip_probability(self) -> float:
        """Return the chance that a label is reported wrongly."""
        return 1 / (1 + math.exp(self.epsilon))

    @property
    def sensitivity(self) -> float:
        """Return 1: one label."""
        return 1.0

    @property
    def event(self) -> Event:
        """Return the event: pure label DP."""
        return PureDP(epsilon=self.epsilon)

    def bins(self, grid: ScoreBins) -> ScoreBins:  # noqa: ARG002 - the thresholds are fixed beforehand
        """Return the bins between the paper's thresholds."""
        return ScoreBins(edges=paper_thresholds(self.thresholds))

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:  # noqa: ARG002
        """Flip every label and count positives, then negatives, per bin (2 B)."""
        truthful = noise.binomial(positives_B, 1 - self.flip_probability)
        flipped = noise.binomial(negatives_B, self.flip_probability)
        return np.concatenate([truthful + flipped, positives_B + negatives_B - truthful - flipped], axis=-1)

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:  # noqa: ARG002
        """Draw no noise in addition to the flips, which cannot be shared."""
        if shares is not None:
            raise ConfigError(
                "randomised response adds no noise to its counts, so there is nothing to share; sum another mechanism securely"
            )
        return np.zeros((*shape, 2 * len(bins)), dtype=np.int64)

    def class_counts(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Debias the flipped counts."""
        first_B, second_B = super().class_counts(total_L, bins)
        q, rows_B = self.flip_probability, first_B + second_B
        positives_B = (first_B - q * rows_B) / (1 - 2 * q)
        return positives_B, rows_B - positives_B

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Debias S and P and put them into the formula."""
        flipped_B, totals_B = total_L[..., : len(bins)], total_L[..., : len(bins)] + total_L[..., len(bins) :]
        rows = totals_B.sum(-1).astype(np.float64)
        ranks_B = (np.cumsum(totals_B, -1) - totals_B / 2) / np.maximum(rows, 1)[..., None] - 0.5
        q = self.flip_probability
        positives = (flipped_B.sum(-1) - q * rows) / (1 - 2 * q)
        return auc_of_rank_sum((flipped_B * ranks_B).sum(-1) / (1 - 2 * q), positives, rows), positives

    def predicted_sd(self, population: Population) -> float:
        """Propagate the flips' variances q(1-q)/(1-2q)^2 through the formula. The number of clients does not matter."""
        q = self.flip_probability
        ranks = population.rows / 12 * _weight_of_ranks(population) ** 2
        positives = population.rows * _weight_of_positives(population) ** 2
        return math.sqrt(q * (1 - q) * (ranks + positives)) / (1 - 2 * q)


def auc_of_rank_sum(rank_sum: Floats, positives: Floats, rows: float | Floats) -> Floats:
    """Compute 1/2 + M S / (P N). The result is NaN if a noisy count says that a class is missing."""
    pairs = positives * (rows - positives)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where((positives > 0) & (positives < rows), 0.5 + rows * rank_sum / pairs, np.nan))


def _weight_of_ranks(population: Population) -> float:
    """Differentiate the AUC by S: M / (P N)."""
    return population.rows / (population.positives * population.negatives)


def _weight_of_positives(population: Population) -> float:
    """Differentiate the AUC by P: -(AUC - 1/2)(N - P) / (P N)."""
    imbalance = population.negatives - population.positives
    return -(population.auc - 0.5) * imbalance / (population.positives * population.negatives)
