"""Turn ids into fixed words: a fingerprint each, then a code word and a bin in each region, under a key from both sides.

Shapes: N ids.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.alignment.hashing import hash_each
from tallystick.alignment.ids import Ids

FINGERPRINT_BYTES = 16
CODE_BITS = 512
CODE_BYTES = CODE_BITS // 8
REGIONS = 3

Bytes = np.ndarray[Any, np.dtype[np.uint8]]
Places = np.ndarray[Any, np.dtype[np.int32]]
"""Positions of ids and bins: 10^9 ids, the most that a contract allows, have fewer than 2^31 bins."""

_CODE_BLOCKS = range(1, 5)
_BIN_BLOCKS = range(5, 7)
_PIECE = 65_536


def fingerprints(ids: Sequence[bytes]) -> Bytes:
    """Return 16 bytes for each id (N, 16), the same on every side and in every run: a BLAKE2b hash.

    Among a million ids on either side, two ids share a fingerprint with a chance below 10^-26.
    """
    prints_N16, filled = np.empty((len(ids), FINGERPRINT_BYTES), dtype=np.uint8), 0
    start = blake2b(digest_size=FINGERPRINT_BYTES, person=b"tallystick order")
    for piece in Ids.of(ids).pieces():
        prints_N16[filled : filled + len(piece)] = hash_each(start, piece)
        filled += len(piece)
    return prints_N16


class Codes:
    """The pseudorandom code and the bins, by AES-128 under a key that both sides know.

    The paper's pseudorandom code (section 3.2): two ids that were chosen before the key was drawn have code words that differ in
    fewer than 128 of 512 places with a chance below 2^-98 (``tests/alignment/test_oprf_parameters.py``).

    Args:
        key: 16 bytes that neither side chose alone.
    """

    def __init__(self, key: bytes) -> None:
        self._cipher = Cipher(algorithms.AES(key), modes.ECB())  # noqa: S305 - single blocks as a pseudorandom function

    def words(self, prints_N16: Bytes) -> Bytes:
        """Return the code word of each id (N, 64)."""
        return self._blocks(prints_N16, _CODE_BLOCKS)

    def bins(self, prints_N16: Bytes, *, per_region: int) -> Places:
        """Return the bin of each id in every region (3, N), each in [0, per_region)."""
        bins_3N = np.empty((REGIONS, len(prints_N16)), dtype=np.int32)
        for start in range(0, len(prints_N16), _PIECE):
            words_B4 = self._blocks(prints_N16[start : start + _PIECE], _BIN_BLOCKS).view("<u8")
            # A product of 52 bits that rounds below per_region: the same on every machine by IEEE 754.
            fractions_3B = (words_B4[:, :REGIONS].T >> np.uint64(12)).astype(np.float64) * 2.0**-52
            bins_3N[:, start : start + _PIECE] = fractions_3B * per_region
        return bins_3N

    def _blocks(self, prints_N16: Bytes, numbers: range) -> Bytes:
        inputs_NB16 = np.repeat(prints_N16[:, None], len(numbers), axis=1)
        inputs_NB16[:, :, 0] ^= np.array(numbers, dtype=np.uint8)
        out = np.empty(inputs_NB16.nbytes + FINGERPRINT_BYTES - 1, dtype=np.uint8)
        written = self._cipher.encryptor().update_into(inputs_NB16.reshape(-1).data, out.data)
        return out[:written].reshape(len(prints_N16), len(numbers) * FINGERPRINT_BYTES)
