"""The intersection against cheaters: plain sets, and peers that deviate in every way that docs/results/deviations.md lists."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import short_lane_of

from tallystick.alignment import coin_toss, psi_malicious
from tallystick.alignment.buckets import Standing, TagsCommitment
from tallystick.alignment.coin_toss import Coin, CoinCommitment
from tallystick.alignment.exchange import Chunk, Size, receive_list, send_list, send_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import sorted_order
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.codes import fingerprints
from tallystick.alignment.oprf.key_value import NoStore
from tallystick.alignment.oprf.linear_code import COLUMNS
from tallystick.alignment.pairwise import LocalOptions, Side
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psi_malicious import CheckKey, StoreSeed
from tallystick.alignment.psi_oprf import Proof
from tallystick.errors import DataError, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels

from .roles import RNG, Recording, Tampering, error_of, in_threads

SETS = st.sets(st.binary(max_size=6), min_size=1, max_size=40)
SECURELY = {"security": "malicious", "rng": RNG}
LABEL, FEATURE = [b"%d" % n for n in range(60)], [b"%d" % n for n in range(40, 140)]
PLACES = "places of the joint rows"


def intersect(label_ids, *feature_ids, label=lambda channel: channel, feature=lambda channel: channel, **options):
    """Run all roles over channels that may change what they send. Return outcomes, or the exceptions that were raised."""
    pairs = [memory_channels("label", f"feature{number}", timeout_s=20) for number in range(len(feature_ids))]
    return in_threads(
        lambda: intersect_label_party(label_ids, [label(mine) for mine, _ in pairs], **SECURELY, **options),
        *(
            lambda ids=ids, channel=theirs: intersect_feature_party(
                ids, feature(channel), one_of_several=len(pairs) > 1, **SECURELY, **options
            )
            for ids, (_, theirs) in zip(feature_ids, pairs, strict=True)
        ),
    )


class Changing(Tampering):
    """A channel of a party that changes messages of one kind before sending; None leaves a message out."""

    def __init__(self, channel, kind, change):
        super().__init__(channel, None, None)
        self._kind, self._alter = kind, change

    def send(self, message):
        altered = self._alter(message) if isinstance(message, self._kind) else message
        if altered is not None:
            self._channel.send(altered)


def refused(outcome, words):
    assert isinstance(outcome, ProtocolError), outcome
    assert words in str(outcome)


@settings(max_examples=4, deadline=None)
@given(label=SETS, features=st.lists(SETS, min_size=1, max_size=2), common=SETS)
def test_all_sides_find_the_rows_that_all_have(label, features, common):
    tables = [list(ids | common) for ids in (label, *features)]
    outcomes = intersect(*tables)
    aligned = [[table[row] for row in outcome.rows_N] for table, outcome in zip(tables, outcomes, strict=True)]
    assert all(ids == aligned[0] for ids in aligned)
    assert set(aligned[0]) == set.intersection(*map(set, tables))


@pytest.mark.parametrize(("own", "theirs"), short_lane_of([(1, 5_000), (5_000, 1), (3_000, 4_000)], 2))
def test_unequal_sizes_and_several_buckets(own, theirs, monkeypatch):
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 1000)
    label, feature = [b"%d" % n for n in range(own)], [b"%d" % n for n in range(own - 1, own - 1 + theirs)]
    ours, answered = intersect(label, feature)
    assert [label[row] for row in ours.rows_N] == [feature[row] for row in answered.rows_N] == [b"%d" % (own - 1)]


def test_the_outcome_is_that_of_the_other_protocols():
    pair = memory_channels("label", "feature0", timeout_s=20)
    expected = in_threads(
        lambda: intersect_label_party(LABEL, [pair[0]], rng=RNG), lambda: intersect_feature_party(FEATURE, pair[1], rng=RNG)
    )
    for first, second in zip(intersect(LABEL, FEATURE), [expected[0], expected[1]], strict=True):
        assert np.array_equal(first.rows_N, second.rows_N)
        assert first.sizes.keys() <= {"own", "feature0", "label", "intersection"}
        assert first.learnt[:-1] == second.learnt
    ours, theirs = intersect(LABEL, FEATURE)
    assert ours.learnt[-1] == "feature0 announced 100 ids; by cheating it could have asked for 150."
    assert theirs.learnt[-1] == "label announced 60 ids; by cheating it could have asked for 101."


def test_progress_ends_at_all_buckets(monkeypatch):
    monkeypatch.setattr(psi_malicious, "BUCKET_IDS", 50)
    told = []
    intersect(LABEL, FEATURE, local=LocalOptions(progress=lambda *call: told.append(call)))
    assert told.count(("private set intersection", 2, 2)) == 2


def test_no_common_id_ends_all_sides():
    for outcome in intersect([b"a"], [b"A", b"b"]):
        assert isinstance(outcome, DataError)
        assert "no id is common" in str(outcome)


def test_a_peer_that_takes_the_other_protocol_is_told():
    ours, theirs = memory_channels("label", "feature", timeout_s=20)
    for outcome in in_threads(
        lambda: intersect_label_party(LABEL, [ours], **SECURELY),
        lambda: intersect_feature_party(FEATURE, theirs, rng=RNG, protocol="oblivious-transfer"),
    ):
        assert isinstance(outcome, ProtocolError | PeerStopped)


def test_a_view_is_as_random_whatever_the_ids():
    """Look at the bits of all that each side receives, for common ids and for others.

    Bound: 6 standard deviations of each bit's mean over the rows; some 12,000 means fail with a chance of 3 in 100,000, and the
    draws are seeded. Base transfers are group elements, whose top bit is always 0. Tags are sorted, so only their last bytes
    count.
    """
    for feature in (FEATURE, [b"other %d" % n for n in range(99)] + LABEL[:1]):
        views = []

        def keep(channel, views=views):
            views.append(Recording(channel))
            return views[-1]

        intersect(LABEL, feature, label=keep, feature=keep)
        for view in views:
            for of, rows in view.view.items():
                if of.startswith("base") or of == PLACES:
                    continue
                share = np.unpackbits(rows[:, 8:] if of.endswith("tags") else rows, axis=1).mean(axis=0)
                assert (abs(share - 0.5) < 6 * 0.5 / len(rows) ** 0.5).all(), of


def test_base_transfers_of_one_direction_are_of_no_use_in_the_other():
    ours, theirs = memory_channels("sender", "receiver", timeout_s=20)
    choices = np.zeros(4, dtype=bool)
    pairs, chosen = in_threads(
        lambda: transfer_sender(ours, 4, rng=RNG, context=b"label"),
        lambda: transfer_receiver(theirs, choices, rng=RNG, context=b"feature"),
    )
    assert not any((seeds == chosen).all(axis=1).any() for seeds in pairs)


# Who deviates, and what happens: the table of docs/results/deviations.md.


def test_a_coin_that_was_not_committed_to_is_refused():
    ours, theirs = intersect(LABEL, FEATURE, label=lambda channel: Changing(channel, Coin, lambda _: Coin(coin=bytes(32))))
    refused(theirs, "another coin")
    assert isinstance(ours, PeerStopped)


SIZED = [
    ("label", lambda value: CoinCommitment(digest=value)),
    ("feature", lambda value: Coin(coin=value)),
    ("label", lambda value: StoreSeed(bucket=0, seed=value)),
    ("feature", lambda value: CheckKey(key=value)),
    ("feature", lambda value: TagsCommitment(digest=value)),
    ("label", lambda value: TagsCommitment(digest=value)),
    ("label", lambda value: Coin(coin=value)),
]


@pytest.mark.parametrize(("sized", "size"), short_lane_of(itertools.product(SIZED, (0, 15, 33)), 7))  # each message, each size
def test_messages_of_another_size_are_refused(sized, size):
    side, make = sized
    wrong = make(bytes(size))
    outcomes = intersect(LABEL, FEATURE, **{side: lambda c: Changing(c, type(wrong), lambda _: wrong)})
    error = outcomes[1 if side == "label" else 0]
    refused(error, "broke the protocol")
    assert error.peer.startswith(side)


@pytest.mark.parametrize("side", ["label", "feature"])
def test_corrections_that_are_those_of_no_store_are_caught(side):
    """A bit of each of 60 columns is flipped. They pass with a chance of 2^-60."""

    def flip(rows):
        rows[::2, 0] ^= 1
        return rows

    outcomes = intersect(LABEL, FEATURE, **{side: lambda c: Tampering(c, "corrections of the store", flip)})
    refused(outcomes[1 if side == "label" else 0], "fail the consistency check")
    assert isinstance(outcomes[0 if side == "label" else 1], PeerStopped)


@pytest.mark.parametrize("side", ["label", "feature"])
def test_an_answer_to_the_check_that_is_made_up_is_caught(side):
    def other(rows):
        rows[0] ^= 1
        return rows

    outcomes = intersect(LABEL, FEATURE, **{side: lambda c: Tampering(c, "hashes of columns", other)})
    refused(outcomes[1 if side == "label" else 0], "fail the consistency check")


@pytest.mark.parametrize("of", ["corrections of the store", "hashes of columns", "label party's tags"])
@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: rows[:, :-1], lambda rows: rows.astype(np.int32)])
def test_lists_of_another_shape_are_refused(of, change):
    _, theirs = intersect(LABEL, FEATURE, label=lambda channel: Tampering(channel, of, change))
    assert isinstance(theirs, ProtocolError)
    assert of in str(theirs)


@pytest.mark.parametrize("side", ["label", "feature"])
def test_another_seed_than_the_stores_only_loses_matches(side):
    other = StoreSeed(bucket=0, seed=bytes(16))
    outcomes = intersect(LABEL, FEATURE, **{side: lambda c: Changing(c, StoreSeed, lambda _: other)})
    for outcome in outcomes:
        assert isinstance(outcome, DataError)
        assert "no id is common" in str(outcome)


def test_tags_of_ids_that_are_in_no_store_match_nothing():
    """The feature party stores half of its ids and sends tags of all: it can only make those of its own store."""
    asked = [b"%d" % n for n in range(100)]
    stored = psi_malicious._stored

    def half(hashed, shape, *, rng):
        # Slots for the first fifty ids; it knows the hashes of the others, too.
        return stored(hashed[:50] if len(hashed) == 100 else hashed, shape, rng=rng)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi_malicious, "_stored", half)
        ours, _ = intersect([b"%d" % n for n in range(98)], asked)
    in_store = sorted_order(fingerprints(asked))[:50]
    assert sorted(ours.rows_N) == sorted(in_store[in_store < 98])


def test_tags_other_than_those_that_were_settled_on_are_refused():

    def others(tags):
        tags[::2] ^= 255
        return tags[np.lexsort(np.ascontiguousarray(tags).view("<u8").T[::-1])]

    ours, _ = intersect(LABEL, FEATURE, feature=lambda c: Tampering(c, "feature party's tags", others))
    refused(ours, 'other "feature party\'s tags" than it had committed to')


@pytest.mark.parametrize("side", ["label", "feature"])
@pytest.mark.parametrize("digest", [bytes(32), b"\xff" * 32], ids=["0", "the largest"])
def test_a_side_that_settled_on_other_tags_than_it_shows_is_refused(side, digest):
    outcomes = intersect(LABEL, FEATURE, **{side: lambda c: Changing(c, TagsCommitment, lambda _: TagsCommitment(digest=digest))})
    refused(outcomes[1 if side == "label" else 0], f'other "{side} party\'s tags" than it had committed to')


def test_a_feature_party_that_gives_back_what_the_label_party_settled_on_and_shows_matches_nothing():
    """It waits for the label party's commitment, tags and coin, and sends each of them as its own."""
    ids, got = [b"%d" % n for n in range(60)], {}

    class Mirror(Tampering):
        def send(self, message):
            if isinstance(message, TagsCommitment):
                message = got["commitment"] = self._channel.receive(TagsCommitment)
            elif isinstance(message, Coin) and "coin" in got:
                message = got["coin"]
            elif isinstance(message, Chunk) and message.of == "feature party's tags":
                message = Chunk(of=message.of, rows=got["tags"])
            self._channel.send(message)

        def receive(self, kind):
            if kind is TagsCommitment:
                return got["commitment"]
            message = super().receive(kind)
            if isinstance(message, Chunk) and message.of == "label party's tags":
                got["tags"] = message.rows
            elif isinstance(message, Coin) and "tags" in got:
                got["coin"] = message
            return message

    ours, _ = intersect(ids, [b"%d" % n for n in range(30, 90)], feature=lambda channel: Mirror(channel, None, None))
    assert isinstance(ours, DataError)
    assert "no id is common" in str(ours)


