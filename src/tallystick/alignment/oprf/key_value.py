"""A key-value store that is linear: the value of a key is the sum of three sparse slots and of some of 48 dense ones.

A key's three slots lie in three regions, as in a cuckoo table, but a key does not own them: the slots are solved for, so that
all sums are right. Keys that have a slot to themselves are put aside, round by round, until no key has one. What is left,
mostly nothing, is solved by elimination together with the dense slots; then the rounds are solved from the last to the first.

Garimella, Pinkas, Rosulek, Trieu and Yanai 2021 ("Oblivious Key-Value Stores and Amplification for Private Set Intersection");
Raghuraman and Rindal 2022 for the dense part. Decoding is linear in the slots over two elements, which is what the
extension needs; that a store hides its keys is not needed, for nobody sees it.

How many ids a cheater's store can hold. A store with M slots can be right for M ids of one's choice without any work: 1.36
times the ids that its owner announced, and more of few ids (1.5 times for 1,000, 2.7 times for 100). For more, it has to search
for ids whose hashes happen to fit. Of q ids that it hashes, n' have a store with a chance of at most C(q, n') 2^(128-162(n'-M)),
where 128 is for the choice of the seed. Below 2^-40, for a million announced, this is 2.3 times as many with 2^80
hashes, and 4.4 times with 2^128. Few ids beside many more of the other side are spread over many buckets, each with room to
spare: a party that announces 1,000 can bring 5,300 beside a million, and 28,000 beside ten million.

Shapes: N keys; M slots; V words of a value.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.alignment.oprf.bit_matrix import Rows, Words
from tallystick.alignment.oprf.codes import REGIONS, Places

DENSE = 48
"""Dense slots: keys that depend on each other by their sparse slots do so by these, too, with a chance of 2^-48."""
SLOTS_PER_KEY = 1.3
"""Keys fill .77 of the slots, where nearly all can be put aside one by one up to .818 (Molloy 2005)."""
SPARE_SLOTS = 1.5
"""Further slots of a region, times the square root of the keys: a small set strays further from its mean."""
MOST_LEFT = 2000
"""Keys that elimination takes; it has few, or hardly ever there are too many for it."""
SEED_BYTES = 16
_LEAST_REGION = 16
_WORD = (1 << 64) - 1

Index = np.ndarray[Any, np.dtype[np.int64]]


class NoStore(ValueError):
    """Some keys depend on each other under this seed, or too many are left to solve for."""


@dataclass(frozen=True, kw_only=True)
class StoreShape:
    """How many slots a store has that holds up to ``keys``."""

    keys: int
    per_region: int = field(init=False)
    slots: int = field(init=False)

    def __post_init__(self) -> None:
        per_region = math.ceil(SLOTS_PER_KEY * self.keys / REGIONS + SPARE_SLOTS * math.sqrt(self.keys)) + _LEAST_REGION
        object.__setattr__(self, "per_region", per_region)
        object.__setattr__(self, "slots", REGIONS * per_region + DENSE)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Where the values of keys are: three slots each (3, N), and which dense ones (N, 6), a bit for each."""

    sparse_3N: Places
    dense_N6: Rows

    def of(self, keys_K: "Index") -> "Probes":
        """Give those of some keys."""
        return Probes(sparse_3N=self.sparse_3N[:, keys_K], dense_N6=self.dense_N6[keys_K])


