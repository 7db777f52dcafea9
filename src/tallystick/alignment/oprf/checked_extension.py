"""Extend 640 base transfers to a linear function for every slot, and check that the receiver's rows are code words.

    receiver, row d_i of data for slot i           sender, choices s of the base transfers
    t, t': both seeds' streams                     the chosen seed's stream of each column
    u = t + t' + C(d), by columns          ->      q = that stream + (u and s)  =  t + (C(d) and s)
                                           <-      a key, drawn now
    hashes of all columns of t and d       ->      are those of q = those of t + (C(that of d) and s)?

Orru, Orsini and Scholl 2017 ("Actively Secure 1-out-of-N OT Extension with Application to Private Set Intersection"). Its check
adds random rows; the check here is a universal hash of every column, as in Roy 2022 (SoftSpokenOT). + is exclusive or. The code
is linear, so sums of rows, as in a key-value store, have the same relation. Nothing here does I/O.

The hash of a column is GHASH (NIST SP 800-38D): a polynomial over the field of 2^128 elements whose coefficients are the column's
blocks. It is linear in the column, and over the key two columns share it with a chance of blocks / 2^128. The last block of every
column of d is random, so the hashes reveal nothing about the other blocks.

Threat model: peers that deviate as they like. Guarantee: the sender learns nothing about d (AES-128 in counter mode is assumed to
be a pseudorandom generator; the last block masks the hashes). Except with a chance below 2^-97, a receiver that passes the check
has sent the corrections of some data in all but e columns, and has guessed e bits of s, which has a chance of 2^-e; the argument
is below. Two code words differ in 128 places or more, so for data other than its own the receiver lacks at least 128 - e bits of
s. Not protected: the receiver may choose d as it likes. A failed check must end the run and discard the base transfers.

Why the check is enough. The cheater is the side that sends corrections. Write T for its 640 columns of random bits, and W for the
columns that its corrections encode: for an honest side, W are the columns of code words C(d) of data d. The other side gets, for
column j, Q_j = T_j + s_j W_j. Hashes are linear, so its check of column j asks whether Hash(T_j) + s_j Hash(W_j) equals t_j + s_j
C(d')_j, where t and d' are the cheater's answer.

- In a column where Hash(W_j) is not C(d')_j, the check holds for one value of s_j only. With e such columns the cheater has
  guessed e bits: a chance of 2^-e.
- Apply all parity checks of the code to the columns of W, and let V be the space of the results: {0} for an honest side. Outside
  those e columns the hashes of W belong to a code word, so the hashes of V span at most e dimensions. If V has more, take a
  subspace of e + 1 dimensions that was chosen before the key: some vector in it has the hash 0, a chance of 2^(e+1) eps, where
  eps is the chance for one vector. Together with the guess: 2 eps.
- If V has e dimensions or fewer, the hash separates all its vectors except with a chance of 2^e eps, which with the guess is eps.
  Then W itself belongs to a code word outside those columns, so it encodes some data d.

Summed over all e this is at most 640 x 3 eps. A bucket holds some 65,000 ids, and each of its columns some 700 blocks of 128
bits, so eps is below 2^-118, and the sum below 2^-107; for all buckets of 50 million ids, below 2^-97. Only the guess remains. A
cheater that guessed e bits and passed knows them. At any id for which the data d are wrong, C differs in 128 places or more, so
128 - e bits of s are unknown to it there. Guess and search together have a chance of 2^-128 for each hash that it tries. A failed
check ends the run, and the next run has new base transfers, so guesses of several runs do not add up.

Shapes: T transfers and columns of a code word (640); D columns of data (162); M slots, and with them 128 rows that only mask; W
words per column.
"""

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tallystick.alignment.oprf.base_transfers import Choices, Seeds
from tallystick.alignment.oprf.bit_matrix import Rows, Words, turned, turned_back
from tallystick.alignment.oprf.extension import Streams
from tallystick.alignment.oprf.linear_code import COLUMNS, DATA_BITS, code_words
from tallystick.alignment.randomness import SecureRandom