@pytest.mark.parametrize("kind", [TagsCommitment, Coin])
def test_a_commitment_or_coin_that_is_left_out_is_missed_before_this_side_shows_more(kind):
    _, theirs = intersect(LABEL, FEATURE, label=lambda channel: Changing(channel, kind, lambda _: None))
    refused(theirs, "is due")


def test_the_feature_party_cannot_settle_on_tags_later():
    ours, _ = intersect(LABEL, FEATURE, feature=lambda c: Changing(c, TagsCommitment, lambda _: TagsCommitment(digest=bytes(32))))
    refused(ours, "committed to before it saw")


OTHER_LISTS = pytest.mark.parametrize(
    ("change", "words"),
    [(lambda tags: tags[::-1].copy(), "not sorted"), (lambda tags: np.repeat(tags[::2], 2, axis=0), "one of them twice")],
    ids=["in another order", "twice"],
)


@OTHER_LISTS
def test_a_label_party_with_tags_in_another_order_or_twice_is_refused(change, words):
    _, theirs = intersect(LABEL, FEATURE, label=lambda channel: Tampering(channel, "label party's tags", change))
    refused(theirs, words)


@OTHER_LISTS
def test_a_feature_party_with_tags_in_another_order_or_twice_is_refused(change, words):
    def settles_on_others(channel):
        send_size(channel, "ids", 100)
        size = channel.receive(Size).rows
        side = Side(unsorted=Ids.of(FEATURE), row_N=np.arange(len(FEATURE)), prints_N16=fingerprints(FEATURE), rng=RNG)
        (_, own), taken_up = psi_malicious._tags(side, channel, size, leads=False)
        shown = change(own[sorted_order(own)])
        settled = taken_up.settle(channel, RNG, own=shown, from_peer=True)
        receive_list(channel, "label party's tags", size, shape=(16,))
        channel.receive(Coin)
        send_list(channel, "feature party's tags", shown)
        channel.send(Coin(coin=settled.coin))

    refused(error_of(lambda channel: intersect_label_party(LABEL, [channel], **SECURELY), settles_on_others), words)


