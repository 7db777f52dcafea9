"""What every mechanism that answers with counts has in common.

A client turns its rows into counts per score bin, the mechanism turns those into a short vector of integers and adds noise,
the server adds the clients' vectors and turns the sum into an AUC. Protocols, simulation and prediction all run through
these steps.

Shapes: B bins, L numbers in an answer, R repeats (leading axes).
"""

from functools import lru_cache
from typing import ClassVar, Protocol

import numpy as np

from tallystick.evaluation.private.bins import Bins, Floats, Ints, Population, score_grid
from tallystick.privacy.events import Event
from tallystick.privacy.noise import NoiseSource, SimulatedNoise


class Mechanism(Protocol):
    """One way to release an AUC. The class says what it protects and reveals; the object carries the cost of one release."""

    name: ClassVar[str]
    shares_scores: ClassVar[bool]

    @property
    def protects(self) -> str:
        """What the guarantee covers."""
        ...

    @property
    def reveals(self) -> str:
        """What the server learns besides the AUC."""
        ...

    @property
    def epsilon(self) -> float:
        """The epsilon asked for."""
        ...

    @property
    def sensitivity(self) -> float:
        """Largest L1 (Gaussian noise: L2) change of the exact answer between neighbours."""
        ...

    @property
    def event(self) -> Event:
        """What one release costs."""
        ...

    def predicted_sd(self, population: Population) -> float:
        """Predict the standard deviation of the released AUC, before anything is spent."""
        ...


class CountingMechanism(Mechanism, Protocol):
    """A mechanism whose answer is computed from counts per score bin."""

    @property
    def needs_totals(self) -> bool:
        """Whether the row counts per bin are public and known before the answer."""
        ...

    def bins(self, grid: Bins) -> Bins:
        """Choose the bins to answer on, from the fine grid and (where totals are public) its totals."""
        ...

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: Bins, *, noise: NoiseSource) -> Ints:
        """Compute the exact answer (L,); mechanisms that randomise labels or rounding use ``noise`` for that. Leading axes
        are kept."""
        ...

    def noise(self, bins: Bins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw the noise (..., L) of one client, or its share of it where ``shares`` clients together make the whole."""
        ...

    def estimate(self, total_L: Ints, bins: Bins) -> tuple[Floats, Floats]:
        """Turn the summed answers (..., L) into the AUC and the number of positives (...)."""
        ...


def simulate(
    mechanism: CountingMechanism,
    positives_B: Ints,
    negatives_B: Ints,
    bins: Bins,
    *,
    clients: float,
    repeats: int,
    rng: np.random.Generator,
    shares: int | None = None,
) -> Floats:
    """Draw ``repeats`` releases of the AUC (R,) from the pooled counts, in chunks of bounded memory.

    The sum of the clients' noise is drawn directly from its own distribution, so the cost does not depend on their number.
    How rows are spread over clients does not matter: only the sums of the clients' counts enter.
    """
    source = SimulatedNoise(rng, clients=clients)
    chunk = max(1, 2_000_000 // max(len(positives_B), 1))
    drawn = []
    for start in range(0, repeats, chunk):
        shape = (min(chunk, repeats - start),)
        pos, neg = (np.broadcast_to(counts, (*shape, len(counts))) for counts in (positives_B, negatives_B))
        total = mechanism.answer(pos, neg, bins, noise=source) + mechanism.noise(bins, source=source, shape=shape, shares=shares)
        drawn.append(mechanism.estimate(total, bins)[0])
    return np.concatenate(drawn)


@lru_cache(maxsize=1024)
def simulated_sd(mechanism: CountingMechanism, population: Population, *, repeats: int = 1000) -> float:
    """Predict a standard deviation by simulating the mechanism on the assumed population, with a fixed seed."""
    bins = mechanism.bins(Bins(edges=score_grid()))
    positives_B, negatives_B = population.expected_counts(bins.edges)
    draws = simulate(
        mechanism,
        positives_B,
        negatives_B,
        bins,
        clients=population.clients,
        repeats=repeats,
        rng=np.random.default_rng(0),
    )
    return float(draws.std())
