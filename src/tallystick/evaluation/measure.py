"""Measure a model on the rows of a split, and compare two models on the same rows, to see what joining brought.

The results are plain dictionaries, ready for JSON: no NaN, and a metric without a value gives the reason. Everything here is
computed from labels and stays with the label party; no formal guarantee protects the labels if it is passed on. Shapes: N rows, C
classes, L levels, K labels of a row.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallystick import metrics
from tallystick.config.sections import EvaluationConfig
from tallystick.evaluation import intervals
from tallystick.metrics import METRICS, Floats, MetricSettings, Statistic, TargetType, UndefinedMetric
from tallystick.metrics.survival import brier_curve, brier_times

_LEVEL = 0.95
CURVE_POINTS = 200
BETWEEN = "between"
_DIGITS = 6  # digits of the curves' points


class MetricValue(TypedDict):
    """A metric (or a difference of two), with its interval. ``value`` is None if ``reason`` says why."""

    value: float | None
    low: float | None
    high: float | None
    reason: str | None


class RocCurve(TypedDict):
    """Points of the ROC curve from (0, 0) to (1, 1), thinned evenly along the curve."""

    false_positive_rate: list[float]
    true_positive_rate: list[float]


class PrecisionRecallCurve(TypedDict):
    """Points of the precision-recall curve in ascending order of recall, thinned evenly in recall."""

    recall: list[float]
    precision: list[float]


class ReliabilityCurve(TypedDict):
    """Per equal-mass bin, in ascending order: mean prediction, observed rate of positives, weight in the bin."""

    predicted: list[float]
    observed: list[float]
    count: list[float]


class QuantileShares(TypedDict):
    """How often labels are at most the predicted quantiles, with intervals, and how often they lie between the outermost two."""

    level: list[float]
    observed: list[MetricValue]
    between: MetricValue | None  # None for a single level
    width: float | None  # mean distance between the outermost two


class BrierCurve(TypedDict):
    """Brier scores of survival until each time, and those of one distribution for all rows."""

    time: list[float]
    score: list[float]
    alike: list[float]


class MetricCurves(TypedDict):
    """A model's curves. One is None if the target or the rows have none, or if the label party kept it to itself."""

    roc: RocCurve | None
    reliability: ReliabilityCurve | None
    precision_recall: NotRequired[PrecisionRecallCurve | None]
    quantiles: NotRequired[QuantileShares | None]
    brier: NotRequired[BrierCurve | None]


class Comparison(TypedDict):
    """Two models on the same rows. ``local_baseline`` and ``difference`` (joint - local_baseline) are None without a baseline."""

    target: TargetType
    rows: int
    label_mean: float | None  # share of positives (binary), mean (regression), None for classes
    calibration_bins: int
    bootstrap: dict[str, Any]  # method, resamples, level
    joint: dict[str, MetricValue]
    local_baseline: dict[str, MetricValue] | None
    difference: dict[str, MetricValue] | None
    curves: dict[str, MetricCurves]  # "joint", "local_baseline"
    labels: NotRequired[dict[str, "Comparison"]]  # for a multilabel target: each label separately, with its own curves
    weighted: NotRequired[bool]  # whether each row counts by its sample weight, in everything above except ``rows``


