"""Hold the result of a release: value, interval, and what was spent and revealed for it."""

import math
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np

from tallystick.errors import DataError
from tallystick.evaluation.private.bins import Floats, Ints, Population, ScoreBins
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.privacy.events import Event
from tallystick.privacy.noise import SimulatedNoise

_DRAWS = 4000


class NothingReleased(DataError):
    """Raised if the noisy count of positives leaves no AUC to compute. The budget is spent.

    It says no more than the noisy answer, so anyone who may see the AUC may see it.
    """

    def __init__(self, mechanism: CountingMechanism, message: str) -> None:
        super().__init__(message)
        self.mechanism = mechanism


@dataclass(frozen=True, kw_only=True)
class PrivateAuc:
    """A released AUC: everything here may be shown to anyone."""

    auc: float
    interval: tuple[float, float]
    """95 % interval for the exact AUC of this test set, which covers the noise and the order that bins hide. It is wide if scores
    crowd into a few bins. ``thresholds`` is the exception: its interval covers only the noise, not its bias.
    """
    interval_new_data: tuple[float, float]
    """95 % interval for the AUC on new data of the same kind. It covers the noise and, after Hanley and McNeil 1982, the finite
    test set.
    """
    sd: float
    predicted_sd: float
    """Standard deviation that was predicted before spending, from the assumed population."""
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
        """Return plain data for JSON."""
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


def estimate_auc(
    mechanism: CountingMechanism, total_L: Ints, bins: ScoreBins, *, rows: int, clients: int, assumed: Population
) -> PrivateAuc:
    """Turn the summed noisy answers into a result. It uses only released numbers, so it costs no budget.

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
    estimate = Population(rows=rows, positive_rate=positives / rows, auc=min(max(value, 0.01), 0.99), clients=clients)
    if mechanism.counted.interval_from_noise:
        # Subtract noise of the same distribution from the released answer: the quantiles are those of the possible exact answers
        source = SimulatedNoise(np.random.default_rng(0), clients=clients)  # fixed: the interval depends only on the release
        noise = mechanism.noise(bins, source=source, shape=(_DRAWS,), shares=mechanism.shares_of(clients))
        noise = noise + mechanism.counted.rounding(total_L, (_DRAWS,), source=source)
        before: Floats = mechanism.estimate(total_L - noise, bins)[0]
        unknown = np.flatnonzero(~np.isfinite(before))
        before[unknown[::2]], before[unknown[1::2]] = 0.0, 1.0  # the noise may hide a whole class, so any value is possible there
        before = before.clip(0, 1)
        low, high = map(float, np.quantile(before, [0.025, 0.975]))
        sd = float(before.std())
    else:
        sd = mechanism.predicted_sd(estimate)
        low, high = value - 1.96 * sd, value + 1.96 * sd
    slack = mechanism.counted.order_within(total_L, bins)
    low, high = min(low, value) - slack, max(high, value) + slack
    spread = math.hypot(max(high - value, value - low), 1.96 * sampling_sd(estimate))
    return PrivateAuc(
        auc=value,
        interval=(max(low, 0.0), min(high, 1.0)),
        interval_new_data=(max(value - spread, 0.0), min(value + spread, 1.0)),
        sd=sd,
        predicted_sd=mechanism.predicted_sd(replace(assumed, rows=rows, clients=clients)),
        positives=positives,
        rows=rows,
        clients=clients,
        mechanism=mechanism.title,
        epsilon=mechanism.epsilon,
        event=mechanism.event,
        protects=mechanism.protects,
        reveals=mechanism.reveals,
    )


def sampling_sd(population: Population) -> float:
    """Return the standard deviation of an AUC due to the finite test set (Hanley and McNeil 1982, equation 1)."""
    auc, pos, neg = population.auc, population.positives, population.negatives
    both_pos, both_neg = auc / (2 - auc), 2 * auc * auc / (1 + auc)
    variance = auc * (1 - auc) + (max(pos, 1) - 1) * (both_pos - auc**2) + (max(neg, 1) - 1) * (both_neg - auc**2)
    return math.sqrt(max(variance, 0.0) / (max(pos, 1) * max(neg, 1)))
