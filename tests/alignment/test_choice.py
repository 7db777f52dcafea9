"""auto chooses the protocol that ends sooner, the same on both sides, whatever the line is like."""

import threading
import time

import numpy as np
import pytest

from tallystick.alignment.choice import FEW_IDS, MANY_IDS, Choice, choose_protocol, sooner
from tallystick.alignment.exchange import Size, send_size
from tallystick.alignment.pairwise import LocalOptions
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError
from tallystick.network.channel import memory_channels
from tallystick.network.line_speed import LineProbe, MeasuredLine, ProbeAnswer

from .roles import error_of, in_threads

RNG = SecureRandom(source=np.random.default_rng(1).bytes)
LAN, FAR, SLOW = (MeasuredLine(round_trip_s=t, bytes_per_s=r) for t, r in ((0.0005, 1e8), (0.2, 12.5e6), (0.05, 1e5)))


@pytest.mark.parametrize(
    ("label", "feature", "line", "expected"),
    [
        (500, 500, LAN, "diffie-hellman"),
        (10_000, 10_000, LAN, "oblivious-transfer"),
        (2_500, 2_500, LAN, "oblivious-transfer"),
        (2_500, 2_500, FAR, "diffie-hellman"),  # one round trip less
        (10_000, 10_000, FAR, "oblivious-transfer"),
        (50_000, 50_000, SLOW, "diffie-hellman"),  # fewer bytes for an id of the label party
        (10, 100_000, SLOW, "oblivious-transfer"),  # and more for one of the feature party
        (10**6, 10**6, SLOW, "oblivious-transfer"),  # goes on where it broke
    ],
)
def test_the_choice_follows_sizes_and_line(label, feature, line, expected):
    assert sooner(label, feature, line) == expected


class Slow:
    """A channel with a delay and a rate for what the label party sends."""

    def __init__(self, channel, *, delay, rate):
        self._channel, self.peer, self._delay, self._rate = channel, channel.peer, delay, rate
        self.kinds = []

    def send(self, message):
        self.kinds.append(type(message).__name__)
        time.sleep(self._delay + len(getattr(message, "data", b"")) / self._rate)
        self._channel.send(message)

    def receive(self, kind):
        return self._channel.receive(kind)


def test_the_line_is_measured():
    ours, theirs = memory_channels("label", "feature", timeout_s=20)

    def answers():
        for _ in range(5):
            theirs.receive(LineProbe)
            theirs.send(ProbeAnswer())

    thread = threading.Thread(target=answers)
    thread.start()
    taken, line = choose_protocol(Slow(ours, delay=0.1, rate=200_000), 2_000, 2_000)
    thread.join()
    assert line.round_trip_s == pytest.approx(0.1, rel=0.5)
    assert line.bytes_per_s == pytest.approx(200_000, rel=0.5)
    assert theirs.receive(Choice).protocol == taken == "diffie-hellman"
    assert str(line).endswith(" MB/s")


@pytest.mark.parametrize(
    ("delay", "rows", "expected", "probed"),
    [
        (0.0, 3_000, "oblivious-transfer", True),
        (0.25, 2_500, "diffie-hellman", True),
        (0.0, FEW_IDS // 2, "diffie-hellman", False),
    ],
)
def test_both_sides_take_what_the_label_party_chose(delay, rows, expected, probed):
    ours, theirs = memory_channels("label", "feature", timeout_s=60)
    slow, said = Slow(ours, delay=delay, rate=1e9), []
    label, feature = [b"%d" % n for n in range(rows)], [b"%d" % n for n in range(rows - 5, 2 * rows - 5)]
    outcomes = in_threads(
        lambda: intersect_label_party(label, [slow], rng=RNG, local=LocalOptions(threads=1, say=said.append)),
        lambda: intersect_feature_party(feature, theirs, rng=RNG, local=LocalOptions(threads=1)),
    )
    assert [len(outcome) for outcome in outcomes] == [5, 5]
    assert ("CoinCommitment" in slow.kinds) == (expected == "oblivious-transfer")
    assert ("Choice" in slow.kinds) == probed
    assert any(line.endswith(f" uses {expected}") and "a round trip of" in line for line in said) == probed


@pytest.mark.parametrize(
    "messages",
    [
        [Choice(protocol="oblivious-transfer")],
        [LineProbe(data=bytes(65_537))],
        [*[LineProbe(data=b"")] * 5, Choice(protocol="none")],
    ],
    ids=["chosen before it is measured", "a large probe", "an unknown protocol"],
)
def test_another_order_size_or_protocol_is_refused(messages):
    def cheat(channel):
        send_size(channel, "ids", MANY_IDS - 100)
        channel.receive(Size)
        for message in messages:
            channel.send(message)

    error = error_of(lambda channel: intersect_feature_party([b"a"], channel, rng=RNG), cheat)
    assert isinstance(error, ProtocolError)
    assert error.peer == "peer"


def test_a_label_party_is_answered_by_nothing_else():
    def cheat(channel):
        send_size(channel, "ids", 5_000)
        channel.receive(Size)
        channel.send(LineProbe(data=b""))

    error = error_of(lambda channel: intersect_label_party([b"a"], [channel], rng=RNG), cheat)
    assert isinstance(error, ProtocolError)
