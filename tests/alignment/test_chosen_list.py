"""A label party that announces few ids, the other side having many, and brings a longer list of chosen people through the real
check.
"""

import numpy as np
import pytest

from tallystick.alignment import psi_malicious
from tallystick.alignment.buckets import Nowhere, require_bucket, take_up
from tallystick.alignment.coin_toss import Coin, toss
from tallystick.alignment.exchange import Size, receive_list, send_list, send_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import sorted_order
from tallystick.alignment.oprf.checked_extension import column_words
from tallystick.alignment.oprf.key_value import NoStore, looked_up, probes, store_of
from tallystick.alignment.psi import intersect_feature_party
from tallystick.errors import TallystickError
from tallystick.network.channel import memory_channels

from .roles import RNG, in_threads


def packed(hashed_N40, shape):
    """Return a seed, slots, and the rows of as many of these ids as a store of this shape can be right for."""
    seed = RNG.bytes(16)
    data_N3, point_N16 = psi_malicious._parts(hashed_N40)
    at = probes(point_N16, shape, seed=seed)
    if shape.tight:
        rows_K = independent(at, shape)[: shape.slots]
        return seed, store_of(data_N3[rows_K], at.of(rows_K), shape), rows_K
    # Elimination of more would fill all slots; this cheater has no more time than an honest side.
    for share in (1.0, 0.82, 0.815, 0.81, 0.8, 0.75):
        rows_K = np.arange(min(len(hashed_N40), int(share * shape.slots)))
        try:
            return seed, store_of(data_N3[rows_K], at.of(rows_K), shape), rows_K
        except NoStore:
            continue
    raise AssertionError("an honest side's ids fill three quarters of its slots")


def independent(at, shape):
    """Return rows whose equations are independent, by elimination of rows as whole numbers."""
    pivots, rows = {}, []
    for row in range(at.dense_ND.shape[0]):
        equation = int.from_bytes(at.dense_ND[row].tobytes(), "little") << (shape.slots - shape.dense)
        for slot in at.sparse_RN[:, row].tolist():
            equation ^= 1 << slot
        while equation and (lead := equation.bit_length()) in pivots:
            equation ^= pivots[lead]
        if equation:
            pivots[equation.bit_length()] = equation
            rows.append(row)
        if len(rows) == shape.slots:
            break
    return np.array(rows)


def matches_of(channel, chosen, announced):
    """Play a label party that follows the protocol except for its stores. Return which chosen ids it learns to be common."""
    send_size(channel, "ids", announced)
    size = channel.receive(Size).rows
    buckets = psi_malicious.buckets_of(announced, size)
    agree = lambda: toss(channel, RNG, leads=True)  # noqa: E731
    no_prints = np.empty((0, 16), dtype=np.uint8)
    taken_up = take_up(channel, buckets, Nowhere(), prints_N16=no_prints, protocol=b"malicious", agree=agree, say=print)
    salt, (own_span, their_span) = taken_up.key, (buckets.span_of(announced), buckets.span_of(size))
    hashed_N40 = psi_malicious._hashed(Ids.of(chosen), salt)
    own_store, their_store = (psi_malicious.store_shape(buckets, ids) for ids in (announced, size))
    split = psi_malicious._in_buckets(hashed_N40, buckets.count, room=len(chosen), span=own_span)
    receiver, sender = psi_malicious._extensions(channel, salt, RNG, leads=True)
    stored, halves = [], np.zeros((2, len(chosen), 16), dtype=np.uint8)
    for bucket in range(buckets.count):
        brings, takes = bucket % own_span == 0, bucket % their_span == 0
        if brings:
            rows_B = split.rows(bucket, span=own_span)
            own_seed, slots_M3, rows_K = packed(hashed_N40[rows_B], own_store)
            stored.append(rows_B[rows_K])
            channel.send(psi_malicious.StoreSeed(bucket=bucket, seed=own_seed))
        if takes:
            theirs = channel.receive(psi_malicious.StoreSeed)
            require_bucket(channel, theirs.bucket, bucket)
        own_TW = receiver.next_slots(slots_M3, rng=RNG) if brings else None
        their_TW = psi_malicious._correct(channel, own_TW, column_words(their_store.slots) if takes else 0)
        if takes:
            sender.next_slots(their_TW)
        psi_malicious._check(channel, receiver if brings else None, sender if takes else None, rng=RNG)
        own_M10 = receiver.inputs(own_store.slots) if brings else own_M10  # noqa: F821
        their_M10 = sender.secrets(their_store.slots) if takes else their_M10  # noqa: F821
        own_B = split.rows(bucket)
        data_B3, point_B16 = psi_malicious._parts(hashed_N40[own_B])
        own_B10 = looked_up(own_M10, probes(point_B16, own_store, seed=own_seed), own_store)
        their_B10 = looked_up(their_M10, probes(point_B16, their_store, seed=theirs.seed), their_store)
        their_B10 ^= sender.offsets(data_B3)
        tags_B32 = psi_malicious._hash_tags(hashed_N40[own_B], own_B10, their_B10, salt=salt)
        halves[0, own_B], halves[1, own_B] = tags_B32[:, :16], tags_B32[:, 16:]
    stored_K = np.concatenate(stored)
    own_16 = halves[0, stored_K[:announced]]
    own_16 = own_16[sorted_order(own_16)]
    settled = taken_up.settle(channel, RNG, own=own_16, from_peer=True)
    send_list(channel, "label party's tags", own_16)
    channel.send(Coin(coin=settled.coin))
    shown_16 = receive_list(channel, "feature party's tags", size, shape=(16,))
    assert settled.holds(channel.receive(Coin).coin, shown_16)
    rows_K, _ = psi_malicious._common(halves[1], shown_16)
    raise LearntEnough(set(rows_K.tolist()))


class LearntEnough(TallystickError):
    """Leave, with what it wanted."""

    def __init__(self, rows):
        super().__init__("gone")
        self.rows = rows


@pytest.mark.parametrize(
    ("announced", "others", "at_least"),
    [
        (10, 2000, 45),
        (1000, 6000, 1040),
        pytest.param(10, 10**6, 45, marks=pytest.mark.long),
        pytest.param(1000, 10**6, 1040, marks=pytest.mark.long),
        pytest.param(10**5, 10**6, 10**5, marks=pytest.mark.long),
    ],
)
def test_a_chosen_list_is_as_long_as_the_room_for_what_was_announced(announced, others, at_least, record_property):
    """All chosen ids are common, so each one that it learns is right. It can only use the spare slots of its stores."""
    feature = [b"%d" % n for n in range(others)]
    chosen = feature[: min(others, 6 * announced + 500)]
    ours, theirs = memory_channels("label", "feature", timeout_s=500)

    def cheat():
        try:
            matches_of(ours, chosen, announced)
        except LearntEnough as learnt:
            ours.send(psi_malicious.CheckKey(key=bytes(16)))  # ends the other side's wait
            return learnt.rows
        raise AssertionError

    rows, _ = in_threads(cheat, lambda: intersect_feature_party(feature, theirs, security="malicious", rng=RNG))
    most = psi_malicious.most_ids(announced, others)
    record_property("learnt", len(rows))
    assert at_least <= len(rows) <= most
