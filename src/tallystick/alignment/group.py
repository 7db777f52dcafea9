"""Compute in ristretto255, a prime-order group in which Diffie-Hellman is hard, by libsodium (sodium.py), a batch at a time.

Elements are rows of a uint8 array, which libsodium reads and writes in place. Its calls let other threads run, so as many threads
as cores keep all cores busy (workers.py).

Ids are hashed with SHA-512, after a prefix of our own, into ristretto255 (RFC 9496). Secret exponents are uniform and come from
the operating system. They are new in every run and never leave their process. The protocols treat the hash as a random oracle and
rely on the decisional Diffie-Hellman assumption (DDH) in this group. In the form used here it says: for random elements h_1 ...
h_n and independent secret exponents a, b, c, the lists (h_i), (h_i^a), (h_i^b), (h_i^c) look like four lists of independent
random elements. Elements that are only compared are cut to 16 bytes ("tags"). Among 10^6 x 10^6 of them, the chance that two
different elements share a tag is below 10^-26.

Shapes: N elements of 32 bytes.
"""

import ctypes
from collections.abc import Callable, Sequence
from hashlib import sha512
from typing import Any

import numpy as np

from tallystick.alignment import sodium

ELEMENT_BYTES = 32
SCALAR_BYTES = 32

DOMAIN = b"tallystick/alignment/v1/ristretto255\x00"
"""Prefix of every hashed id, so that these elements are useless in any other protocol."""

Elements = np.ndarray[Any, np.dtype[np.uint8]]


SODIUM = sodium.load_sodium()

_multiply = SODIUM.bind("crypto_scalarmult_ristretto255", 3)
_from_hash = SODIUM.bind("crypto_core_ristretto255_from_hash", 2)
_scalar_reduce = SODIUM.bind("crypto_core_ristretto255_scalar_reduce", 2)
_scalar_multiply = SODIUM.bind("crypto_core_ristretto255_scalar_mul", 3)
_generate = SODIUM.bind("crypto_scalarmult_ristretto255_base", 2)
_add = SODIUM.bind("crypto_core_ristretto255_add", 3)
_subtract = SODIUM.bind("crypto_core_ristretto255_sub", 3)


class InvalidElement(ValueError):
    """Raised for bytes that do not encode a group element canonically, or encode the identity. ``index`` is their row."""

    def __init__(self, index: int) -> None:
        super().__init__(f"element {index} is not a canonical ristretto255 encoding, or is the identity")
        self.index = index


class Scalar:
    """A secret exponent. It prints as "secret" and cannot be pickled."""

    __slots__ = ("_buffer",)

    def __init__(self, encoded: bytes) -> None:
        if len(encoded) != SCALAR_BYTES:
            raise ValueError(f"a scalar has {SCALAR_BYTES} bytes, got {len(encoded)}")
        self._buffer = ctypes.create_string_buffer(encoded, SCALAR_BYTES)

    @classmethod
    def reduced(cls, wide: bytes) -> "Scalar":
        """Reduce 64 uniform bytes modulo the group's order."""
        if len(wide) != 64:
            raise ValueError(f"a scalar is reduced from 64 bytes, got {len(wide)}")
        scalar = cls(bytes(SCALAR_BYTES))
        _scalar_reduce(scalar.address, wide)
        return scalar

    def __mul__(self, other: "Scalar") -> "Scalar":
        product = Scalar(bytes(SCALAR_BYTES))
        _scalar_multiply(product.address, self.address, other.address)
        return product

    def is_zero(self) -> bool:
        """Tell whether it maps every element to the identity."""
        return not any(self._buffer.raw)

    @property
    def address(self) -> int:
        """Return the address at which libsodium reads the exponent."""
        return ctypes.addressof(self._buffer)

    def __repr__(self) -> str:
        return "Scalar(secret)"

    def __reduce__(self) -> str:
        raise TypeError("a secret scalar does not leave its process")


