"""Find two sides' common ids against a side that deviates as it likes: one function per side, and tags that need both.

    label party                                    feature party
    a commitment, later opened             <->     a coin: together the salt of all hashes
    base transfers, both ways              <->     each side's secret choices s, of the other's function
    for each bucket of ids, both ways:
    corrections of a store of its ids      <->     the same: each side now has a function F of the other's,
    a check that they are code words       <->     known at the ids of its own store only
                           tag of z: H(z, F_label(z), F_feature(z)), a half for each side
    a commitment to its halves             <->     the same                    } with several feature parties
    its halves, sorted                     ->      equal ones: the common ids  } the other column only
    equal ones: the common ids             <-      its halves, sorted

The feature party knows F_label at any id, because it has the choices; the label party knows it at its own ids. For F_feature it
is the other way round. So each side can make the tag of an id only if the id was in its store, and it filled its store before it
could know which ids are common. Therefore each side can trust its own result, and the two directions need not be compared.

Both lists are cut into buckets by a public hash, and stores are made bucket by bucket. The shorter list is cut no further than
necessary, and one of its stores covers several buckets: a cheater can fill only a store's spare slots with ids beyond those that
it announced (``most_ids``).

Each side commits to its tags before it sees any, and keeps both commitments. An alignment that breaks after that goes on with the
same tags or ends, so no side can choose its matches when it knows them.

The security rests on these parts, in the order in which an auditor may read them:

- base transfers (``oprf.base_transfers``);
- the code (``oprf.linear_code``): two words differ in 128 places or more. This is a theorem, and tests check it;
- the check (``oprf.checked_extension``): a cheater passes with a chance below 2^-97, except for bits that it guesses. Each wrong
  column passes with a chance of one half and reveals one bit, and 128 bits are needed;
- the store (``oprf.key_value``): an honest side finds none with a chance below 2^-40; a test sums it over all sizes of sets. A
  limit theorem and trials show that elimination never has more than 2,000 ids left;
- the tags: a party that did not store the id lacks 128 bits of the input. A wrong match has a chance below 2^-40 for up to 2^44
  ids on either side.

AES-128, BLAKE2b, GHASH and the group are those of OpenSSL, hashlib and libsodium. Reads at secret places do not take constant
time, in the process of the secret's owner. How long a side takes to find its store depends on its ids, and is not hidden.

Shapes: N ids of this side; B of them in a bucket; M slots of a store; K common ids.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from hashlib import blake2b
from typing import Annotated

import msgspec
import numpy as np

from tallystick.alignment.buckets import Buckets, Settled, Split, TakenUp, require_bucket, take_up
from tallystick.alignment.coin_toss import Coin, toss
from tallystick.alignment.exchange import ChunkRows, chunks, exchange, receive_list, send_list
from tallystick.alignment.hashing import hash_each
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import TAG_BYTES, Index, Tags, sorted_order
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.bit_matrix import Words
from tallystick.alignment.oprf.checked_extension import (
    ANSWER_ROWS,
    CHECK_KEY_BYTES,
    HASH_BYTES,
    CheckedReceiver,
    CheckedSender,
    column_words,
)
from tallystick.alignment.oprf.key_value import MOST_TIGHT, SEED_BYTES, NoStore, StoreShape, looked_up, probes, store_of
from tallystick.alignment.oprf.linear_code import COLUMNS
from tallystick.alignment.oprf.lookup import Lookup
from tallystick.alignment.pairwise import PLACES, Answer, Match, Side
from tallystick.alignment.psi_oprf import PROOF_BYTES, Proof
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

BUCKET_IDS = 65_536
"""Average number of ids per bucket on the larger side. The memory of a bucket is freed before the next one."""
HASHED_BYTES = 40
"""Bytes of an id's hash: 24 are the data at its slots (162 bits are used), and 16 choose the slots."""
_POINT_BYTES = 16
_STORES = 8
_PIECE_BYTES = 256
_HASHED_AT_ONCE = 16_384
_WHAT = "private set intersection"
_CORRECTIONS, _ANSWER = "corrections of the store", "hashes of columns"
_LABEL_TAGS, _FEATURE_TAGS = "label party's tags", "feature party's tags"


