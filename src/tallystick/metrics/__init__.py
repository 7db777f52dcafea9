"""Measure the quality of a model's logits, as functions of row weights.

Each metric has two forms. The plain one (``auc(labels, scores)``) returns a number. The other (``auc_statistic(labels, scores)``)
sorts and prepares once and returns a function of the rows' weights, so that a bootstrap evaluates hundreds of reweightings of the
same rows cheaply (intervals.py).

A statistic returns NaN if it has no value under the given weights; a plain metric raises UndefinedMetric with the reason. Shapes:
N rows, C classes, L levels, K labels of a row.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from tallystick.errors import DataError
from tallystick.metrics.statistics import (
    MAX_CLASSES,
    NUMBERS,
    Floats,
    RankedRows,
    ReliabilityBins,
    Statistic,
    TargetType,
    UndefinedMetric,
    ace_statistic,
    auc_statistic,
    average_precision_statistic,
    class_mean_statistic,
    concordance_statistic,
    deviance_explained_statistic,
    equal_mass_bins,
    gini_statistic,
    ks_statistic,
    label_bits,
    label_mean_statistic,
    level_error_statistic,
    log_softmax,
    mean_of_defined,
    mean_statistic,
    pinball_explained_statistic,
    pinball_loss,
    poisson_deviance,
    r2_statistic,
    sigmoid,
    zero_or_one,
)
from tallystick.metrics.survival import brier_statistic

__all__ = [
    "BINARY",
    "COUNT",
    "MAX_CLASSES",
    "METRICS",
    "MULTICLASS",
    "MULTILABEL",
    "NUMBERS",
    "REGRESSION",
    "Floats",
    "Metric",
    "MetricSettings",
    "ReliabilityBins",
    "Statistic",
    "TargetType",
    "UndefinedMetric",
    "ace",
    "ace_statistic",
    "auc",
    "auc_statistic",
    "average_precision_statistic",
    "brier_statistic",
    "check_rows",
    "class_mean_statistic",
    "concordance_statistic",
    "deviance_explained_statistic",
    "equal_mass_bins",
    "finite_values",
    "gini_statistic",
    "ks_statistic",
    "label_bits",
    "label_mean_statistic",
    "level_error_statistic",
    "log_softmax",
    "mean_of_defined",
    "mean_statistic",
    "metric",
    "pinball_explained_statistic",
    "pinball_loss",
    "poisson_deviance",
    "precision_recall_curve",
    "r2_statistic",
    "roc_curve",
    "row_weights",
    "sigmoid",
]


@dataclass(frozen=True, kw_only=True)
class MetricSettings:
    """Settings that metrics need in addition to labels and logits."""

    bins: int = 20  # number of equal-mass bins for calibration
    levels: tuple[float, ...] = ()  # levels of a quantile target


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric as the report shows it, and how to prepare it from labels, logits and settings."""

    title: str
    higher_is_better: bool
    low: float  # range of values
    high: float
    undefined: str  # what is missing when there is no value
    prepare: Callable[[Any, Floats, MetricSettings], Statistic]

    @property
    def words(self) -> str:
        """Return the title for use in a sentence, in which abbreviations and names keep their capitals."""
        keeps = not self.title[1].islower() or self.title.startswith(("Gini", "Kolmogorov"))
        return self.title if keeps else self.title[0].lower() + self.title[1:]


def _per_class(labels_N: Any, logits_NC: Floats, one: Callable[[Any, Floats], Statistic], name: str) -> Statistic:
    if logits_NC.shape[1] > MAX_CLASSES:
        raise UndefinedMetric(
            f"{name} is averaged over classes, and {logits_NC.shape[1]} classes are over the limit of {MAX_CLASSES}"
        )
    return class_mean_statistic(labels_N, log_softmax(logits_NC), one)


def _rmse(labels_N: Floats, predictions_N: Floats) -> Statistic:
    mean = mean_statistic((labels_N - predictions_N) ** 2)
    return lambda weights_N: float(np.sqrt(mean(weights_N)))


_NO_ROWS = "there are no rows with weight"
_ONE_CLASS = "only one class occurs"

