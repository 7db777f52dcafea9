"""The logistic function as a sum of sines, by which shares of its values follow from dealt shares of sines of a mask.

sigmoid(z) = 1/2 + sum_k a_k sin(2 pi k z / P), and sin(k(m - r)) = sin(km) cos(kr) - cos(km) sin(kr): once m = z + r is open, the
rest is a sum of public numbers times shares of cos(kr) and sin(kr), which the helper dealt. r is uniform modulo P, so m tells
nothing of z.

For |z| up to 28 a value is within .0036 of the logistic function, and over the whole period within [-.0013, 1.0013]. Beyond
|z| = 32 the sum repeats itself: a score of 40 would count as -24.
"""

import numpy as np
from numpy.typing import NDArray

from tallystick.secret_sharing.sine import SINE_BITS, TURN_BITS, sines

PERIOD = 64
RANGE = 28.0
COEFFICIENTS = (
    0.6270268,
    -0.0006364,
    0.1852907,
    -0.0002357,
    0.0876427,
    0.0011925,
    0.0439094,
    0.0028054,
    0.0211541,
    0.0037789,
    0.0093092,
    0.0038047,
    0.0036176,
    0.0030736,
    0.0012876,
    0.0020168,
)
"""a_1 to a_16: least squares over |z| <= 28, with a ridge of 1e-5."""
DEALT_BITS = 13
"""Binary places of dealt sines and cosines."""
FACTOR_BITS = 25
"""Binary places of the public numbers that they are multiplied by."""

_COARSE_BITS = 31  # a coefficient, less its 2^30 of the sine


def public_factors(masked_BC: NDArray[np.uint64], scale: float) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return what the dealt cosines and sines are multiplied by, (K, B, C) each.

    Args:
        masked_BC: z + r, modulo a full turn of 2^46.
        scale: what the values are multiplied by, at most 1.
    """
    orders_K11 = np.arange(1, len(COEFFICIENTS) + 1).reshape(-1, 1, 1)
    angles_KBC = (masked_BC.astype(np.int64) * orders_K11) & ((1 << TURN_BITS) - 1)
    sine_KBC, cosine_KBC = sines(angles_KBC)
    weights_K11 = np.rint(np.ldexp(np.array(COEFFICIENTS) * scale, _COARSE_BITS)).astype(np.int64).reshape(-1, 1, 1)
    shift = _COARSE_BITS + SINE_BITS - FACTOR_BITS
    return ((sine_KBC * weights_K11) >> shift).view(np.uint64), ((-cosine_KBC * weights_K11) >> shift).view(np.uint64)


def dealt_values(mask_BC: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the cosines and sines of a mask and its multiples, as the helper deals them: (2K, B, C), cosines first."""
    orders_K11 = np.arange(1, len(COEFFICIENTS) + 1).reshape(-1, 1, 1)
    sine_KBC, cosine_KBC = sines((mask_BC.astype(np.int64) * orders_K11) & ((1 << TURN_BITS) - 1))
    half = 1 << (SINE_BITS - DEALT_BITS - 1)
    return ((np.concatenate([cosine_KBC, sine_KBC]) + half) >> (SINE_BITS - DEALT_BITS)).view(np.uint64)
