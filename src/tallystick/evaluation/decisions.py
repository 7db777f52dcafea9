"""Measure how useful a score is for decisions: thresholds with their costs, deciles, score distributions, groups of rows.

All of it is computed from labels and stays with the label party: no formal guarantee. Shapes: N rows, G groups of rows with equal
scores.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallystick import metrics
from tallystick.errors import DataError
from tallystick.evaluation.intervals import bootstrap
from tallystick.evaluation.measure import MetricValue, valued, without_value
from tallystick.metrics import METRICS, Floats, Statistic, TargetType, UndefinedMetric

DECILES = 10
HISTOGRAM_BINS = 20
FLAGGED = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # shares of the rows that the table's thresholds flag
SMALLEST_CLASS = 10  # fewest rows of the rarer class for a group's AUC
ChosenOn = Literal["validation rows", "test rows"]


class Threshold(TypedDict):
    """Rows that score at least ``threshold`` are flagged (None: no row is). ``cost`` is the mean per row."""

    threshold: float | None
    flagged: float
    precision: float | None
    recall: float
    false_positive_rate: float
    cost: float


class Decile(TypedDict):
    """A tenth of the rows, the highest scores first: its predicted and observed rates, and the totals up to it."""

    predicted: float
    observed: float
    lift: float  # observed over the rate of all rows
    gain: float  # share of all positives in this tenth and those before it


class Decisions(TypedDict):
    """How useful a binary model's scores are for decisions."""

    rows: int
    cost_false_positive: float
    cost_false_negative: float
    thresholds: list[Threshold]
    best: Threshold  # the cheapest threshold of ``chosen_on``, measured on these rows
    chosen_on: ChosenOn
    flag_none: Threshold
    flag_all: Threshold
    ks_threshold: float  # where the distance between the classes' distributions is largest
    deciles: list[Decile]
    edges: list[float]  # edges of the histogram's bins
    positives: list[float]  # share of the positives in each bin
    negatives: list[float]


class Group(TypedDict):
    """One group of rows. ``rows`` is None if there are too few to show anything."""

    name: str
    rows: int | None
    label_mean: MetricValue
    score_mean: MetricValue
    gap: MetricValue  # mean score - mean label: above 0, the group is scored too high
    metric: MetricValue


class Grouping(TypedDict):
    """A model's results on the groups of a column."""

    column: str
    target: TargetType
    metric: str  # name in METRICS
    smallest: int
    groups: list[Group]


def decide(
    labels_N: ArrayLike,
    scores_N: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    cost_false_positive: float = 1.0,
    cost_false_negative: float = 1.0,
    threshold_rows: tuple[ArrayLike, ArrayLike, ArrayLike | None] | None = None,
) -> Decisions:
    """Measure how useful probabilities ``scores_N`` are if a threshold turns them into decisions.

    ``threshold_rows`` are labels, scores and weights of other rows. The cheapest threshold is chosen on them, so that its cost
    here is not the best of many tries. Without them it is chosen on these rows, and its cost is slightly too low. Raises
    UndefinedMetric if there is only one class, or if a score is not finite.
    """
    scores_N = metrics.finite_values(scores_N, "scores")
    weights_N = metrics.row_weights(weights, len(scores_N))
    curve = _Curve(np.asarray(labels_N), scores_N, weights_N, cost_false_positive, cost_false_negative)
    on = curve
    if threshold_rows is not None:
        labels_M, scores_M = np.asarray(threshold_rows[0]), metrics.finite_values(threshold_rows[1], "scores")
        on = _Curve(
            labels_M, scores_M, metrics.row_weights(threshold_rows[2], len(scores_M)), cost_false_positive, cost_false_negative
        )
    number_N = np.asarray(labels_N, dtype=np.float64)
    edges: list[float] = np.linspace(0.0, 1.0, HISTOGRAM_BINS + 1).tolist()
    shares = []
    for weight_N in (weights_N * number_N, weights_N * (1.0 - number_N)):
        counts, _ = np.histogram(scores_N, bins=edges, weights=weight_N)
        shares.append((counts / weight_N.sum()).tolist())
    positives, negatives = shares
    labels_N = np.asarray(labels_N)
    bins = metrics.equal_mass_bins(labels_N, scores_N, bins=DECILES)(weights_N)
    assert bins is not None  # both classes occur
    observed, predicted = bins.observed[::-1], bins.predicted[::-1]
    gain = np.cumsum(observed) / observed.sum()
    return Decisions(
        rows=len(scores_N),
        cost_false_positive=cost_false_positive,
        cost_false_negative=cost_false_negative,
        thresholds=curve.table(),
        best=curve.at(on.cheapest()),
        chosen_on="test rows" if threshold_rows is None else "validation rows",
        flag_none=curve.at(None),
        flag_all=curve.at(float(scores_N.min())),
        ks_threshold=curve.furthest(),
        deciles=[
            Decile(predicted=float(p), observed=float(o), lift=float(o / observed.mean()), gain=float(min(g, 1.0)))
            for p, o, g in zip(predicted, observed, gain, strict=True)
        ],
        edges=edges,
        positives=positives,
        negatives=negatives,
    )


