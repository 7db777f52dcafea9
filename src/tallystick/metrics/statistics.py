"""Compute the statistics that metrics use. They are prepared from rows once, and evaluated with many weights.

Shapes: N rows, C classes, L levels, K labels of a row, G groups of rows with equal scores, R calibration bins.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallystick.errors import DataError

TargetType = Literal["binary", "multiclass", "multilabel", "regression", "count", "survival", "quantile"]
NUMBERS: tuple[TargetType, ...] = ("regression", "count", "survival", "quantile")
"""Targets whose labels are numbers, not classes."""
Floats = NDArray[np.float64]
Statistic = Callable[[Floats], float]

MAX_CLASSES = 100  # macro AUC and calibration sort once per class; with more classes they cost more than they are worth


class UndefinedMetric(DataError):
    """Raised if a metric has no value on these rows. The message says why."""


# --- from logits to probabilities


def sigmoid(logits: ArrayLike) -> Floats:
    """Compute 1 / (1 + exp(-l)), without overflow."""
    logits = np.asarray(logits, dtype=np.float64)
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def log_softmax(logits_NC: ArrayLike) -> Floats:
    """Compute l_c - log sum_k exp(l_k) per row, without overflow."""
    logits_NC = np.asarray(logits_NC, dtype=np.float64)
    shifted_NC: Floats = logits_NC - logits_NC.max(axis=1, keepdims=True)
    return np.asarray(shifted_NC - np.log(np.exp(shifted_NC).sum(axis=1, keepdims=True)))


def _dot(left_N: Floats, right_N: Floats) -> float:
    # A BLAS dot product wakes its threads for each call, and its last bits depend on their number.
    return float((left_N * right_N).sum())


def label_bits(patterns_N: ArrayLike, labels: int) -> Floats:
    """Return each of K labels as 0 or 1, (N, K): bit k of a row's number says whether label k is positive."""
    bits_NK = (np.asarray(patterns_N, dtype=np.int64)[:, None] >> np.arange(labels)) & 1
    return bits_NK.astype(np.float64)


def zero_or_one(labels_N: ArrayLike) -> Floats:
    """Return binary labels as float64. Raises DataError for others."""
    labels_N = np.asarray(labels_N).reshape(-1).astype(np.float64)
    odd_N = labels_N[(labels_N != 0) & (labels_N != 1)]
    if len(odd_N):
        raise DataError(f"{len(odd_N)} labels are neither 0 nor 1 (the first is {odd_N[0]}); encode a binary target as 0 and 1")
    return labels_N


# --- statistics: prepared once, evaluated under many weights


@dataclass(frozen=True, kw_only=True)
class RankedRows:
    """Rows in ascending order of score, their labels, and the distinct scores, each with the start of its group of rows."""

    order: NDArray[np.intp]  # (N,)
    labels_N: Floats  # in that order
    starts: NDArray[np.intp]  # (G,)
    scores_G: Floats

    @classmethod
    def of(cls, labels_N: Floats, scores_N: Floats) -> "RankedRows":
        """Sort the rows."""
        order = np.argsort(scores_N, kind="stable")
        sorted_N = scores_N[order]
        starts = np.flatnonzero(np.concatenate(([True], sorted_N[1:] != sorted_N[:-1])))
        return cls(order=order, labels_N=labels_N[order], starts=starts, scores_G=sorted_N[starts])

    def sums(self, values_N: Floats) -> Floats:
        """Sum values that are already in order, per group."""
        return values_N if len(self.starts) == len(values_N) else np.add.reduceat(values_N, self.starts)

    def class_sums(self, weights_N: Floats) -> tuple[Floats, Floats]:
        """Sum the weight of the positives and of the negatives per group. The rows' weights are in the original order."""
        sorted_weights_N = weights_N[self.order]
        positive_N = sorted_weights_N * self.labels_N
        return self.sums(positive_N), self.sums(sorted_weights_N - positive_N)


def auc_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Make P(score of a positive > score of a negative) + half P(equal): the Mann-Whitney form, in which ties count half."""
    ranked = RankedRows.of(zero_or_one(labels_N), np.asarray(scores_N, dtype=np.float64))

    def statistic(weights_N: Floats) -> float:
        positive_G, negative_G = ranked.class_sums(weights_N)
        positives, negatives = positive_G.sum(), negative_G.sum()
        if positives == 0 or negatives == 0:
            return np.nan
        below_G = np.cumsum(negative_G) - 0.5 * negative_G
        return float(_dot(positive_G, below_G) / (positives * negatives))

    return statistic


def gini_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Make the Gini coefficient of the scores, 2 AUC - 1: 0 is guessing, 1 is perfect (Somers' D of scores given labels)."""
    auc_of = auc_statistic(labels_N, scores_N)
    return lambda weights_N: 2.0 * auc_of(weights_N) - 1.0


