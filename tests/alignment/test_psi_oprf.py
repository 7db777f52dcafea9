"""Compare the intersection by oblivious transfer with plain sets, and test it against peers that deviate."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.alignment import psi_oprf
from tallystick.alignment.buckets import Standing
from tallystick.alignment.coin_toss import Coin, CoinCommitment, toss
from tallystick.alignment.exchange import Chunk, Size, send_size
from tallystick.alignment.matching import sorted_order
from tallystick.alignment.oprf.base_transfers import transfer_receiver, transfer_sender
from tallystick.alignment.oprf.codes import Codes, fingerprints
from tallystick.alignment.oprf.extension import Receiver, Sender, outputs
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psi_oprf import Proof, Shape, Table
from tallystick.errors import DataError, PeerStopped, ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.messages import Array

from .roles import RNG, Recording, Tampering, error_of, in_threads

SETS = st.sets(st.binary(max_size=6), min_size=1, max_size=40)
BY = "oblivious-transfer"
LABEL, FEATURE = [b"%d" % n for n in range(60)], [b"%d" % n for n in range(40, 140)]


def intersect(label_ids, *feature_ids, label_rng=RNG, wrap=lambda channel: channel, **options):
    """Run all roles. Return the label party's outcome and each feature party's, or the exception that was raised."""
    names = [f"feature{number}" for number in range(len(feature_ids))]
    pairs = [memory_channels("label", name, timeout_s=20) for name in names]
    return in_threads(
        lambda: intersect_label_party(label_ids, [wrap(mine) for mine, _ in pairs], rng=label_rng, protocol=BY, **options),
        *(
            lambda ids=ids, channel=theirs: intersect_feature_party(
                ids, channel, rng=RNG, protocol=BY, one_of_several=len(pairs) > 1, **options
            )
            for ids, (_, theirs) in zip(feature_ids, pairs, strict=True)
        ),
    )


def begin(channel):
    """A peer that has kept nothing."""
    channel.send(Standing(alignment=b"", done=0, settled=False))
    channel.receive(Standing)


@settings(max_examples=6, deadline=None)
@given(label=SETS, features=st.lists(SETS, min_size=1, max_size=2), common=SETS)
def test_finds_the_rows_that_all_have_in_one_order(label, features, common):
    tables = [list(ids | common) for ids in (label, *features)]
    outcomes = intersect(*tables)
    aligned = [[table[row] for row in outcome.rows_N] for table, outcome in zip(tables, outcomes, strict=True)]
    assert all(ids == aligned[0] for ids in aligned)
    assert set(aligned[0]) == set.intersection(*map(set, tables))


@pytest.mark.parametrize(("own", "theirs"), [(1, 20_000), (20_000, 1), (9_000, 9_000)])
def test_unequal_sizes_and_several_pieces(own, theirs, monkeypatch):
    monkeypatch.setattr(psi_oprf, "PIECE_BINS", 1000)
    monkeypatch.setattr(psi_oprf, "PIECE_IDS", 700)
    label, feature = [b"%d" % n for n in range(own)], [b"%d" % n for n in range(own - 1, own - 1 + theirs)]
    ours, answered = intersect(label, feature)
    assert [label[row] for row in ours.rows_N] == [feature[row] for row in answered.rows_N] == [b"%d" % (own - 1)]


def test_both_protocols_give_the_same_rows_in_the_same_order():
    first, _ = intersect(LABEL, FEATURE)
    pair = memory_channels("label", "feature0", timeout_s=20)
    second, _ = in_threads(
        lambda: intersect_label_party(LABEL, [pair[0]], rng=RNG, protocol="diffie-hellman"),
        lambda: intersect_feature_party(FEATURE, pair[1], rng=RNG, protocol="diffie-hellman"),
    )
    assert np.array_equal(first.rows_N, second.rows_N)
    assert (first.learnt, first.sizes) == (second.learnt, second.sizes)


@pytest.mark.parametrize("leads", [True, False])
def test_neither_side_can_steer_the_key(leads):
    """If halves were sent openly, the side that waits could choose from as many keys as it hashes, so there is a commitment.

    The label party commits to its coin before it sees the other's; the feature party sends its own before it sees one.
    """
    ours, theirs = memory_channels("label", "feature", timeout_s=20)

    class Waiting(Tampering):
        """Receive everything before it says anything."""

        def send(self, message):
            seen.append(type(message).__name__)
            super().send(message)

        def receive(self, kind):
            seen.append(f"sees {kind.__name__}")
            return super().receive(kind)

    seen = []
    watched, other = (ours, theirs) if leads else (theirs, ours)
    keys = in_threads(lambda: toss(Waiting(watched, None, None), RNG, leads=leads), lambda: toss(other, RNG, leads=not leads))
    assert keys[0] == keys[1]
    assert seen == (["CoinCommitment", "sees Coin", "Coin"] if leads else ["sees CoinCommitment", "Coin", "sees Coin"])


@pytest.mark.parametrize("security", ["semi-honest", "malicious"])
def test_a_label_party_that_shows_another_coin_than_it_settled_on_is_refused(security):
    """It forces bits of the key by trying coins after it has seen the feature party's."""

    class Late(Tampering):
        def send(self, message):
            if isinstance(message, Coin):
                message = min((Coin(coin=bytes([n]) * 32) for n in range(256)), key=lambda coin: fingerprints([coin.coin])[0, 0])
            super().send(message)

    ours, theirs = memory_channels("label", "feature", timeout_s=20)
    options = {"rng": RNG, "protocol": BY, "security": security}
    _, outcome = in_threads(
        lambda: intersect_label_party(LABEL, [Late(ours, None, None)], **options),
        lambda: intersect_feature_party(FEATURE, theirs, **options),
    )
    assert isinstance(outcome, ProtocolError)
    assert "label sent another coin than it had committed to" in str(outcome)