def probes(points_N16: Rows, shape: StoreShape, *, seed: bytes) -> Probes:
    """Give where keys stand, by AES-128 under ``seed`` of 16 bytes for each key."""
    cipher = Cipher(algorithms.AES(seed), modes.ECB())  # noqa: S305 - single blocks as a pseudorandom function
    inputs_N216 = np.repeat(points_N16[:, None], 2, axis=1)
    inputs_N216[:, 1, 0] ^= np.uint8(1)
    words_N4: Words = np.frombuffer(cipher.encryptor().update(inputs_N216.tobytes()), dtype="<u8").reshape(-1, 4)
    # 52 bits and a product that rounds below per_region: the same on every machine by IEEE 754.
    fraction_3N = (words_N4[:, :REGIONS].T >> np.uint64(12)).astype(np.float64) * 2.0**-52
    sparse_3N = (fraction_3N * shape.per_region).astype(np.int32)
    sparse_3N += np.arange(REGIONS, dtype=np.int32)[:, None] * np.int32(shape.per_region)
    return Probes(sparse_3N=sparse_3N, dense_N6=np.ascontiguousarray(words_N4[:, 3:]).view(np.uint8)[:, : DENSE // 8])


def looked_up(slots_MV: Words, at: Probes) -> Words:
    """Give the value at each probe (N, V): linear in the slots, so they may be a store's, or any rows beside one."""
    value_NV: Words = slots_MV.take(at.sparse_3N[0], axis=0)
    added_NV = np.empty_like(value_NV)
    for sparse_N in at.sparse_3N[1:]:
        np.take(slots_MV, sparse_N, axis=0, out=added_NV, mode="clip")
        value_NV ^= added_NV
    # Dense slots by eights, of which all 256 sums are made first.
    sums_SV = np.zeros((256, value_NV.shape[1]), dtype=np.uint64)
    for group, which_N in enumerate(at.dense_N6.T):
        for place in range(8):
            row_V = slots_MV[len(slots_MV) - DENSE + 8 * group + place]
            np.bitwise_xor(sums_SV[: 1 << place], row_V, out=sums_SV[1 << place : 2 << place])
        np.take(sums_SV, which_N, axis=0, out=added_NV, mode="clip")
        value_NV ^= added_NV
    return value_NV


def store_of(value_NV: Words, at: Probes, shape: StoreShape) -> Words:
    """Give slots (M, V) by which every probe finds its value; slots that no probe needs are 0.

    Raises NoStore if these keys have none, or too many of them hang together.
    """
    slots_MV = np.zeros((shape.slots, value_NV.shape[1]), dtype=np.uint64)
    rounds, left_K = _put_aside(at.sparse_3N, slots=shape.slots)
    if len(left_K) > MOST_LEFT:
        raise NoStore(f"{len(left_K)} of {len(value_NV)} keys have no slot to themselves")
    for slot, value in _solved(value_NV[left_K], at.of(left_K), first_dense=shape.slots - DENSE).items():
        slots_MV[slot] = [value >> (64 * word) & _WORD for word in range(value_NV.shape[1])]
    for own_K, keys_K in reversed(rounds):
        # A key's own slot is 0 yet, no other key of this round has it, and all its other slots are settled.
        slots_MV[own_K] = looked_up(slots_MV, at.of(keys_K)) ^ value_NV[keys_K]
    return slots_MV


def _put_aside(sparse_3N: Places, *, slots: int) -> tuple[list[tuple[Index, Index]], Index]:
    """Give, round by round, slots that one key alone has and these keys, which then go; and the keys that are left."""
    keys = sparse_3N.shape[1]
    count_M = np.bincount(sparse_3N.ravel(), minlength=slots)
    # The sum of the keys at a slot: of one key, that key.
    sum_M = np.zeros(slots, dtype=np.int64)
    for sparse_N in sparse_3N:
        np.add.at(sum_M, sparse_N, np.arange(keys))
    left_N = np.ones(keys, dtype=bool)
    rounds = []
    alone_K = np.flatnonzero(count_M == 1)
    while len(alone_K):
        keys_K, first = np.unique(sum_M[alone_K], return_index=True)
        rounds.append((alone_K[first], keys_K))
        left_N[keys_K] = False
        for sparse_K in sparse_3N[:, keys_K]:
            np.subtract.at(count_M, sparse_K, 1)
            np.subtract.at(sum_M, sparse_K, keys_K)
        touched = sparse_3N[:, keys_K].ravel()
        alone_K = np.unique(touched[count_M[touched] == 1])
    return rounds, np.flatnonzero(left_N)


def _solved(value_KV: Words, at: Probes, *, first_dense: int) -> dict[int, int]:
    """Give slots and their values by which these keys are right where all other slots are 0: Gauss and Jordan's elimination."""
    names = sorted({int(slot) for slot in at.sparse_3N.ravel()})
    number = {slot: place for place, slot in enumerate(names)}
    names += range(first_dense, first_dense + DENSE)
    rows: dict[int, tuple[int, int]] = {}
    for key, words in enumerate(value_KV.tolist()):
        equation = int.from_bytes(at.dense_N6[key].tobytes(), "little") << len(number)
        for slot in at.sparse_3N[:, key].tolist():
            equation ^= 1 << number[slot]
        value = sum(word << (64 * place) for place, word in enumerate(words))
        for pivot, (other, theirs) in rows.items():
            if equation >> pivot & 1:
                equation, value = equation ^ other, value ^ theirs
        if not equation:
            raise NoStore(f"{len(value_KV)} keys that have no slot to themselves depend on each other")
        own = (equation & -equation).bit_length() - 1
        for pivot, (other, theirs) in rows.items():
            if other >> own & 1:
                rows[pivot] = other ^ equation, theirs ^ value
        rows[own] = equation, value
    return {names[pivot]: value for pivot, (_, value) in rows.items()}
