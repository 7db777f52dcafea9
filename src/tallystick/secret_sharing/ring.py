"""Write numbers as whole numbers modulo 2^64, and draw the masks that hide them.

A number x is written as round(x 2^bits) modulo 2^64, negative ones as two's complement. Two words whose sum is x are its
shares: each alone is uniform, and reveals nothing.

Shapes: B rows of a batch, D columns of one party, C outputs.
"""

import hashlib
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from tallystick.errors import DataError

Words = NDArray[np.uint64]
SEED_BYTES = 32


def to_words(numbers: NDArray[Any], *, bits: int, limit: float, what: str) -> Words:
    """Write numbers as words. Raises DataError for a number that is not finite or is beyond ``limit``, the protocol's range.

    Args:
        numbers: any shape.
        bits: binary places that are kept.
        limit: largest absolute value.
        what: what the numbers are, for the message.
    """
    wrong = ~(np.abs(numbers) <= limit)
    if wrong.any():
        raise DataError(f"{what}: {numbers[wrong].flat[0]:g} is outside -{limit:g} to {limit:g}, the range of secret shares")
    return np.rint(np.ldexp(numbers.astype(np.float64), bits)).astype(np.int64).view(np.uint64)


def to_numbers(words: Words, *, bits: int) -> NDArray[np.float64]:
    """Read words as numbers with this many binary places."""
    return np.ldexp(words.view(np.int64).astype(np.float64), -bits)


def product(rows_BD: Words, weights_DC: Words) -> Words:
    """Multiply modulo 2^64, and return (B, C)."""
    return np.stack([np.einsum("bd,d->b", rows_BD, weights_D) for weights_D in np.ascontiguousarray(weights_DC.T)], axis=1)


def transposed_product(rows_BD: Words, errors_BC: Words) -> Words:
    """Multiply the transposed rows modulo 2^64, and return (D, C)."""
    return np.stack([np.einsum("bd,b->d", rows_BD, errors_B) for errors_B in np.ascontiguousarray(errors_BC.T)], axis=1)


class MaskStream:
    """A stream of uniform words from a secret seed: AES-256 in counter mode.

    A party and the helper draw the same words from the party's seed, in the same order. A seed serves one session: a second use
    would mask two things with the same words.

    Args:
        seed: 32 bytes from the operating system's generator.
    """

    def __init__(self, seed: bytes) -> None:
        key = hashlib.blake2b(key=seed, digest_size=32, person=b"tallystick masks").digest()
        self._stream = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    def draw(self, *shape: int) -> Words:
        """Draw the next words."""
        return np.frombuffer(self._stream.update(bytes(8 * int(np.prod(shape)))), dtype="<u8").reshape(shape)

    def draw_below(self, bits: int, *shape: int) -> Words:
        """Draw the next words, each uniform below 2^bits."""
        return self.draw(*shape) & np.uint64((1 << bits) - 1)
