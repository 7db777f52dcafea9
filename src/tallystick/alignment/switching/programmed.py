"""Give each bin a value on both sides, which are equal if the programming side has the id in the bin.

    side with a table, id x in bin j               side that programs, several ids in each bin
                                                   a random target s_j for each bin
    an oblivious pseudorandom function:    <->     F_j of every own id y in its three bins
    F_j(x)                                         a store of F_j(y) + s_j at every y, one for each piece of bins
    t_j = F_j(x) + the store at x          <-      the store
    t_j at random where bin j is empty

So t_j = s_j if x is one of the y. Programmable oblivious PRF: Kolesnikov, Matania, Pinkas, Rosulek and Trieu 2017 ("Practical
Multi-party Private Set Intersection from Symmetric-Key Techniques"); the function is that of ``oprf.extension``, the store that
of ``oprf.key_value``; + is exclusive or.

Threat model: honest but curious. Guarantee: the programming side learns nothing (``oprf.extension``). The side with a table sees
uniform bits: every value in a store is masked by its own F_j(y), or, at the one id where it knows F_j, by s_j. One set is drawn
from all slots that are right for uniform values, so the slots are uniform whatever the ids are. Chance of a wrong t_j = s_j:
2^-64 per bin.

Shapes: N ids of a table, M of the programming side; J bins; K ids of a piece; P pairs of an id and a bin.
"""

import math
from collections import deque
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import pairwise
from typing import Annotated

import msgspec
import numpy as np

from tallystick.alignment.exchange import receive_list, send_list
from tallystick.alignment.matching import Tags
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.bit_matrix import Words
from tallystick.alignment.oprf.codes import CODE_BITS, CODE_BYTES, REGIONS, Codes, Places
from tallystick.alignment.oprf.cuckoo import NoPlace, bins_per_region, place
from tallystick.alignment.oprf.extension import SALT_BYTES, Receiver, Sender, outputs
from tallystick.alignment.oprf.key_value import SEED_BYTES, NoStore, StoreShape, looked_up, probes, store_of
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.switching.shuffle import SwitchProgress
from tallystick.errors import DataError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

TABLES = STORES = 8
"""How many keys are tried for a table, and how many seeds for a store; even the first is not expected to fail."""
PIECE_BINS, PIECE_IDS = 16_384, 65_536
"""Greatest number of bins of a piece, and most ids of the programming side on average."""
AHEAD = 4
_HASHED_AT_ONCE = 16_384
_DEVIATIONS = 8
"""Standard deviations by which a piece's ids may exceed their mean. The chance that a piece exceeds them is 2^-49 or less."""
_VALUE_BYTES = 8
_CORRECTIONS, _SLOTS = "corrections of bins", "slots of a store"


class ProgrammedTable(Message, frozen=True):
    """The number of the key that gave the ids places in a table."""

    attempt: Annotated[int, msgspec.Meta(ge=0, lt=TABLES)]


class ProgrammedStore(Message, frozen=True):
    """The seed under which a piece's ids have a store."""

    seed: Annotated[bytes, msgspec.Meta(min_length=SEED_BYTES, max_length=SEED_BYTES)]


