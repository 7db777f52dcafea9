"""Implement mechanism 4: noisy label counts per score bin, and its record-level form."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from tallystick.errors import ConfigError
from tallystick.evaluation.private.bins import Floats, Ints, Population, ScoreBins, auc_of_counts, score_grid
from tallystick.evaluation.private.mechanism import CountingMechanism
from tallystick.privacy.events import Event, PureDP, check_epsilon
from tallystick.privacy.noise import NoiseSource, discrete_laplace_variance

FINE_BINS = 256
"""If one noise covers all bins, more bins cost less than the half credit within fewer bins."""


class _LaplaceCounts(CountingMechanism):
    """Counts per score bin, each with equally much discrete Laplace noise."""

    shares_scores: ClassVar[bool] = False
    interval_from_noise: ClassVar[bool] = True
    picked: ClassVar[bool] = True

    @property
    def scale(self) -> float:
        """Scale of the noise on each count."""
        return self.sensitivity / self.epsilon

    @property
    def widest_scale(self) -> float:
        """Return the scale for all counts."""
        return self.scale


@dataclass(frozen=True, kw_only=True)
class LabelHistogram(_LaplaceCounts):
    """Positives per score bin with discrete Laplace noise of scale 1/epsilon. The number of rows in a bin is public.

    Threat model: a server that sees each client's noisy counts. Guarantee: epsilon label DP, once for all bins (a label is in one
    bin: parallel composition). Not protected: the score histogram on the fine grid, each client's own unless summed securely.
    Bins are merged from the fixed grid to nearly equal totals; pairs within a bin get half credit; nothing is clipped before
    summing. ROC, precision-recall, calibration and log-loss follow from the same answer at no further cost (curves.py).
    """

    name: ClassVar[str] = "label-histogram"
    protects: ClassVar[str] = "labels"
    reveals: ClassVar[str] = "the score histogram (per client; in sum with secure aggregation) and noisy positives per bin"
    needs_totals: ClassVar[bool] = True

    epsilon: float
    count: int = 100

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        if self.count < 2:
            raise ConfigError(f"the number of bins is {self.count}; an AUC needs at least 2 (100 is usual)")

    @classmethod
    def tuned(cls, epsilon: float, population: Population) -> "LabelHistogram":  # noqa: ARG003
        """Choose fine bins, whatever the population."""
        return cls(epsilon=epsilon, count=FINE_BINS)

    @property
    def sensitivity(self) -> float:
        """Return 1: a flipped label changes one count by one."""
        return 1.0

    @property
    def event(self) -> Event:
        """Return the event: pure label DP."""
        return PureDP(epsilon=self.epsilon)

    def bins(self, grid: ScoreBins) -> ScoreBins:
        """Merge the grid into bins of nearly equal totals."""
        return grid.merged(self.count)

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:  # noqa: ARG002
        """Return the positives per bin (B)."""
        return positives_B

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw independent noise for every bin."""
        return laplace_or_share(self.scale, (*shape, len(bins)), source=source, shares=shares)

    def class_counts(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Return the answer, which lists the positives. The totals are public."""
        positives_B = total_L.astype(np.float64)
        return positives_B, bins.totals() - positives_B

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Count pairs with half credit within a bin."""
        return auc_of_counts(total_L, bins.totals() - total_L), total_L.sum(-1).astype(np.float64)

    def predicted_sd(self, population: Population) -> float:
        """Linearise around the assumed population: sd = sigma sqrt(sum of squared weights)."""
        grid = score_grid()
        positives_B, negatives_B = population.expected_counts(grid)
        bins = self.bins(ScoreBins(edges=grid, totals_B=positives_B + negatives_B))
        weight_pos, weight_neg = _weights(*population.expected_counts(bins.edges))
        variance = population.clients * discrete_laplace_variance(self.scale)
        return math.sqrt(variance * float(((weight_pos - weight_neg) ** 2).sum()))


@dataclass(frozen=True, kw_only=True)
class RecordHistogram(_LaplaceCounts):
    """Positives and negatives per score bin, both with discrete Laplace noise of scale 2/epsilon, on fixed bins.

    Threat model: a server that sees each client's noisy counts. Guarantee: epsilon DP for whole records, score and label
    (replacing one changes two counts by one each), and so for labels as well. Not protected: the number of rows. ``edges`` must
    not come from the protected data; the default is 128 bins, equally spaced in logit. Edges of nearly equal mass, for example
    from training predictions, lower the error.
    """

    name: ClassVar[str] = "record-histogram"
    protects: ClassVar[str] = "whole records (scores and labels)"
    reveals: ClassVar[str] = "noisy positives and negatives per bin"
    needs_totals: ClassVar[bool] = False

    epsilon: float
    edges: tuple[float, ...] = field(default_factory=lambda: tuple((1 / (1 + np.exp(-np.linspace(-8.0, 4.0, 127)))).tolist()))

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)
        ScoreBins(edges=np.array(self.edges, dtype=np.float64))

    @property
    def sensitivity(self) -> float:
        """Return 2: a replaced record leaves one cell and enters another."""
        return 2.0

    @property
    def event(self) -> Event:
        """Return the event: pure DP for records."""
        return PureDP(epsilon=self.epsilon, unit="record")

    def bins(self, grid: ScoreBins) -> ScoreBins:  # noqa: ARG002 - the edges are fixed beforehand
        """Return the fixed bins."""
        return ScoreBins(edges=np.array(self.edges, dtype=np.float64))

    def answer(self, positives_B: Ints, negatives_B: Ints, bins: ScoreBins, *, noise: NoiseSource) -> Ints:  # noqa: ARG002
        """Return positives then negatives per bin (2 B)."""
        return np.concatenate([positives_B, negatives_B], axis=-1)

    def noise(self, bins: ScoreBins, *, source: NoiseSource, shape: tuple[int, ...] = (), shares: int | None = None) -> Ints:
        """Draw independent noise for every count."""
        return laplace_or_share(self.scale, (*shape, 2 * len(bins)), source=source, shares=shares)

    def estimate(self, total_L: Ints, bins: ScoreBins) -> tuple[Floats, Floats]:
        """Count pairs with half credit within a bin."""
        positives_B = total_L[..., : len(bins)]
        return auc_of_counts(positives_B, total_L[..., len(bins) :]), positives_B.sum(-1).astype(np.float64)

    def predicted_sd(self, population: Population) -> float:
        """Linearise around the assumed population."""
        weight_pos, weight_neg = _weights(*population.expected_counts(np.array(self.edges, dtype=np.float64)))
        variance = population.clients * discrete_laplace_variance(self.scale)
        return math.sqrt(variance * float((weight_pos**2 + weight_neg**2).sum()))


def laplace_or_share(scale: float, shape: tuple[int, ...], *, source: NoiseSource, shares: int | None) -> Ints:
    """Draw whole discrete Laplace noise, or one of ``shares`` parts of it."""
    return source.discrete_laplace(scale, shape) if shares is None else source.polya_share(scale, shape, shares=shares)


def _weights(positives_B: Ints, negatives_B: Ints) -> tuple[Floats, Floats]:
    """Differentiate the AUC by the positives and by the negatives of each bin."""
    pos, neg = positives_B.astype(np.float64), negatives_B.astype(np.float64)
    auc = float(auc_of_counts(pos, neg))
    negatives_below = (np.cumsum(neg) - neg / 2) / neg.sum()
    positives_above = 1 - (np.cumsum(pos) - pos / 2) / pos.sum()
    return (negatives_below - auc) / pos.sum(), (positives_above - auc) / neg.sum()
