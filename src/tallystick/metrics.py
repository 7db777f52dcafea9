"""Metrics: how good a model's logits are, as functions of row weights.

Each metric comes in two forms. The plain one (``auc(labels, scores)``) gives a number. The other
(``auc_statistic(labels, scores)``) sorts and prepares once and gives a function of the rows' weights, so that
a bootstrap evaluates hundreds of reweightings of the same rows cheaply (intervals.py).

A statistic returns NaN where it has no value under the given weights; a plain metric raises UndefinedMetric,
which says why. Shapes: N rows, C classes, G groups of rows with equal scores, R calibration bins.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallystick.errors import DataError

TargetType = Literal["binary", "multiclass", "regression"]
Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float]

MAX_CLASSES = 100  # macro AUC and calibration sort once per class; beyond this they cost more than they tell


class UndefinedMetric(DataError):
    """A metric has no value on these rows; the message says why."""


# --- from logits to probabilities


def sigmoid(logits: ArrayLike) -> Floats:
    """1 / (1 + exp(-l)), without overflow."""
    logits = np.asarray(logits, dtype=np.float64)
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def log_softmax(logits_NC: ArrayLike) -> Floats:
    """l_c - log sum_k exp(l_k) per row, without overflow."""
    logits_NC = np.asarray(logits_NC, dtype=np.float64)
    shifted_NC: Floats = logits_NC - logits_NC.max(axis=1, keepdims=True)
    return np.asarray(shifted_NC - np.log(np.exp(shifted_NC).sum(axis=1, keepdims=True)))


def _dot(left_N: Floats, right_N: Floats) -> float:
    # A BLAS dot product wakes its threads for each call, and its last bits depend on how many there are.
    return float((left_N * right_N).sum())


# --- statistics: prepared once, evaluated under many weights


@dataclass(frozen=True, kw_only=True)
class _RankedRows:
    """Rows in ascending order of score, their labels, and the distinct scores, each with where its group of rows begins."""

    order: NDArray[np.intp]  # (N,)
    labels_N: Floats  # in that order
    starts: NDArray[np.intp]  # (G,)
    scores_G: Floats

    @classmethod
    def of(cls, labels_N: Floats, scores_N: Floats) -> "_RankedRows":
        order = np.argsort(scores_N, kind="stable")
        sorted_N = scores_N[order]
        starts = np.flatnonzero(np.concatenate(([True], sorted_N[1:] != sorted_N[:-1])))
        return cls(order=order, labels_N=labels_N[order], starts=starts, scores_G=sorted_N[starts])

    def sums(self, values_N: Floats) -> Floats:
        """Sum per group of values that are already in order."""
        return values_N if len(self.starts) == len(values_N) else np.add.reduceat(values_N, self.starts)

    def class_sums(self, weights_N: Floats) -> tuple[Floats, Floats]:
        """Weight of the positives and of the negatives per group; the rows' weights come in their own order."""
        sorted_weights_N = weights_N[self.order]
        positive_N = sorted_weights_N * self.labels_N
        return self.sums(positive_N), self.sums(sorted_weights_N - positive_N)


def auc_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """P(score of a positive > score of a negative) + half P(equal): the Mann-Whitney form, ties counting half."""
    ranked = _RankedRows.of(_binary(labels_N), np.asarray(scores_N, dtype=np.float64))

    def statistic(weights_N: Floats) -> float:
        positive_G, negative_G = ranked.class_sums(weights_N)
        positives, negatives = positive_G.sum(), negative_G.sum()
        if positives == 0 or negatives == 0:
            return np.nan
        below_G = np.cumsum(negative_G) - 0.5 * negative_G
        return float(_dot(positive_G, below_G) / (positives * negatives))

    return statistic


