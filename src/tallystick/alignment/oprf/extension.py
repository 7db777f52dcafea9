"""Extend 512 base transfers to a pseudorandom function for each bin: the receiver learns it at one id, the sender at any.

    receiver, an id x in bin j                     sender, choices s of the base transfers
    t0, t1: row j of both seeds' streams           row j of the chosen seeds' streams
    u = t0 + t1 + C(x)                     ->      q = that row + (u and s)  =  t0 + (C(x) and s)
    F_j(x) = H(j, t0)                              F_j(y) = H(j, q + (C(y) and s)), which is F_j(x) where y is x

Kolesnikov, Kumaresan, Rosulek and Trieu 2016, figure 2; + is exclusive or. Nothing here does I/O.

Threat model: honest but curious. Guarantee: u reveals nothing to the sender, because in every column the sender lacks t0 or t1
(AES-128 in counter mode as a pseudorandom generator). For y other than x the receiver cannot distinguish F_j(y) from random bits:
code words differ in 128 places or more, so t0 + ((C(x) + C(y)) and s) hides 128 bits of s (the paper's Hamming correlation
robustness, of BLAKE2b). Not protected: a receiver that sends a u other than its code words require learns bits of s, and all of
them with a dozen ids that it knows.

Shapes: T transfers, as many as a code word has bits; B bins of a piece; P pairs of an id and a bin.
"""

from hashlib import blake2b
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.alignment.hashing import hash_each
from tallystick.alignment.oprf.base_transfers import Choices, Seeds
from tallystick.alignment.oprf.bit_matrix import Rows, Words, turned
from tallystick.alignment.oprf.codes import CODE_BYTES

SALT_BYTES = 16
_NUMBER_BYTES = 8
_WORD_BITS, _WORD_BYTES = 64, 8

Slots = np.ndarray[Any, np.dtype[np.int32]]


class Receiver:
    """The side that learns the function at one code word per bin. ``first`` and ``second`` are both seeds (T, 16)."""

    def __init__(self, first: Seeds, second: Seeds) -> None:
        self._streams = Streams(first), Streams(second)

    def next_bins(self, code_B64: Rows) -> tuple[Rows, Rows]:
        """Return, for the next bins, the inputs of the function (B, 64) and the corrections to send (B, 64)."""
        first_TW, second_TW = (streams.next_words(len(code_B64)) for streams in self._streams)
        input_B64 = turned(first_TW)[: len(code_B64)]
        correction_B64 = turned(first_TW ^ second_TW)[: len(code_B64)]
        return input_B64, correction_B64 ^ code_B64


class Sender:
    """The side that can evaluate the function at any code word. ``seeds`` belong to its ``choices`` (T, 16)."""

    def __init__(self, seeds: Seeds, choices_T: Choices) -> None:
        self._streams = Streams(seeds)
        self._choice_64 = np.packbits(choices_T, bitorder="little")

    def next_bins(self, correction_B64: Rows) -> Rows:
        """Return the secret (B, 64) of each of the next bins."""
        secret_B64 = turned(self._streams.next_words(len(correction_B64)))[: len(correction_B64)]
        secret_B64 ^= correction_B64 & self._choice_64
        return secret_B64

    def inputs(self, secret_P64: Rows, code_P64: Rows) -> Rows:
        """Return the inputs of the function (P, 64) at any code words, each in a bin of this secret."""
        return secret_P64 ^ (code_P64 & self._choice_64)


def outputs(input_P64: Rows, slots_P: Slots, *, salt: bytes, size: int) -> Rows:
    """Compute H: return the function's outputs (P, ``size``) by BLAKE2b, over the input, this run's salt and the bin's number."""
    assert len(salt) == SALT_BYTES
    # The salt is in the message. As a parameter of the hash it would take a tenth longer. The message is still one block.
    row = [("input", np.void, CODE_BYTES), ("salt", np.void, SALT_BYTES), ("number", "<u8")]
    rows_P = np.empty(len(input_P64), dtype=row)
    rows_P["input"] = input_P64.view(f"V{CODE_BYTES}").ravel()
    rows_P["salt"] = np.void(salt)
    rows_P["number"] = slots_P
    return hash_each(blake2b(digest_size=size), rows_P.view(f"V{rows_P.itemsize}").tolist())


class Streams:
    """A pseudorandom stream of bits per seed."""

    def __init__(self, seeds_T16: Seeds) -> None:
        from_zero = modes.CTR(bytes(16))
        self._streams = [Cipher(algorithms.AES(seed.tobytes()), from_zero).encryptor() for seed in seeds_T16]

    def next_words(self, bits: int) -> Words:
        """Return the next words (T, W): at least this many bits of each stream."""
        size = -(-bits // _WORD_BITS) * _WORD_BYTES
        zeros = bytes(size)
        return np.frombuffer(b"".join([stream.update(zeros) for stream in self._streams]), dtype="<u8").reshape(
            len(self._streams), -1
        )
