"""Empirical lower bounds on epsilon, from draws of a mechanism on two neighbouring inputs."""

import math

import numpy as np
from scipy.stats import beta

CONFIDENCE = 1 - 1e-7  # of each bound; the chance that a right mechanism fails its test is below 1e-7


def epsilon_lower_bound(one, other, delta=0.0):
    """Bound epsilon from below by the best event {statistic >= t}: t from the first halves, Clopper-Pearson on the second."""
    half = len(one) // 2
    levels = np.quantile(one[:half], np.linspace(0.02, 0.98, 97))
    p, q = ((sample[:half, None] >= levels).mean(0) for sample in (one, other))
    level = levels[int(np.argmax(np.maximum(p - delta, 1e-9) / (q + 20 / half)))]
    return _log_ratio(*(int((sample[half:] >= level).sum()) for sample in (one, other)), len(one) - half, delta)


def epsilon_lower_bound_of_outcomes(one, other):
    """Do the same by the best set of outcomes, which are small whole numbers."""
    half, outcomes = len(one) // 2, int(max(one.max(), other.max())) + 1
    p, q = (np.bincount(sample[:half], minlength=outcomes) for sample in (one, other))
    order = np.argsort(-(p + 1) / (q + 1))
    best = order[: 1 + int(np.argmax(p[order].cumsum() / (q[order].cumsum() + 20)))]
    return _log_ratio(*(int(np.isin(sample[half:], best).sum()) for sample in (one, other)), len(one) - half)


def _log_ratio(hits_one, hits_other, count, delta=0.0):
    tail = (1 - CONFIDENCE) / 2
    low = beta.ppf(tail, hits_one, count - hits_one + 1) if hits_one else 0.0
    high = beta.ppf(1 - tail, hits_other + 1, count - hits_other)
    return math.log(max(low - delta, 1e-300) / high)