def gini_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Gini coefficient of the scores, 2 AUC - 1: 0 is guessing, 1 is perfect (Somers' D of scores given labels)."""
    auc_of = auc_statistic(labels_N, scores_N)
    return lambda weights_N: 2.0 * auc_of(weights_N) - 1.0


def ks_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Kolmogorov-Smirnov: the largest gap between the classes' cumulative score distributions, max |TPR - FPR|."""
    ranked = _RankedRows.of(_binary(labels_N), np.asarray(scores_N, dtype=np.float64))

    def statistic(weights_N: Floats) -> float:
        positive_G, negative_G = (np.cumsum(each_G) for each_G in ranked.class_sums(weights_N))
        if positive_G[-1] == 0 or negative_G[-1] == 0:
            return np.nan
        return float(np.abs(positive_G / positive_G[-1] - negative_G / negative_G[-1]).max())

    return statistic


def average_precision_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Area under the precision-recall curve as a sum of steps: sum over thresholds of precision times the recall it adds.

    Rows with equal scores pass a threshold together. Of scores that say nothing it is the share of positives, not one half.
    """
    ranked = _RankedRows.of(_binary(labels_N), np.asarray(scores_N, dtype=np.float64))

    def statistic(weights_N: Floats) -> float:
        positive_G = ranked.class_sums(weights_N)[0][::-1]
        flagged_G = np.cumsum(ranked.sums(weights_N[ranked.order])[::-1])
        found_G = np.cumsum(positive_G)
        if found_G[-1] == 0:
            return np.nan
        precision_G = np.divide(found_G, flagged_G, out=np.zeros_like(found_G), where=flagged_G > 0)
        return _dot(precision_G, positive_G) / float(found_G[-1])

    return statistic


@dataclass(frozen=True, kw_only=True)
class ReliabilityBins:
    """Equal-mass bins of predictions, in ascending order: what was predicted, what happened, how much weight."""

    predicted: Floats  # (R,)
    observed: Floats  # (R,)
    mass: float  # weight (rows, if unweighted) in each bin


def equal_mass_bins(labels_N: ArrayLike, predictions_N: ArrayLike, *, bins: int) -> Callable[[Floats], ReliabilityBins | None]:
    """Cut the rows, in order of prediction, into ``bins`` bins of exactly equal weight.

    Rows with equal predictions are indistinguishable, so each carries its group's mean label, and a row on a
    bin's edge is shared by both bins: the result does not depend on the order of the rows. There are never more
    bins than rows. The function of weights gives None when all weight is zero.
    """
    if bins < 1:
        raise DataError(f"bins is {bins}; calibration needs at least 1 equal-mass bin")
    labels_N, predictions_N = _binary(labels_N), np.asarray(predictions_N, dtype=np.float64)
    ranked = _RankedRows.of(labels_N, predictions_N)
    share_R1 = np.linspace(0.0, 1.0, min(bins, len(labels_N)) + 1)

    def binned(weights_N: Floats) -> ReliabilityBins | None:
        mass_G = ranked.sums(weights_N[ranked.order])
        cumulative_G = np.concatenate(([0.0], np.cumsum(mass_G)))
        total = cumulative_G[-1]
        if total == 0:
            return None
        mass = total / (len(share_R1) - 1)

        def per_bin(sum_G: Floats) -> Floats:
            return np.asarray(
                np.diff(np.interp(share_R1 * total, cumulative_G, np.concatenate(([0.0], np.cumsum(sum_G))))) / mass
            )

        return ReliabilityBins(
            predicted=per_bin(mass_G * ranked.scores_G),
            observed=per_bin(ranked.class_sums(weights_N)[0]),
            mass=float(mass),
        )

    return binned


def ace_statistic(labels_N: ArrayLike, predictions_N: ArrayLike, *, bins: int) -> Statistic:
    """Adaptive calibration error, 1/R sum_r |observed rate - mean prediction| over R equal-mass bins.

    Nixon et al. (2019), "Measuring Calibration in Deep Learning", section 3, for the positive class; FLORIST
    (section 3, "Evaluation Metrics") uses it without stating R. Predictions are probabilities. A finite sample
    gives a model that is perfectly calibrated an error above zero, about 0.8 sqrt(p (1 - p) R / N).
    """
    binned = equal_mass_bins(labels_N, predictions_N, bins=bins)

    def statistic(weights_N: Floats) -> float:
        found = binned(weights_N)
        return np.nan if found is None else float(np.abs(found.observed - found.predicted).mean())

    return statistic


def mean_statistic(values_N: ArrayLike) -> Statistic:
    """Weighted mean of a value per row: sum w v / sum w."""
    values_N = np.asarray(values_N, dtype=np.float64)

    def statistic(weights_N: Floats) -> float:
        total = weights_N.sum()
        return np.nan if total == 0 else _dot(weights_N, values_N) / float(total)

    return statistic


def class_mean_statistic(labels_N: NDArray[np.int64], scores_NC: Floats, one: Callable[[Any, Floats], Statistic]) -> Statistic:
    """Mean over classes of a one-against-rest statistic, leaving out classes for which it has no value."""
    statistics_C = [one(labels_N == c, np.ascontiguousarray(scores_NC[:, c])) for c in range(scores_NC.shape[1])]

    def statistic(weights_N: Floats) -> float:
        values_C = np.array([each(weights_N) for each in statistics_C])
        defined_C = ~np.isnan(values_C)
        return float(values_C[defined_C].mean()) if defined_C.any() else np.nan

    return statistic


def r2_statistic(labels_N: ArrayLike, predictions_N: ArrayLike) -> Statistic:
    """Share of variance explained, 1 - sum w (y - f)^2 / sum w (y - mean y)^2."""
    labels_N, predictions_N = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_N, dtype=np.float64)
    error_N, centred_N = (labels_N - predictions_N) ** 2, labels_N - labels_N.mean()

    def statistic(weights_N: Floats) -> float:
        total = weights_N.sum()
        if total == 0:
            return np.nan
        deviation_N = centred_N - _dot(weights_N, centred_N) / total
        variation = _dot(weights_N, deviation_N**2)
        return np.nan if variation == 0 else 1.0 - _dot(weights_N, error_N) / variation

    return statistic


# --- the metrics, per type of target


@dataclass(frozen=True, kw_only=True)
class Metric:
    """One metric as the report shows it, and how to prepare it from labels, logits and the number of bins."""

    title: str
    higher_is_better: bool
    low: float  # range of values
    high: float
    undefined: str  # what is missing when there is no value
    prepare: Callable[[Any, Floats, int], Statistic]


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
        prepare=lambda y, logits, bins: ace_statistic(y, sigmoid(logits), bins=bins),
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
        prepare=lambda y, logits, bins: _per_class(
            y, logits, lambda one, scores: ace_statistic(one, np.exp(scores), bins=bins), "calibration error"
        ),
    ),
}
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

METRICS: dict[TargetType, dict[str, Metric]] = {"binary": BINARY, "multiclass": MULTICLASS, "regression": REGRESSION}


# --- plain forms


def auc(labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None) -> float:
    """Area under the ROC curve of real-valued scores (see auc_statistic); raises UndefinedMetric."""
    scores_N = finite_values(scores_N, "scores")
    return _value(auc_statistic(labels_N, scores_N), row_weights(weights_N, len(scores_N)), "AUC", _ONE_CLASS)


def ace(labels_N: ArrayLike, predictions_N: ArrayLike, *, bins: int, weights_N: ArrayLike | None = None) -> float:
    """Adaptive calibration error of probabilities (see ace_statistic); raises UndefinedMetric."""
    predictions_N = finite_values(predictions_N, "predictions")
    weights_N = row_weights(weights_N, len(predictions_N))
    return _value(ace_statistic(labels_N, predictions_N, bins=bins), weights_N, "calibration error", _NO_ROWS)


def metric(
    target: TargetType, name: str, labels_N: ArrayLike, logits: ArrayLike, *, bins: int = 20, weights_N: ArrayLike | None = None
) -> float:
    """Any metric of the tables above, by name, from logits (predictions, for regression); raises UndefinedMetric."""
    labels, logits = check_rows(target, labels_N, logits)
    chosen = METRICS[target][name]
    return _value(chosen.prepare(labels, logits, bins), row_weights(weights_N, len(logits)), chosen.title, chosen.undefined)


def roc_curve(labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None) -> tuple[Floats, Floats, Floats]:
    """False positive rate, true positive rate and threshold (score >= threshold is positive), from (0, 0) to (1, 1).

    One point per distinct score. An exact curve can be inverted into labels by whoever knows the scores:
    it is for the label party's eyes, and thinning it protects nothing.
    """
    labels_N, scores_N = _binary(labels_N), finite_values(scores_N, "scores")
    weights_N = row_weights(weights_N, len(scores_N))
    ranked = _RankedRows.of(labels_N, scores_N)
    positive_G, negative_G = (each_G[::-1] for each_G in ranked.class_sums(weights_N))
    if positive_G.sum() == 0 or negative_G.sum() == 0:
        raise UndefinedMetric(f"there is no ROC curve: {_ONE_CLASS}")
    true_G1, false_G1 = (np.concatenate(([0.0], np.cumsum(each_G))) for each_G in (positive_G, negative_G))
    threshold_G1 = np.concatenate(([np.inf], ranked.scores_G[::-1]))
    return false_G1 / false_G1[-1], true_G1 / true_G1[-1], threshold_G1


def precision_recall_curve(
    labels_N: ArrayLike, scores_N: ArrayLike, *, weights_N: ArrayLike | None = None
) -> tuple[Floats, Floats, Floats]:
    """Precision, recall and threshold (score >= threshold is flagged), the highest threshold first; a point per distinct score.

    As exact as an exact ROC curve, and as easily turned back into labels: for the label party's eyes.
    """
    labels_N, scores_N = _binary(labels_N), finite_values(scores_N, "scores")
    weights_N = row_weights(weights_N, len(scores_N))
    ranked = _RankedRows.of(labels_N, scores_N)
    found_G = np.cumsum(ranked.class_sums(weights_N)[0][::-1])
    mass_G = ranked.sums(weights_N[ranked.order])[::-1]
    flagged_G = np.cumsum(mass_G)
    there_G = mass_G > 0  # rows without weight make no point
    if not there_G.any() or found_G[-1] == 0:
        raise UndefinedMetric("there is no precision-recall curve: there are no positives")
    threshold_G = ranked.scores_G[::-1]
    return found_G[there_G] / flagged_G[there_G], found_G[there_G] / found_G[-1], threshold_G[there_G]


# --- checks


def check_rows(target: TargetType, labels_N: ArrayLike, logits: ArrayLike) -> tuple[Any, Floats]:
    """Give labels and logits in the types that the metrics take.

    Raises DataError for lengths or labels that do not fit the target, UndefinedMetric for values that are not finite.
    """
    logits = np.asarray(logits, dtype=np.float64)
    if target == "multiclass":
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise DataError(
                f"logits have shape {logits.shape}; a multiclass target needs (rows, classes) with at least 2 classes"
            )
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
        return _binary(labels), logits
    if target == "regression":
        return finite_values(labels, "labels"), logits
    classes = logits.shape[1]
    whole = finite_values(labels, "labels").astype(np.int64)
    if (whole != labels).any() or whole.min() < 0 or whole.max() >= classes:
        raise DataError(f"labels range over {labels.min()}..{labels.max()}; {classes} classes are numbered 0..{classes - 1}")
    return whole, logits


def finite_values(values: ArrayLike, name: str) -> Floats:
    """Give the values as float64; raises UndefinedMetric if one is NaN or infinite."""
    values = np.asarray(values, dtype=np.float64)
    bad = int(np.count_nonzero(~np.isfinite(values)))
    if bad:
        raise UndefinedMetric(
            f"{bad} of {values.size} {name} are NaN or infinite; the model has diverged or its input was not finite"
        )
    return values


def _binary(labels_N: ArrayLike) -> Floats:
    labels_N = np.asarray(labels_N).reshape(-1).astype(np.float64)
    odd_N = labels_N[(labels_N != 0) & (labels_N != 1)]
    if len(odd_N):
        raise DataError(f"{len(odd_N)} labels are neither 0 nor 1 (the first is {odd_N[0]}); encode a binary target as 0 and 1")
    return labels_N


def row_weights(weights_N: ArrayLike | None, rows: int) -> Floats:
    """Give one weight per row, ones if there are none; raises DataError for weights that do not fit."""
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
