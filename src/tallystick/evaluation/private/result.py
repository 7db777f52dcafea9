"""The result of a release: value, interval, and what was spent and revealed for it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from tallystick.errors import DataError
from tallystick.evaluation.private.aggregation import SecureSum
from tallystick.evaluation.private.bins import Bins, Floats, Ints, Population, auc_of_counts
from tallystick.evaluation.private.histogram import LabelHistogram, RecordHistogram
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.evaluation.private.ranks import RandomisedResponse, TwoStatistics
from tallystick.evaluation.private.thresholds import ThresholdCounts
from tallystick.privacy.events import Event
from tallystick.privacy.noise import SimulatedNoise

_DRAWS = 4000


class NothingReleased(DataError):
    """The noisy count of positives leaves no AUC to compute, and the budget is spent.

    It says no more than the noisy answer, so whoever might have seen the AUC may see it.
    """

    def __init__(self, mechanism: CountingMechanism, message: str) -> None:
        super().__init__(message)
        self.mechanism = mechanism


@dataclass(frozen=True, kw_only=True)
class PrivateAuc:
    """A released AUC: everything here may be shown to anyone."""

    auc: float
    interval: tuple[float, float]
    """95 % interval for the exact AUC of this test set, accounting for the noise and for the order that bins hide; where scores
    crowd into a few bins it is wide. ``thresholds`` is the exception: its interval covers the noise alone, not its bias."""
    interval_new_data: tuple[float, float]
    """95 % interval for the AUC on new data of the same kind: the noise and, after Hanley and McNeil 1982, the finite test
    set."""
    sd: float
    predicted_sd: float
    """What was predicted before spending, from the assumed population."""
    positives: float
    """Noisy number of positives."""
    rows: int
    clients: int
    mechanism: str
    epsilon: float
    event: Event
    protects: str
    reveals: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain data for JSON."""
        plain: dict[str, Any] = msgspec.to_builtins(self)
        return plain

    def statement(self) -> str:
        """Say in two sentences what was released and what it revealed."""
        low, high = self.interval
        return (
            f"AUC {self.auc:.5f} (95 % interval {low:.5f} to {high:.5f} for the exact AUC of the test set), released by "
            f"{self.mechanism} at epsilon {self.epsilon:g}, protecting {self.protects}. "
            f"Besides it, the release reveals {self.reveals}."
        )


def conclude(
    mechanism: CountingMechanism, total_L: Ints, bins: Bins, *, rows: int, clients: int, assumed: Population
) -> PrivateAuc:
    """Turn the summed noisy answers into a result; only post-processing, so it costs nothing.

    Raises NothingReleased if the noisy count of positives says that a class is missing or too small for this epsilon.
    """
    value, positives = (float(number) for number in mechanism.estimate(total_L, bins))
    if not math.isfinite(value) or not 0 < positives < rows:
        raise NothingReleased(
            mechanism,
            f"the noisy number of positives is {positives:.1f} of {rows} rows: at epsilon {mechanism.epsilon:g} this test "
            "set has too few of one class for an AUC; use more rows or a larger epsilon",
        )
    value = min(max(value, 0.0), 1.0)
    seen = Population(rows=rows, positive_rate=positives / rows, auc=min(max(value, 0.01), 0.99), clients=clients)
    inner = mechanism.inner if isinstance(mechanism, SecureSum) else mechanism
    if isinstance(inner, TwoStatistics | LabelHistogram | RecordHistogram):
        low, high, sd = _noise_interval(mechanism, total_L, bins, clients)
    else:
        sd = mechanism.predicted_sd(seen)
        low, high = value - 1.96 * sd, value + 1.96 * sd
    if isinstance(inner, TwoStatistics):
        slack = _order_within(bins)
    else:  # of DPAUC's curve not even the bias is known
        slack = 0.0 if isinstance(inner, ThresholdCounts) else hidden_order(*_class_counts(inner, total_L, bins))
    low, high = min(low, value) - slack, max(high, value) + slack
    spread = math.hypot(max(high - value, value - low), 1.96 * sampling_sd(seen))
    return PrivateAuc(
        auc=value,
        interval=(max(low, 0.0), min(high, 1.0)),
        interval_new_data=(max(value - spread, 0.0), min(value + spread, 1.0)),
        sd=sd,
        predicted_sd=mechanism.predicted_sd(replace(assumed, rows=rows, clients=clients)),
        positives=positives,
        rows=rows,
        clients=clients,
        mechanism=f"{mechanism.name} of {inner.name}" if inner is not mechanism else mechanism.name,
        epsilon=mechanism.epsilon,
        event=mechanism.event,
        protects=mechanism.protects,
        reveals=mechanism.reveals,
    )