class _Curve:
    """Weights of false and true positives at every threshold, from the highest score down. Flagging no row comes first."""

    def __init__(self, labels_N: ArrayLike, scores_N: Floats, weights_N: Floats, false_cost: float, missed_cost: float) -> None:
        false_G1, true_G1, threshold_G1 = metrics.roc_curve(labels_N, scores_N, weights_N=weights_N)
        labels_N = np.asarray(labels_N, dtype=np.float64)
        self.total = float(weights_N.sum())
        self.positives = float((weights_N * labels_N).sum())
        self.false_G1, self.true_G1, self.threshold_G1 = false_G1, true_G1, threshold_G1
        negatives = self.total - self.positives
        self.flagged_G1 = (false_G1 * negatives + true_G1 * self.positives) / self.total
        self.cost_G1 = (false_cost * false_G1 * negatives + missed_cost * (1.0 - true_G1) * self.positives) / self.total

    def cheapest(self) -> float | None:
        """Return the cheapest threshold. If several are, return the highest, which flags fewest."""
        return self._threshold(int(np.argmin(self.cost_G1)))

    def furthest(self) -> float:
        """Return the threshold with the largest distance between the classes."""
        return float(self.threshold_G1[1 + int(np.argmax(np.abs(self.true_G1[1:] - self.false_G1[1:])))])

    def at(self, threshold: float | None) -> Threshold:
        """Return the effects of a threshold on these rows."""
        # Thresholds descend: take the last point that is not below it.
        last = 0 if threshold is None else int(np.searchsorted(-self.threshold_G1, -threshold, side="right")) - 1
        flagged, recalled = float(self.flagged_G1[last]), float(self.true_G1[last])
        return Threshold(
            threshold=threshold,
            flagged=flagged,
            precision=min(recalled * self.positives / (flagged * self.total), 1.0) if flagged else None,
            recall=recalled,
            false_positive_rate=float(self.false_G1[last]),
            cost=float(self.cost_G1[last]),
        )

    def table(self) -> list[Threshold]:
        """List the thresholds that flag about the shares of FLAGGED, each once."""
        picks = [min(int(np.searchsorted(self.flagged_G1, share - 1e-12)), len(self.flagged_G1) - 1) for share in FLAGGED]
        return [self.at(self._threshold(pick)) for pick in dict.fromkeys(picks)]

    def _threshold(self, place: int) -> float | None:
        return None if place == 0 else float(self.threshold_G1[place])


