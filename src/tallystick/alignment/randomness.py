"""Draw alignment's secrets (keys, shuffles and dummies) from a cryptographic source."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import shake_256
from itertools import count as numbers
from typing import Any

import numpy as np

from tallystick.alignment.group import Scalar
from tallystick.alignment.matching import order_of_pairs


@dataclass(frozen=True, kw_only=True)
class SecureRandom:
    """A generator that reads ``source``, which returns that many uniformly random bytes: the operating system's,
    except in tests.
    """

    source: Callable[[int], bytes] = os.urandom

    def bytes(self, count: int) -> bytes:
        """Draw bytes."""
        return self.source(count)

    def scalar(self) -> Scalar:
        """Draw a secret exponent, uniform over the non-zero scalars."""
        while True:
            scalar = Scalar.reduced(self.bytes(64))
            if not scalar.is_zero():
                return scalar

    def below(self, bound: int) -> int:
        """Draw an integer from 0 to bound - 1. At least 128 bits more than needed make the bias negligible."""
        width = bound.bit_length() // 8 + 17
        return int.from_bytes(self.bytes(width), "little") % bound

    def permutation(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Draw a uniform permutation, by sorting random 128-bit keys (two are equal with a chance below count^2 / 2^129)."""
        keys_N2 = np.frombuffer(self.bytes(16 * count), dtype=np.uint64).reshape(count, 2)
        return order_of_pairs(keys_N2[:, 1], keys_N2[:, 0])


def random_of(secret: bytes) -> SecureRandom:
    """Return a generator whose draws follow from a secret of 32 bytes: SHAKE-256 of the secret and the number of
    earlier draws.
    """
    draws = numbers()
    return SecureRandom(source=lambda count: shake_256(secret + next(draws).to_bytes(8, "big")).digest(count))