def hash_to_group(ids: Sequence[bytes]) -> Elements:
    """Hash ids to elements (N, 32): SHA-512 of a domain prefix and the id, then RFC 9496's one-way map (section 4.3.4)."""
    return elements_of([sha512(DOMAIN + identifier).digest() for identifier in ids])


def elements_of(wide: Sequence[bytes]) -> Elements:
    """Map 64 uniform bytes each to an element (N, 32) whose logarithm no one knows: RFC 9496, section 4.3.4."""
    elements_N32 = np.empty((len(wide), ELEMENT_BYTES), dtype=np.uint8)
    out = elements_N32.ctypes.data
    for row, uniform in enumerate(wide):
        if len(uniform) != 64:
            raise ValueError(f"an element is made of 64 bytes, got {len(uniform)}")
        _from_hash(out + row * ELEMENT_BYTES, uniform)
    return elements_N32


def generated(scalars: Sequence[Scalar]) -> Elements:
    """Multiply the group's generator by each scalar (N, 32). Raises ValueError for a scalar of 0."""
    elements_N32 = np.empty((len(scalars), ELEMENT_BYTES), dtype=np.uint8)
    out = elements_N32.ctypes.data
    for row, scalar in enumerate(scalars):
        if _generate(out + row * ELEMENT_BYTES, scalar.address):
            raise ValueError("a scalar of 0 generates the identity")
    return elements_N32


def add(first_N32: Elements, second_N32: Elements) -> Elements:
    """Add elements pair by pair. Raises InvalidElement for one that is not canonically encoded."""
    return _pairwise(_add, first_N32, second_N32)


def subtract(first_N32: Elements, second_N32: Elements) -> Elements:
    """Subtract elements pair by pair. Raises InvalidElement for one that is not canonically encoded."""
    return _pairwise(_subtract, first_N32, second_N32)


def _require_low_top_bits(elements_N32: Elements) -> None:
    """Refuse encodings whose top bit is set, as RFC 9496 (section 4.3.1) requires. libsodium before 1.0.19 accepts them."""
    high_N = elements_N32[:, -1] > 0x7F
    if high_N.any():
        raise InvalidElement(int(high_N.argmax()))


def _pairwise(operation: Callable[..., int], first_N32: Elements, second_N32: Elements) -> Elements:
    first_N32, second_N32 = np.ascontiguousarray(first_N32), np.ascontiguousarray(second_N32)
    for elements_N32 in (first_N32, second_N32):
        _require_low_top_bits(elements_N32)
    result_N32 = np.empty_like(first_N32)
    first, second, out = first_N32.ctypes.data, second_N32.ctypes.data, result_N32.ctypes.data
    for offset in range(0, first_N32.nbytes, ELEMENT_BYTES):
        if operation(out + offset, first + offset, second + offset):
            raise InvalidElement(offset // ELEMENT_BYTES)
    return result_N32


def multiply(elements_N32: Elements, scalar: Scalar) -> Elements:
    """Multiply every element by ``scalar``. The papers write this operation as "x to the power s".

    Raises InvalidElement for an element that is the identity or not canonically encoded.
    """
    if elements_N32.ndim != 2 or elements_N32.shape[1] != ELEMENT_BYTES or elements_N32.dtype != np.uint8:
        raise ValueError(f"elements are uint8 of shape (N, {ELEMENT_BYTES}), got {elements_N32.dtype} of {elements_N32.shape}")
    elements_N32 = np.ascontiguousarray(elements_N32)
    _require_low_top_bits(elements_N32)
    product_N32 = np.empty_like(elements_N32)
    read, by, write = elements_N32.ctypes.data, scalar.address, product_N32.ctypes.data
    for offset in range(0, elements_N32.nbytes, ELEMENT_BYTES):
        if _multiply(write + offset, by, read + offset):
            raise InvalidElement(offset // ELEMENT_BYTES)
    return product_N32
