"""Compute survival by a log-logistic distribution, and its Brier score under censoring. Shapes: N rows, T times.

A label is the time of an event, or minus the time until which there was none.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tallystick.metrics.statistics import Floats, Statistic

LEAST_SCALE = 0.05
"""Least scale of the logarithms of survival times, for times that hardly differ."""
MOST_LOG = math.log(10**12)
BRIER_TIMES = 32
FOLLOWED = 0.9
"""The Brier score is integrated up to the time by which this share of the rows had their event or left observation."""


def log_logistic(labels_N: Floats) -> tuple[float, float]:
    """Fit a log-logistic distribution to times, some of them censored, by likelihood. Return its median and the scale of
    logarithms.
    """
    from scipy.optimize import minimize

    has_event_N, log_N = labels_N > 0, np.log(np.abs(labels_N))

    def loss(parameters: Floats) -> float:
        z_N = (log_N - parameters[0]) / math.exp(parameters[1])
        each_N = np.logaddexp(0.0, z_N) + has_event_N * (np.logaddexp(0.0, -z_N) + parameters[1])
        return float(each_N.mean())

    start = np.array([float(np.median(log_N)), math.log(max(float(log_N.std()), LEAST_SCALE))])
    # Censored rows alone would let the median grow forever, and equal times would let the scale shrink.
    bounds = [(float(log_N.min()) - MOST_LOG / 2, float(log_N.max()) + MOST_LOG / 2), (math.log(LEAST_SCALE), math.log(MOST_LOG))]
    middle, log_scale = minimize(loss, start, method="L-BFGS-B", bounds=bounds).x
    return math.exp(middle), math.exp(log_scale)


def survival_curves(labels_N: ArrayLike, predictions_N: ArrayLike, times_T: Floats) -> Floats | None:
    """Return the chance of no event until each time, (T, N), by log-logistic distributions around the predicted times.

    The spread of events around predictions is fitted on one half of the rows for the other half, so no row is judged by a value
    that its own label influenced. Returns None if a half has no event.
    """
    labels_N, predictions_N = np.asarray(labels_N, dtype=np.float64), np.asarray(predictions_N, dtype=np.float64)
    halves_N = np.empty(len(labels_N), dtype=np.int64)
    halves_N[_order(labels_N, predictions_N)] = np.arange(len(labels_N)) % 2  # the same halves for any order of the rows
    ratio_N = labels_N / predictions_N
    if any(not (labels_N[halves_N == half] > 0).any() for half in (0, 1)):
        return None
    survival_TN: Floats = np.empty((len(times_T), len(labels_N)))
    for half in (0, 1):
        middle, scale = log_logistic(ratio_N[halves_N != half])
        log_TN = np.log(times_T)[:, None] - np.log(predictions_N[halves_N == half] * middle)
        survival_TN[:, halves_N == half] = 0.5 * (1.0 - np.tanh(0.5 * log_TN / scale))
    return survival_TN


def brier_scores(labels_N: ArrayLike, survival_TN: Floats, times_T: Floats) -> Callable[[Floats], Floats]:
    """Make the Brier scores at these times: the mean square of (no event yet) - (its predicted chance).

    Graf, Schmoor, Sauerbrei and Schumacher 1999. A row that is not observed until a time has weight 0, and other rows count for
    it: each has a weight of one over the chance to be observed until its event, or until the time, by Kaplan and Meier's estimate
    from these rows.
    """
    labels_N = np.asarray(labels_N, dtype=np.float64)
    order_N = _order(labels_N, np.zeros(len(labels_N)))
    time_N, has_event_N = np.abs(labels_N)[order_N], (labels_N > 0)[order_N]
    place_T = np.searchsorted(time_N, times_T, side="right")  # place of the first row that is observed for longer
    squares_TN = survival_TN[:, order_N] ** 2 * has_event_N
    for square_N, survival_N, place in zip(squares_TN, survival_TN, place_T, strict=True):
        square_N[place:] = (1.0 - survival_N[order_N[place:]]) ** 2

    def scores(weights_N: Floats) -> Floats:
        weight_N = weights_N[order_N]
        followed_N = np.cumsum(weight_N[::-1])[::-1]  # weight from each row on; events leave before rows that end at that time
        stays_N = np.where(has_event_N | (followed_N <= 0), 1.0, 1.0 - weight_N / np.where(followed_N > 0, followed_N, 1.0))
        chance_N1 = np.append(1.0, np.cumprod(stays_N))
        until_event_N = np.divide(weight_N, chance_N1[:-1], out=np.zeros_like(weight_N), where=chance_N1[:-1] > 0)
        at_T = []
        for square_N, place in zip(squares_TN, place_T, strict=True):
            later = float((square_N[place:] * weight_N[place:]).sum())
            chance = chance_N1[place]
            at_T.append(float((square_N[:place] * until_event_N[:place]).sum()) + (later / chance if chance > 0 else 0.0))
        return np.asarray(np.array(at_T) / weight_N.sum())

    return scores


def brier_times(labels_N: ArrayLike) -> Floats:
    """Return the times of the Brier score, in equal steps up to the last one."""
    last = float(np.quantile(np.abs(np.asarray(labels_N, dtype=np.float64)), FOLLOWED, method="lower"))
    steps: Floats = np.arange(1, BRIER_TIMES + 1) / BRIER_TIMES
    return last * steps


def brier_curve(labels_N: ArrayLike, predictions_N: ArrayLike, weights_N: Floats) -> list[float]:
    """Return the Brier scores of predicted times at ``brier_times``; empty if too few rows have an event."""
    scores_of = _scores_of(labels_N, predictions_N)
    return scores_of(weights_N).tolist() if scores_of is not None else []


def brier_statistic(labels_N: ArrayLike, predictions_N: ArrayLike) -> Statistic:
    """Make the integrated Brier score of predicted times: the mean of ``brier_scores`` over all times up to the last one.

    0 is perfect, and constant chances of one half give .25.
    """
    scores_of = _scores_of(labels_N, predictions_N)

    def statistic(weights_N: Floats) -> float:
        if scores_of is None or weights_N.sum() == 0:
            return np.nan
        scores_T = scores_of(weights_N)
        return float((scores_T.sum() - scores_T[-1] / 2) / len(scores_T))  # trapezoids from time 0, where the score is 0

    return statistic


def _scores_of(labels_N: ArrayLike, predictions_N: ArrayLike) -> Callable[[Floats], Floats] | None:
    times_T = brier_times(labels_N)
    survival_TN = survival_curves(labels_N, predictions_N, times_T)
    return brier_scores(labels_N, survival_TN, times_T) if survival_TN is not None else None


def _order(labels_N: Floats, predictions_N: Floats) -> NDArray[np.int64]:
    """Sort rows by time, events first, then by prediction."""
    return np.lexsort((predictions_N, labels_N < 0, np.abs(labels_N)))
