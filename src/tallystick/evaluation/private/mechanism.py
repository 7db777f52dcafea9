"""Define the steps that all mechanisms with counts share.

A client turns its rows into counts per score bin. The mechanism turns these into a short vector of integers and adds noise. The
server adds the clients' vectors and turns the sum into an AUC. Protocols, simulation and prediction all use these steps.

Shapes: B bins, L numbers in an answer, R repeats (leading axes).
"""

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from tallystick.evaluation.private.bins import GRID_BINS, Floats, Ints, Population, ScoreBins, auc_of_counts, score_grid
from tallystick.privacy.events import Event
from tallystick.privacy.noise import NoiseSource, SimulatedNoise


class Mechanism(Protocol):
    """A way to release an AUC. The class says what it protects and reveals. The object carries the cost of one release."""

    name: ClassVar[str]
    shares_scores: ClassVar[bool]

    @property
    def protects(self) -> str:
        """Say what the guarantee covers."""
        ...

    @property
    def reveals(self) -> str:
        """Say what the server learns in addition to the AUC."""
        ...

    @property
    def epsilon(self) -> float:
        """Return the requested epsilon."""
        ...

    @property
    def sensitivity(self) -> float:
        """Return the largest L1 (Gaussian noise: L2) change of the exact answer between neighbours."""
        ...

    @property
    def event(self) -> Event:
        """Return the privacy cost of one release."""
        ...

    def predicted_sd(self, population: Population) -> float:
        """Predict the standard deviation of the released AUC, before anything is spent."""
        ...