def ks_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Make the Kolmogorov-Smirnov statistic: the largest gap between the classes' cumulative score distributions, max |TPR -
    FPR|.
    """
    ranked = RankedRows.of(zero_or_one(labels_N), np.asarray(scores_N, dtype=np.float64))

    def statistic(weights_N: Floats) -> float:
        positive_G, negative_G = (np.cumsum(each_G) for each_G in ranked.class_sums(weights_N))
        if positive_G[-1] == 0 or negative_G[-1] == 0:
            return np.nan
        return float(np.abs(positive_G / positive_G[-1] - negative_G / negative_G[-1]).max())

    return statistic


def average_precision_statistic(labels_N: ArrayLike, scores_N: ArrayLike) -> Statistic:
    """Make the area under the precision-recall curve as a sum over thresholds: precision times the added recall.

    Rows with equal scores pass a threshold together. For random scores it is the share of positives, not one half.
    Rows with equal scores pass a threshold together. Of scores that say nothing it is the share of positives, not one half.
    """
    ranked = RankedRows.of(zero_or_one(labels_N), np.asarray(scores_N, dtype=np.float64))

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
    """Equal-mass bins of predictions, in ascending order: mean prediction, observed rate, weight."""

    predicted: Floats  # (R,)
    observed: Floats  # (R,)
    mass: float  # weight (rows, if unweighted) in each bin


def equal_mass_bins(labels_N: ArrayLike, predictions_N: ArrayLike, *, bins: int) -> Callable[[Floats], ReliabilityBins | None]:
    """Cut the rows, in order of prediction, into ``bins`` bins of exactly equal weight.

    Rows with equal predictions are indistinguishable, so each gets its group's mean label, and a row on a bin's edge is shared by
    both bins: the result does not depend on the order of the rows. There are never more bins than rows. The function of weights
    returns None if all weights are zero.
    """
    if bins < 1:
        raise DataError(f"bins is {bins}; calibration needs at least 1 equal-mass bin")
    labels_N, predictions_N = zero_or_one(labels_N), np.asarray(predictions_N, dtype=np.float64)
    ranked = RankedRows.of(labels_N, predictions_N)
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
    """Make the adaptive calibration error, 1/R sum_r |observed rate - mean prediction| over R equal-mass bins.

    Nixon et al. (2019), "Measuring Calibration in Deep Learning", section 3, for the positive class; FLORIST (section 3,
    "Evaluation Metrics") uses it without stating R. Predictions are probabilities. On a finite sample a perfectly calibrated
    model has an error above zero, about 0.8 sqrt(p (1 - p) R / N).
    """
    binned = equal_mass_bins(labels_N, predictions_N, bins=bins)

    def statistic(weights_N: Floats) -> float:
        bins_of_equal_mass = binned(weights_N)
        return (
            np.nan
            if bins_of_equal_mass is None
            else float(np.abs(bins_of_equal_mass.observed - bins_of_equal_mass.predicted).mean())
        )

    return statistic


def mean_statistic(values_N: ArrayLike) -> Statistic:
    """Make the weighted mean of a value per row: sum w v / sum w."""
    values_N = np.asarray(values_N, dtype=np.float64)

    def statistic(weights_N: Floats) -> float:
        total = weights_N.sum()
        return np.nan if total == 0 else _dot(weights_N, values_N) / float(total)

    return statistic


def class_mean_statistic(labels_N: NDArray[np.int64], scores_NC: Floats, one: Callable[[Any, Floats], Statistic]) -> Statistic:
    """Make the mean over classes of a one-against-rest statistic, without classes for which it has no value."""
    statistics_C = [one(labels_N == c, np.ascontiguousarray(scores_NC[:, c])) for c in range(scores_NC.shape[1])]
    return lambda weights_N: mean_of_defined([each(weights_N) for each in statistics_C])


def label_mean_statistic(
    patterns_N: NDArray[np.int64], logits_NK: Floats, one: Callable[[Floats, Floats], Statistic]
) -> Statistic:
    """Make the mean over labels of a statistic of two classes, without labels for which it has no value."""
    bits_NK = label_bits(patterns_N, logits_NK.shape[1])
    statistics_K = [one(*(np.ascontiguousarray(each[:, k]) for each in (bits_NK, logits_NK))) for k in range(bits_NK.shape[1])]
    return lambda weights_N: mean_of_defined([each(weights_N) for each in statistics_K])


def mean_of_defined(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN, or NaN if there are none."""
    defined = [value for value in values if not np.isnan(value)]
    return float(np.mean(defined)) if defined else np.nan