def test_progress_ends_at_all_bins():
    told = []
    intersect(LABEL, FEATURE, local=LocalOptions(progress=lambda *call: told.append(call)))
    total = 3 * Shape(label_ids=60, feature_ids=100).per_region
    assert told.count(("private set intersection", total, total)) == 2


def test_no_common_id_ends_both():
    for outcome in intersect([b"a"], [b"A", b"b"]):
        assert isinstance(outcome, DataError)
        assert "no id is common" in str(outcome)


def test_a_view_is_as_random_for_other_ids():
    """Look at the bits of what each side receives, for common ids and for others.

    Tolerance: 6 standard deviations of each of 8 x bytes' mean; the chance of failing is some 10^-6, and the draws are seeded.
    """
    views = []
    for feature in (FEATURE, [b"other %d" % n for n in range(99)] + LABEL[:1]):
        ours, theirs = memory_channels("label", "feature", timeout_s=20)
        label_view, feature_view = Recording(ours), Recording(theirs)
        in_threads(
            lambda: intersect_label_party(LABEL, [label_view], rng=RNG, protocol=BY),  # noqa: B023 - run before the next
            lambda: intersect_feature_party(feature, feature_view, rng=RNG, protocol=BY),  # noqa: B023
        )
        views.append((label_view.view["outputs"], feature_view.view["corrections"]))
    for received in (*views[0], *views[1]):
        share_of_ones = np.unpackbits(received, axis=1).mean(axis=0)
        assert (abs(share_of_ones - 0.5) < 6 * 0.5 / len(received) ** 0.5).all()
    assert [received.shape for received in views[0]] == [received.shape for received in views[1]]