class CountingMechanism(ABC):
    """A mechanism whose answer is computed from counts per score bin, with the facts that other code needs about it."""

    name: ClassVar[str]
    shares_scores: ClassVar[bool]
    epsilon: float
    grid_bins: ClassVar[int] = GRID_BINS
    """Number of bins of the grid on which clients' scores are first counted."""
    interval_from_noise: ClassVar[bool] = False
    """Whether its interval comes from drawing its noise again; otherwise it comes from its predicted standard deviation."""
    needs_clients: ClassVar[bool] = False
    """Whether it is a sum over clients. A single label party has no clients."""
    picked: ClassVar[bool] = False
    """Whether a release may choose it by its predicted error; otherwise it must be requested by name."""

    @classmethod
    def tuned(cls, epsilon: float, population: Population) -> "CountingMechanism":  # noqa: ARG003
        """Make the mechanism with the best settings for an assumed population."""
        return cls(epsilon=epsilon)  # type: ignore[call-arg]

    @property
    @abstractmethod
    def protects(self) -> str:
        """Say what the guarantee covers."""

    @property
    @abstractmethod
    def reveals(self) -> str:
        """Say what the server learns in addition to the AUC."""

    @property
    @abstractmethod
    def needs_totals(self) -> bool:
        """Tell whether the row counts per bin are public and known before the answer."""

    @property
    def least_clients(self) -> int:
        """Return the fewest clients that must take part."""
        return 1

    @property
    @abstractmethod
    def sensitivity(self) -> float:
        """Return the largest L1 (Gaussian noise: L2) change of the exact answer between neighbours."""

    @property
    @abstractmethod
    def event(self) -> Event:
        """Return the privacy cost of one release."""

    @property
    def counted(self) -> "CountingMechanism":
        """Return the mechanism that counts: itself, or the one inside a sum."""
        return self

    @property
    def title(self) -> str:
        """Return its name, and that of an inner mechanism."""
        return self.name

    @property
    def widest_scale(self) -> float:
        """Return the scale of the widest noise that it draws."""
        return 0.0

    @property
    def draws_shares(self) -> bool:
        """Tell whether its noise can be drawn in shares, for a secure sum."""
        return True

    def shares_of(self, clients: int | None) -> int | None:  # noqa: ARG002
        """Return the number of shares of its noise, or None if every client draws the whole noise."""
        return None

    @abstractmethod
    def predicted_sd(self, population: Population) -> float:
        """Predict the standard deviation of the released AUC, before anything is spent."""

    def predicted_error(self, assumed: Population) -> float:
        """Predict a standard deviation. Half of the error that bins may hide counts as one more deviation, as in the interval."""
        grid = score_grid()
        bins = self.bins(ScoreBins(edges=grid, totals_B=np.add(*assumed.expected_counts(grid))))
        positives_B, negatives_B = assumed.expected_counts(bins.edges)
        hidden = order_within_counts(positives_B.astype(np.float64), negatives_B.astype(np.float64))
        return math.hypot(self.predicted_sd(assumed), hidden / 2)

    def bins_of(self, scores_N: Floats) -> ScoreBins:
        """Return the bins for the answer of a single label party."""
        grid = ScoreBins(edges=score_grid())
        return self.bins(ScoreBins(edges=grid.edges, totals_B=grid.count(scores_N)) if self.needs_totals else grid)

    def order_within(self, total_L: Ints, bins: ScoreBins) -> float:
        """Bound the error of half credit within bins, as far as a noisy answer shows it, or return 0 if nothing is known."""
        return order_within_counts(*self.class_counts(total_L, bins))

    def class_counts(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Split an answer that lists the noisy positives per bin, then the negatives."""
        positives_B, negatives_B = (half_B.astype(np.float64) for half_B in np.split(total_L, [len(bins)]))
        return positives_B, negatives_B

    def rounding(self, total_L: Ints, shape: tuple[int, ...], *, source: NoiseSource) -> Ints | int:  # noqa: ARG002
        """Draw the effect of rounding on an answer, without the noise (..., L)."""
        return 0

    @abstractmethod
    def bins(self, grid: ScoreBins) -> ScoreBins:
        """Choose the bins of the answer, from the fine grid and its totals, if these are public."""

    @abstractmethod
    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:
        """Compute the exact answer (L,).

        Mechanisms that randomise labels or rounding use ``noise`` for that. Leading axes are kept.
        """

    @abstractmethod
    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw the noise (..., L) of one client, or its share if ``shares`` clients together make the whole noise."""

    @abstractmethod
    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Turn the summed answers (..., L) into the AUC and the number of positives (...)."""


def simulate_mechanism(
    mechanism: CountingMechanism,
    positives_B: Ints,
    negatives_B: Ints,
    bins: ScoreBins,
    *,
    clients: float,
    repeats: int,
    rng: np.random.Generator,
    shares: int | None = None,
) -> Floats:
    """Draw ``repeats`` releases of the AUC (R,) from the pooled counts, in chunks of limited memory.

    The sum of the clients' noise is drawn directly from its own distribution, so the cost does not depend on their number. The
    distribution of rows over clients does not matter, because only the sums of the clients' counts are used.
    """
    source = SimulatedNoise(rng, clients=clients)
    chunk = max(1, 2_000_000 // max(len(positives_B), 1))
    samples = []
    for start in range(0, repeats, chunk):
        shape = (min(chunk, repeats - start),)
        pos, neg = (np.broadcast_to(counts, (*shape, len(counts))) for counts in (positives_B, negatives_B))
        total = mechanism.answer(pos, neg, bins, noise=source) + mechanism.noise(bins, source=source, shape=shape, shares=shares)
        samples.append(mechanism.estimate(total, bins)[0])
    return np.concatenate(samples)


@lru_cache(maxsize=1024)
def simulated_sd(mechanism: CountingMechanism, population: Population) -> float:
    """Predict a standard deviation by simulating the mechanism on the assumed population, with a fixed seed."""
    bins = mechanism.bins(ScoreBins(edges=score_grid()))
    positives_B, negatives_B = population.expected_counts(bins.edges)
    draws = simulate_mechanism(
        mechanism,
        positives_B,
        negatives_B,
        bins,
        clients=population.clients,
        repeats=1000,
        rng=np.random.default_rng(0),
    )
    return float(draws.std())


def order_within_counts(pos_B: Floats, neg_B: Floats) -> float:
    """Bound the error of half credit within bins for known positives and negatives per bin, without noise.

    The order that bin b hides changes the AUC by at most pos_b neg_b / (2 P N) in either direction. Scores crowd at both ends of
    a grid, and the hidden orders there act in the same direction. So the two heaviest bins count in full, and the others as
    independent of each other. If all counted as independent, an over-confident model's two ends would not be covered; if all
    counted in full, the bound would be far too wide for smooth scores. Merging neighbours changes the AUC by about three times
    the error of smooth scores. Half of that counts if it is more.
    """
    bounds_B = np.sort(np.maximum(pos_B, 0) * np.maximum(neg_B, 0))[::-1]
    pairs = max(float(np.maximum(pos_B, 0).sum() * np.maximum(neg_B, 0).sum()), 1.0)
    crowded = float(bounds_B[:2].sum() + np.sqrt(np.sum(bounds_B[2:] ** 2))) / (2 * pairs)
    if len(pos_B) < 4:
        return crowded
    starts = np.arange(0, len(pos_B), 2)
    merged = auc_of_counts(np.add.reduceat(pos_B, starts), np.add.reduceat(neg_B, starts))
    return max(crowded, abs(float(auc_of_counts(pos_B, neg_B) - merged)) / 2)
