"""Find two sides' common ids by an oblivious pseudorandom function F, at the speed of hashing.

    label party                                    feature party
    a commitment, later opened             <->     a coin: together the key of buckets, code words and bins
    512 base transfers: both seeds         <->     one seed of each, as its secret choices say
    for each bucket of ids (buckets.py):
    its ids in a cuckoo table
    corrections, a row for each bin        ->      the secret of each bin
    F at the id of each bin                <-      F at every own id in its three bins, in one secret order
    equal outputs: same id
    at the end, with places of common ids, a proof:    ->      does the label party have these ids?
    one hash of them all

It takes 512 public-key operations, for any number of ids, and only hashing for the rest. A million ids on either side take 114 MB
of messages.

- Outputs are cut to 40 + log2(|A| |B|) bits, so a wrong match has a chance of 2^-40. The label party lacks at least 128 bits of
  the hashed input, except at its own id.
- The table has three regions, of 1.31 bins for each of 260,000 ids and of more for few. If there is no table, the next key is
  tried, and the feature party sees that. The chance of no table is below 2^-40: a test sums it for small obstacles; for large
  ones a limit theorem and trials show it (``oprf.cuckoo``).
- The order is the same in all three regions. Which of its bins held a common id would reveal something about the label party's
  other ids, so the label party names a place only, never the region.
- The proof prevents the label party from claiming a match. One wrong guess ends the run.
- Nothing checks the corrections. A label party that flips bits in them learns the secret choices, unnoticed, from a dozen ids
  that it knows to be common. Then it can test any guess at the feature party's ids.
- Reads at secret places do not take constant time, in the process of the secret's owner.

Shapes: N ids of the label party, M of the feature party; K common ids; S bytes of an output; P pairs of an id and a bin.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from typing import Annotated

import msgspec
import numpy as np

from tallystick.alignment.buckets import Buckets, Split, TakenUp, require_bucket, take_up
from tallystick.alignment.coin_toss import toss
from tallystick.alignment.exchange import Chunk, receive_chunk
from tallystick.alignment.matching import Index, Tags, are_distinct_indices
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.codes import CODE_BITS, CODE_BYTES, FINGERPRINT_BYTES, REGIONS, Codes, Places
from tallystick.alignment.oprf.cuckoo import NoPlace, bins_per_region, place
from tallystick.alignment.oprf.extension import SALT_BYTES, Receiver, Sender, outputs
from tallystick.alignment.oprf.lookup import Lookup
from tallystick.alignment.pairwise import PLACES, Answer, Match, Side
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel, Progress
from tallystick.network.messages import Array, Message

BUCKET_IDS = 262_144
"""Average number of ids per bucket on the larger side. The memory of a bucket is freed before the next one."""
TABLES = 8
"""How many keys are tried for a table; even the first is not expected to fail."""
PIECE_BINS = 8192
PIECE_IDS = 32_768
AHEAD = 8
"""How many pieces the label party sends before it waits for outputs."""
_STATISTICAL_BITS = 40
_WHAT = "private set intersection"
_CORRECTIONS = "corrections"
_OUTPUTS = "outputs"
PROOF_BYTES = 32


class Table(Message, frozen=True):
    """Sent by the label party, for each bucket: the number of the key that gave its ids places in a table."""

    bucket: Annotated[int, msgspec.Meta(ge=0)]
    attempt: Annotated[int, msgspec.Meta(ge=0, lt=TABLES)]


class Proof(Message, frozen=True):
    """Sent by the label party: a hash, under this run's key, of the ids at the places of the joint rows."""

    digest: Annotated[bytes, msgspec.Meta(min_length=PROOF_BYTES, max_length=PROOF_BYTES)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Public shape of a bucket: its numbers of bins and outputs, and the pieces in which they cross.

    Args:
        label_ids: how many ids of the label party fit.
        feature_ids: how many ids the feature party answers for, including made-up ones.
        buckets: how many buckets have this shape.
    """

    label_ids: int
    feature_ids: int
    buckets: int = 1
    per_region: int = field(init=False)
    output_bytes: int = field(init=False)
    pieces: int = field(init=False)
    """Pieces of a region, for corrections and for outputs."""

    def __post_init__(self) -> None:
        bits = _STATISTICAL_BITS + math.ceil(math.log2(self.buckets * self.label_ids * self.feature_ids))
        object.__setattr__(self, "per_region", bins_per_region(self.label_ids))
        object.__setattr__(self, "output_bytes", max(-(-bits // 8), 8))
        object.__setattr__(self, "pieces", max(-(-self.per_region // PIECE_BINS), -(-self.feature_ids // PIECE_IDS)))

    @classmethod
    def of(cls, buckets: Buckets) -> "Shape":
        """Return the shape that all of these buckets have."""
        label, feature = buckets.room(buckets.label_ids), buckets.room(buckets.feature_ids)
        return cls(label_ids=label, feature_ids=feature, buckets=buckets.count)

    def spans(self, count: int) -> list[slice]:
        """Cut ``count`` rows of a region into its pieces. The last piece may be shorter, or empty."""
        width = self.width(count)
        return [slice(min(start, count), min(start + width, count)) for start in range(0, self.pieces * width, width)]

    def width(self, count: int) -> int:
        """Return how many of ``count`` rows a piece has."""
        return -(-count // self.pieces)


def match_by_oprf(side: Side, channels: Sequence[Channel], sizes: Sequence[int]) -> tuple[list[Match], int]:
    """Find the common ids with each feature party, as the label party.

    Private set intersection by an oblivious pseudorandom function (Kolesnikov, Kumaresan, Rosulek and Trieu 2016, section 5);
    with more than some 260,000 ids it runs bucket by bucket.

    Threat model: honest-but-curious peers, alone or together. Guarantee: under computational Diffie-Hellman on ristretto255,
    AES-128 as a pseudorandom function and BLAKE2b as a random oracle, nothing is learnt beyond the common ids. A wrong match has
    a chance of 2^-40. Not protected: any side may lie about its ids. A feature party that deviates may ask for three ids instead
    of one. A label party that deviates may learn the secret choices, and so other ids. A label party cannot claim a match that it
    does not have. Each side may fill the room of buckets beyond the ids that it announced: 1.02 times as many. The label party
    may also fill its empty bins: 1.34 times as many, and 13.6 times for 1,000 ids against ten million. If an alignment is
    resumed, a side may run a bucket again with other ids.

    Raises ProtocolError, which names peer and step, if a peer breaks the protocol.

    Returns:
        The matches, and the number of scalar multiplications.
    """
    buckets_of_peer = [Buckets(label_ids=len(side), feature_ids=size, per_bucket=BUCKET_IDS) for size in sizes]
    counter = _Counter(side.local.progress, [Shape.of(buckets) for buckets in buckets_of_peer])
    matches = []
    for channel, buckets in zip(channels, buckets_of_peer, strict=True):
        shape, taken_up = Shape.of(buckets), _taken_up(side, channel, buckets, leads=True)
        rows, places = [], []
        for bucket, kept in enumerate(taken_up.kept()):
            rows.append(kept["rows"])
            places.append(kept["places"] + np.int32(bucket * shape.feature_ids))
        counter.buckets(taken_up.first)
        if taken_up.first < buckets.count:
            split = _split(side, taken_up.key, buckets, room=shape.label_ids)
            # One batch of base transfers for all buckets, which are parts of one extension, each with its own salt.
            receiver = Receiver(*transfer_sender(channel, CODE_BITS, rng=side.rng))
        for bucket in range(taken_up.first, buckets.count):
            own_B = split.rows(bucket)
            own_K, place_K = _match_bucket(side, channel, shape, bucket, own_B, receiver, key=taken_up.key, counter=counter)
            taken_up.keep(bucket, rows=own_B[own_K], places=place_K)
            rows.append(own_B[own_K])
            places.append(place_K + np.int32(bucket * shape.feature_ids))
        rows_K, places_K = (np.concatenate(each).astype(np.int64) for each in (rows, places))
        prove = partial(_prove, channel, side.prints_N16, taken_up.key)
        matches.append(Match(own_K=rows_K, place_K=places_K, prove=prove))
    return matches, len(channels) * (2 * CODE_BITS + 1)


def answer_by_oprf(side: Side, channel: Channel, size: int, *, one_of_several: bool) -> tuple[Answer, int]:  # noqa: ARG001
    """Let the label party find the common ids. This is a feature party's role. Return also the number of scalar multiplications.

    Threat model, guarantee and errors as for match_by_oprf. As one of several feature parties this side does not
    learn its intersection with the label party alone.
    """
    buckets = Buckets(label_ids=size, feature_ids=len(side), per_bucket=BUCKET_IDS)
    shape, taken_up = Shape.of(buckets), _taken_up(side, channel, buckets, leads=False)
    counter = _Counter(side.local.progress, [shape], completed=taken_up.first)
    orders = [kept["rows"] for kept in taken_up.kept()]
    if taken_up.first < buckets.count:
        split = _split(side, taken_up.key, buckets, room=shape.feature_ids)
        choices_T = np.unpackbits(np.frombuffer(side.rng.bytes(CODE_BYTES), dtype=np.uint8)).astype(bool)
        sender = Sender(transfer_receiver(channel, choices_T, rng=side.rng), choices_T)
    for bucket in range(taken_up.first, buckets.count):
        # Own row and fingerprint at each place of the bucket (M,), in a secret order, because the label party learns which places
        # match, and in any other order these would reveal something about the ids between. Unused room holds -1 and a made-up
        # fingerprint, which is random and so equals no id's. Its function values look like the others.
        own_B, room = split.rows(bucket), shape.feature_ids
        place_B = side.rng.permutation(room)[: len(own_B)]
        row_M = np.full(room, -1, dtype=np.int32)
        row_M[place_B] = own_B
        made_up = side.rng.bytes(FINGERPRINT_BYTES * room)
        prints_M16 = np.frombuffer(made_up, dtype=np.uint8).reshape(room, FINGERPRINT_BYTES).copy()
        prints_M16[place_B] = side.prints_N16.take(own_B, axis=0)
        _answer(channel, shape, bucket, prints_M16, sender, key=taken_up.key, counter=counter)
        taken_up.keep(bucket, rows=row_M)
        orders.append(row_M)
    order_N = np.concatenate(orders)
    return Answer(order_N=order_N, check=partial(_check_proof, channel, side.prints_N16, order_N, taken_up.key)), 2 * CODE_BITS


def _taken_up(side: Side, channel: Channel, buckets: Buckets, *, leads: bool) -> TakenUp:
    return take_up(
        channel,
        buckets,
        side.local.stored(channel.peer),
        prints_N16=side.prints_N16,
        protocol=b"oblivious-transfer",
        agree=partial(toss, channel, side.rng, leads=leads),
        say=side.local.say,
    )


def _split(side: Side, key: bytes, buckets: Buckets, *, room: int) -> Split:
    """Put own ids into buckets, by AES-128 under a key from both sides' coins."""
    bucket_N, codes = np.zeros(len(side), dtype=np.int32), Codes(_derived(key, b"buckets"))
    for start in range(0, len(bucket_N) if buckets.count > 1 else 0, PIECE_IDS):
        piece = slice(start, start + PIECE_IDS)
        bucket_N[piece] = codes.bins(side.prints_N16[piece], per_region=buckets.count)[0]
    return Split.by(bucket_N, count=buckets.count, room=room)


def _match_bucket(
    side: Side, channel: Channel, shape: Shape, bucket: int, own_B: Index, receiver: Receiver, *, key: bytes, counter: "_Counter"
) -> tuple[Index, Places]:
    """Return which ids of a bucket the feature party has as well, and their places in its order.

    This is the label party's side: corrections are sent a piece at a time, and outputs that arrive some pieces later are looked
    up.
    """
    prints_B16, salt = side.prints_N16.take(own_B, axis=0), _salt(key, bucket)
    codes, attempt, table = _tabled(key, bucket, prints_B16, shape, rng=side.rng)
    channel.send(Table(bucket=bucket, attempt=attempt))
    lookups = [Lookup(shape.output_bytes) for _ in range(REGIONS)]
    places = []
    steps, behind = REGIONS * shape.pieces, shape.pieces + AHEAD
    for step in range(steps + behind):
        if step < steps:
            region, piece = divmod(step, shape.pieces)
            span = shape.spans(shape.per_region)[piece]
            slots_B = np.arange(span.start, span.stop, dtype=np.int32) + np.int32(region * shape.per_region)
            rows_B = table[slots_B]
            filled_F = np.flatnonzero(rows_B >= 0)
            # The stand-in for the id of an empty bin does not matter: any correction looks random to the feature party.
            code_B64 = np.zeros((len(slots_B), CODE_BYTES), dtype=np.uint8)
            code_B64[filled_F] = codes.words(prints_B16.take(rows_B[filled_F], axis=0))
            input_B64, correction_B64 = receiver.next_bins(code_B64)
            _send_piece(channel, _CORRECTIONS, correction_B64)
            output_FS = outputs(input_B64.take(filled_F, axis=0), slots_B[filled_F], salt=salt, size=shape.output_bytes)
            lookups[region].add(output_FS, rows_B[filled_F])
            counter.bins(len(slots_B))
        if step >= behind:
            region, piece = divmod(step - behind, shape.pieces)
            span = shape.spans(shape.feature_ids)[piece]
            rows_K, index_K = lookups[region].find(_receive_piece(channel, _OUTPUTS, span, width=shape.output_bytes))
            places.append((rows_K, index_K + span.start))
            if piece == shape.pieces - 1:
                lookups[region] = Lookup(shape.output_bytes)  # its memory is freed for the next region
    own_K, place_K = (np.concatenate(each).astype(np.int64, copy=False) for each in zip(*places, strict=True))
    if not (are_distinct_indices(own_K, len(prints_B16)) and are_distinct_indices(place_K, shape.feature_ids)):
        raise ProtocolError(channel.peer, f"{channel.peer} sent {_OUTPUTS!r} that match an id twice; its ids must be unique")
    counter.buckets(1)
    return own_K, place_K.astype(np.int32)


def _answer(
    channel: Channel, shape: Shape, bucket: int, prints_M16: Tags, sender: Sender, *, key: bytes, counter: "_Counter"
) -> None:
    """Send the function's values at every id of a bucket in its three bins, in the order of ``prints_M16``."""
    table = channel.receive(Table)
    require_bucket(channel, table.bucket, bucket)
    salt, codes = _salt(key, bucket), Codes(_key(key, bucket, table.attempt))
    bins_3M = codes.bins(prints_M16, per_region=shape.per_region)
    ready = np.empty((0, shape.output_bytes), dtype=np.uint8)
    for region in range(REGIONS + 1):
        filling = np.empty((shape.feature_ids if region < REGIONS else 0, shape.output_bytes), dtype=np.uint8)
        members = _members(bins_3M[region], shape) if region < REGIONS else iter(())
        for bins, ids in zip(shape.spans(shape.per_region), shape.spans(shape.feature_ids), strict=True):
            if region < REGIONS:
                correction_B64 = _receive_piece(channel, _CORRECTIONS, bins, width=CODE_BYTES)
                secret_B64 = sender.next_bins(correction_B64)
                for members_P in next(members):
                    bins_P = bins_3M[region, members_P]
                    code_P64 = codes.words(prints_M16.take(members_P, axis=0))
                    input_P64 = sender.inputs(secret_B64.take(bins_P - bins.start, axis=0), code_P64)
                    slots_P = bins_P + np.int32(region * shape.per_region)
                    filling[members_P] = outputs(input_P64, slots_P, salt=salt, size=shape.output_bytes)
                counter.bins(len(secret_B64))
            if region > 0:
                # The last region's outputs are sent while this region is computed.
                _send_piece(channel, _OUTPUTS, ready[ids])
        ready = filling
    counter.buckets(1)


def _members(bins_M: Places, shape: Shape) -> Iterator[Iterator[Places]]:
    """Yield, for each piece of a region, the ids whose bins are in it, some at a time."""
    piece_M = (bins_M // shape.width(shape.per_region)).astype(np.min_scalar_type(shape.pieces))
    order_M = np.argsort(piece_M, kind="stable").astype(np.int32)
    ends = np.cumsum(np.bincount(piece_M, minlength=shape.pieces)).tolist()
    for start, end in zip([0, *ends], ends, strict=False):
        yield (order_M[first : min(first + PIECE_IDS, end)] for first in range(start, end, PIECE_IDS))


def _tabled(key: bytes, bucket: int, prints_N16: Tags, shape: Shape, *, rng: SecureRandom) -> tuple[Codes, int, Places]:
    """Return the first key that gives all ids a place, its number, and the table."""
    generator = np.random.default_rng(int.from_bytes(rng.bytes(16), "little"))
    for attempt in range(TABLES):
        codes = Codes(_key(key, bucket, attempt))
        bins_3N = codes.bins(prints_N16, per_region=shape.per_region)
        try:
            return codes, attempt, place(bins_3N, per_region=shape.per_region, generator=generator)
        except NoPlace:
            continue
    raise DataError(
        f"the {len(prints_N16)} ids of this side found no places in {TABLES} cuckoo tables, which does not happen by chance; "
        "agree on alignment.protocol: diffie-hellman in the contract, and report this"
    )


def _prove(channel: Channel, prints_N16: Tags, key: bytes, rows_K: Index) -> None:
    channel.send(Proof(digest=_proof(key, prints_N16.take(rows_K, axis=0))))


def _check_proof(channel: Channel, prints_N16: Tags, order_N: Index, key: bytes, place_K: Index) -> None:
    """Refuse places unless the label party proves that it found the ids there among its own."""
    if channel.receive(Proof).digest != _proof(key, prints_N16.take(order_N[place_K], axis=0)):
        raise ProtocolError(channel.peer, f"{channel.peer} sent a proof that is not that of the ids at {PLACES!r}")


def _proof(key: bytes, prints_K16: Tags) -> bytes:
    digest = blake2b(_derived(key, b"proof"), digest_size=PROOF_BYTES, person=b"tallystick proof")
    digest.update(np.ascontiguousarray(prints_K16).data)
    return digest.digest()


def _key(key: bytes, bucket: int, attempt: int) -> bytes:
    return _derived(key, b"codes %d of bucket %d" % (attempt, bucket))


def _salt(key: bytes, bucket: int) -> bytes:
    return _derived(key, b"salt of bucket %d" % bucket)


def _derived(key: bytes, use: bytes) -> bytes:
    return blake2b(key + use, digest_size=SALT_BYTES, person=b"tallystick key").digest()


def _send_piece(channel: Channel, of: str, rows: Tags) -> None:
    if len(rows):
        channel.send(Chunk(of=of, rows=Array.of(rows)))


def _receive_piece(channel: Channel, of: str, span: slice, *, width: int) -> Tags:
    if span.start == span.stop:
        return np.empty((0, width), dtype=np.uint8)
    return receive_chunk(channel, of, span, (width,), np.uint8)


class _Counter:
    """A counter that tells ``progress`` how many bins are done, or how many buckets if there are several."""

    def __init__(self, progress: Progress, shapes: Sequence[Shape], *, completed: int = 0) -> None:
        self._several = any(shape.buckets > 1 for shape in shapes)
        self._what = f"{_WHAT}, buckets" if self._several else _WHAT
        self._total = sum(shape.buckets if self._several else REGIONS * shape.per_region for shape in shapes)
        self._progress, self._done = progress, 0
        self.buckets(completed)

    def bins(self, count: int) -> None:
        """Count these bins as done."""
        self._more(0 if self._several else count)

    def buckets(self, count: int) -> None:
        """Count these buckets as done."""
        self._more(count if self._several else 0)

    def _more(self, count: int) -> None:
        if count:
            self._done += count
            self._progress(self._what, self._done, self._total)
