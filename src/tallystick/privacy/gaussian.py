"""Calibrate the Gaussian mechanism."""

import math
from functools import lru_cache

from tallystick.privacy.events import check_delta, check_epsilon


@lru_cache(maxsize=256)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise, in units of the L2 sensitivity, that makes one Gaussian release (epsilon, delta)-DP.

    Balle and Wang 2018, theorem 8, solved by bisection from above.
    """
    check_epsilon(epsilon)
    check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(epsilon, high) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(epsilon, middle) <= delta else (middle, high)
    return high


def gaussian_epsilon(multiplier: float, delta: float) -> float:
    """Return the epsilon of one Gaussian release at delta, never below the exact value.

    Balle and Wang 2018, theorem 8, solved by bisection from above; 0 if delta alone covers everything that the release reveals.
    """
    check_delta(delta)
    low, high = 0.0, 1.0
    while gaussian_delta(high, multiplier) > delta:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(middle, multiplier) <= delta else (middle, high)
    return high


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Return the delta of one Gaussian release at epsilon: exact, except for a margin that keeps rounding from lowering it.

    It is computed in logarithms, because far out in the tail a difference of float64 probabilities is only rounding.
    """
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    from scipy.special import log_ndtr

    first, second = float(log_ndtr(half - shift)), epsilon + float(log_ndtr(-half - shift))
    rounding = 1e-15 * (1 + epsilon + abs(first))
    return math.exp(first) * (rounding - math.expm1(min(second - first, 0.0)))
