"""Peers that do not follow the protocol, as whole implementations: which deviations are detected, and which are not."""

from hashlib import blake2b

import numpy as np
import pytest

from tallystick.alignment.exchange import Size, receive_list, send_list, send_size, usual_max_rows
from tallystick.alignment.group import hash_to_group, multiply
from tallystick.alignment.matching import are_distinct_indices, match, repeated, sorted_order, tags_of
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psi_diffie_hellman import TagsDigest
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.errors import PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels

from .roles import RNG, Tampering, in_threads

ONE = LocalOptions(threads=1)
OWN = [b"own-%d" % number for number in range(60)]
THEIRS = [*OWN[:20], *(b"theirs-%d" % number for number in range(40))]


def label_party(channel, *, places, sole=True):
    """A label party that claims any matches it likes."""
    key = RNG.scalar()
    send_size(channel, "ids", len(OWN))
    count = channel.receive(Size).rows
    send_list(channel, "label party's blinded ids", multiply(hash_to_group(OWN), key))
    theirs_32 = receive_list(channel, "feature party's blinded ids", count, shape=(32,))
    theirs_16 = tags_of(multiply(theirs_32, key))
    if sole:
        channel.receive(TagsDigest)
        send_list(channel, "feature party's tags", theirs_16)
    own_16 = receive_list(channel, "label party's tags", len(OWN), shape=(16,))
    place_K = places(match(own_16, theirs_16), count)
    send_size(channel, "places of the joint rows", len(place_K))
    send_list(channel, "places of the joint rows", place_K.astype(np.int32))


def in_common_order(pairs, _count):
    rows, place = pairs
    hashes = [blake2b(OWN[row], digest_size=16, person=b"tallystick order").digest() for row in rows]
    return place[sorted_order(np.frombuffer(b"".join(hashes), dtype=np.uint8).reshape(-1, 16))]


def every_place(_pairs, count):
    return np.arange(count, dtype=np.int64)


def one_more(pairs, count):
    place = in_common_order(pairs, count)
    return np.append(place, np.setdiff1d(np.arange(count), place)[:1])


def one_fewer(pairs, count):
    return in_common_order(pairs, count)[:-1]


def against(cheat, **options):
    mine, theirs = memory_channels("shop", "bank", timeout_s=20)
    return in_threads(
        lambda: intersect_feature_party(THEIRS, mine, rng=RNG, protocol="diffie-hellman", local=ONE, **options),
        lambda: cheat(theirs),
    )[0]


@pytest.mark.parametrize("several", [False, True])
def test_the_stand_in_that_follows_the_protocol_is_taken(several):
    found = against(lambda channel: label_party(channel, places=in_common_order, sole=not several), one_of_several=several)
    assert sorted(found.rows_N) == list(range(20))


@pytest.mark.parametrize(
    ("places", "words"),
    [
        (every_place, "sent 60 'places of the joint rows' for the 20 that match"),
        (one_more, "sent 21 'places of the joint rows' for the 20 that match"),
        (one_fewer, "sent 19 'places of the joint rows' for the 20 that match"),
        (lambda pairs, count: in_common_order(pairs, count)[::-1], "in an order that a side with these ids cannot have"),
        (lambda pairs, count: np.setdiff1d(np.arange(count), pairs[1])[:20], "that are not those whose tags match"),
    ],
    ids=["every row", "one more", "one fewer", "another order", "other rows"],
)
def test_made_up_places_are_caught(places, words):
    error = against(lambda channel: label_party(channel, places=places))
    assert isinstance(error, ProtocolError)
    assert error.peer == "bank"
    assert words in str(error)


@pytest.mark.parametrize("places", [every_place, lambda pairs, count: in_common_order(pairs, count)[::-1]])
def test_with_several_feature_parties_made_up_places_are_caught_by_their_order(places):
    # 60 places in the one right order by chance: 1 / 60!.
    error = against(lambda channel: label_party(channel, places=places, sole=False), one_of_several=True)
    assert isinstance(error, ProtocolError)
    assert "in an order that a side with these ids cannot have" in str(error)


def test_with_several_feature_parties_a_single_made_up_row_is_not_caught():
    """This is not prevented, as docs/results/deviations.md says: a single row is in every order."""
    found = against(lambda channel: label_party(channel, places=lambda *_: np.array([55]), sole=False), one_of_several=True)
    assert len(found) == 1


