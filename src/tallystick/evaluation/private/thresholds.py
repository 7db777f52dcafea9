"""Implement mechanism 1: DPAUC's noisy confusion counts per threshold."""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from tallystick.errors import ConfigError
from tallystick.evaluation.private.bins import Floats, Ints, Population, ScoreBins, paper_thresholds
from tallystick.evaluation.private.mechanism import CountingMechanism, simulated_sd
from tallystick.privacy.events import Event, GaussianDP, PureDP, check_epsilon
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.noise import NoiseSource


@dataclass(frozen=True, kw_only=True)
class ThresholdCounts(CountingMechanism):
    """TP, FP, TN and FN at every threshold, each with its own noise (DPAUC, "Adding DP Noise to Local Statistics").

    Threat model: a server that sees each client's noisy counts. Guarantee: epsilon label DP. ``accounting="published"`` uses the
    paper's 4 T epsilon' = epsilon, which is valid but twice the cost (a flipped label changes two of the four counts per
    threshold, so 2 T epsilon'); with "correct" the noise is halved for the same epsilon. Not protected: features and scores: the
    sum of two counts shows (approximately) how many scores are above each threshold. Gaussian noise needs ``delta`` and always
    uses the correct L2 sensitivity sqrt(2 T).

    A release does not choose it: with much noise the estimate hardly moves, because it no longer depends on the data. By its
    standard deviation alone it would be chosen exactly then, and its count of positives would be refused.

    The estimate is the paper's, with its bias: sums clipped at 0, points sorted by FPR alone, no end points, trapezoids. An
    interval around it covers only the noise, not the bias, and so may miss the exact AUC.
    """

    name: ClassVar[str] = "thresholds"
    protects: ClassVar[str] = "labels"
    reveals: ClassVar[str] = "each client's noisy confusion counts, and from these a noisy score distribution per client"
    shares_scores: ClassVar[bool] = False
    needs_totals: ClassVar[bool] = False

    epsilon: float
    thresholds: int = 100
    accounting: Literal["published", "correct"] = "correct"
    kind: Literal["laplace", "gaussian"] = "laplace"
    delta: float = 0.0

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if (self.kind == "gaussian") != (self.delta > 0):
            raise ConfigError(
                f"delta is {self.delta!r} with {self.kind} noise; Gaussian noise needs a delta above 0, Laplace noise 0"
            )
        paper_thresholds(self.thresholds)

    @property
    def sensitivity(self) -> float:
        """Return L1, with two counts per threshold (four as published), or L2 for Gaussian noise."""
        if self.kind == "gaussian":
            return math.sqrt(2 * self.thresholds)
        return float({"published": 4, "correct": 2}[self.accounting] * self.thresholds)

    @cached_property
    def scale(self) -> float:
        """Scale of the noise on each count: Laplace b, or Gaussian sigma."""
        if self.kind == "gaussian":
            return self.sensitivity * gaussian_multiplier(self.epsilon, self.delta)
        return self.sensitivity / self.epsilon

    @property
    def draws_shares(self) -> bool:
        """Tell whether noise can be drawn in shares: Laplace noise can, Gaussian noise cannot."""
        return self.kind == "laplace"

    @property
    def widest_scale(self) -> float:
        """Return the scale for all counts."""
        return self.scale

    @property
    def event(self) -> Event:
        """Return the event: pure label DP, or one Gaussian release."""
        if self.kind == "gaussian":
            return GaussianDP(noise_multiplier=self.scale / self.sensitivity)
        return PureDP(epsilon=self.epsilon)

    def bins(self, grid: ScoreBins) -> ScoreBins:  # noqa: ARG002 - the thresholds are fixed beforehand
        """Return the bins between the paper's thresholds."""
        return ScoreBins(edges=paper_thresholds(self.thresholds))

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:  # noqa: ARG002
        """Count TP, FP, TN, FN at score >= threshold (4 T)."""
        above_pos, above_neg = (np.flip(np.cumsum(np.flip(counts, -1), -1), -1) for counts in (positives_B, negatives_B))
        tp, fp = above_pos[..., 1:], above_neg[..., 1:]
        return np.concatenate([tp, fp, above_neg[..., :1] - fp, above_pos[..., :1] - tp], axis=-1)

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw independent noise for every count."""
        full = (*shape, 4 * (len(bins) - 1))
        if self.kind == "gaussian":
            if shares is not None:
                raise ConfigError("Gaussian noise is not drawn in shares; use Laplace noise with secure aggregation")
            return source.discrete_gaussian(self.scale, full)
        return (
            source.discrete_laplace(self.scale, full) if shares is None else source.polya_share(self.scale, full, shares=shares)
        )

    def order_within(self, total_L: Ints, bins: ScoreBins) -> float:  # noqa: ARG002
        """Return 0: not even the bias of the paper's curve is known."""
        return 0.0

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Build the ROC curve as the paper does, and integrate it."""
        count = len(bins) - 1
        clipped = np.maximum(total_L, 0).astype(np.float64)
        tp, fp, tn, fn = (clipped[..., i * count : (i + 1) * count] for i in range(4))
        tpr, fpr = tp / np.maximum(tp + fn, 1), fp / np.maximum(fp + tn, 1)
        order = np.argsort(fpr, axis=-1, kind="stable")
        tpr, fpr = np.take_along_axis(tpr, order, -1), np.take_along_axis(fpr, order, -1)
        return np.asarray(np.trapezoid(tpr, fpr, axis=-1)), (tp + fn).mean(-1)

    def predicted_sd(self, population: Population) -> float:
        """Predict by simulating the assumed population: with many clients, sorting makes the estimate far from linear."""
        return simulated_sd(self, population)
