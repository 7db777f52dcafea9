"""Compare the intersection with Python's sets, over memory channels with each role in a thread."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.alignment import exchange
from tallystick.alignment.group import hash_to_group
from tallystick.alignment.ids import Ids
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psi_diffie_hellman import TagsDigest
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, PeerLost, PeerStopped, ProtocolError, told_of
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array

from .roles import error_of, in_threads

ONE = LocalOptions(threads=1)
RNG = SecureRandom(source=np.random.default_rng(1).bytes)
SETS = st.sets(st.binary(max_size=6), min_size=1, max_size=40)


def intersect(label_ids, *feature_ids, **options):
    """Run all roles. Return the label party's outcome and each feature party's, or the exception that was raised."""
    names = [f"feature{number}" for number in range(len(feature_ids))]
    pairs = [memory_channels("label", name, timeout_s=20) for name in names]
    return in_threads(
        lambda: intersect_label_party(label_ids, [mine for mine, _ in pairs], rng=RNG, local=ONE, **options),
        *(
            lambda ids=ids, channel=theirs: intersect_feature_party(
                ids, channel, rng=RNG, local=ONE, one_of_several=len(pairs) > 1, **options
            )
            for ids, (_, theirs) in zip(feature_ids, pairs, strict=True)
        ),
    )


@settings(max_examples=4, deadline=None)
@given(label=SETS, features=st.lists(SETS, min_size=1, max_size=3), common=SETS)
def test_finds_the_rows_that_all_have_in_one_order(label, features, common):
    tables = [list(ids | common) for ids in (label, *features)]
    outcomes = intersect(*tables)
    aligned = [[table[row] for row in outcome.rows_N] for table, outcome in zip(tables, outcomes, strict=True)]
    assert all(ids == aligned[0] for ids in aligned)
    assert set(aligned[0]) == set.intersection(*map(set, tables))
    assert len(aligned[0]) == outcomes[0].sizes["intersection"] == outcomes[1].sizes["intersection"]
    assert outcomes[0].sizes["feature0"] == len(tables[1])
    assert outcomes[1].sizes["label"] == len(tables[0])


def test_several_chunks_and_unequal_sizes(monkeypatch):
    monkeypatch.setattr(exchange, "CHUNK_ROWS", 7)
    label, feature = [b"%d" % n for n in range(100)], [b"%d" % n for n in range(90, 111)]
    ours, theirs = intersect(label, feature)
    assert [label[row] for row in ours.rows_N] == [feature[row] for row in theirs.rows_N]
    assert set(ours.rows_N) == set(range(90, 100))
    assert ours.multiplications == theirs.multiplications == 121


def test_order_does_not_depend_on_keys_or_on_the_order_of_the_table():
    ids = [b"%d" % n for n in range(50)]
    first, _ = intersect(ids, ids)
    second, _ = intersect(ids[::-1], ids)
    assert [ids[row] for row in first.rows_N] == [ids[::-1][row] for row in second.rows_N]
    assert list(first.rows_N) != sorted(first.rows_N)


def test_label_party_learns_pairwise_intersections_and_says_so():
    ours, theirs, _ = intersect([b"a", b"b", b"c"], [b"a", b"b"], [b"b", b"c", b"d"])
    assert ours.sizes == {"own": 3, "feature0": 2, "feature1": 3, "intersection": 1} | {
        "intersection with feature0": 2,
        "intersection with feature1": 2,
    }
    assert "which 2 of this side's 3 ids feature1 holds, too." in ours.learnt
    assert theirs.sizes == {"own": 2, "label": 3, "intersection": 1}


@pytest.mark.parametrize(("label", "feature"), [([], [b"x"]), ([b"x"], []), ([], [])])
def test_an_empty_side_ends_both(label, feature):
    for outcome in intersect(label, feature):
        assert isinstance(outcome, DataError)
        assert "needs ids on every side" in str(outcome)


def test_no_common_id_ends_both():
    for outcome in intersect([b"a"], [b"A", b"b"]):
        assert isinstance(outcome, DataError)
        assert "no id is common" in str(outcome)


def test_duplicate_ids_end_both_without_telling_the_peer_how_many():
    ours, theirs = intersect([b"a", b"b", b"a"], [b"a"])
    assert isinstance(ours, DataError)
    assert "1 of this side's 3 ids are duplicates" in str(ours)
    assert isinstance(theirs, PeerStopped)
    assert "duplicate" not in str(theirs)


def test_a_peer_over_the_limit_ends_both():
    channels = memory_channels("label", "feature", timeout_s=5)
    ours, theirs = in_threads(
        lambda: intersect_label_party([b"a"], [channels[0]], rng=RNG, max_rows=2),
        lambda: intersect_feature_party([b"a", b"b", b"c"], channels[1], rng=RNG),
    )
    assert isinstance(ours, ProtocolError)
    assert "feature announced 3 rows" in str(ours)
    assert isinstance(theirs, PeerStopped)


IDENTITY = bytes(32)
NOT_CANONICAL = b"\xff" * 32


@pytest.mark.parametrize("element", [IDENTITY, NOT_CANONICAL, b"\x01" + bytes(31)])
def test_invalid_elements_are_refused_by_either_side(element):
    rows = np.frombuffer(element, dtype=np.uint8).reshape(1, 32)

    def as_feature(channel):
        exchange.send_size(channel, "ids", 1)
        channel.receive(exchange.Size)
        exchange.send_list(channel, "feature party's blinded ids", rows)

    def as_label(channel):
        exchange.send_size(channel, "ids", 1)
        channel.receive(exchange.Size)
        exchange.send_list(channel, "label party's blinded ids", rows)

    for error in (
        error_of(lambda channel: intersect_label_party([b"a"], [channel], rng=RNG), as_feature),
        error_of(lambda channel: intersect_feature_party([b"a"], channel, rng=RNG), as_label),
    ):
        assert isinstance(error, ProtocolError)
        assert error.peer == "peer"
        assert "blinded ids" in str(error)
        assert "canonical" in str(error)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((2, 32), np.uint8), np.zeros((4, 32), np.uint8), np.zeros((3, 31), np.uint8), np.zeros((3, 32), np.int32)],
    ids=["too few", "too many", "too short", "wrong type"],
)
def test_a_list_of_another_shape_is_refused(rows):
    def cheat(channel):
        exchange.send_size(channel, "ids", 3)
        channel.receive(exchange.Size)
        channel.send(exchange.Chunk(of="feature party's blinded ids", rows=Array.of(rows)))

    error = error_of(lambda channel: intersect_label_party([b"a"], [channel], rng=RNG), cheat)
    assert isinstance(error, ProtocolError)
    assert "feature party's blinded ids" in str(error)


def test_a_peer_that_repeats_an_id_is_refused(monkeypatch):
    monkeypatch.setattr("tallystick.alignment.psi.check_ids", lambda ids, **_: Ids.of(ids))
    ours, theirs = intersect([b"a", b"b"], [b"b", b"b"])
    assert isinstance(ours, ProtocolError)
    assert "1 duplicates" in str(ours)
    assert isinstance(theirs, PeerStopped)


@pytest.mark.parametrize("places", [[0, 0], [0, 2], [-1, 0]])
def test_places_that_are_none_are_refused(places):
    def cheat(channel):
        exchange.send_size(channel, "ids", 2)
        channel.receive(exchange.Size)
        exchange.receive_list(channel, "feature party's blinded ids", 2, shape=(32,))
        exchange.send_list(channel, "label party's blinded ids", hash_to_group([b"x", b"y"]))
        channel.receive(TagsDigest)
        exchange.send_list(channel, "feature party's tags", np.arange(32, dtype=np.uint8).reshape(2, 16))
        exchange.receive_list(channel, "label party's tags", 2, shape=(16,))
        exchange.send_size(channel, "places of the joint rows", 2)
        exchange.send_list(channel, "places of the joint rows", np.array(places, dtype=np.int32))

    error = error_of(lambda channel: intersect_feature_party([b"a", b"b"], channel, rng=RNG), cheat)
    assert isinstance(error, ProtocolError)
    assert "places of the joint rows" in str(error)


def test_progress_counts_every_multiplication_once():
    told = []
    channels = memory_channels("label", "feature", timeout_s=20)
    label, feature = [b"%d" % n for n in range(1500)], [b"%d" % n for n in range(1200, 2200)]
    ours, _ = in_threads(
        lambda: intersect_label_party(
            label, [channels[0]], rng=RNG, protocol="diffie-hellman", local=LocalOptions(progress=lambda *call: told.append(call))
        ),
        lambda: intersect_feature_party(feature, channels[1], rng=RNG, protocol="diffie-hellman"),
    )
    assert told == sorted(told)
    assert told[-1] == ("private set intersection", 2500, 2500)
    assert ours.multiplications == 2500


def test_one_feature_party_that_fails_ends_all_the_others():
    pairs = [memory_channels("label", name, timeout_s=20) for name in ("good", "bad")]

    def bad(channel):
        exchange.send_size(channel, "ids", 1)
        exchange.send_list(channel, "feature party's blinded ids", np.zeros((1, 32), np.uint8))

    ours, good, _ = in_threads(
        lambda: intersect_label_party([b"a"], [mine for mine, _ in pairs], rng=RNG),
        lambda: intersect_feature_party([b"a"], pairs[0][1], rng=RNG, one_of_several=True),
        lambda: bad(pairs[1][1]),
    )
    assert isinstance(ours, ProtocolError)
    assert ours.peer == "bad"
    assert isinstance(good, PeerStopped)


def test_how_many_ids_a_feature_party_announced_is_told_to_no_other():
    """Only the label party may know it, also if it refuses so many."""
    pairs = [memory_channels("label", name, timeout_s=20) for name in ("club", "shop")]
    ours, club, shop = in_threads(
        lambda: intersect_label_party([b"a"], [mine for mine, _ in pairs], rng=RNG, max_rows=70),
        lambda: intersect_feature_party([b"a"], pairs[0][1], rng=RNG, one_of_several=True),
        lambda: intersect_feature_party([b"%d" % n for n in range(73)], pairs[1][1], rng=RNG, one_of_several=True),
    )
    assert "shop announced 73 rows" in str(ours)
    assert "73" in str(shop)
    assert "shop did what the protocol does not allow here" in str(club)
    assert "73" not in str(club)
    for error in (PeerLost("shop", "shop is gone"), PeerStopped("shop", "shop stopped")):
        assert told_of(error, "club") == str(error)
