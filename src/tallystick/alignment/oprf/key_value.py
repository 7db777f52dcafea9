"""Build a linear key-value store: the value of a key is the sum of three sparse slots and of some of 48 dense slots.

A key's three slots are in three regions, as in a cuckoo table, but a key does not own them: the slots are solved for, so that all
sums are right. Keys that have a slot to themselves are set aside, round by round, until no key has one. The rest, often none, is
solved by elimination together with the dense slots; then the rounds are solved from the last to the first.

Garimella, Pinkas, Rosulek, Trieu and Yanai 2021 ("Oblivious Key-Value Stores and Amplification for Private Set Intersection");
Raghuraman and Rindal 2022 for the dense part. Decoding is linear in the slots over two elements, as the extension requires. The
store need not hide its keys, because no one sees it.

There are two shapes. A wide store is solved in time linear in its keys. A tight store has hardly more slots than keys, and only
elimination solves it. It is for few keys, and for a peer that must not have room for more. Each of its keys has eight sparse
slots and some of 64 dense slots or more; up to 87 keys have dense slots only.

How many ids a cheater's store can hold. A store with M slots can be right for M chosen ids without any work: for up to 87 keys
that is 41 more than the keys, for up to 4,096 keys 50 more, and beyond that 1.35 times as many at most, 1.27 times for 65,536.
For more, the cheater has to search for ids whose hashes happen to fit. Of q ids that it hashes, n' have a store with a chance of
at most C(q, n') 2^(128-162(n'-M)), where 128 is for the choice of the seed. Below 2^-40, this allows 2 M ids with 2^80 hashes,
and 4.2 M with 2^128. This counts all stores that exist. To find one with more than M ids is to decode a random linear code, and
no known way is much better than trying. A given id fits a store of other ids with a chance of 2^-162.

Shapes: N keys; M slots; R regions of sparse slots; D bytes of dense slots; V words of a value.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from tallystick.alignment.oprf.bit_matrix import Rows, Words
from tallystick.alignment.oprf.codes import REGIONS, Places

DENSE = 48
"""Dense slots of a wide store. Keys that depend on each other in their sparse slots do so in the dense ones with a chance of
2^-48.
"""
SLOTS_PER_KEY = 1.25
"""Keys fill .8 of the slots. Nearly all keys can be set aside one by one up to a load of .818 (Molloy 2005)."""
SPARE_SLOTS = 1.5
"""Additional slots of a region, times the square root of the keys, because a small set deviates further from its mean."""
MOST_LEFT = 2000
"""Greatest number of keys of a wide store that elimination solves. There are hardly ever more."""
MOST_TIGHT = 4096
"""Greatest number of keys of a tight store; elimination takes half a second for this many."""
MOST_DENSE, SPARE_DENSE, SPARE_TIGHT = 87, 41, 50
"""Up to this many keys have dense slots only. A tight store's spare slots beyond its keys, for dense slots only and otherwise."""
_TIGHT_REGIONS, _TIGHT_DENSE = 8, 64
SEED_BYTES = 16
_LEAST_REGION = 16
_WORD = (1 << 64) - 1

Index = np.ndarray[Any, np.dtype[np.int64]]


class NoStore(ValueError):
    """Raised if some keys depend on each other under this seed, or if too many are left to solve for."""


@dataclass(frozen=True, kw_only=True)
class StoreShape:
    """Slots of a store for up to ``keys`` keys. A ``tight`` store has hardly more slots than keys."""

    keys: int
    tight: bool = False
    regions: int = field(init=False)
    per_region: int = field(init=False)
    dense: int = field(init=False)
    slots: int = field(init=False)

    def __post_init__(self) -> None:
        assert not self.tight or self.keys <= MOST_TIGHT
        if not self.tight:
            wide = math.ceil(SLOTS_PER_KEY * self.keys / REGIONS + SPARE_SLOTS * math.sqrt(self.keys)) + _LEAST_REGION
            regions, per_region, dense = REGIONS, wide, DENSE
        elif self.keys <= MOST_DENSE:
            regions, per_region, dense = 0, 0, self.keys + SPARE_DENSE
        else:
            regions = _TIGHT_REGIONS
            per_region, more = divmod(self.keys + SPARE_TIGHT - _TIGHT_DENSE, regions)
            dense = _TIGHT_DENSE + more
        for name, value in (("regions", regions), ("per_region", per_region), ("dense", dense)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "slots", regions * per_region + dense)