BINARY = {
    "auc": Metric(
        title="AUC",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined=_ONE_CLASS,
        prepare=lambda y, logits, _: auc_statistic(y, logits),
    ),
    "nll": Metric(  # mean of log(1 + exp(l)) - y l
        title="Negative log-likelihood",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, _: mean_statistic(np.logaddexp(0.0, logits) - y * logits),
    ),
    "ace": Metric(
        title="Adaptive calibration error",
        higher_is_better=False,
        low=0.0,
        high=1.0,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, settings: ace_statistic(y, sigmoid(logits), bins=settings.bins),
    ),
    "accuracy": Metric(  # share of rows where [l > 0] = y
        title="Accuracy",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, _: mean_statistic((logits > 0) == (y > 0)),
    ),
    "ap": Metric(
        title="Average precision",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined="there are no positives",
        prepare=lambda y, logits, _: average_precision_statistic(y, logits),
    ),
    "gini": Metric(
        title="Gini, 2 AUC \N{MINUS SIGN} 1",
        higher_is_better=True,
        low=-1.0,
        high=1.0,
        undefined=_ONE_CLASS,
        prepare=lambda y, logits, _: gini_statistic(y, logits),
    ),
    "ks": Metric(
        title="Kolmogorov\N{EN DASH}Smirnov",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined=_ONE_CLASS,
        prepare=lambda y, logits, _: ks_statistic(y, logits),
    ),
}
MULTICLASS = {
    "accuracy": Metric(  # share of rows whose largest logit is the label's
        title="Accuracy",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, _: mean_statistic(logits.argmax(axis=1) == y),
    ),
    "auc": Metric(  # over the classes that occur, on the probability of each
        title="AUC, mean over classes",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined=_ONE_CLASS,
        prepare=lambda y, logits, _: _per_class(y, logits, auc_statistic, "AUC"),
    ),
    "nll": Metric(  # mean of -log softmax(l)_y
        title="Negative log-likelihood",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, _: mean_statistic(-log_softmax(logits)[np.arange(len(y)), y]),
    ),
    "ace": Metric(  # 1/(C R) sum over classes and bins
        title="Adaptive calibration error",
        higher_is_better=False,
        low=0.0,
        high=1.0,
        undefined=_NO_ROWS,
        prepare=lambda y, logits, settings: _per_class(
            y, logits, lambda one, scores: ace_statistic(one, np.exp(scores), bins=settings.bins), "calibration error"
        ),
    ),
}


def _over_labels(binary: Metric) -> Metric:
    return replace(
        binary,
        title=f"Mean {binary.words} over labels",
        prepare=lambda y, logits, settings: label_mean_statistic(
            y, logits, lambda one, logits_N: binary.prepare(one, logits_N, settings)
        ),
    )


MULTILABEL = {name: _over_labels(BINARY[name]) for name in ("auc", "nll", "ace", "ap")}
REGRESSION = {
    "rmse": Metric(
        title="Root mean squared error",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, predictions, _: _rmse(y, predictions),
    ),
    "mae": Metric(  # mean of |y - f|
        title="Mean absolute error",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, predictions, _: mean_statistic(np.abs(y - predictions)),
    ),
    "r2": Metric(
        title="R², variance explained",
        higher_is_better=True,
        low=-np.inf,
        high=1.0,
        undefined="the labels are constant",
        prepare=lambda y, predictions, _: r2_statistic(y, predictions),
    ),
}

COUNT = {
    "deviance": Metric(
        title="Mean Poisson deviance",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, predictions, _: mean_statistic(poisson_deviance(y, predictions)),
    ),
    "d2": Metric(
        title="D², deviance explained",
        higher_is_better=True,
        low=-np.inf,
        high=1.0,
        undefined="the labels are constant",
        prepare=lambda y, predictions, _: deviance_explained_statistic(y, predictions),
    ),
    "rmse": REGRESSION["rmse"],
    "mae": REGRESSION["mae"],
}

SURVIVAL = {
    "concordance": Metric(
        title="Concordance",
        higher_is_better=True,
        low=0.0,
        high=1.0,
        undefined="no event is known to come before another row's",
        prepare=lambda y, predictions, _: concordance_statistic(y, predictions),
    ),
    "brier": Metric(
        title="Integrated Brier score",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined="too few rows have an event",
        prepare=lambda y, predictions, _: brier_statistic(y, predictions),
    ),
}

