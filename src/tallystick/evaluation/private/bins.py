"""Define score bins, exact counts in them, and public assumptions about a test set before anything is spent.

Shapes: N rows, B bins, T thresholds.
"""

import math
from dataclasses import dataclass, field
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError, DataError

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

GRID_BINS = 4096
RANK_GRID_BINS = 1 << 16  # for ranks, whose noise does not grow with the number of bins
MOST_ROWS = 1 << 53  # up to here a float64 represents every count, and no sum of counts overflows


def score_grid(count: int = GRID_BINS) -> Floats:
    """Return the fixed fine grid: ``count`` - 1 inner edges, equally spaced in logit from -14 to 14, which suits rare and common
    labels.
    """
    edges: Floats = 1 / (1 + np.exp(-np.linspace(-14.0, 14.0, count - 1)))
    return edges


def paper_thresholds(count: int) -> Floats:
    """Return DPAUC's thresholds: half of them on [0, .2], a quarter on [.2, .5], a quarter on [.5, 1], ends included (authors'
    code)."""
    if count < 4:
        raise ConfigError(f"the number of thresholds is {count}; it must be at least 4 (the paper uses 10 to 200)")
    half, quarter = count // 2, count // 4
    parts = (np.linspace(0, 0.2, half), np.linspace(0.2, 0.5, quarter), np.linspace(0.5, 1, count - half - quarter))
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class ScoreBins:
    """Score bins by their inner edges (an edge belongs to the bin above it), and the number of rows in each if that is public."""

    edges: Floats
    totals_B: Ints | None = None
    distinct: bool = False
    """Whether no bin holds two different scores."""
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        if self.edges.ndim != 1 or not np.all(np.isfinite(self.edges)) or np.any(np.diff(self.edges) < 0):
            raise ConfigError("bin edges must be finite and must not decrease")
        if self.totals_B is not None and (self.totals_B.shape != (len(self),) or np.any(self.totals_B < 0)):
            raise ConfigError(f"bin totals must be {len(self)} counts, none negative")
        if self.totals_B is not None and (rows := float(self.totals_B.sum(dtype=np.float64))) > MOST_ROWS:
            raise ConfigError(f"bin totals add up to {rows:.3g} rows; at most 2^53 can be counted exactly")
        object.__setattr__(self, "rows", -1 if self.totals_B is None else int(self.totals_B.sum()))

    def __len__(self) -> int:
        return len(self.edges) + 1

    def totals(self) -> Ints:
        """Return the public totals. Raises ConfigError if these bins have none."""
        if self.totals_B is None:
            raise ConfigError("this mechanism needs bins with public totals")
        return self.totals_B

    def count(self, scores_N: Floats) -> Ints:
        """Count scores per bin."""
        return np.bincount(np.searchsorted(self.edges, scores_N, side="right"), minlength=len(self)).astype(np.int64)

    def count_classes(self, labels_N: NDArray[np.bool_], scores_N: Floats) -> tuple[Ints, Ints]:
        """Count positives and negatives per bin."""
        positives_B = self.count(scores_N[labels_N])
        return positives_B, self.count(scores_N) - positives_B

    def centred_ranks(self) -> Floats:
        """Return each bin's mid-rank minus one half, as a share of all rows.

        It is in [-1/2, 1/2], whatever the totals are. The sensitivity of a rank sum relies on that.
        """
        totals_B = self.totals()
        ranks_B: Floats = (np.cumsum(totals_B) - totals_B / 2) / max(self.rows, 1) - 0.5
        return ranks_B.clip(-0.5, 0.5)

    def merged(self, count: int) -> "ScoreBins":
        """Merge neighbours into at most ``count`` bins of nearly equal totals."""
        totals_B = self.totals()
        below = np.cumsum(totals_B)[:-1]
        targets = self.rows * np.arange(1, count) / count
        cuts = (
            np.unique(np.searchsorted(below, targets, side="left").clip(0, len(below) - 1))
            if len(below)
            else np.array([], dtype=np.int64)
        )
        groups = np.split(totals_B, cuts + 1)
        return ScoreBins(edges=self.edges[cuts], totals_B=np.array([group.sum() for group in groups], dtype=np.int64))

    @classmethod
    def exact(cls, scores_N: Floats) -> "ScoreBins":
        """Return one bin per distinct score."""
        values, totals_B = np.unique(scores_N, return_counts=True)
        return cls(edges=values[1:], totals_B=totals_B.astype(np.int64), distinct=True)