class StoreSeed(Message, frozen=True):
    """Sent by each side, for each bucket: the seed under which its ids have a store."""

    bucket: Annotated[int, msgspec.Meta(ge=0)]
    seed: Annotated[bytes, msgspec.Meta(min_length=SEED_BYTES, max_length=SEED_BYTES)]


class CheckKey(Message, frozen=True):
    """Sent by each side when it has the other's corrections of a bucket: the key of the hash that checks them."""

    key: Annotated[bytes, msgspec.Meta(min_length=CHECK_KEY_BYTES, max_length=CHECK_KEY_BYTES)]


def buckets_of(label_ids: int, feature_ids: int) -> Buckets:
    """Cut two lists into buckets, the shorter one no further than necessary, so that its stores have little room
    beyond its ids.
    """
    return Buckets(label_ids=label_ids, feature_ids=feature_ids, per_bucket=BUCKET_IDS, nested=True)


def store_shape(buckets: Buckets, ids: int) -> StoreShape:
    """Return the shape of each store of a side that has this many ids."""
    room = buckets.room(ids)
    return StoreShape(keys=room, tight=room <= MOST_TIGHT)


def most_ids(ids: int, others: int) -> int:
    """Bound how many chosen ids a side can bring if it announced ``ids`` and its peer ``others``: as many as its stores have
    slots.
    """
    buckets = buckets_of(ids, others)
    return buckets.parts(ids) * store_shape(buckets, ids).slots


def match_against_cheaters(side: Side, channels: Sequence[Channel], sizes: Sequence[int]) -> tuple[list[Match], int]:
    """Find the common ids with each feature party, as the label party.

    Private set intersection by a key-value store and oblivious transfer extension with a linear code, secure against malicious
    peers (Pinkas, Rosulek, Trieu and Yanai 2020, "PSI from PaXoS"), run in both directions, with tags that need both functions.

    Threat model: peers that deviate as they like, alone or together. Guarantee: under computational Diffie-Hellman on
    ristretto255, AES-128 as a pseudorandom function and BLAKE2b as a random oracle, each side learns which of the ids in its
    store the other brought, and nothing else. Each side's common ids are ones that the other brought. The other committed to them
    before it knew any common id, even if the alignment breaks and is resumed. No independent party has reviewed this. Not
    protected: any side may lie about its ids, and bring some more than it says (``most_ids`` is the bound). It may end the run
    when it knows its outcome, and bring other ids to a new one. With several feature parties the label party may leave out
    matches.

    Raises ProtocolError, which names peer and step, if a peer breaks the protocol.

    Returns:
        The matches, and the number of scalar multiplications.
    """
    matches = []
    for channel, size in zip(channels, sizes, strict=True):
        (own_N16, their_N16), taken_up = _tags(side, channel, size, leads=True)
        # With several feature parties this side shows no tags.
        own_sorted = own_N16[sorted_order(own_N16)] if len(channels) == 1 else None
        commitment = taken_up.settle(channel, side.rng, own=own_sorted, from_peer=True)
        if own_sorted is not None:
            send_list(channel, _LABEL_TAGS, own_sorted)
            channel.send(Coin(coin=commitment.coin))
        own_K, place_K = _common(their_N16, _receive_tags(channel, _FEATURE_TAGS, size, commitment))
        matches.append(Match(own_K=own_K, place_K=place_K, prove=partial(_prove, channel, own_N16, taken_up.key)))
    return matches, len(channels) * (3 * COLUMNS + 2)


def answer_against_cheaters(side: Side, channel: Channel, size: int, *, one_of_several: bool) -> tuple[Answer, int]:
    """Find the common ids with the label party. This is a feature party's role.

    Protocol, threat model, guarantee and errors as for match_against_cheaters. As one of several feature parties this side learns
    only about the joint ids: the label party proves by their tags that it brought them, and may leave some out.

    Returns:
        The answer, and the number of scalar multiplications.
    """
    (their_N16, own_N16), taken_up = _tags(side, channel, size, leads=False)
    # The order looks random to the label party, so a position reveals nothing about a row.
    order_N = sorted_order(own_N16)
    own_N16, their_N16 = own_N16[order_N], their_N16[order_N]
    commitment = taken_up.settle(channel, side.rng, own=own_N16, from_peer=not one_of_several)
    common_K = None
    if not one_of_several:
        common_K, _ = _common(their_N16, _receive_tags(channel, _LABEL_TAGS, size, commitment))
    send_list(channel, _FEATURE_TAGS, own_N16)
    channel.send(Coin(coin=commitment.coin))
    check = partial(_check_places, channel, common_K, their_N16, taken_up.key)
    return Answer(order_N=order_N, check=check), 3 * COLUMNS + 2