def test_a_label_party_that_repeats_ids_is_caught_before_it_gets_tags():
    def cheat(channel):
        send_size(channel, "ids", 3)
        channel.receive(Size)
        send_list(channel, "label party's blinded ids", multiply(hash_to_group([b"a", b"b", b"a"]), RNG.scalar()))

    for several in (False, True):
        error = against(cheat, one_of_several=several)
        assert isinstance(error, ProtocolError)
        assert "1 duplicates; its ids must be unique" in str(error)


def test_a_feature_party_that_makes_up_matches_once_it_knows_the_tags_is_caught():
    def cheat(channel):
        key = RNG.scalar()
        send_size(channel, "ids", len(THEIRS))
        count = channel.receive(Size).rows
        send_list(channel, "feature party's blinded ids", multiply(hash_to_group(THEIRS), key))
        receive_list(channel, "label party's blinded ids", count, shape=(32,))
        channel.send(TagsDigest(digest=bytes(32)))
        known_16 = receive_list(channel, "feature party's tags", len(THEIRS), shape=(16,))
        send_list(channel, "label party's tags", known_16)  # each of the label party's rows is claimed to match

    mine, theirs = memory_channels("bank", "shop", timeout_s=20)
    error, _ = in_threads(lambda: intersect_label_party(OWN, [mine], rng=RNG, local=ONE), lambda: cheat(theirs))
    assert isinstance(error, ProtocolError)
    assert error.peer == "shop"
    assert "than it had committed to before it saw this side's" in str(error)


def test_a_feature_party_that_shuffles_its_tags_has_other_rows_count_as_common_unnoticed():
    """This is not prevented, as docs/results/deviations.md says: the number of matches is proven, not which rows they are."""

    def cheat(channel):
        key = RNG.scalar()
        send_size(channel, "ids", len(THEIRS))
        count = channel.receive(Size).rows
        send_list(channel, "feature party's blinded ids", multiply(hash_to_group(THEIRS), key))
        tags_16 = tags_of(multiply(receive_list(channel, "label party's blinded ids", count, shape=(32,)), key))[::-1].copy()
        digest = blake2b(tags_16.tobytes(), digest_size=32, person=b"tallystick tags").digest()
        channel.send(TagsDigest(digest=digest))
        receive_list(channel, "feature party's tags", len(THEIRS), shape=(16,))
        send_list(channel, "label party's tags", tags_16)
        receive_list(channel, "places of the joint rows", channel.receive(Size).rows, dtype=np.int32)

    mine, theirs = memory_channels("bank", "shop", timeout_s=20)
    found, _ = in_threads(lambda: intersect_label_party(OWN, [mine], rng=RNG, local=ONE), lambda: cheat(theirs))
    assert len(found) == 20
    assert set(found.rows_N) != set(range(20))  # of OWN, of which THEIRS has the first 20: 20 others by chance, 1 / C(60, 20)


def shuffling_label_party(channel, key, *, one):
    """Return its tags in another order. With only one match that order leaves no trace."""
    send_size(channel, "ids", len(OWN))
    count = channel.receive(Size).rows
    send_list(channel, "label party's blinded ids", multiply(hash_to_group(OWN), key))
    theirs_16 = tags_of(multiply(receive_list(channel, "feature party's blinded ids", count, shape=(32,)), key))
    channel.receive(TagsDigest)
    send_list(channel, "feature party's tags", np.roll(theirs_16, 1, axis=0))
    rows, place = match(receive_list(channel, "label party's tags", len(OWN), shape=(16,)), theirs_16)
    assert one == (len(rows) == 1)
    send_size(channel, "places of the joint rows", len(place))
    send_list(channel, "places of the joint rows", ((place + 1) % count).astype(np.int32))


@pytest.mark.parametrize("common", [1, 20])
def test_a_label_party_that_shuffles_its_tags_is_caught_by_the_order_unless_few_match(common):
    # 20 places in the one right order by chance: 1 / 20!, about 4e-19.
    ids = [*OWN[:common], *(b"theirs-%d" % number for number in range(40))]
    mine, theirs = memory_channels("shop", "bank", timeout_s=20)
    found, _ = in_threads(
        lambda: intersect_feature_party(ids, mine, rng=RNG, local=ONE),
        lambda: shuffling_label_party(theirs, RNG.scalar(), one=common == 1),
    )
    if common == 1:
        assert len(found) == 1
    else:
        assert "in an order that a side with these ids cannot have" in str(found)