def sampling_sd(population: Population) -> float:
    """Give the standard deviation of an AUC through the finite test set (Hanley and McNeil 1982, equation 1)."""
    auc, pos, neg = population.auc, population.positives, population.negatives
    both_pos, both_neg = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (max(pos, 1) - 1) * (both_pos - auc**2) + (max(neg, 1) - 1) * (both_neg - auc**2)
    return math.sqrt(max(variance, 0.0) / (max(pos, 1) * max(neg, 1)))


def _noise_interval(mechanism: CountingMechanism, total_L: Ints, bins: Bins, clients: int) -> tuple[float, float, float]:
    """Take noise of the same distribution off the released answer: the quantiles are those of what may have been there."""
    source = SimulatedNoise(np.random.default_rng(0), clients=clients)  # fixed: the interval is a function of the release
    shares = clients if isinstance(mechanism, SecureSum) else None
    noise = mechanism.noise(bins, source=source, shape=(_DRAWS,), shares=shares)
    inner = mechanism.inner if isinstance(mechanism, SecureSum) else mechanism
    if isinstance(inner, TwoStatistics):  # S is rounded with a coin per positive, at most as uncertain as a fair one
        coins = max(int(total_L[1]), 0)
        noise[:, 0] += source.binomial(np.full(_DRAWS, coins), 0.5) - coins // 2
    before: Floats = mechanism.estimate(total_L - noise, bins)[0]
    unknown = np.flatnonzero(~np.isfinite(before))
    before[unknown[::2]], before[unknown[1::2]] = 0.0, 1.0  # the noise may hide a whole class: anything is possible there
    before = before.clip(0, 1)
    low, high = np.quantile(before, [0.025, 0.975])
    return float(low), float(high), float(before.std())


def hidden_order(pos_B: Floats, neg_B: Floats) -> float:
    """Say how far half credit within bins may be off where positives and negatives per bin are known, noise apart.

    The order that bin b hides moves the AUC by at most pos_b neg_b / (2 P N) either way. Scores crowd at both ends of a grid, and
    the orders there point the same way: the two heaviest bins count in full, the others as independent of each other. (All
    as independent did not cover an over-confident model's two ends; all in full is far too wide for smooth scores.)
    Merging neighbours moves the AUC by about three times the error of smooth scores; half of that counts where it is more.
    """
    bounds_B = np.sort(np.maximum(pos_B, 0) * np.maximum(neg_B, 0))[::-1]
    pairs = max(float(np.maximum(pos_B, 0).sum() * np.maximum(neg_B, 0).sum()), 1.0)
    crowded = float(bounds_B[:2].sum() + np.sqrt(np.sum(bounds_B[2:] ** 2))) / (2 * pairs)
    if len(pos_B) < 4:
        return crowded
    starts = np.arange(0, len(pos_B), 2)
    merged = auc_of_counts(np.add.reduceat(pos_B, starts), np.add.reduceat(neg_B, starts))
    return max(crowded, abs(float(auc_of_counts(pos_B, neg_B) - merged)) / 2)


def _class_counts(inner: CountingMechanism, total_L: Ints, bins: Bins) -> tuple[Floats, Floats]:
    """Give the noisy positives and negatives per bin."""
    if isinstance(inner, LabelHistogram):
        positives_B = total_L.astype(np.float64)
        return positives_B, bins.totals() - positives_B
    first_B, second_B = (half_B.astype(np.float64) for half_B in np.split(total_L, [len(bins)]))
    if isinstance(inner, RandomisedResponse):
        q, rows_B = inner.flip_probability, first_B + second_B
        positives_B = (first_B - q * rows_B) / (1 - 2 * q)
        return positives_B, rows_B - positives_B
    return first_B, second_B


def _order_within(bins: Bins) -> float:
    """Say how far half credit within bins may be off where ranks are taken of bins instead of scores.

    A bin with a share t of the rows hides an order that is worth at most t^2 / 2 of the AUC. Half of that counts as its
    standard deviation, independent over bins, and two of the sum's are given: next to nothing for smooth scores, more where
    a few heavy values fall together.
    """
    if bins.distinct:
        return 0.0
    shares_B = bins.totals() / max(bins.rows, 1)
    return float(np.sqrt(np.sum(shares_B**4)) / 2)