def pseudonyms(side: Side, channel: Channel, size: int, *, leads: bool) -> tuple[Tags, bytes]:
    """Return half of every own id's tag (N, 16), which a side can make only for an id that it brought, and the salt.

    Threat model and errors as for match_against_cheaters; the peer has ``size`` ids, and ``leads`` is the label party.
    """
    (label_N16, _), taken_up = _tags(side, channel, size, leads=leads)
    return label_N16, taken_up.key


def _tags(side: Side, channel: Channel, size: int, *, leads: bool) -> tuple[tuple[Tags, Tags], TakenUp]:
    """Return both halves of every own id's tag (N, 16), the label party's first. With ``leads``, act as the label party."""
    label_ids, feature_ids = (len(side), size) if leads else (size, len(side))
    buckets = buckets_of(label_ids, feature_ids)
    taken_up = take_up(
        channel,
        buckets,
        side.local.stored(channel.peer),
        prints_N16=side.prints_N16,
        protocol=b"malicious",
        agree=partial(toss, channel, side.rng, leads=leads),
        say=side.local.say,
    )
    halves = np.empty((2, len(side), TAG_BYTES), dtype=np.uint8)
    for kept in taken_up.kept():
        halves[:, kept["rows"]] = kept["halves"]
    if taken_up.first == buckets.count:
        return (halves[0], halves[1]), taken_up
    salt = taken_up.key
    hashed_N40 = _hashed(side.ids, salt)
    own_store, their_store = store_shape(buckets, len(side)), store_shape(buckets, size)
    own_span, their_span = buckets.span_of(len(side)), buckets.span_of(size)
    split = _in_buckets(hashed_N40, buckets.count, room=own_store.keys, span=own_span)
    receiver, sender = _extensions(channel, salt, side.rng, leads=leads)
    for bucket in range(taken_up.first, buckets.count):
        brings, takes = bucket % own_span == 0, bucket % their_span == 0
        if brings:
            own_seed, slots_M3 = _stored(hashed_N40[split.rows(bucket, span=own_span)], own_store, rng=side.rng)
            channel.send(StoreSeed(bucket=bucket, seed=own_seed))
        if takes:
            their_seed = channel.receive(StoreSeed)
            require_bucket(channel, their_seed.bucket, bucket)
        own_TW = receiver.next_slots(slots_M3, rng=side.rng) if brings else None
        their_TW = _correct(channel, own_TW, column_words(their_store.slots) if takes else 0)
        if takes:
            sender.next_slots(their_TW)
        _check(channel, receiver if brings else None, sender if takes else None, rng=side.rng)
        if brings:
            own_M10 = receiver.inputs(own_store.slots)
        if takes:
            their_M10 = sender.secrets(their_store.slots)
        own_B = split.rows(bucket)
        hashed_B40 = hashed_N40[own_B]
        data_B3, point_B16 = _parts(hashed_B40)
        own_B10 = looked_up(own_M10, probes(point_B16, own_store, seed=own_seed), own_store)
        their_B10 = looked_up(their_M10, probes(point_B16, their_store, seed=their_seed.seed), their_store)
        their_B10 ^= sender.offsets(data_B3)
        both = (own_B10, their_B10) if leads else (their_B10, own_B10)
        tags_B32 = _hash_tags(hashed_B40, *both, salt=salt)
        halves[0, own_B], halves[1, own_B] = tags_B32[:, :TAG_BYTES], tags_B32[:, TAG_BYTES:]
        taken_up.keep(bucket, rows=own_B, halves=halves[:, own_B])
        side.local.progress(_WHAT, bucket + 1, buckets.count)
    return (halves[0], halves[1]), taken_up