@dataclass(frozen=True, kw_only=True)
class Probes:
    """Places of the values of keys: a slot in each region (R, N), and the dense slots (N, D), one bit each."""

    sparse_RN: Places
    dense_ND: Rows

    def of(self, keys_K: "Index") -> "Probes":
        """Return the probes of these keys."""
        return Probes(sparse_RN=self.sparse_RN[:, keys_K], dense_ND=self.dense_ND[keys_K])


def probes(points_N16: Rows, shape: StoreShape, *, seed: bytes) -> Probes:
    """Return the places of keys, by AES-128 under ``seed``, 16 bytes per key."""
    dense_bytes = -(-shape.dense // 8)
    blocks = -(-(8 * shape.regions + dense_bytes) // 16)
    cipher = Cipher(algorithms.AES(seed), modes.ECB())  # noqa: S305 - single blocks as a pseudorandom function
    inputs_NB16 = np.repeat(points_N16[:, None], blocks, axis=1)
    inputs_NB16[:, :, 0] ^= np.arange(blocks, dtype=np.uint8)
    words_NW: Words = np.frombuffer(cipher.encryptor().update(inputs_NB16.tobytes()), dtype="<u8").reshape(-1, 2 * blocks)
    # A product of 52 bits that rounds below per_region: the same on every machine by IEEE 754.
    fraction_RN = (words_NW[:, : shape.regions].T >> np.uint64(12)).astype(np.float64) * 2.0**-52
    sparse_RN = (fraction_RN * shape.per_region).astype(np.int32)
    sparse_RN += np.arange(shape.regions, dtype=np.int32)[:, None] * np.int32(shape.per_region)
    dense_ND = np.ascontiguousarray(words_NW[:, shape.regions :]).view(np.uint8)[:, :dense_bytes].copy()
    dense_ND[:, -1] &= np.uint8((1 << (shape.dense - 1) % 8 + 1) - 1)
    return Probes(sparse_RN=sparse_RN, dense_ND=dense_ND)


def looked_up(slots_MV: Words, at: Probes, shape: StoreShape) -> Words:
    """Return the value at each probe (N, V). It is linear in the slots, so ``slots_MV`` may be a store or any other rows."""
    value_NV: Words = np.zeros((len(at.dense_ND), slots_MV.shape[1]), dtype=np.uint64)
    added_NV = np.empty_like(value_NV)
    for sparse_N in at.sparse_RN:
        np.take(slots_MV, sparse_N, axis=0, out=added_NV, mode="clip")
        value_NV ^= added_NV
    # Dense slots are added in groups of eight; all 256 sums of a group are computed first.
    dense_DV = slots_MV[shape.slots - shape.dense : shape.slots]
    sums_SV = np.zeros((256, value_NV.shape[1]), dtype=np.uint64)
    for group, which_N in enumerate(at.dense_ND.T):
        for place, row_V in enumerate(dense_DV[8 * group : 8 * group + 8]):
            np.bitwise_xor(sums_SV[: 1 << place], row_V, out=sums_SV[1 << place : 2 << place])
        np.take(sums_SV, which_N, axis=0, out=added_NV, mode="clip")
        value_NV ^= added_NV
    return value_NV


def store_of(value_NV: Words, at: Probes, shape: StoreShape) -> Words:
    """Return slots (M, V) that give every probe its value. Slots that no probe needs are 0.

    Raises NoStore if these keys have no store, or if too many of them depend on each other.
    """
    if shape.tight:
        return _eliminated(value_NV, at, shape)
    slots_MV = np.zeros((shape.slots, value_NV.shape[1]), dtype=np.uint64)
    rounds, left_K = _put_aside(at.sparse_RN, slots=shape.slots)
    if len(left_K) > MOST_LEFT:
        raise NoStore(f"{len(left_K)} of {len(value_NV)} keys have no slot to themselves")
    for slot, value in _solved(value_NV[left_K], at.of(left_K), first_dense=shape.slots - DENSE).items():
        slots_MV[slot] = [value >> (64 * word) & _WORD for word in range(value_NV.shape[1])]
    for own_K, keys_K in reversed(rounds):
        # A key's own slot is still 0, no other key of this round has it, and all its other slots are final.
        slots_MV[own_K] = looked_up(slots_MV, at.of(keys_K), shape) ^ value_NV[keys_K]
    return slots_MV


def _eliminated(value_NV: Words, at: Probes, shape: StoreShape) -> Words:
    """Solve all equations by Gauss and Jordan's elimination, eight slots at a time (the method of the four Russians).

    Each equation is a row of bits followed by its value. For every eight slots, the equations that determine one of them are
    selected. A byte for each equation says which of these to subtract, and the 256 sums of them are computed first.
    """
    keys, width = len(value_NV), -(-shape.slots // 64)
    bits_NB = np.zeros((keys, 8 * width), dtype=np.uint8)
    for sparse_N in at.sparse_RN:
        bits_NB[np.arange(keys), sparse_N // 8] |= np.uint8(1) << (sparse_N % 8).astype(np.uint8)
    dense_NS = np.unpackbits(at.dense_ND, axis=1, bitorder="little", count=shape.dense)
    first = shape.slots - shape.dense
    start = first // 8 * 8
    bits_NB[:, start // 8 : -(-shape.slots // 8)] |= np.packbits(
        np.pad(dense_NS, ((0, 0), (first - start, 0))), axis=1, bitorder="little"
    )
    rows_NW = np.concatenate((bits_NB.view("<u8"), value_NV), axis=1)
    slot_N = np.full(keys, -1, dtype=np.int64)
    for eight in range(-(-shape.slots // 8)):
        first_word = eight // 8  # earlier words hold slots that are already final, or 0
        byte_N = rows_NW[:, first_word].view("<u8") >> np.uint64(8 * (eight % 8)) & np.uint64(255)
        loses_N, taken_8W = np.zeros(keys, dtype=np.uint8), np.zeros((8, rows_NW.shape[1] - first_word), dtype=np.uint64)
        for place in range(8):
            has_N = (byte_N >> np.uint64(place) & np.uint64(1)).astype(bool)
            free = np.flatnonzero(has_N & (slot_N < 0))
            if not len(free):
                continue
            own, before = free[0], np.flatnonzero(np.unpackbits(loses_N[free[0]], bitorder="little"))
            rows_NW[own, first_word:] ^= np.bitwise_xor.reduce(taken_8W[before], axis=0)
            taken_8W[place], loses_N[own], slot_N[own] = rows_NW[own, first_word:], 0, 8 * eight + place
            has_N[own] = False
            byte_N[has_N] ^= byte_N[own]
            loses_N[has_N] ^= np.uint8(1 << place)
        sums_SW = np.zeros((256, taken_8W.shape[1]), dtype=np.uint64)
        for place, row_W in enumerate(taken_8W):
            np.bitwise_xor(sums_SW[: 1 << place], row_W, out=sums_SW[1 << place : 2 << place])
        rows_NW[:, first_word:] ^= sums_SW[loses_N]
    if (slot_N < 0).any():
        raise NoStore(f"{int((slot_N < 0).sum())} of {keys} keys depend on others")
    slots_MV = np.zeros((shape.slots, value_NV.shape[1]), dtype=np.uint64)
    slots_MV[slot_N] = rows_NW[:, width:]
    return slots_MV


def _put_aside(sparse_RN: Places, *, slots: int) -> tuple[list[tuple[Index, Index]], Index]:
    """Yield, round by round, slots that one key alone has, with these keys, and remove them. Return the remaining keys."""
    keys = sparse_RN.shape[1]
    count_M = np.bincount(sparse_RN.ravel(), minlength=slots)
    # The sum of the keys at a slot. If the slot has one key, the sum is that key.
    sum_M = np.zeros(slots, dtype=np.int64)
    for sparse_N in sparse_RN:
        np.add.at(sum_M, sparse_N, np.arange(keys))
    left_N = np.ones(keys, dtype=bool)
    rounds = []
    alone_K = np.flatnonzero(count_M == 1)
    while len(alone_K):
        keys_K, first = np.unique(sum_M[alone_K], return_index=True)
        rounds.append((alone_K[first], keys_K))
        left_N[keys_K] = False
        for sparse_K in sparse_RN[:, keys_K]:
            np.subtract.at(count_M, sparse_K, 1)
            np.subtract.at(sum_M, sparse_K, keys_K)
        touched = sparse_RN[:, keys_K].ravel()
        alone_K = np.unique(touched[count_M[touched] == 1])
    return rounds, np.flatnonzero(left_N)


def _solved(value_KV: Words, at: Probes, *, first_dense: int) -> dict[int, int]:
    """Return slots and their values that make these keys right if all other slots are 0, by Gauss and Jordan's elimination."""
    names = sorted({int(slot) for slot in at.sparse_RN.ravel()})
    number = {slot: place for place, slot in enumerate(names)}
    names += range(first_dense, first_dense + DENSE)
    rows: dict[int, tuple[int, int]] = {}
    for key, words in enumerate(value_KV.tolist()):
        equation = int.from_bytes(at.dense_ND[key].tobytes(), "little") << len(number)
        for slot in at.sparse_RN[:, key].tolist():
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
