"""Implement mechanism 6: another mechanism's answer summed securely, with the noise drawn in shares."""

from dataclasses import dataclass, replace
from typing import ClassVar

from tallystick.errors import ConfigError
from tallystick.evaluation.private.bins import Floats, Ints, Population, ScoreBins
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.privacy.events import Event
from tallystick.privacy.noise import WIDEST_SHARE, NoiseSource


@dataclass(frozen=True, kw_only=True)
class SecureSum(CountingMechanism):
    """The inner mechanism with pairwise masks, so that the server sees only the sum, and with one noise for all clients together.

    Goryczka and Xiong 2017, section 4 (discrete Laplace as a sum of Polya shares); Bonawitz et al. 2017 (masks). Threat model: an
    honest-but-curious server that colludes with no client, or with so few that ``honest`` clients are left. Guarantee: the inner
    mechanism's, for the sum (the shares' table is within 2^-140 of exact in total variation). ``honest`` makes every share large
    enough for that many clients to bring the whole noise. Not protected: labels from another client, unless ``honest`` is at most
    K - 1. That client knows its own share, and only the others' shares hide the sum (at epsilon 1, ranks among 3 clients: 2.2).
    Among 2 clients nothing helps. Nor does it protect from a server that invents clients, unless ``honest`` is at most the number
    of real ones. The error does not depend on the number of clients (it grows as sqrt(K / honest) if ``honest`` is set).

    An epsilon whose noise is too wide for shares (below about 2e-4 for ``two-statistics``) is refused before anything is sent.
    """

    name: ClassVar[str] = "secure-sum"
    shares_scores: ClassVar[bool] = False
    needs_clients: ClassVar[bool] = True

    inner: CountingMechanism
    honest: int | None = None

    def __post_init__(self) -> None:
        if self.honest is not None and self.honest < 2:
            raise ConfigError(f"honest is {self.honest}; at least 2 clients must be taken as honest, or leave it out for all")
        if not self.inner.draws_shares:
            raise ConfigError(f"the noise of {self.inner.name} is not drawn in shares; use Laplace noise with secure aggregation")
        widest = self.inner.widest_scale
        if widest > WIDEST_SHARE:
            least = 1.01 * self.epsilon * widest / WIDEST_SHARE
            raise ConfigError(
                f"epsilon is {self.epsilon:g}: {self.inner.name} needs noise of scale {widest:.0f}, and in shares it goes up "
                f"to {WIDEST_SHARE:.0f}; take a larger epsilon, at least {least:.3g}"
            )

    @property
    def least_clients(self) -> int:
        """Return the number of clients that are assumed to be honest, but at least two."""
        return self.honest or 2

    @property
    def protects(self) -> str:
        """Say what the inner mechanism protects."""
        return self.inner.protects

    @property
    def reveals(self) -> str:
        """Say that only sums are revealed."""
        exact = "the score histogram" if self.inner.needs_totals else "the number of rows"
        return f"only sums over all clients: {exact} and the noisy answer of {self.inner.name}"

    @property
    def needs_totals(self) -> bool:
        """Return the inner mechanism's answer."""
        return self.inner.needs_totals

    @property
    def epsilon(self) -> float:  # type: ignore[override]
        """Return the inner mechanism's epsilon."""
        return self.inner.epsilon

    @property
    def sensitivity(self) -> float:
        """Return the inner mechanism's sensitivity: one label belongs to one client."""
        return self.inner.sensitivity

    @property
    def event(self) -> Event:
        """Return the inner mechanism's event."""
        return self.inner.event

    @property
    def counted(self) -> CountingMechanism:
        """Return the inner mechanism."""
        return self.inner

    @property
    def title(self) -> str:
        """Return both names."""
        return f"{self.name} of {self.inner.name}"

    @property
    def widest_scale(self) -> float:
        """Return the inner mechanism's widest scale."""
        return self.inner.widest_scale

    def shares_of(self, clients: int | None) -> int | None:
        """Return one share for every client."""
        return clients

    def predicted_error(self, assumed: Population) -> float:
        """Predict the inner mechanism's error, with the noise of the sum."""
        return self.inner.predicted_error(replace(assumed, clients=assumed.clients / self.honest if self.honest else 1))

    def bins(self, grid: ScoreBins) -> ScoreBins:
        """Return the inner mechanism's bins."""
        return self.inner.bins(grid)

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:
        """Answer as the inner mechanism does."""
        return self.inner.answer(positives_B, negatives_B, bins, noise=noise)

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw this client's share if ``shares`` clients take part. Raises ConfigError if they are too few for the
        whole noise.
        """
        if shares is None:
            raise ConfigError("a secure sum draws noise in shares; say how many clients take part")
        if self.honest is not None and shares < self.honest:
            raise ConfigError(
                f"{shares} clients take part, but {self.honest} shares make the whole noise; lower honest or find more clients"
            )
        return self.inner.noise(bins, source=source, shape=shape, shares=self.honest or shares)

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Estimate as the inner mechanism does."""
        return self.inner.estimate(total_L, bins)

    def predicted_sd(self, population: Population) -> float:
        """Predict the deviation as the inner mechanism does with a single client."""
        return self.inner.predicted_sd(replace(population, clients=population.clients / self.honest if self.honest else 1))