def test_the_label_party_learns_no_place_before_it_is_shuffled():
    """Its matches are anywhere in the feature party's order. In table order they would be the first 20 of 100."""
    ours, theirs = memory_channels("label", "feature", timeout_s=20)
    view = Recording(theirs)
    in_threads(
        lambda: intersect_label_party(LABEL, [ours], rng=RNG, protocol=BY),
        lambda: intersect_feature_party(FEATURE, view, rng=RNG, protocol=BY),
    )
    places = view.view["places of the joint rows"]
    assert len(places) == 20
    assert places.max() >= 40  # false by chance of less than 10^-9


@pytest.mark.parametrize("moves", [True, False])
def test_the_label_party_cannot_move_or_make_up_a_match(moves):
    def other(places):
        changed = places[::-1] if moves else np.append(places[1:], np.setdiff1d(range(100), places)[:1])
        return changed.astype(np.int32)

    _, theirs = intersect(LABEL, FEATURE, wrap=lambda channel: Tampering(channel, "places of the joint rows", other))
    assert isinstance(theirs, ProtocolError)
    assert "a proof that is not that of the ids at 'places of the joint rows'" in str(theirs)


def test_the_label_party_cannot_claim_a_place_by_an_id_that_it_guesses(monkeypatch):
    """It knows that the feature party has b"139", but not where: a claim is right with a chance of 1 in 80."""
    keys = []
    monkeypatch.setattr(psi_oprf, "toss", lambda *args, **options: keys.append(toss(*args, **options)) or keys[-1])

    class Claiming(Tampering):
        def send(self, message):
            if isinstance(message, Size) and message.of == "places of the joint rows":
                message = Size(of=message.of, rows=message.rows + 1)
            if isinstance(message, Proof):
                prints = fingerprints(LABEL[40:])
                ids = np.concatenate((prints[sorted_order(prints)], fingerprints([b"139"])))
                assert message.digest == psi_oprf._proof(keys[0], ids[:20])  # its way to prove what it has
                message = Proof(digest=psi_oprf._proof(keys[0], ids))
            super().send(message)

    def one_more(places):
        return np.append(places, np.setdiff1d(np.arange(100, dtype=np.int32), places)[:1])

    _, theirs = intersect(LABEL, FEATURE, wrap=lambda channel: Claiming(channel, "places of the joint rows", one_more))
    assert isinstance(theirs, ProtocolError)
    assert "a proof that is not" in str(theirs)


def test_a_feature_party_that_answers_twice_for_an_id_is_refused():
    ours, theirs = memory_channels("label", "feature", timeout_s=20)
    cheat = Tampering(theirs, "outputs", lambda outputs: np.repeat(outputs[::2], 2, axis=0))
    error, _ = in_threads(
        lambda: intersect_label_party(LABEL, [ours], rng=RNG, protocol=BY),
        lambda: intersect_feature_party(LABEL[:50] + FEATURE[50:], cheat, rng=RNG, protocol=BY),
    )
    assert isinstance(error, ProtocolError)
    assert "match an id twice" in str(error)


@pytest.mark.parametrize(
    "rows",
    [np.zeros((3, 64), np.uint8), np.zeros((0, 64), np.uint8), np.zeros((118, 63), np.uint8), np.zeros((118, 64), np.int32)],
    ids=["few", "none", "narrow", "of another type"],
)
def test_corrections_of_another_shape_are_refused(rows):
    def cheat(channel):
        send_size(channel, "ids", 60)
        channel.receive(Size)
        begin(channel)
        toss(channel, RNG, leads=True)
        transfer_sender(channel, 512, rng=RNG)
        channel.send(Table(bucket=0, attempt=0))
        channel.send(Chunk(of="corrections", rows=Array.of(rows)))

    error = error_of(lambda channel: intersect_feature_party(FEATURE, channel, rng=RNG, protocol=BY), cheat)
    assert isinstance(error, ProtocolError)
    assert error.peer == "peer"
    assert "corrections" in str(error)


