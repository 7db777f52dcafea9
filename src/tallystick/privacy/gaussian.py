"""Calibration of the Gaussian mechanism."""

import math
from statistics import NormalDist

from tallystick.privacy.events import check_delta, check_epsilon


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Give the least noise, in units of the L2 sensitivity, that makes one Gaussian release (epsilon, delta)-DP.

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


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Give the exact delta of one Gaussian release at epsilon."""
    normal = NormalDist()
    half, shift = 1 / (2 * multiplier), epsilon * multiplier
    return normal.cdf(half - shift) - math.exp(epsilon + math.log(max(normal.cdf(-half - shift), 1e-300)))
