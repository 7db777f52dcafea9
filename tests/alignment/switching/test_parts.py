"""Compare each part of oblivious switching with a slow reference, and test it against peers that deviate."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lanes import short_lane_of

from tallystick.alignment.exchange import notify_peers
from tallystick.alignment.oprf.extension import Streams
from tallystick.alignment.oprf.key_value import StoreShape, looked_up, probes
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.switching import delivery, equality, programmed, shuffle
from tallystick.alignment.switching.delivery import receive_hidden_rows, send_hidden_rows
from tallystick.alignment.switching.equality import answer_equal, learn_equal
from tallystick.alignment.switching.network import Network, route
from tallystick.alignment.switching.programmed import Bins, ProgrammedStore, ProgrammedTable, program, receive_programmed
from tallystick.alignment.switching.shuffle import permute, share
from tallystick.alignment.switching.transfers import (
    GROUPS,
    LEAVES,
    TransferReceiver,
    TransferSender,
    _summed,
    begin_as_receiver,
    begin_as_sender,
)
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import memory_channels

from ..roles import RNG, Recording, Tampering, in_threads

SALT = b"s" * 32


def TOLD(more):
    """Report progress to nobody."""


def random_words(seed, *shape):
    return np.random.default_rng(seed).integers(0, 2**64, shape, dtype=np.uint64)


def random_bytes(seed, *shape):
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def both(first, second, *, first_wrap=lambda channel: channel, second_wrap=lambda channel: channel):
    """Run both roles, each of which tells the other where it fails. Return what each returned or raised."""

    def told(role, channel):
        with notify_peers([channel]):
            return role(channel)

    ours, theirs = memory_channels("first", "second", timeout_s=20)
    return in_threads(lambda: told(first, first_wrap(ours)), lambda: told(second, second_wrap(theirs)))


def transfers(seed=2):
    """Return a receiver and a sender with the seeds that the base transfers give."""
    generator = np.random.default_rng(seed)
    seeds = generator.integers(0, 256, (GROUPS, LEAVES, 16), dtype=np.uint8)
    place_T = generator.random(4 * GROUPS) < 0.5
    apart = np.zeros_like(seeds)
    for group, bits in enumerate(place_T.reshape(GROUPS, 4)):
        place = sum(int(bit) << order for order, bit in enumerate(bits))
        for other in range(1, LEAVES):
            apart[group, other] = seeds[group, place ^ other]
    return TransferReceiver(seeds.reshape(-1, 16), salt=SALT), TransferSender(apart.reshape(-1, 16), place_T, salt=SALT)


def fair(rows):
    """Every bit is a fair coin: the share of ones is off by 6 standard deviations with a chance of 2e-9."""
    bits = np.unpackbits(np.ascontiguousarray(rows).view(np.uint8))
    return abs(bits.mean() - 0.5) * 2 * np.sqrt(len(bits)) < 6


# Transfers.


def test_base_transfers_give_a_sender_all_seeds_but_one_of_each_group():
    receiver, sender = both(
        lambda channel: begin_as_receiver(channel, rng=RNG, salt=SALT),
        lambda channel: begin_as_sender(channel, rng=RNG, salt=SALT),
    )
    for count in (1, 63, 64, 1000):
        choice = np.random.default_rng(count).random(count) < 0.5
        correction, chosen = receiver.next_transfers(choice)
        first, second = sender.next_transfers(correction, count)
        assert np.array_equal(chosen, np.where(choice[:, None], second, first))
        assert not (chosen == np.where(choice[:, None], first, second)).any()


def test_the_sender_has_all_seeds_but_the_one_at_its_place():
    kept = {}

    class Keeping(SecureRandom):
        def bytes(self, count):
            drawn = super().bytes(count)
            kept[count] = drawn
            return drawn

    receiving, sending = (Keeping(source=np.random.default_rng(seed).bytes) for seed in (5, 6))
    _, sender = both(
        lambda channel: begin_as_receiver(channel, rng=receiving, salt=SALT),
        lambda channel: begin_as_sender(channel, rng=sending, salt=SALT),
    )
    seeds = np.frombuffer(kept[GROUPS * LEAVES * 16], dtype=np.uint8).reshape(GROUPS, LEAVES, 16)
    place_T = np.unpackbits(np.frombuffer(kept[16], dtype=np.uint8)).astype(bool)
    known = set(sender._streams.next_words(128).view(np.uint8).reshape(-1, 16).view("V16").ravel().tolist())
    assert len(known) == GROUPS * (LEAVES - 1) + 1  # the unused ones are alike
    opened = np.array([row in known for row in Streams(seeds.reshape(-1, 16)).next_words(128).view("V16").ravel().tolist()])
    places = place_T.reshape(GROUPS, 4) @ (1 << np.arange(4))
    assert np.array_equal(opened.reshape(GROUPS, LEAVES), np.arange(LEAVES) != places[:, None])


def test_sums_are_those_of_the_definition():
    streams = random_words(3, GROUPS * LEAVES, 5)
    total, by_bit = _summed(streams)
    by_group = streams.reshape(GROUPS, LEAVES, 5)
    assert np.array_equal(total, np.bitwise_xor.reduce(by_group, axis=1))
    for bit in range(4):
        leaves = [leaf for leaf in range(LEAVES) if leaf >> bit & 1]
        assert np.array_equal(by_bit.reshape(GROUPS, 4, 5)[:, bit], np.bitwise_xor.reduce(by_group[:, leaves], axis=1))


def test_corrections_tell_nothing_of_choices_and_pads_never_repeat():
    for choice in (np.zeros(6400, dtype=bool), np.ones(6400, dtype=bool)):
        receiver, _ = transfers()
        correction, _ = receiver.next_transfers(choice)
        assert fair(correction)
        assert abs((correction[0] ^ correction[1]).astype(float).mean() / 2**64 - 0.5) < 6 / np.sqrt(12 * 100)
    receiver, sender = transfers()
    pads = [pad for _ in range(3) for pad in sender.next_transfers(receiver.next_transfers(np.ones(100, dtype=bool))[0], 100)]
    assert len({row.tobytes() for row in np.concatenate(pads)}) == 600


# Permute and share.


@given(least=st.integers(1, 300), seed=st.integers(0, 2**32 - 1))
@settings(deadline=None, max_examples=15)
def test_shares_add_up_to_the_permuted_values(least, seed):
    network, values = Network(least=least), random_words(seed, Network(least=least).size)
    target = np.random.default_rng(seed).permutation(network.size).astype(np.int32)
    receiver, sender = transfers(seed)
    first, second = both(
        lambda channel: permute(channel, receiver, network, route(network, target), progress=TOLD),
        lambda channel: share(channel, sender, network, values, progress=TOLD),
    )
    assert np.array_equal((first ^ second)[target], values)


def test_many_pieces_of_switches_and_who_is_told(monkeypatch):
    monkeypatch.setattr(shuffle, "PIECE_SWITCHES", 100)
    network, values, told = Network(least=1000), random_words(1, Network(least=1000).size), []
    target = np.random.default_rng(1).permutation(network.size).astype(np.int32)
    (receiver, sender), views = transfers(), []

    def wrap(channel):
        views.append(Recording(channel))
        return views[-1]

    first, second = both(
        lambda channel: permute(channel, receiver, network, route(network, target), progress=told.append),
        lambda channel: share(channel, sender, network, values, progress=told.append),
        first_wrap=wrap,
    )
    assert np.array_equal((first ^ second)[target], values)
    assert sum(told) == 2 * sum(network.switches())
    assert fair(views[0].view["differences at switches"])
    assert fair(first)
    assert fair(second)


# A value for each bin.


@pytest.mark.parametrize(("tabled", "others", "common"), [(60, 90, 30), (5, 2000, 3), (300, 4, 4), (1, 1, 1), (1, 1, 0)])
def test_values_are_equal_exactly_where_the_id_is_common(monkeypatch, tabled, others, common):
    monkeypatch.setattr(programmed, "PIECE_IDS", 500)
    monkeypatch.setattr(programmed, "PIECE_BINS", 70)
    ids = random_bytes(tabled, tabled + others - common, 16)
    own, theirs = ids[:tabled], ids[tabled - common :]
    bins = Bins(table_ids=tabled, programmed_ids=others)
    (table, first), second = both(
        lambda channel: receive_programmed(channel, own, bins, rng=RNG, salt=SALT, progress=TOLD),
        lambda channel: program(channel, theirs, bins, rng=RNG, salt=SALT, progress=TOLD),
    )
    assert len(table) == len(first) == len(second) == bins.count
    assert sorted(table[table >= 0]) == list(range(tabled))
    assert np.array_equal(first == second, table >= tabled - common)


def test_a_store_that_is_sent_is_right_and_hides_which_slots_its_keys_need():
    shape, points = StoreShape(keys=40), random_bytes(1, 40, 16)
    values, slots = random_words(2, 40), []
    for _ in range(200):
        seed, slots_M1 = programmed._stored(values, points, shape, rng=RNG)
        assert np.array_equal(looked_up(slots_M1, probes(points, shape, seed=seed), shape)[:, 0], values)
        slots.append(slots_M1[:, 0])
    # A slot that no key needs is 0 in a store that does not hide them; here none is 0, except with a chance below 2^-48.
    assert np.all(slots)
    assert fair(np.array(slots))
    few, _ = programmed._stored(values[:1], points[:1], shape, rng=RNG)
    assert len(few) == 16


def test_ids_without_a_store_or_a_table_are_an_error_that_says_what_to_do():
    alike = np.repeat(random_bytes(1, 1, 16), 3, axis=0)
    with pytest.raises(DataError, match=r"3 ids of this side found no place in a store for 40, .*protocol: diffie-hellman"):
        programmed._stored(random_words(1, 3), alike, StoreShape(keys=40), rng=RNG)
    with pytest.raises(DataError, match="41 ids of this side found no place in a store for 40"):
        programmed._stored(random_words(1, 41), random_bytes(1, 41, 16), StoreShape(keys=40), rng=RNG)
    many, bins = np.repeat(alike[:1], 5, axis=0), Bins(table_ids=5, programmed_ids=5)
    channel, _ = memory_channels("first", "second")
    with pytest.raises(DataError, match="5 ids of this side found no places in 8 cuckoo tables"):
        receive_programmed(channel, many, bins, rng=RNG, salt=SALT, progress=TOLD)


@pytest.mark.parametrize(("tabled", "others"), [(1, 1), (10, 10**6), (10**6, 10), (10**6, 10**6)])
def test_pieces_cover_a_region_and_have_room_for_their_ids(tabled, others):
    bins = Bins(table_ids=tabled, programmed_ids=others)
    spans = bins.spans()
    assert [span.start for span in spans] == [0, *(span.stop for span in spans[:-1])]
    assert spans[-1].stop == bins.per_region
    assert max(span.stop - span.start for span in spans) <= max(programmed.PIECE_BINS, 1)
    assert sum(bins.store(span).keys for span in spans) >= others


# Equality.


def test_equal_values_are_found_and_others_look_random(monkeypatch):
    monkeypatch.setattr(equality, "PIECE", 90)
    values, views = random_words(1, 1000), []
    same = np.random.default_rng(2).random(1000) < 0.4

    def wrap(channel):
        views.append(Recording(channel))
        return views[-1]

    found, _ = both(
        lambda channel: learn_equal(channel, values, rng=RNG, salt=SALT, progress=TOLD),
        lambda channel: answer_equal(channel, np.where(same, values, values ^ np.uint64(1)), rng=RNG, salt=SALT, progress=TOLD),
        first_wrap=wrap,
        second_wrap=wrap,
    )
    assert np.array_equal(found, same)
    assert all(fair(rows) for recorded in views for of, rows in recorded.view.items() if "places" in of)


# Delivery.


def test_rows_arrive_where_the_choice_is_0_alone(monkeypatch):
    monkeypatch.setattr(delivery, "PIECE", 90)
    rows, choice = random_bytes(1, 1000, 16), np.random.default_rng(2).random(1000) < 0.4
    receiver, sender = transfers()
    found, _ = both(
        lambda channel: receive_hidden_rows(channel, receiver, choice), lambda channel: send_hidden_rows(channel, sender, rows)
    )
    assert np.array_equal(found[~choice], rows[~choice])
    assert not (found[choice] == rows[choice]).all(axis=1).any()
    assert fair(found[choice])


# Peers that deviate.

NETWORK = Network(least=20)
VALUES, BINS, POINTS = random_words(1, NETWORK.size), Bins(table_ids=4, programmed_ids=3), random_bytes(1, 4, 16)
CHOICE = np.arange(100) % 2 == 0
PARTS = {
    "transfers": lambda: (
        lambda channel: begin_as_receiver(channel, rng=RNG, salt=SALT),
        lambda channel: begin_as_sender(channel, rng=RNG, salt=SALT),
    ),
    "shuffle": lambda: (
        lambda channel: permute(
            channel, transfers()[0], NETWORK, route(NETWORK, np.arange(NETWORK.size, dtype=np.int32)), progress=TOLD
        ),
        lambda channel: share(channel, transfers()[1], NETWORK, VALUES, progress=TOLD),
    ),
    "programmed": lambda: (
        lambda channel: receive_programmed(channel, POINTS, BINS, rng=RNG, salt=SALT, progress=TOLD),
        lambda channel: program(channel, POINTS[:3], BINS, rng=RNG, salt=SALT, progress=TOLD),
    ),
    "equality": lambda: (
        lambda channel: learn_equal(channel, VALUES, rng=RNG, salt=SALT, progress=TOLD),
        lambda channel: answer_equal(channel, VALUES, rng=RNG, salt=SALT, progress=TOLD),
    ),
    "delivery": lambda: (
        lambda channel: receive_hidden_rows(channel, transfers()[0], CHOICE),
        lambda channel: send_hidden_rows(channel, transfers()[1], random_bytes(1, 100, 16)),
    ),
}
LISTS = [
    ("transfers", 0, "seeds of transfers"),
    ("shuffle", 0, "choices of switches"),
    ("shuffle", 1, "differences at switches"),
    ("programmed", 0, "corrections of bins"),
    ("programmed", 1, "slots of a store"),
    ("equality", 0, "corrections of places"),
    ("equality", 1, "values of places"),
    ("delivery", 0, "choices of rows"),
    ("delivery", 1, "hidden rows"),
]


CHANGES = {"rows": lambda rows: rows[:-1], "width": lambda rows: rows[:, :-1], "kind": lambda rows: rows.astype(np.float32)}


@pytest.mark.parametrize(("listed", "change"), short_lane_of(itertools.product(LISTS, CHANGES), 9))  # each list and each change
def test_lists_of_the_wrong_size_or_kind_are_refused_and_the_peer_is_named(listed, change):
    part, liar, of = listed
    wrap = {("first_wrap", "second_wrap")[liar]: lambda channel: Tampering(channel, of, CHANGES[change])}
    error = both(*PARTS[part](), **wrap)[1 - liar]
    assert isinstance(error, ProtocolError)
    assert error.peer == ("first", "second")[liar]
    assert repr(of) in str(error)


class Replacing:
    """A channel of a party that follows the protocol except that it replaces one message."""

    def __init__(self, channel, other):
        self._channel, self.peer, self.receive, self._other = channel, channel.peer, channel.receive, other

    def send(self, message):
        self._channel.send(self._other if type(message) is type(self._other) else message)


@pytest.mark.parametrize(
    ("liar", "message"),
    [
        (0, ProgrammedTable(attempt=8)),
        (0, ProgrammedTable(attempt=-1)),
        (1, ProgrammedStore(seed=bytes(15))),
        (1, ProgrammedStore(seed=b"")),
    ],
)
def test_another_table_number_or_seed_is_refused_and_the_peer_is_named(liar, message):
    wrap = {("first_wrap", "second_wrap")[liar]: lambda channel: Replacing(channel, message)}
    error = both(*PARTS["programmed"](), **wrap)[1 - liar]
    assert isinstance(error, ProtocolError)
    assert error.peer == ("first", "second")[liar]