def test_places_of_another_kind_are_refused():
    for places in ([0, 0], [0, 60], [-1, 0]):
        assert not are_distinct_indices(np.array(places), 60)
        error = against(lambda channel, places=places: label_party(channel, places=lambda *_: np.array(places)))
        assert isinstance(error, ProtocolError)
        assert "repeat or lie outside 0 to 59" in str(error)


def doubled(rows):
    rows[1::2] = rows[: len(rows) - 1 : 2] if len(rows) % 2 else rows[::2]
    return rows


@pytest.mark.parametrize("of", ["blinded ids", "returned ids", "merged union"])
def test_a_union_whose_active_side_doubles_elements_ends_before_it_can_find_its_ids(of):
    label, feature = memory_channels("bank", "shop", timeout_s=20)
    seen = []

    class Watching(Tampering):
        def receive(self, kind):
            message = super().receive(kind)
            seen.append(getattr(message, "of", ""))
            return message

    ours, theirs = in_threads(
        lambda: union_label_party(OWN, Watching(label, of, doubled), rng=RNG, threads=1),
        lambda: union_feature_party([*THEIRS, b"more"], feature, rng=RNG, threads=1),
    )
    assert isinstance(theirs, ProtocolError)
    assert theirs.peer == "bank"
    assert isinstance(ours, PeerStopped)
    assert not {"own ids under both keys", "universal ids"} & set(seen)


def test_a_union_named_in_another_order_is_refused():
    label, feature = memory_channels("bank", "shop", timeout_s=20)
    ours, _ = in_threads(
        lambda: union_label_party(OWN, label, rng=RNG, threads=1),
        lambda: union_feature_party(
            [*THEIRS, b"more"], Tampering(feature, "universal ids", lambda rows: rows[::-1]), rng=RNG, threads=1
        ),
    )
    assert isinstance(ours, ProtocolError)
    assert "'universal ids' that are not sorted" in str(ours)


def test_a_union_whose_active_side_puts_others_in_place_of_its_own_is_not_caught():
    """This is not prevented, as docs/results/deviations.md says: the own ids that are still named are common ones."""
    label, feature = memory_channels("bank", "shop", timeout_s=20)
    kept = {}

    class Replacing(Tampering):
        """It keeps what came back as the other side's part of the merged union, and replaces the rest by elements of nobody."""

        def send(self, message):
            if getattr(message, "of", "") == "returned ids":
                kept["theirs"] = {row.tobytes() for row in message.rows.numpy()}
            super().send(message)

    def swapped(rows):
        mine = [index for index, row in enumerate(rows) if row[:16].tobytes() not in kept["theirs"]]
        rows[mine] = multiply(hash_to_group([b"nobody-%d" % index for index in mine]), RNG.scalar())
        return rows

    both = Replacing(label, "merged union", swapped)
    ours, theirs = in_threads(
        lambda: union_label_party(OWN, both, rng=RNG, threads=1),
        lambda: union_feature_party([*THEIRS, b"more"], feature, rng=RNG, threads=1),
    )
    # The code of this party misses its 40 other ids; a hostile one would know by then that these 20 are common.
    assert isinstance(ours, ProtocolError)
    assert "left 40 of this side's ids out of 'universal ids'" in str(ours)
    assert len(theirs) == 101


def test_the_usual_limit_follows_from_the_own_table_and_its_error_names_the_key():
    assert [usual_max_rows(own) for own in (1, 10_000, 50_000, 5_000_000)] == [100_000, 100_000, 500_000, 50_000_000]

    def cheat(channel):
        send_size(channel, "ids", 10_000_000)  # every telephone number of a small country

    mine, theirs = memory_channels("bank", "shop", timeout_s=20)
    error, _ = in_threads(
        lambda: intersect_label_party(OWN, [mine], rng=RNG, max_rows=usual_max_rows(len(OWN))), lambda: cheat(theirs)
    )
    assert isinstance(error, ProtocolError)
    assert "shop announced 10000000 rows of 'ids'; this side takes at most 100000" in str(error)
    assert "set alignment.max_rows in the contract, on every side alike" in str(error)


def test_repeated_counts_what_stands_there_before():
    tags = np.frombuffer(b"".join(bytes([value]) * 16 for value in (3, 1, 3, 2, 3, 1)), dtype=np.uint8).reshape(-1, 16)
    assert repeated(tags) == 3
    assert repeated(tags[:2]) == repeated(tags[:0]) == 0
