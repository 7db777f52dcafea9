"""Build FEDERAL's filters of numbers and texts, by which a helper compares keys.

Karapiperis, Gkoulalas-Divanis and Verykios 2017, as FedSim uses it (its appendix I). A number x sets bit j if the secret pivot
r_j is within t of it. A text sets a few keyed-hash positions for each of its q-grams. Similar keys differ in few bits.

No formal guarantee. All filters have about the same weight, so a filter does not show whether its number is large or small. But
distances between filters are distances between keys, and many of them give the map (``attacks/linkage/geometry.py``).

Shapes: N rows, P pivots, W bytes of a filter.
"""

from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from tallystick.alignment.nearest import Floats, Integers
from tallystick.alignment.terms import DimensionConfig, SimilarityConfig

Packed = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class Pivots:
    """The secret pivots of a number, in the order of the filter's bits."""

    pivot_P: Floats
    window: float

    @classmethod
    def of(cls, terms: SimilarityConfig, dimension: DimensionConfig, secret: bytes) -> "Pivots":
        """Draw the pivots from the secret, uniform over the contract's range widened by one window at both ends."""
        count = terms.pivots(dimension)
        key = blake2b(b"pivots of " + dimension.name.encode(), key=secret, digest_size=32).digest()
        words_P: Any = np.frombuffer(
            Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count)), dtype="<u8"
        )
        least, greatest = dimension.bounds
        low, high = least / dimension.scale - terms.window, greatest / dimension.scale + terms.window
        return cls(pivot_P=low + (high - low) * ((words_P >> np.uint64(11)) * 2.0**-53), window=terms.window)

    def ranks(self, values_N: Floats) -> Integers:
        """Count, for each value, the pivots below its window and the pivots not above it, (N, 2): 8 bytes on the wire."""
        sorted_P = np.sort(self.pivot_P)
        below_N = np.searchsorted(sorted_P, values_N - self.window, side="left")
        upto_N = np.searchsorted(sorted_P, values_N + self.window, side="right")
        return np.stack((below_N, upto_N), axis=1).astype(np.int64, copy=False)

    def filters(self, values_N: Floats) -> Packed:
        """Return the filters, (N, W): bit j is 1 if pivot j is within the window."""
        order_P, ranks_N2 = np.argsort(self.pivot_P, kind="stable"), self.ranks(values_N)
        packed_NW = np.empty((len(values_N), len(self.pivot_P) // 8), dtype=np.uint8)
        for row, (below, upto) in enumerate(ranks_N2):
            bits_P = np.zeros(len(self.pivot_P), dtype=bool)
            bits_P[order_P[below:upto]] = True
            packed_NW[row] = np.packbits(bits_P)
        return packed_NW


def text_filters(
    texts: "list[str] | tuple[str, ...]", *, terms: SimilarityConfig, dimension: DimensionConfig, secret: bytes
) -> Packed:
    """Return Bloom filters of q-grams by keyed BLAKE2b, (N, W)."""
    key = blake2b(b"grams of " + dimension.name.encode(), key=secret, digest_size=32).digest()

    @lru_cache(maxsize=1 << 18)
    def places(gram: str) -> Integers:
        digests = b"".join(
            blake2b(gram.encode(), key=key, salt=part.to_bytes(8, "big")).digest() for part in range(-(-terms.hashes // 16))
        )
        return np.frombuffer(digests, dtype="<u4")[: terms.hashes].astype(np.int64) % terms.text_bits

    packed_NW = np.empty((len(texts), terms.text_bits // 8), dtype=np.uint8)
    for row, text in enumerate(texts):
        bits = np.zeros(terms.text_bits, dtype=bool)
        bits[np.concatenate([places(gram) for gram in grams(text, terms.gram)])] = True
        packed_NW[row] = np.packbits(bits)
    return packed_NW


def grams(text: str, length: int) -> set[str]:
    """Return a text's q-grams. Its ends are padded, so that the first and last characters count as much as the others."""
    padded = "\x02" * (length - 1) + text + "\x03" * (length - 1)
    return {padded[start : start + length] for start in range(len(padded) - length + 1)} or {text}


def text_bits(*, threshold: int, hashes: int, mean_grams: float, rate: float, failure: float) -> int:
    """Return FEDERAL's filter size for texts: 2 theta k q / ((C + 1) delta) bits with C = ceil(4 theta k rate).

    Args:
        threshold: theta, the number of edits that are still detected reliably.
        hashes: k, the number of bits that a q-gram sets.
        mean_grams: average number of q-grams of a text.
        rate: tolerated share of collisions.
        failure: delta, the chance of more collisions.
    """
    collisions = int(np.ceil(4 * threshold * hashes * rate))
    return int(8 * np.ceil(2 * threshold * hashes * mean_grams / ((collisions + 1) * failure) / 8))


def block_tags(texts: "list[str] | tuple[str, ...]", *, terms: SimilarityConfig, secret: bytes) -> Packed:
    """Return keyed hashes of the texts' first characters, (N, 16). The helper compares only texts whose tags are equal."""
    key = blake2b(b"blocks", key=secret, digest_size=32).digest()
    tags = b"".join(blake2b(text[: terms.block].encode(), key=key, digest_size=16).digest() for text in texts)
    return np.frombuffer(tags, dtype=np.uint8).reshape(-1, 16)