QUANTILE = {
    "pinball": Metric(
        title="Mean pinball loss",
        higher_is_better=False,
        low=0.0,
        high=np.inf,
        undefined=_NO_ROWS,
        prepare=lambda y, predictions, settings: mean_statistic(pinball_loss(y, predictions, levels=settings.levels)),
    ),
    "d2": Metric(
        title="D², pinball loss explained",
        higher_is_better=True,
        low=-np.inf,
        high=1.0,
        undefined="the labels are constant",
        prepare=lambda y, predictions, settings: pinball_explained_statistic(y, predictions, levels=settings.levels),
    ),
    "level_error": Metric(  # mean over levels of |share of labels that are at most the prediction - level|
        title="Mean error of levels",
        higher_is_better=False,
        low=0.0,
        high=1.0,
        undefined=_NO_ROWS,
        prepare=lambda y, predictions, settings: level_error_statistic(y, predictions, levels=settings.levels),
    ),
}

METRICS: dict[TargetType, dict[str, Metric]] = {
    "binary": BINARY,
    "multiclass": MULTICLASS,
    "multilabel": MULTILABEL,
    "regression": REGRESSION,
    "count": COUNT,
    "survival": SURVIVAL,
    "quantile": QUANTILE,
}


# --- plain forms


def auc(labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None) -> float:
    """Compute the area under the ROC curve of real-valued scores (see auc_statistic). Raises UndefinedMetric."""
    scores_N = finite_values(scores_N, "scores")
    return _value(auc_statistic(labels_N, scores_N), row_weights(weights_N, len(scores_N)), "AUC", _ONE_CLASS)


def ace(labels_N: ArrayLike, predictions_N: ArrayLike, *, bins: int, weights_N: ArrayLike | None = None) -> float:
    """Compute the adaptive calibration error of probabilities (see ace_statistic). Raises UndefinedMetric."""
    predictions_N = finite_values(predictions_N, "predictions")
    weights_N = row_weights(weights_N, len(predictions_N))
    return _value(ace_statistic(labels_N, predictions_N, bins=bins), weights_N, "calibration error", _NO_ROWS)


def metric(
    target: TargetType,
    name: str,
    labels_N: ArrayLike,
    logits: ArrayLike,
    *,
    settings: MetricSettings | None = None,
    weights_N: ArrayLike | None = None,
) -> float:
    """Compute any metric of the tables above, by name, from logits (of numbers, predictions). Raises UndefinedMetric."""
    labels, logits = check_rows(target, labels_N, logits)
    metric_facts = METRICS[target][name]
    return _value(
        metric_facts.prepare(labels, logits, settings or MetricSettings()),
        row_weights(weights_N, len(logits)),
        metric_facts.title,
        metric_facts.undefined,
    )


def roc_curve(labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None) -> tuple[Floats, Floats, Floats]:
    """Return false positive rate, true positive rate and threshold (score >= threshold is positive), from (0, 0) to (1, 1).

    There is one point per distinct score. Anyone with the scores can invert an exact curve into labels: it is only for the label
    party, and thinning it protects nothing.
    """
    labels_N, scores_N = zero_or_one(labels_N), finite_values(scores_N, "scores")
    weights_N = row_weights(weights_N, len(scores_N))
    ranked = RankedRows.of(labels_N, scores_N)
    positive_G, negative_G = (each_G[::-1] for each_G in ranked.class_sums(weights_N))
    if positive_G.sum() == 0 or negative_G.sum() == 0:
        raise UndefinedMetric(f"there is no ROC curve: {_ONE_CLASS}")
    true_G1, false_G1 = (np.concatenate(([0.0], np.cumsum(each_G))) for each_G in (positive_G, negative_G))
    threshold_G1 = np.concatenate(([np.inf], ranked.scores_G[::-1]))
    return false_G1 / false_G1[-1], true_G1 / true_G1[-1], threshold_G1