@dataclass(frozen=True, kw_only=True)
class Subgroups:
    """The groups of N rows by a column: their names, and each row's group as an index into the names."""

    column: str
    names: Sequence[str]
    codes_N: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class ScoredRows:
    """Labels of N rows, a model's logits (N,) or (N, C), weights if rows have any, and the rows' keys if keys repeat."""

    labels_N: ArrayLike
    logits: ArrayLike
    weights_N: ArrayLike | None = None
    keys_N: NDArray[np.int64] | None = None


def by_group(
    target: TargetType,
    groups: Subgroups,
    rows: ScoredRows,
    *,
    levels: tuple[float, ...] = (),
    smallest: int = 100,
    resamples: int = 200,
    generator: np.random.Generator,
) -> Grouping:
    """Measure a model on each group of rows.

    A group of fewer than ``smallest`` rows is refused, because its figures would describe single people, and be noise. ``levels``
    are those of a quantile target. Raises DataError for codes that do not fit, UndefinedMetric for logits that are not finite.
    """
    labels_N, logits = metrics.check_rows(target, rows.labels_N, rows.logits)
    weights_N, codes_N = metrics.row_weights(rows.weights_N, len(labels_N)), groups.codes_N
    if len(codes_N) != len(labels_N) or (len(codes_N) and not 0 <= codes_N.min() <= codes_N.max() < len(groups.names)):
        raise DataError(
            f"column {groups.column!r}: {len(codes_N)} group codes for {len(labels_N)} rows; give one per row, an index of names"
        )
    metric_name, metric = next(iter(METRICS[target].items()))
    groups_measured = []
    for code, name in enumerate(groups.names):
        inside_N = codes_N == code
        count = int(inside_N.sum())
        if count < smallest:
            nothing = without_value(f"fewer than {smallest} rows")
            group = Group(name=name, rows=None, label_mean=nothing, score_mean=nothing, gap=nothing, metric=nothing)
            groups_measured.append(group)
            continue
        labels_G, logits_G, weights_G = labels_N[inside_N], logits[inside_N], weights_N[inside_N]
        keys_G = rows.keys_N[inside_N] if rows.keys_N is not None else None
        statistics: dict[str, Statistic] = {}
        reasons = dict.fromkeys(("label_mean", "score_mean", "gap"), f"a {target} target has no mean score")
        if target not in ("multiclass", "multilabel", "quantile"):
            scores_G = metrics.sigmoid(logits_G) if target == "binary" else logits_G
            means = {"label_mean": labels_G, "score_mean": scores_G, "gap": scores_G - labels_G}
            statistics |= {what: metrics.mean_statistic(values_G) for what, values_G in means.items()}
        rarer = count if target != "binary" else int(min(labels_G.sum(), count - labels_G.sum()))
        if rarer < SMALLEST_CLASS:
            reasons["metric"] = f"fewer than {SMALLEST_CLASS} rows of one class"
        else:
            try:
                statistics["metric"] = metric.prepare(labels_G, logits_G, metrics.MetricSettings(bins=1, levels=levels))
            except UndefinedMetric as error:
                reasons["metric"] = str(error)
        values = {what: float(statistic(weights_G)) for what, statistic in statistics.items()}
        replicates_RM = bootstrap(list(statistics.values()), weights_G, keys_N=keys_G, resamples=resamples, generator=generator)
        bounds = {"metric": (metric.low, metric.high)} | ({"label_mean": (0.0, 1.0)} if target == "binary" else {})
        figures = {
            what: valued(values[what], replicates_R, *bounds.get(what, (-np.inf, np.inf)))
            if np.isfinite(values[what])
            else without_value("there are no rows with weight")
            for what, replicates_R in zip(statistics, replicates_RM.T, strict=True)
        }
        figures |= {what: without_value(reason) for what, reason in reasons.items() if what not in figures}
        groups_measured.append(
            Group(
                name=name,
                rows=count,
                label_mean=figures["label_mean"],
                score_mean=figures["score_mean"],
                gap=figures["gap"],
                metric=figures["metric"],
            )
        )
    return Grouping(column=groups.column, target=target, metric=metric_name, smallest=smallest, groups=groups_measured)