def poisson_deviance(labels_N: ArrayLike, predictions_N: ArrayLike) -> Floats:
    """Compute each row's Poisson deviance, 2 (y log(y / f) - y + f), from counts and positive predictions."""
    labels_N, predictions_N = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_N, dtype=np.float64)
    least = np.finfo(np.float64).tiny
    ratio_N = np.where(labels_N > 0, labels_N, 1.0) / np.where(labels_N > 0, np.maximum(predictions_N, least), 1.0)
    return np.asarray(2.0 * (labels_N * np.log(ratio_N) - labels_N + predictions_N))


def deviance_explained_statistic(labels_N: ArrayLike, predictions_N: ArrayLike) -> Statistic:
    """Make the share of deviance explained, 1 - sum w d(y, f) / sum w d(y, mean y), for the Poisson deviance d."""
    labels_N, deviance_N = np.asarray(labels_N, dtype=np.float64), poisson_deviance(labels_N, predictions_N)

    def statistic(weights_N: Floats) -> float:
        total, sum_of_labels = weights_N.sum(), _dot(weights_N, labels_N)
        if total == 0 or sum_of_labels == 0:
            return np.nan
        whole = _dot(weights_N, poisson_deviance(labels_N, np.full(len(labels_N), sum_of_labels / total)))
        return np.nan if whole <= 1e-12 * sum_of_labels else 1.0 - _dot(weights_N, deviance_N) / whole

    return statistic


def pinball_loss(labels_N: ArrayLike, predictions_NL: ArrayLike, *, levels: Sequence[float]) -> Floats:
    """Compute each row's pinball loss, max(a (y - q), (a - 1) (y - q)) for the predicted quantile q of level a, averaged over
    levels.
    Koenker and Bassett 1978. Raises DataError if the numbers of predictions and levels differ.
    """
    labels_N, predictions_NL = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_NL, dtype=np.float64)
    if predictions_NL.shape != (len(labels_N), len(levels)):
        raise DataError(
            f"predictions have shape {predictions_NL.shape}; {len(labels_N)} rows and {len(levels)} levels need "
            f"({len(labels_N)}, {len(levels)})"
        )
    above_NL, level_L = labels_N[:, None] - predictions_NL, np.asarray(levels)
    loss_NL: Floats = np.maximum(level_L * above_NL, (level_L - 1.0) * above_NL)
    return np.asarray(loss_NL.mean(axis=1))


def pinball_explained_statistic(labels_N: ArrayLike, predictions_NL: ArrayLike, *, levels: Sequence[float]) -> Statistic:
    """Make the share of pinball loss explained, 1 - sum w p(y, f) / sum w p(y, c). c are the quantiles of the labels themselves,
    the best constants.
    """
    labels_N, loss_N = np.asarray(labels_N, dtype=np.float64), pinball_loss(labels_N, predictions_NL, levels=levels)
    order_N, level_L = np.argsort(labels_N, kind="stable"), np.asarray(levels)
    sorted_N = labels_N[order_N]

    def statistic(weights_N: Floats) -> float:
        mass_N = np.cumsum(weights_N[order_N])
        if len(mass_N) == 0 or mass_N[-1] == 0:
            return np.nan
        best_L = sorted_N[np.searchsorted(mass_N, level_L * mass_N[-1]).clip(max=len(mass_N) - 1)]
        constants_NL = np.broadcast_to(best_L, (len(labels_N), len(best_L)))
        whole = _dot(weights_N, pinball_loss(labels_N, constants_NL, levels=levels))
        return np.nan if whole == 0 else 1.0 - _dot(weights_N, loss_N) / whole

    return statistic


def level_error_statistic(labels_N: ArrayLike, predictions_NL: ArrayLike, *, levels: Sequence[float]) -> Statistic:
    """Make the mean over levels of |share of labels that are at most the predicted quantile - level|."""
    labels_N, predictions_NL = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_NL, dtype=np.float64)
    shares = [mean_statistic(labels_N <= predictions_NL[:, place]) for place in range(len(levels))]

    def statistic(weights_N: Floats) -> float:
        return float(np.mean([abs(share(weights_N) - level) for share, level in zip(shares, levels, strict=True)]))

    return statistic