def _parts(hashed_B40: Tags) -> tuple[Words, Tags]:
    """Split each id's hash into the data at its slots (B, 3) and the bytes that choose its slots (B, 16)."""
    data_B3 = np.ascontiguousarray(hashed_B40[:, :-_POINT_BYTES]).view("<u8")
    return data_B3, np.ascontiguousarray(hashed_B40[:, -_POINT_BYTES:])


def _hashed(ids: Ids, salt: bytes) -> Tags:
    """Return the hash of every id (N, 40)."""
    hashed_N40, filled = np.empty((len(ids), HASHED_BYTES), dtype=np.uint8), 0
    start = blake2b(digest_size=HASHED_BYTES, salt=salt[:16], person=b"tallystick store")
    for piece in ids.pieces():
        hashed_N40[filled : filled + len(piece)] = hash_each(start, piece)
        filled += len(piece)
    return hashed_N40


def _in_buckets(hashed_N40: Tags, count: int, *, room: int, span: int) -> Split:
    """Put own ids into buckets, by their hashes."""
    word_N = np.ascontiguousarray(hashed_N40[:, -_POINT_BYTES:]).view("<u8")[:, 0]
    bucket_N = ((word_N >> np.uint64(12)).astype(np.float64) * 2.0**-52 * count).astype(np.int32)
    return Split.by(bucket_N, count=count, room=room, span=span)


