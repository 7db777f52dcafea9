"""Compute sine and cosine of whole angles in whole numbers: the same bits on every machine.

Both parties multiply shares by these numbers, and if one of them differed by one, the sum of the shares would be noise. C
libraries differ in the last bit of a floating-point sine.
"""

from functools import cache

import numpy as np
from numpy.typing import NDArray

TURN_BITS = 46
"""A full turn is 2^46."""
SINE_BITS = 30
"""A sine of 1 is 2^30."""

_TABLE_BITS = 16
_STEP_BITS = TURN_BITS - _TABLE_BITS
_TWO_PI = 411_775  # 2 pi 2^16
_PLACES = 128  # binary places in which the table is made
_PI = 0x3243F6A8885A308D313198A2E03707344A409382  # pi 2^156


def sines(angles: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return sine and cosine of angles in [0, 2^46), each within 2^-28 of the true one."""
    places = (angles + (1 << (_STEP_BITS - 1))) >> _STEP_BITS
    rests = angles - (places << _STEP_BITS)  # the rest is within half a step of the table
    table = _sine_table()
    sine = table[places & (2**_TABLE_BITS - 1)]
    cosine = table[(places + 2 ** (_TABLE_BITS - 2)) & (2**_TABLE_BITS - 1)]
    return sine + _turned(cosine, rests), cosine - _turned(sine, rests)


def _turned(slope: NDArray[np.int64], rests: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slope times a small angle."""
    return ((slope * rests >> 20) * _TWO_PI) >> (TURN_BITS - 20 + 16)


@cache
def _sine_table() -> NDArray[np.int64]:
    """Compute sines of all multiples of 1/2^16 of a turn, by rotating a point in whole numbers with 128 places."""
    step = _PI >> (156 - _PLACES + _TABLE_BITS - 1)
    one = 1 << _PLACES
    sine_step, cosine_step = step - _times(step, step, step) // 6, one - _times(step, step) // 2 + _times(*[step] * 4) // 24
    sine_step += _times(*[step] * 5) // 120
    cosine_step -= _times(*[step] * 6) // 720
    values, sine, cosine = [], 0, one
    for _ in range(2**_TABLE_BITS):
        values.append((sine + (1 << (_PLACES - SINE_BITS - 1))) >> (_PLACES - SINE_BITS))
        sine, cosine = (
            (sine * cosine_step + cosine * sine_step) >> _PLACES,
            (cosine * cosine_step - sine * sine_step) >> _PLACES,
        )
    return np.array(values, dtype=np.int64)


def _times(first: int, *others: int) -> int:
    for other in others:
        first = (first * other) >> _PLACES
    return first