def compare_models(
    target: TargetType,
    labels_N: ArrayLike,
    joint_logits: ArrayLike,
    own_logits: ArrayLike | None,
    *,
    weights: ArrayLike | None = None,
    keys_N: NDArray[np.int64] | None = None,
    levels: tuple[float, ...] = (),
    labels: tuple[str, ...] = (),
    evaluation: EvaluationConfig | None = None,
    generator: np.random.Generator,
) -> Comparison:
    """Measure the joint model and the own-columns-only model on the same rows and resamples: metrics, intervals and curves.

    The interval of a difference comes from the paired bootstrap: both models see the same resampled rows, so effects that make a
    draw of rows easy or hard for both cancel out. ``keys_N`` is the key of each row; rows of one key are drawn together.
    ``labels_N`` are 0/1, class numbers, patterns of several labels or real numbers. Logits are (N,), or (N, C) for classes, (N,
    K) for the names of several ``labels``, the predictions in the label's unit for regression, or (N, L) for the ``levels`` of a
    quantile target. Without ``own_logits`` only the joint model is measured. ``weights`` are per row. ``evaluation`` sets the
    numbers of bins and resamples.

    Raises DataError for labels, weights or shapes that do not fit; logits that are not finite give metrics without a value.
    """
    evaluation = evaluation or EvaluationConfig()
    bins, resamples = evaluation.calibration_bins, evaluation.bootstrap
    labels_of_rows = np.asarray(labels_N).reshape(-1)
    weights_N = metrics.row_weights(weights, len(labels_of_rows))
    settings = metrics.MetricSettings(bins=bins, levels=levels)
    logits = {"joint": np.asarray(joint_logits)} | ({"local_baseline": np.asarray(own_logits)} if own_logits is not None else {})
    whole = {model: _Model(target, labels_of_rows, each, weights_N, settings) for model, each in logits.items()}
    bits_NK = metrics.label_bits(labels_of_rows, len(labels))
    parts = {
        label: {model: _Model("binary", bits_NK[:, k], each[:, k], weights_N, settings) for model, each in logits.items()}
        for k, label in enumerate(labels)
    }
    # Each of several labels has resamples, and their mean has the mean of these
    statistics = {
        (label, model, name): statistic
        for label, models in (parts or {"": whole}).items()
        for model, each in models.items()
        for name, statistic in (each.statistics | each.shares).items()
    }
    replicates_RM = (
        intervals.bootstrap(list(statistics.values()), weights_N, keys_N=keys_N, resamples=resamples, generator=generator)
        if statistics
        else np.empty((resamples, 0))
    )
    replicates = dict(zip(statistics, replicates_RM.T, strict=True))
    facts = _Facts(
        bins=bins,
        bootstrap={"method": intervals.resampling_of(keys_N), "resamples": resamples, "level": _LEVEL},
        weighted=weights is not None,
    )
    if not parts:
        return _compared(target, whole, {each[1:]: values_R for each, values_R in replicates.items()}, weights_N, facts)
    means = {
        (model, name): np.array([metrics.mean_of_defined(values) for values in np.column_stack(of_labels)])
        for model in logits
        for name in METRICS[target]
        if (of_labels := [replicates[label, model, name] for label in labels if (label, model, name) in replicates])
    }
    comparison = _compared(target, whole, means, weights_N, facts)
    comparison["labels"] = {
        label: _compared(
            "binary", models, {each[1:]: values_R for each, values_R in replicates.items() if each[0] == label}, weights_N, facts
        )
        for label, models in parts.items()
    }
    return comparison


@dataclass(frozen=True, kw_only=True)
class _Facts:
    """Facts that every part of a comparison states about itself."""

    bins: int
    bootstrap: dict[str, Any]
    weighted: bool


def _compared(
    target: TargetType,
    models: "Mapping[str, _Model]",
    replicates: Mapping[tuple[str, str], Floats],
    weights_N: Floats,
    facts: _Facts,
) -> Comparison:
    """Combine the models' values and resamples, by model and metric."""
    table = METRICS[target]
    by_model: dict[str, dict[str, MetricValue]] = {model: {} for model in models}
    for model, each in models.items():
        for name, metric in table.items():
            if name in each.values and (model, name) in replicates:
                by_model[model][name] = valued(each.values[name], replicates[model, name], metric.low, metric.high)
            else:
                by_model[model][name] = MetricValue(value=None, low=None, high=None, reason=each.reasons[name])
    own = by_model.get("local_baseline")
    difference: dict[str, MetricValue] | None = None
    if own is not None:
        difference = {}
        for name in table:
            joint_value, own_value = by_model["joint"][name], own[name]
            if joint_value["value"] is None or own_value["value"] is None:
                reason = joint_value["reason"] or own_value["reason"]
                difference[name] = MetricValue(value=None, low=None, high=None, reason=reason)
            else:
                apart_R = replicates["joint", name] - replicates["local_baseline", name]
                difference[name] = valued(joint_value["value"] - own_value["value"], apart_R, -np.inf, np.inf)
    label_mean = np.nan
    if target not in ("multiclass", "multilabel"):
        label_mean = metrics.mean_statistic(models["joint"].labels)(weights_N)
    return Comparison(
        target=target,
        rows=len(weights_N),
        label_mean=float(label_mean) if np.isfinite(label_mean) else None,
        calibration_bins=facts.bins,
        bootstrap=facts.bootstrap,
        joint=by_model["joint"],
        local_baseline=own,
        difference=difference,
        curves={model: each.curves({name: replicates[model, name] for name in each.shares}) for model, each in models.items()},
        weighted=facts.weighted,
    )