def _extensions(channel: Channel, salt: bytes, rng: SecureRandom, *, leads: bool) -> tuple[CheckedReceiver, CheckedSender]:
    """Make the base transfers of both directions, the label party's store first."""
    choices_T = np.unpackbits(np.frombuffer(rng.bytes(COLUMNS // 8), dtype=np.uint8)).astype(bool)
    of_label, of_feature = salt + b"label", salt + b"feature"
    if leads:
        receiver = CheckedReceiver(*transfer_sender(channel, COLUMNS, rng=rng, context=of_label))
        return receiver, CheckedSender(transfer_receiver(channel, choices_T, rng=rng, context=of_feature), choices_T)
    sender = CheckedSender(transfer_receiver(channel, choices_T, rng=rng, context=of_label), choices_T)
    return CheckedReceiver(*transfer_sender(channel, COLUMNS, rng=rng, context=of_feature)), sender


def _stored(hashed_B40: Tags, shape: StoreShape, *, rng: SecureRandom) -> tuple[bytes, Words]:
    """Return a seed under which these ids have a store, and the store's slots."""
    data_B3, point_B16 = _parts(hashed_B40)
    for _ in range(_STORES):
        seed = rng.bytes(SEED_BYTES)
        try:
            return seed, store_of(data_B3, probes(point_B16, shape, seed=seed), shape)
        except NoStore:
            continue
    raise DataError(
        f"{len(data_B3)} ids of this side found no place in a store for {shape.keys}, which does not happen by chance; agree on "
        "alignment.security: semi-honest and protocol: diffie-hellman in the contract, and report this"
    )


def _correct(channel: Channel, own_TW: Words | None, words: int) -> Words:
    """Exchange the corrections of stores, if a side has a store here, in turns, and return the peer's (T, words)."""
    their_TW = np.empty((COLUMNS, words), dtype=np.uint64)
    own_R = np.empty((0, _PIECE_BYTES), dtype=np.uint8) if own_TW is None else own_TW.view(np.uint8).reshape(-1, _PIECE_BYTES)
    their_R, filled = their_TW.view(np.uint8).reshape(-1, _PIECE_BYTES), 0
    for _, rows_P in _swapped(channel, _CORRECTIONS, own_R, len(their_R), width=_PIECE_BYTES):
        their_R[filled : filled + len(rows_P)] = rows_P
        filled += len(rows_P)
    return their_TW


def _check(channel: Channel, receiver: CheckedReceiver | None, sender: CheckedSender | None, *, rng: SecureRandom) -> None:
    """Check the peer's corrections, with a key drawn after they arrived, and let the peer check this side's."""
    key = rng.bytes(CHECK_KEY_BYTES)
    if sender is not None:
        channel.send(CheckKey(key=key))
    answer = np.empty((0, HASH_BYTES), dtype=np.uint8) if receiver is None else receiver.answer(channel.receive(CheckKey).key)
    due = ANSWER_ROWS if sender is not None else 0
    their_rows = [rows_P for _, rows_P in _swapped(channel, _ANSWER, answer, due, width=HASH_BYTES)]
    if sender is not None and not sender.holds(np.concatenate(their_rows), key=key):
        raise ProtocolError(
            channel.peer, f"{channel.peer} sent {_CORRECTIONS!r} that fail the consistency check: they fit no store"
        )


def _swapped(channel: Channel, of: str, own_R: Tags, peer_count: int, *, width: int) -> Iterator[tuple[int, ChunkRows]]:
    """Send a list and receive the peer's list of the same name, in turns."""
    return exchange([channel], sends=of, outgoing=chunks(own_R), receives=of, incoming=[peer_count], shape=(width,))


def _hash_tags(hashed_B40: Tags, label_B10: Words, feature_B10: Words, *, salt: bytes) -> Tags:
    """Compute H: return the tag (B, 32) of each id, by BLAKE2b over its hash, both functions' inputs, and this run's salt."""
    tag_B32 = np.empty((len(hashed_B40), 2 * TAG_BYTES), dtype=np.uint8)
    empty = blake2b(digest_size=2 * TAG_BYTES, person=b"tallystick tag")
    for start in range(0, len(hashed_B40), _HASHED_AT_ONCE):
        piece = slice(start, start + _HASHED_AT_ONCE)
        salt_P = np.broadcast_to(np.frombuffer(salt, dtype=np.uint8), (len(hashed_B40[piece]), len(salt)))
        parts = (hashed_B40[piece], label_B10[piece].view(np.uint8), feature_B10[piece].view(np.uint8), salt_P)
        row_P = np.concatenate(parts, axis=1)
        tag_B32[piece] = hash_each(empty, row_P.view(f"V{row_P.shape[1]}").ravel().tolist())
    return tag_B32


def _receive_tags(channel: Channel, of: str, count: int, commitment: Settled) -> Tags:
    """Receive tags. Raises ProtocolError if the peer did not commit to them, if they are not sorted, or if one repeats.

    Another order could reveal something about rows.
    """
    tags_M16 = receive_list(channel, of, count, shape=(TAG_BYTES,))
    first_M, second_M = np.ascontiguousarray(tags_M16).view("<u8").T
    above = (first_M[1:] > first_M[:-1]) | ((first_M[1:] == first_M[:-1]) & (second_M[1:] > second_M[:-1]))
    if not above.all():
        raise ProtocolError(channel.peer, f"{channel.peer} sent {of!r} that are not sorted, or one of them twice")
    if not commitment.holds(channel.receive(Coin).coin, tags_M16):
        raise ProtocolError(channel.peer, f"{channel.peer} sent other {of!r} than it had committed to before it saw this side's")
    return tags_M16


def _common(own_N16: Tags, shown_M16: Tags) -> tuple[Index, Index]:
    """Return the rows of own tags that the peer shows as well, and their positions in the peer's list."""
    lookup = Lookup(TAG_BYTES)
    lookup.add(own_N16, np.arange(len(own_N16), dtype=np.int32))
    own_K, place_K = lookup.find(shown_M16)
    return own_K.astype(np.int64), place_K


def _prove(channel: Channel, own_N16: Tags, salt: bytes, rows_K: Index) -> None:
    channel.send(Proof(digest=_proof_of(own_N16[rows_K], salt)))


def _check_places(channel: Channel, common_K: Index | None, label_N16: Tags, salt: bytes, place_K: Index) -> None:
    """Refuse places unless they are those of all common ids or, with several feature parties, of ids that the label party
    brought.
    """
    if common_K is not None and not np.array_equal(np.sort(place_K), np.sort(common_K)):
        raise ProtocolError(
            channel.peer, f"{channel.peer} sent {len(place_K)} {PLACES!r} that are not the {len(common_K)} whose tags match"
        )
    if channel.receive(Proof).digest != _proof_of(label_N16[place_K], salt):
        raise ProtocolError(channel.peer, f"{channel.peer} sent a proof that is not that of the ids at {PLACES!r}")


def _proof_of(label_K16: Tags, salt: bytes) -> bytes:
    about = salt + np.ascontiguousarray(label_K16).tobytes()
    return blake2b(about, digest_size=PROOF_BYTES, person=b"tally/proof").digest()
