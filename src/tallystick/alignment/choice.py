"""Choose the protocol of ``auto``: the one that should end sooner, given the number of ids and the network line.

    label party                                    feature party
    a small probe, then a large one        ->
                                           <-      an answer to each
    the protocol                           ->

The label party measures and chooses, so both sides use the same protocol. With few or many ids the choice is clear, and none of
this is sent. Both protocols disclose the same to each side, and the times of probes do not depend on any id.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from tallystick.network.channel import Channel
from tallystick.network.line_speed import MeasuredLine, answer_probes, measure_line
from tallystick.network.messages import Message

Taken = Literal["diffie-hellman", "oblivious-transfer"]

FEW_IDS = 1_000
"""Up to this many ids of both sides together, Diffie-Hellman ends before base transfers do."""
MANY_IDS = 250_000
"""Above this, oblivious transfer is faster except on the slowest lines, and it can be resumed where it broke."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Cost of a protocol: of one core on each side, and of the line, which carries both directions at the same time.

    ``sends`` gives, for the label party and for the feature party, the bytes it sends at the start, per id of the label party and
    per id of the feature party.
    """

    begins_s: float
    id_s: float
    round_trips: float
    sends: tuple[tuple[float, float, float], tuple[float, float, float]]

    def seconds(self, label_ids: int, feature_ids: int, line: MeasuredLine) -> float:
        """Estimate how long an alignment takes."""
        transfer_s = max(begin + label * label_ids + feature * feature_ids for begin, label, feature in self.sends)
        computing = self.begins_s + self.id_s * (label_ids + feature_ids)
        return computing + self.round_trips * line.round_trip_s + transfer_s / line.bytes_per_s


COSTS: Mapping[Taken, Cost] = {
    "diffie-hellman": Cost(begins_s=0.0, id_s=50e-6, round_trips=2.5, sends=((500, 32, 16), (500, 16, 32))),
    "oblivious-transfer": Cost(begins_s=0.2, id_s=2e-6, round_trips=3.5, sends=((7_000, 82, 0), (33_000, 0, 30))),
}
"""As `bench alignment` measured them."""


class Choice(Message, frozen=True):
    """The label party's choice of the protocol that both sides use."""

    protocol: Taken


def by_sizes(ids: int) -> Taken | None:
    """Return the protocol if the number of ids of both sides together decides it, else None."""
    if ids <= FEW_IDS:
        return "diffie-hellman"
    return "oblivious-transfer" if ids > MANY_IDS else None


def sooner(label_ids: int, feature_ids: int, line: MeasuredLine) -> Taken:
    """Return the protocol that should end sooner."""
    if (by_size := by_sizes(label_ids + feature_ids)) is not None:
        return by_size
    direct, extended = (COSTS[name].seconds(label_ids, feature_ids, line) for name in ("diffie-hellman", "oblivious-transfer"))
    return "diffie-hellman" if direct < extended else "oblivious-transfer"


def choose_protocol(channel: Channel, label_ids: int, feature_ids: int) -> tuple[Taken, MeasuredLine]:
    """Measure the line, choose a protocol and tell the feature party. This is the label party's role."""
    line = measure_line(channel)
    protocol = sooner(label_ids, feature_ids, line)
    channel.send(Choice(protocol=protocol))
    return protocol, line


def be_told(channel: Channel) -> Taken:
    """Answer the probes and receive the label party's choice. This is a feature party's role."""
    answer_probes(channel)
    return channel.receive(Choice).protocol
