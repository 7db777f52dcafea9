"""Compute the logistic function on shares, as a sum of sines: the helper deals shares of sines of a mask.

sigmoid(z) = 1/2 + sum_k a_k sin(2 pi k z / P), and sin(k(m - r)) = sin(km) cos(kr) - cos(km) sin(kr). The helper deals shares
of cos(kr) and sin(kr). When m = z + r is opened, the rest is a sum of public numbers times these shares. r is uniform modulo P,
so m reveals nothing about z.

For |z| up to 28 a value is within .0036 of the logistic function, and over the whole period within [-.0013, 1.0013]. Beyond |z|
= 32 the sum repeats itself: a score of 40 would count as -24. So the same dealt numbers also give shares of sin^32(pi z / P),
which is 1 at |z| = 32, .54 at 28, .003 at 20, and below .00002 up to 16. Its sum over a training says how often scores came
near the edge.
"""

from math import comb

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
"""a_1 to a_16, by least squares over |z| <= 28, with a ridge of 1e-5."""
DEALT_BITS = 13
"""Binary places of dealt sines and cosines."""
FACTOR_BITS = 25
"""Binary places of the public numbers that multiply these."""

EDGE_BITS = 16
"""Binary places of the public numbers that count scores near the edge."""
EDGE_MEAN = comb(32, 16) / 2**32
"""The mean of sin^32 over the period."""
EDGE_COEFFICIENTS = tuple(2 * (-1) ** order * comb(32, 16 - order) / 2**32 for order in range(1, 17))
"""The coefficients of cos(2 pi k z / P) in sin^32(pi z / P), for k from 1 to 16."""

_COARSE_BITS = 31  # bits of a coefficient, without the sine's 2^30


def public_factors(
    masked_BC: NDArray[np.uint64], scale: float, *, more_bits: int = 0
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the factors of the dealt cosines and sines, (2K, B, C) each: for the values, and for the count at the edge.

    Args:
        masked_BC: z + r, modulo a full turn of 2^46.
        scale: factor of the values, at most 2 / 2^more_bits.
        more_bits: binary places of the values beyond ``FACTOR_BITS``.
    """
    orders_K11 = np.arange(1, len(COEFFICIENTS) + 1).reshape(-1, 1, 1)
    angles_KBC = (masked_BC.astype(np.int64) * orders_K11) & ((1 << TURN_BITS) - 1)
    sine_KBC, cosine_KBC = sines(angles_KBC)
    weights_K11 = _whole(np.array(COEFFICIENTS) * scale, _COARSE_BITS + more_bits)
    edge_K11 = _whole(np.array(EDGE_COEFFICIENTS), EDGE_BITS)
    values_KBC = np.concatenate([sine_KBC * weights_K11, -cosine_KBC * weights_K11])
    edges_KBC = np.concatenate([cosine_KBC * edge_K11, sine_KBC * edge_K11])
    return _cut(values_KBC, _COARSE_BITS + SINE_BITS - FACTOR_BITS), _cut(edges_KBC, SINE_BITS)


def _whole(numbers: NDArray[np.float64], bits: int) -> NDArray[np.int64]:
    return np.rint(np.ldexp(numbers, bits)).astype(np.int64).reshape(-1, 1, 1)


def _cut(numbers: NDArray[np.int64], bits: int) -> NDArray[np.uint64]:
    return ((numbers + (1 << (bits - 1))) >> bits).view(np.uint64)


def dealt_values(mask_BC: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the cosines and sines of a mask and its multiples, as the helper deals them: (2K, B, C), cosines first."""
    orders_K11 = np.arange(1, len(COEFFICIENTS) + 1).reshape(-1, 1, 1)
    sine_KBC, cosine_KBC = sines((mask_BC.astype(np.int64) * orders_K11) & ((1 << TURN_BITS) - 1))
    half = 1 << (SINE_BITS - DEALT_BITS - 1)
    return ((np.concatenate([cosine_KBC, sine_KBC]) + half) >> (SINE_BITS - DEALT_BITS)).view(np.uint64)