def r2_statistic(labels_N: ArrayLike, predictions_N: ArrayLike) -> Statistic:
    """Make the share of variance explained, 1 - sum w (y - f)^2 / sum w (y - mean y)^2."""
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


def concordance_statistic(labels_N: ArrayLike, predictions_N: ArrayLike) -> Statistic:
    """Make Harrell's concordance: for two rows of which one is known to be earlier, how often its prediction is earlier as well.

    Harrell, Califf, Pryor, Lee and Rosati 1982. A label is the time of an event, or minus the time until which there was none. A
    row is known to be earlier than another if its event comes before the other's time, or at that time if the other has no event.
    Equal predictions count half.

    Pairs are counted as in merge sort: at each step, a block's events against the rows of the next block, which is sorted once
    because only the order of its predictions matters.
    """
    labels_N, predictions_N = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_N, dtype=np.float64)
    rows, time_N, has_event_N = len(labels_N), np.abs(labels_N), labels_N > 0
    order_N = np.lexsort((predictions_N, ~has_event_N, time_N))
    time_N, has_event_N, predicted_N = time_N[order_N], has_event_N[order_N], predictions_N[order_N]
    # Events at the same time have no order: their counts are subtracted again.
    is_new_N = np.append(True, (time_N[1:] != time_N[:-1]) | ~has_event_N[1:] | ~has_event_N[:-1])[:rows]
    group_N = np.cumsum(is_new_N) - 1
    steps = []
    width = 1
    while width < rows:
        block_N = np.arange(rows) // width
        inner_N = np.lexsort((predicted_N, block_N))  # rows of each block by prediction
        first_M = np.flatnonzero(has_event_N & (block_N % 2 == 0) & ((block_N + 1) * width < rows))
        start_M = (block_N[first_M] + 1) * width
        end_M = np.minimum(start_M + width, rows)
        steps.append((inner_N, first_M, *_places(predicted_N[inner_N], predicted_N[first_M], start_M, end_M), end_M))
        width *= 2

    def statistic(weights_N: Floats) -> float:
        weight_N = weights_N[order_N]
        event_weight_N = np.where(has_event_N, weight_N, 0.0)
        later_N = weight_N.sum() - np.cumsum(weight_N)
        ends_G = np.append(np.flatnonzero(is_new_N)[1:], rows)
        sums = np.append(0.0, np.cumsum(weight_N))
        alike_N = sums[ends_G[group_N]] - sums[1:]  # the sum over the later rows of its own group
        pairs = float((event_weight_N * (later_N - alike_N)).sum())
        if pairs <= 0:
            return np.nan
        agreeing = 0.0
        for inner_N, first_M, below_M, above_M, end_M in steps:
            sums_inner = np.append(0.0, np.cumsum(weight_N[inner_N]))
            later_M = sums_inner[end_M] - (sums_inner[above_M] + sums_inner[below_M]) / 2
            agreeing += float((event_weight_N[first_M] * later_M).sum())
        # Within a group rows are ordered by prediction, so each was counted as agreeing with later ones, or half agreeing
        starts_N = np.flatnonzero(is_new_N | np.append(True, predicted_N[1:] != predicted_N[:-1])[:rows])
        ends_T = np.append(starts_N[1:], rows)
        equal_N = np.repeat(sums[ends_T], np.diff(np.append(starts_N, rows))) - sums[1:]
        agreeing -= float((event_weight_N * (alike_N - equal_N / 2)).sum())
        return agreeing / pairs

    return statistic


def _places(
    sorted_N: Floats, values_M: Floats, start_M: NDArray[np.int64], end_M: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each value belongs in its own sorted slice: before equal values, and after them."""
    places = []
    for behind in (False, True):
        low_M, high_M = start_M.copy(), end_M.copy()
        while (open_M := low_M < high_M).any():
            middle_M = (low_M + high_M) // 2
            at_M = sorted_N[np.minimum(middle_M, len(sorted_N) - 1)]
            goes_right_M = open_M & ((at_M <= values_M) if behind else (at_M < values_M))
            low_M = np.where(goes_right_M, middle_M + 1, low_M)
            high_M = np.where(open_M & ~goes_right_M, middle_M, high_M)
        places.append(low_M)
    return places[0], places[1]


# --- the metrics, per type of target
