"""Derive random bits from a secret and from the values they hide: equal values get equal noise for the same purpose.

Shapes: R rows.
"""

import hashlib
from collections.abc import Iterable

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from tallystick.errors import ConfigError
from tallystick.privacy.exact import Words

MIN_SECRET_BYTES = 16


def check_secret(secret: bytes) -> None:
    """Refuse a secret that can be guessed. Raises ConfigError."""
    if len(secret) < MIN_SECRET_BYTES:
        raise ConfigError(f"the noise secret has {len(secret)} bytes; it must have at least {MIN_SECRET_BYTES}")


class KeyedBits:
    """Bits of a row from a keyed hash of the values they hide, by AES-256 in counter mode that starts at that hash.

    Guarantee: without the secret, and without breaking AES or BLAKE2, no one can distinguish them from new random bits, except
    that distinct counters show a permutation (q^2 / 2^129 after q blocks: 2^-61 after 2^34). Equal rows have equal bits, in every
    batch, run and table of the same secret and purpose, which reveals which rows are equal.

    Args:
        secret: at least 16 bytes from the operating system's generator; it must never leave this party.
        purpose: use of the bits, with every setting of the noise: bits for another purpose are independent.
        hidden: the bytes that each row hides.

    Raises ConfigError for a shorter secret.
    """

    def __init__(self, secret: bytes, *, purpose: bytes, hidden: Iterable[bytes]) -> None:
        check_secret(secret)
        keys = hashlib.blake2b(purpose, key=secret[:64], person=b"tallystick keyed").digest()
        hashing = hashlib.blake2b(key=keys[:32], digest_size=16)
        starts = []
        for each in hidden:
            row = hashing.copy()
            row.update(each)
            starts.append(row.digest())
        start_R2 = np.frombuffer(b"".join(starts), dtype="<u8").reshape(-1, 2)
        # Every block is a counter of its own row, so one call in ECB mode is counter mode for all rows.
        self._cipher = Cipher(algorithms.AES(keys[32:]), modes.ECB())  # noqa: S305
        self._start_R2, self._blocks = start_R2, 0

    def words(self, count: int) -> Words:
        """Return each row's next words (R, count)."""
        blocks = (count + 1) // 2
        counter_RN2 = np.repeat(self._start_R2[:, None], blocks, axis=1)
        counter_RN2[:, :, 1] += np.arange(self._blocks, self._blocks + blocks, dtype=np.uint64)  # modulo 2^64
        self._blocks += blocks
        out = bytearray(counter_RN2.nbytes + 15)
        self._cipher.encryptor().update_into(counter_RN2.tobytes(), out)
        words_RC = np.frombuffer(out, dtype="<u8", count=counter_RN2.size).reshape(len(counter_RN2), 2 * blocks)
        return words_RC[:, :count].astype(np.uint64, copy=False)

    def only(self, is_R: NDArray[np.bool_]) -> "KeyedBits":
        """Return the following bits for some of the rows."""
        some = object.__new__(KeyedBits)
        some._cipher, some._start_R2, some._blocks = self._cipher, self._start_R2[is_R], self._blocks
        return some