@dataclass(frozen=True, kw_only=True)
class Bins:
    """Public shape of the bins: how many a region has, in which pieces, and how many ids fit into a piece's store."""

    table_ids: int
    programmed_ids: int
    per_region: int = field(init=False)
    pieces: int = field(init=False)
    """Number of pieces of a region."""

    def __post_init__(self) -> None:
        per_region = bins_per_region(self.table_ids)
        object.__setattr__(self, "per_region", per_region)
        pieces = max(-(-per_region // PIECE_BINS), -(-self.programmed_ids // PIECE_IDS))
        object.__setattr__(self, "pieces", min(pieces, per_region))

    @property
    def count(self) -> int:
        """Count the programmed points of all regions."""
        return REGIONS * self.per_region

    def spans(self) -> list[slice]:
        """Cut a region into pieces of about equal size."""
        ends = [piece * self.per_region // self.pieces for piece in range(self.pieces + 1)]
        return [slice(start, end) for start, end in pairwise(ends)]

    def store(self, span: slice) -> StoreShape:
        """Return the shape of a piece's store."""
        mean = self.programmed_ids * (span.stop - span.start) / self.per_region
        return StoreShape(keys=min(self.programmed_ids, math.ceil(mean + _DEVIATIONS * math.sqrt(mean) + _DEVIATIONS**2)))


def receive_programmed(
    channel: Channel, ids_N16: Tags, bins: Bins, *, rng: SecureRandom, salt: bytes, progress: SwitchProgress
) -> tuple[Places, Words]:
    """Return the own id in each bin (J), -1 in an empty one, and t (J). This is the role of the side with a table.

    Raises ProtocolError for messages of other sizes, and DataError if no table is found, which does not happen by chance.
    """
    codes, table_J = _tabled(channel, ids_N16, bins, rng=rng, salt=salt)
    receiver = Receiver(*transfer_sender(channel, CODE_BITS, rng=rng, context=salt))
    value_J = np.frombuffer(rng.bytes(_VALUE_BYTES * bins.count), dtype="<u8").copy()
    waiting: deque[tuple[slice, Places, Tags, Words]] = deque()

    def take_store() -> None:
        span, slots_K, points_K16, function_K = waiting.popleft()
        shape = bins.store(span)
        at = probes(points_K16, shape, seed=channel.receive(ProgrammedStore).seed)
        slots_M8 = receive_list(channel, _SLOTS, shape.slots, shape=(_VALUE_BYTES,))
        value_J[slots_K] = function_K ^ looked_up(slots_M8.view("<u8"), at, shape)[:, 0]
        progress(span.stop - span.start)

    for region in range(REGIONS):
        for span in bins.spans():
            slots_B = np.arange(span.start, span.stop, dtype=np.int32) + np.int32(region * bins.per_region)
            filled_K = np.flatnonzero(table_J[slots_B] >= 0)
            points_K16 = ids_N16.take(table_J[slots_B[filled_K]], axis=0)
            # Any correction looks random to the other side, whatever replaces the id of an empty bin.
            code_B64 = np.zeros((len(slots_B), CODE_BYTES), dtype=np.uint8)
            code_B64[filled_K] = codes.words(points_K16)
            input_B64, correction_B64 = receiver.next_bins(code_B64)
            send_list(channel, _CORRECTIONS, correction_B64)
            function_K = _function(input_B64.take(filled_K, axis=0), slots_B[filled_K], salt=salt)
            waiting.append((span, slots_B[filled_K], points_K16, function_K))
            if len(waiting) > AHEAD:
                take_store()
    while waiting:
        take_store()
    return table_J, value_J


def program(channel: Channel, ids_M16: Tags, bins: Bins, *, rng: SecureRandom, salt: bytes, progress: SwitchProgress) -> Words:
    """Return s (J). This is the role of the side that programs. Raises ProtocolError for messages of other sizes."""
    codes = Codes(_key(salt, channel.receive(ProgrammedTable).attempt))
    choices_T = np.unpackbits(np.frombuffer(rng.bytes(CODE_BYTES), dtype=np.uint8)).astype(bool)
    sender = Sender(transfer_receiver(channel, choices_T, rng=rng, context=salt), choices_T)
    target_J = np.frombuffer(rng.bytes(_VALUE_BYTES * bins.count), dtype="<u8")
    for region, bins_M in enumerate(codes.bins(ids_M16, per_region=bins.per_region)):
        order_M = np.argsort(bins_M)
        ends = np.searchsorted(bins_M[order_M], [span.stop for span in bins.spans()]).tolist()
        for span, start, end in zip(bins.spans(), [0, *ends], ends, strict=False):
            correction_B64 = receive_list(channel, _CORRECTIONS, span.stop - span.start, shape=(CODE_BYTES,))
            secret_B64 = sender.next_bins(correction_B64)
            values, points_K16 = [np.empty(0, dtype=np.uint64)], ids_M16.take(order_M[start:end], axis=0)
            for first in range(start, end, _HASHED_AT_ONCE):
                own_P = order_M[first : min(first + _HASHED_AT_ONCE, end)]
                code_P64 = codes.words(ids_M16.take(own_P, axis=0))
                input_P64 = sender.inputs(secret_B64.take(bins_M[own_P] - span.start, axis=0), code_P64)
                slots_P = bins_M[own_P] + np.int32(region * bins.per_region)
                values.append(_function(input_P64, slots_P, salt=salt) ^ target_J[slots_P])
            seed, slots_M1 = _stored(np.concatenate(values), points_K16, bins.store(span), rng=rng)
            channel.send(ProgrammedStore(seed=seed))
            send_list(channel, _SLOTS, slots_M1.view(np.uint8))
            progress(span.stop - span.start)
    return target_J


def _stored(value_K: Words, points_K16: Tags, shape: StoreShape, *, rng: SecureRandom) -> tuple[bytes, Words]:
    """Return a seed under which these ids have a store, and slots (., 1), drawn from all that are right for these values."""
    if len(value_K) <= shape.keys:
        for _ in range(STORES):
            seed = rng.bytes(SEED_BYTES)
            at = probes(points_K16, shape, seed=seed)
            random_M1 = np.frombuffer(rng.bytes(_VALUE_BYTES * shape.slots), dtype="<u8").reshape(-1, 1)
            try:
                # Random slots, corrected by a linear function of what they lack: uniform among the right ones.
                return seed, random_M1 ^ store_of(value_K[:, None] ^ looked_up(random_M1, at, shape), at, shape)
            except NoStore:
                continue
    raise DataError(
        f"{len(value_K)} ids of this side found no place in a store for {shape.keys}, which does not happen by chance; agree on "
        "alignment.protocol: diffie-hellman in the contract, and report this"
    )


def _tabled(channel: Channel, ids_N16: Tags, bins: Bins, *, rng: SecureRandom, salt: bytes) -> tuple[Codes, Places]:
    """Return the first key that gives all ids a place, and the table. The other side is sent the key's number."""
    generator = np.random.default_rng(int.from_bytes(rng.bytes(16), "little"))
    for attempt in range(TABLES):
        codes = Codes(_key(salt, attempt))
        try:
            table_J = place(codes.bins(ids_N16, per_region=bins.per_region), per_region=bins.per_region, generator=generator)
        except NoPlace:
            continue
        channel.send(ProgrammedTable(attempt=attempt))
        return codes, table_J
    raise DataError(
        f"the {len(ids_N16)} ids of this side found no places in {TABLES} cuckoo tables, which does not happen by chance; "
        "agree on alignment.protocol: diffie-hellman in the contract, and report this"
    )


def _function(input_P64: Tags, slots_P: Places, *, salt: bytes) -> Words:
    return outputs(input_P64, slots_P, salt=salt[:SALT_BYTES], size=_VALUE_BYTES).view("<u8")[:, 0]


def _key(salt: bytes, attempt: int) -> bytes:
    return blake2b(salt + b"%d" % attempt, digest_size=16, person=b"tallystick bins").digest()