class _Model:
    """One model's prepared statistics, values and reasons on the measured rows."""

    def __init__(self, target: TargetType, labels: Any, logits: ArrayLike, weights_N: Floats, settings: MetricSettings) -> None:
        self.statistics: dict[str, Statistic] = {}
        self.values: dict[str, float] = {}
        self.reasons: dict[str, str] = {}
        self.shares: dict[str, Statistic] = {}  # for a quantile target, by what is counted
        self.labels = labels
        self._target, self._weights_N, self._settings = target, weights_N, settings
        self._rows: tuple[Any, Floats] | None = None
        try:
            self._rows = metrics.check_rows(target, labels, logits)
        except UndefinedMetric as error:
            self.reasons = dict.fromkeys(METRICS[target], str(error))
            return
        for name, chosen in METRICS[target].items():
            try:
                statistic = chosen.prepare(*self._rows, settings)
            except UndefinedMetric as error:
                self.reasons[name] = str(error)
                continue
            value = statistic(weights_N)
            if np.isfinite(value):
                self.statistics[name], self.values[name] = statistic, float(value)
            else:
                self.reasons[name] = chosen.undefined
        if target == "quantile" and self.statistics:  # rows with weight
            labels_N, values_NL = self._rows
            lowest_N, highest_N = values_NL[:, 0], values_NL[:, -1]
            for place, level in enumerate(settings.levels):
                self.shares[f"at most {level:g}"] = metrics.mean_statistic(labels_N <= values_NL[:, place])
            if len(settings.levels) > 1:
                self.shares[BETWEEN] = metrics.mean_statistic((labels_N >= lowest_N) & (labels_N <= highest_N))

    def curves(self, replicates: Mapping[str, Floats]) -> MetricCurves:
        """Compute the curves: ROC, reliability and precision-recall of a binary target, Brier scores of survival, or the shares
        of a quantile target, whose resamples are given.
        """
        if "brier" in self.values:
            assert self._rows is not None
            labels_N, times_N = self._rows
            scores = [[0.0, *brier_curve(labels_N, each_N, self._weights_N)] for each_N in (times_N, np.ones(len(times_N)))]
            brier = BrierCurve(
                time=_rounded(np.append(0.0, brier_times(labels_N))), score=_rounded(scores[0]), alike=_rounded(scores[1])
            )
            return MetricCurves(roc=None, reliability=None, precision_recall=None, brier=brier)
        if self.shares:
            assert self._rows is not None
            shares = {name: valued(share(self._weights_N), replicates[name], 0.0, 1.0) for name, share in self.shares.items()}
            between, values_NL = shares.pop(BETWEEN, None), self._rows[1]
            width = metrics.mean_statistic(values_NL[:, -1] - values_NL[:, 0])(self._weights_N)
            return MetricCurves(
                roc=None,
                reliability=None,
                precision_recall=None,
                quantiles=QuantileShares(
                    level=list(self._settings.levels),
                    observed=list(shares.values()),
                    between=between,
                    width=width if between is not None else None,
                ),
            )
        if self._rows is None or self._target != "binary":
            return MetricCurves(roc=None, reliability=None, precision_recall=None)
        labels_N, logits_N = self._rows
        roc: RocCurve | None = None
        with suppress(UndefinedMetric):
            false_G1, true_G1 = metrics.roc_curve(labels_N, logits_N, weights_N=self._weights_N)[:2]
            if len(false_G1) > CURVE_POINTS:  # keep so many, evenly along the curve, both ends among them
                picks = np.searchsorted(false_G1 + true_G1, np.linspace(0.0, 2.0, CURVE_POINTS)).clip(max=len(false_G1) - 1)
                picks[0], picks[-1] = 0, len(false_G1) - 1
                picks = np.unique(picks)
                false_G1, true_G1 = false_G1[picks], true_G1[picks]
            roc = RocCurve(false_positive_rate=_rounded(false_G1), true_positive_rate=_rounded(true_G1))
        precision_recall: PrecisionRecallCurve | None = None
        with suppress(UndefinedMetric):
            precision_G, recall_G = metrics.precision_recall_curve(labels_N, logits_N, weights_N=self._weights_N)[:2]
            if len(recall_G) > CURVE_POINTS:  # keep so many, evenly in recall, both ends among them
                picks = np.searchsorted(recall_G, np.linspace(recall_G[0], 1.0, CURVE_POINTS)).clip(max=len(recall_G) - 1)
                picks[0] = 0
                picks = np.unique(picks)
                precision_G, recall_G = precision_G[picks], recall_G[picks]
            precision_recall = PrecisionRecallCurve(recall=_rounded(recall_G), precision=_rounded(precision_G))
        bins = metrics.equal_mass_bins(labels_N, metrics.sigmoid(logits_N), bins=self._settings.bins)(self._weights_N)
        reliability = bins and ReliabilityCurve(
            predicted=_rounded(bins.predicted),
            observed=_rounded(bins.observed),
            count=_rounded(np.full(len(bins.observed), bins.mass)),
        )
        return MetricCurves(roc=roc, reliability=reliability or None, precision_recall=precision_recall)


def without_value(reason: str) -> MetricValue:
    """Return a metric that has no value, and why."""
    return MetricValue(value=None, low=None, high=None, reason=reason)


def valued(value: float, replicates_R: Floats, low: float, high: float) -> MetricValue:
    """Return a value within [low, high], with the interval that its resamples give."""
    interval = intervals.percentile_interval(replicates_R, value, level=_LEVEL, low=low, high=high)
    if interval is None:
        reason = None if len(replicates_R) == 0 else "no interval: too many resamples hold one class or one value only"
        return MetricValue(value=value, low=None, high=None, reason=reason)
    return MetricValue(value=value, low=interval.low, high=interval.high, reason=None)


def _rounded(values: Iterable[float]) -> list[float]:
    return [round(float(value), _DIGITS) for value in values]