def precision_recall_curve(
    labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None
) -> tuple[Floats, Floats, Floats]:
    """Compute precision, recall and threshold (score >= threshold is flagged), the highest threshold first. There is one point
    per distinct score.
    It is as exact as an exact ROC curve, and as easily inverted into labels: it is only for the label party.
    """
    labels_N, scores_N = zero_or_one(labels_N), finite_values(scores_N, "scores")
    weights_N = row_weights(weights_N, len(scores_N))
    ranked = RankedRows.of(labels_N, scores_N)
    found_G = np.cumsum(ranked.class_sums(weights_N)[0][::-1])
    mass_G = ranked.sums(weights_N[ranked.order])[::-1]
    flagged_G = np.cumsum(mass_G)
    there_G = mass_G > 0  # rows without weight give no point
    if not there_G.any() or found_G[-1] == 0:
        raise UndefinedMetric("there is no precision-recall curve: there are no positives")
    threshold_G = ranked.scores_G[::-1]
    return found_G[there_G] / flagged_G[there_G], found_G[there_G] / found_G[-1], threshold_G[there_G]


# --- checks


def check_rows(target: TargetType, labels_N: ArrayLike, logits: ArrayLike) -> tuple[Any, Floats]:
    """Return labels and logits in the types that the metrics need.

    Raises DataError for lengths or labels that do not fit the target, UndefinedMetric for values that are not finite.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if target == "multiclass":
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise DataError(
                f"logits have shape {logits.shape}; a multiclass target needs (rows, classes) with at least 2 classes"
            )
    elif target == "multilabel":
        if logits.ndim != 2:
            raise DataError(f"logits have shape {logits.shape}; a multilabel target needs (rows, labels)")
    elif target == "quantile":
        if logits.ndim not in (1, 2):
            raise DataError(f"predictions have shape {logits.shape}; a quantile target needs (rows, levels)")
        logits = logits[:, None] if logits.ndim == 1 else logits
    elif logits.ndim == 2 and logits.shape[1] == 1:
        logits = logits[:, 0]
    elif logits.ndim != 1:
        raise DataError(f"logits have shape {logits.shape}; a {target} target needs one number per row")
    labels = np.asarray(labels_N).reshape(-1)
    if len(labels) != len(logits):
        raise DataError(f"{len(labels)} labels and {len(logits)} rows of logits: give one label per row of logits")
    if len(labels) == 0:
        raise UndefinedMetric("there are no rows")
    logits = finite_values(logits, "logits")
    if target == "binary":
        return zero_or_one(labels), logits
    if target in NUMBERS:
        return finite_values(labels, "labels"), logits
    classes = 1 << logits.shape[1] if target == "multilabel" else logits.shape[1]  # for several labels, the number of patterns
    whole = finite_values(labels, "labels").astype(np.int64)
    if (whole != labels).any() or whole.min() < 0 or whole.max() >= classes:
        raise DataError(f"labels range over {labels.min()}..{labels.max()}; {classes} classes are numbered 0..{classes - 1}")
    return whole, logits


def finite_values(values: ArrayLike, name: str) -> Floats:
    """Return the values as float64. Raises UndefinedMetric if one is NaN or infinite."""
    values = np.asarray(values, dtype=np.float64)
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise UndefinedMetric(
            f"{bad} of {values.size} {name} are NaN or infinite; the model has diverged or its input was not finite"
        )
    return values


def row_weights(weights_N: ArrayLike | None, rows: int) -> Floats:
    """Return one weight per row, ones if there are none. Raises DataError for weights that do not fit."""
    if weights_N is None:
        return np.ones(rows)
    weights_N = np.asarray(weights_N, dtype=np.float64).reshape(-1)
    if len(weights_N) != rows:
        raise DataError(f"{len(weights_N)} sample weights for {rows} rows: give one weight per row")
    if not np.isfinite(weights_N).all() or (weights_N < 0).any():
        raise DataError("sample weights must be finite and not negative")
    return weights_N


def _value(statistic: Statistic, weights_N: Floats, title: str, reason: str) -> float:
    value = statistic(weights_N) if len(weights_N) else np.nan
    if np.isnan(value):
        raise UndefinedMetric(f"{title} is undefined: {reason}")
    return value