@pytest.mark.parametrize("moves", [True, False], ids=["moved", "another"])
@pytest.mark.parametrize("features", [1, 2])
def test_the_label_party_cannot_move_or_make_up_a_match(moves, features):
    def other(places):
        changed = places[::-1] if moves else np.append(places[1:], np.setdiff1d(range(100), places)[:1])
        return changed.astype(np.int32)

    outcomes = intersect(LABEL, *[FEATURE] * features, label=lambda c: Tampering(c, PLACES, other))
    refused(outcomes[1], PLACES if features == 1 else "a proof that is not that of the ids at")


@pytest.mark.parametrize("features", [1, 2])
def test_a_match_left_out_is_caught_with_one_feature_party_only(features):
    """The label party claims all but its last match, with a proof of these alone."""

    class Silent(Tampering):
        def send(self, message):
            if isinstance(message, Size) and message.of == PLACES:
                message = Size(of=PLACES, rows=message.rows - 1)
            super().send(message)

    prove = psi_malicious._prove

    def proves_fewer(channel, tags, salt, rows):
        return prove(channel, tags, salt, rows[:-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(psi_malicious, "_prove", proves_fewer)
        ours, *theirs = intersect(LABEL, *[FEATURE] * features, label=lambda c: Silent(c, PLACES, lambda places: places[:-1]))
    assert len(ours) == 20
    if features == 1:
        refused(theirs[0], "19 'places of the joint rows' that are not the 20 whose tags match")
    else:
        assert [len(outcome) for outcome in theirs] == [19, 19]


@pytest.mark.parametrize("features", [1, 2])
def test_a_made_up_proof_is_refused(features):
    outcomes = intersect(LABEL, *[FEATURE] * features, label=lambda c: Changing(c, Proof, lambda _: Proof(digest=bytes(32))))
    refused(outcomes[1], "a proof that is not that of the ids")


@pytest.mark.parametrize("element", [bytes(32), b"\xff" * 32], ids=["the identity", "no element"])
def test_base_transfers_on_what_is_no_element_are_refused(element):
    def cheat(channel):
        send_size(channel, "ids", 60)
        channel.receive(Size)
        channel.send(Standing(alignment=b"", done=0, settled=False))
        channel.receive(Standing)
        own = RNG.bytes(32)
        channel.send(CoinCommitment(digest=coin_toss._derived(own, b"coin")))
        channel.receive(Coin)
        channel.send(Coin(coin=own))
        send_list(channel, "base transfers: the sender's key", np.frombuffer(element, dtype=np.uint8)[None])

    error = error_of(lambda channel: intersect_feature_party(FEATURE, channel, **SECURELY), cheat)
    refused(error, "identity or not a canonical")
    assert error.peer == "peer"


def test_a_peer_costs_memory_for_one_bucket_however_many_ids_it_claims():
    """Room is made for its store when its corrections are due, and only for a bucket: some 8 MB, for 50 million ids."""
    buckets = psi_malicious.buckets_of(50_000_000, 10)
    words = psi_malicious.column_words(psi_malicious.store_shape(buckets, 50_000_000).slots)
    assert words * 8 * COLUMNS < 9 << 20
    assert psi_malicious.column_words(psi_malicious.store_shape(buckets, 10).slots) * 8 * COLUMNS < 1 << 20


def test_a_store_that_does_not_exist_takes_another_seed_and_then_ends(monkeypatch):
    def never(*_, **__):
        raise NoStore

    stored, tried = psi_malicious.store_of, []

    def fails_first(*args):
        tried.append(1)
        return never() if len(tried) == 1 else stored(*args)

    monkeypatch.setattr(psi_malicious, "store_of", fails_first)
    assert len(intersect(LABEL, FEATURE)[0]) == 20
    monkeypatch.setattr(psi_malicious, "store_of", never)
    ours, theirs = intersect(LABEL, FEATURE)
    assert any(isinstance(outcome, DataError) and "no place in a store" in str(outcome) for outcome in (ours, theirs))


def test_a_chunk_of_another_list_is_refused():
    _, theirs = intersect(
        LABEL, FEATURE, label=lambda c: Changing(c, Chunk, lambda m: Chunk(of="other", rows=m.rows) if "corr" in m.of else m)
    )
    refused(theirs, "sent rows of 'other' where")