@dataclass(frozen=True, kw_only=True)
class Population:
    """Public assumptions about a test set from which an error is predicted: its size, class balance, AUC and number of clients.

    The scores follow the calibrated binormal model: negatives N(0, 1) and positives N(d, 1) on a latent axis with d = sqrt(2)
    Phi^-1(AUC), and the score is the posterior probability of the label.
    """

    rows: int
    positive_rate: float
    auc: float = 0.75
    clients: float = 1

    def __post_init__(self) -> None:
        if self.rows < 2:
            raise DataError(f"the test set has {self.rows} row(s); an AUC needs at least one positive and one negative")
        if not 0 < self.positive_rate < 1:
            raise ConfigError(f"positive_rate is {self.positive_rate!r}; it must lie in (0, 1)")
        if not 0 < self.auc < 1:
            raise ConfigError(f"the assumed AUC is {self.auc!r}; it must lie in (0, 1)")
        if self.clients <= 0:
            raise ConfigError(f"the number of clients is {self.clients}; it must be at least 1")

    @property
    def positives(self) -> float:
        """Count the positives."""
        return self.rows * self.positive_rate

    @property
    def negatives(self) -> float:
        """Count the negatives."""
        return self.rows * (1 - self.positive_rate)

    @property
    def separation(self) -> float:
        """Return the distance d of the two classes on the latent axis."""
        return math.sqrt(2) * NormalDist().inv_cdf(self.auc)

    def score(self, latent: Floats) -> Floats:
        """Return the posterior probability of the label at latent values."""
        d = self.separation
        logits = d * latent - d * d / 2 + math.log(self.positive_rate / (1 - self.positive_rate))
        scores: Floats = 1 / (1 + np.exp(-logits))
        return scores

    def expected_counts(self, edges: Floats) -> tuple[Ints, Ints]:
        """Return the expected positives and negatives per bin, rounded so that the sums stay the same."""
        d = self.separation
        shift = math.log(self.positive_rate / (1 - self.positive_rate))
        with np.errstate(divide="ignore"):
            logits = np.log(edges) - np.log1p(-np.minimum(edges, 1))
        normal = NormalDist()
        if abs(d) < 1e-9:  # all scores equal the positive rate
            cuts = np.where(logits > shift, np.inf, -np.inf)
        else:
            cuts = (logits - shift + d * d / 2) / d
            cuts = cuts if d > 0 else -cuts
        sign = 1.0 if d >= 0 else -1.0
        below_pos = np.array([_cdf(normal, cut - sign * d) for cut in cuts])
        below_neg = np.array([_cdf(normal, cut) for cut in cuts])
        return _spread(below_pos, self.positives), _spread(below_neg, self.negatives)


def _cdf(normal: NormalDist, value: float) -> float:
    return normal.cdf(value) if math.isfinite(value) else float(value > 0)


def _spread(below: Floats, total: float) -> Ints:
    cumulative = np.rint(np.concatenate([[0.0], below, [1.0]]) * total).astype(np.int64)
    return np.diff(cumulative)


def auc_of_counts(positives_B: NDArray[np.generic], negatives_B: NDArray[np.generic]) -> Floats:
    """Return the AUC of counts per bin in ascending score order, with half credit within a bin. Leading axes are kept."""
    pos = np.asarray(positives_B, dtype=np.float64)
    neg = np.asarray(negatives_B, dtype=np.float64)
    below = np.cumsum(neg, axis=-1) - neg / 2
    pairs = pos.sum(-1) * neg.sum(-1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray((pos * below).sum(-1) / pairs)


def check_scores(labels_N: NDArray[np.generic], scores_N: NDArray[np.generic]) -> tuple[NDArray[np.bool_], Floats]:
    """Return labels as bool and scores as float64. Raises DataError for anything but 0/1 labels and scores in [0, 1]."""
    labels, scores = np.asarray(labels_N), np.asarray(scores_N, dtype=np.float64)
    if labels.ndim != 1 or labels.shape != scores.shape:
        raise DataError(f"labels have shape {labels.shape} and scores {scores.shape}; both must be one value per row")
    if not np.all((labels == 0) | (labels == 1)):
        wrong = labels[~((labels == 0) | (labels == 1))][0]
        raise DataError(f"a label is {wrong!r}; a private AUC needs labels that are 0 or 1")
    bad = ~((scores >= 0) & (scores <= 1))
    if np.any(bad):
        row = int(np.flatnonzero(bad)[0])
        raise DataError(f"the score of row {row} is {scores[row]}; scores must be numbers in [0, 1] (apply a sigmoid, drop NaN)")
    return labels.astype(bool), scores


def check_both_classes(labels_N: NDArray[np.bool_]) -> None:
    """Raise DataError unless there is a positive and a negative.

    Passing the error on reveals that one class is missing.
    """
    positives = int(labels_N.sum())
    if positives in (0, len(labels_N)):
        raise DataError(
            f"{positives} of {len(labels_N)} labels are positive; an AUC needs at least one positive and one negative"
        )