@pytest.mark.parametrize(
    "message",
    [
        CoinCommitment(digest=bytes(31)),
        Coin(coin=bytes(32)),
        Table(bucket=0, attempt=0),
        Table(bucket=0, attempt=8),
        Table(bucket=1, attempt=0),
        Table(bucket=0, attempt=-1),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_a_coin_or_table_out_of_range_or_turn_is_refused(message, late):
    if late and message == Table(bucket=0, attempt=0):
        return  # it is due

    def cheat(channel):
        send_size(channel, "ids", 60)
        channel.receive(Size)
        begin(channel)
        if late:
            toss(channel, RNG, leads=True)
            transfer_sender(channel, 512, rng=RNG)
        channel.send(message)

    error = error_of(lambda channel: intersect_feature_party(FEATURE, channel, rng=RNG, protocol=BY), cheat)
    assert isinstance(error, ProtocolError)


def test_a_peer_that_takes_the_other_protocol_is_refused():
    ours, theirs = memory_channels("label", "feature", timeout_s=20)
    for outcome in in_threads(
        lambda: intersect_label_party(LABEL, [ours], rng=RNG, protocol=BY),
        lambda: intersect_feature_party(FEATURE, theirs, rng=RNG, protocol="diffie-hellman"),
    ):
        assert isinstance(outcome, ProtocolError | PeerStopped)


def test_a_table_that_does_not_exist_takes_another_key_and_then_ends(monkeypatch):
    monkeypatch.setattr(psi_oprf, "bins_per_region", lambda _: 1)
    ours, theirs = intersect([b"a", b"b", b"c", b"d"], [b"a"])
    assert isinstance(ours, DataError)
    assert "8 cuckoo tables" in str(ours)
    assert isinstance(theirs, PeerStopped)


def test_a_second_key_is_said_and_used(monkeypatch):
    tried = []
    found = psi_oprf.place

    def fails_first(*args, **options):
        tried.append(1)
        if len(tried) == 1:
            raise psi_oprf.NoPlace
        return found(*args, **options)

    monkeypatch.setattr(psi_oprf, "place", fails_first)
    ours, theirs = intersect(LABEL, FEATURE)
    assert [LABEL[row] for row in ours.rows_N] == [FEATURE[row] for row in theirs.rows_N]
    assert (len(ours), len(tried)) == (20, 2)


@pytest.mark.parametrize("size", [0, 31, 33])
def test_a_proof_of_another_size_is_refused(size):
    class Short(Tampering):
        def send(self, message):
            super().send(Proof(digest=bytes(size)) if isinstance(message, Proof) else message)

    _, theirs = intersect(LABEL, FEATURE, wrap=lambda channel: Short(channel, "nothing", None))
    assert isinstance(theirs, ProtocolError)
    assert "feature" not in theirs.peer


def test_places_that_repeat_are_refused():
    _, theirs = intersect(LABEL, FEATURE, wrap=lambda channel: Tampering(channel, "places of the joint rows", lambda p: p * 0))
    assert isinstance(theirs, ProtocolError)
    assert "repeat or lie outside" in str(theirs)


def test_corrections_of_a_further_region_are_refused():
    class Repeating(Tampering):
        def send(self, message):
            super().send(message)
            if isinstance(message, Chunk) and message.of == "corrections":
                self.sent = getattr(self, "sent", 0) + 1
                if self.sent == 3:
                    super().send(message)

    _, theirs = intersect(LABEL, FEATURE, wrap=lambda channel: Repeating(channel, "nothing", None))
    assert isinstance(theirs, ProtocolError)
    assert "feature" not in theirs.peer


def test_a_region_sent_again_for_the_others_only_loses_matches():
    """The first region's corrections replace the others'. Their secrets differ, so the ids there are not found."""

    class Repeating(Tampering):
        def send(self, message):
            if isinstance(message, Chunk) and message.of == "corrections":
                self.first = message = getattr(self, "first", message)
            super().send(message)

    label, feature = [b"%d" % n for n in range(600)], [b"%d" % n for n in range(500, 700)]
    ours, theirs = intersect(label, feature, wrap=lambda channel: Repeating(channel, "nothing", None))
    # half of them are in the first region; none or all with a chance of less than 10^-20
    assert 0 < len(ours) == len(theirs) < 100
    assert [label[row] for row in ours.rows_N] == [feature[row] for row in theirs.rows_N]


def test_a_feature_party_that_asks_for_three_ids_at_a_place_is_caught_where_two_are_found():
    """It has 300 ids for 100 places. Of each it sends the output in one region, where some are in the label party's table."""
    asked = [b"%d" % n for n in range(300)]

    def run(label_ids):
        ours, theirs = memory_channels("label", "feature", timeout_s=20)
        return in_threads(lambda: intersect_label_party(label_ids, [ours], rng=RNG, protocol=BY), lambda: packs(theirs))

    def packs(channel):
        places = [fingerprints(asked[part::3]) for part in range(3)]
        send_size(channel, "ids", 100)
        shape = Shape(label_ids=channel.receive(Size).rows, feature_ids=100)
        begin(channel)
        key = toss(channel, RNG, leads=False)
        choices = np.unpackbits(np.frombuffer(RNG.bytes(64), dtype=np.uint8)).astype(bool)
        sender = Sender(transfer_receiver(channel, choices, rng=RNG), choices)
        codes = Codes(psi_oprf._key(key, 0, channel.receive(Table).attempt))
        for region, prints in enumerate(places):
            rows = channel.receive(Chunk).rows.numpy(shape.per_region, 64)
            bins = codes.bins(prints, per_region=shape.per_region)[region]
            inputs = sender.inputs(sender.next_bins(rows).take(bins, axis=0), codes.words(prints))
            slots = bins + np.int32(region * shape.per_region)
            salt = psi_oprf._salt(key, 0)
            channel.send(Chunk(of="outputs", rows=Array.of(outputs(inputs, slots, salt=salt, size=shape.output_bytes))))
        return channel.receive(Size).rows

    caught, _ = run(asked)
    assert isinstance(caught, ProtocolError)
    assert "match an id twice" in str(caught)
    # One of three at each place: this cannot be detected, and those are found that are in that region.
    found, told = run(asked[::3])
    assert len(found) == told
    assert 10 < told < 90


def test_a_label_party_that_flips_bits_of_corrections_learns_the_choices_and_tests_any_id():
    """The price of not choosing ``alignment.security: malicious``: 512 ids that it knows to be common, each with one
    bit flipped.
    """
    generator = np.random.default_rng(3)
    seeds = generator.integers(0, 256, (2, 512, 16), dtype=np.uint8)
    choices = generator.random(512) < 0.5
    receiver, sender = Receiver(*seeds), Sender(np.where(choices[:, None], seeds[1], seeds[0]), choices)
    codes, salt, slots = Codes(b"k" * 16), b"s" * 16, np.arange(512, dtype=np.int32)
    known = codes.words(fingerprints([b"common %d" % n for n in range(512)]))
    inputs, corrections = receiver.next_bins(known)
    flips = np.packbits(np.eye(512, dtype=bool), axis=1, bitorder="little")
    secrets = sender.next_bins(corrections ^ flips)
    seen = outputs(sender.inputs(secrets, known), slots, salt=salt, size=10)
    learnt = (seen != outputs(inputs, slots, salt=salt, size=10)).any(axis=1)
    assert np.array_equal(learnt, choices)
    # With the choices it evaluates the function where it holds no id of its own.
    others = codes.words(fingerprints([b"secret %d" % n for n in range(512)]))
    mask = np.packbits(learnt, bitorder="little")
    guessed = outputs(inputs ^ (flips & mask) ^ ((known ^ others) & mask), slots, salt=salt, size=10)
    assert np.array_equal(guessed, outputs(sender.inputs(secrets, others), slots, salt=salt, size=10))