DATA_WORDS = -(-DATA_BITS // 64)
CHECK_KEY_BYTES = 16
ANSWER_ROWS, HASH_BYTES = COLUMNS + DATA_BITS, 16
_BLOCK_ROWS = 128
_NONCE = bytes(12)

Answer = np.ndarray[Any, np.dtype[np.uint8]]


def column_words(slots: int) -> int:
    """Return how many words a column has: whole blocks of slots, and one block that masks."""
    return (-(-slots // _BLOCK_ROWS) + 1) * _BLOCK_ROWS // 64


class CheckedReceiver:
    """The side that brings data. ``first`` and ``second`` are both seeds of every transfer (T, 16)."""

    def __init__(self, first: Seeds, second: Seeds) -> None:
        self._streams = Streams(first), Streams(second)
        self._first_TW = self._data_DW = np.empty((0, 0), dtype=np.uint64)

    def next_slots(self, data_M3: Words, *, rng: SecureRandom) -> Words:
        """Return the corrections (T, W) for the next slots' data. The last 30 of its 192 bits are ignored."""
        words = column_words(len(data_M3))
        rows_R3 = np.zeros((64 * words, DATA_WORDS), dtype=np.uint64)
        rows_R3[: len(data_M3)] = data_M3
        rows_R3[-_BLOCK_ROWS:] = np.frombuffer(rng.bytes(_BLOCK_ROWS * DATA_WORDS * 8), dtype="<u8").reshape(-1, DATA_WORDS)
        self._data_DW = turned_back(rows_R3.view(np.uint8))[:DATA_BITS]
        self._first_TW, second_TW = (streams.next_words(64 * words) for streams in self._streams)
        correction_TW = code_words(self._data_DW)
        correction_TW ^= self._first_TW
        correction_TW ^= second_TW
        return correction_TW

    def answer(self, key: bytes) -> Answer:
        """Return the hashes (T + D, 16) of these slots' columns under the sender's key, which arrived after the corrections."""
        return np.concatenate((hashed(self._first_TW, key=key), hashed(self._data_DW, key=key)))

    def inputs(self, slots: int) -> Words:
        """Return the rows t (M, 10), one per slot."""
        return turned(self._first_TW)[:slots].view("<u8")


class CheckedSender:
    """The side that can evaluate the function at any data. ``seeds`` belong to its ``choices`` (T, 16)."""

    def __init__(self, seeds: Seeds, choices_T: Choices) -> None:
        self._streams = Streams(seeds)
        self._choice_T1 = np.where(choices_T[:, None], ~np.uint64(0), np.uint64(0))
        self._secret_TW = np.empty((0, 0), dtype=np.uint64)

    def next_slots(self, correction_TW: Words) -> None:
        """Apply the corrections for the next slots."""
        self._secret_TW = (correction_TW & self._choice_T1) ^ self._streams.next_words(64 * correction_TW.shape[1])

    def holds(self, answer: Answer, *, key: bytes) -> bool:
        """Tell whether the hashes (T + D, 16) fit rows that are code words."""
        words = np.ascontiguousarray(answer).view("<u8")
        expected_T2 = words[:COLUMNS] ^ (code_words(words[COLUMNS:]) & self._choice_T1)
        return np.array_equal(hashed(self._secret_TW, key=key).view("<u8"), expected_T2)

    def secrets(self, slots: int) -> Words:
        """Return the rows q (M, 10), one per slot."""
        return turned(self._secret_TW)[:slots].view("<u8")

    def offsets(self, data_N3: Words) -> Words:
        """Return C(d) and s (N, 10) of any data: the difference of q and t if the receiver's data are d."""
        padded_R3 = np.zeros((-(-len(data_N3) // 64) * 64, DATA_WORDS), dtype=np.uint64)
        padded_R3[: len(data_N3)] = data_N3
        code_TW = code_words(turned_back(padded_R3.view(np.uint8))[:DATA_BITS])
        code_TW &= self._choice_T1
        return turned(code_TW)[: len(data_N3)].view("<u8")


def hashed(columns_CW: Words, *, key: bytes) -> Rows:
    """Return GHASH (C, 16) of every column, without a known constant, under the hash key that AES makes of ``key``.

    OpenSSL computes it as the tag of AES-GCM over public data. It does not authenticate anything here, so one nonce is enough.
    """
    cipher = AESGCM(key)
    # For columns of zeros the tag is the cipher's mask and the block of lengths: the same for all columns of one length.
    constant = cipher.encrypt(_NONCE, b"", bytes(8 * columns_CW.shape[1]))
    tags = b"".join(cipher.encrypt(_NONCE, b"", column_W.view(np.uint8).data) for column_W in np.ascontiguousarray(columns_CW))
    return np.frombuffer(tags, dtype=np.uint8).reshape(-1, HASH_BYTES) ^ np.frombuffer(constant, dtype=np.uint8)
