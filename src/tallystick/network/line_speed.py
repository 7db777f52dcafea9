"""Measure the line between two sides by messages: one side probes, the other answers.

prober                                         answerer
four empty probes, then a large one    ->
                                       <-      an answer to each
"""

import time
from dataclasses import dataclass
from typing import Annotated

import msgspec

from tallystick.network.channel import Channel
from tallystick.network.messages import Message

PROBE_BYTES = 65_536
FASTEST = 1e9
"""Bytes per second: no line counts as faster."""
_EMPTY = 4
"""Number of probes of the round trip. A busy machine delays some, so the shortest counts."""


@dataclass(frozen=True, kw_only=True)
class MeasuredLine:
    """The measured line between two sides."""

    round_trip_s: float
    bytes_per_s: float

    def __str__(self) -> str:
        return f"a round trip of {1000 * self.round_trip_s:.2g} ms and {float(f'{self.bytes_per_s / 1e6:.2g}'):,g} MB/s"


class LineProbe(Message, frozen=True):
    """Sent by the prober: bytes to time the line."""

    data: Annotated[bytes, msgspec.Meta(max_length=PROBE_BYTES)]


class ProbeAnswer(Message, frozen=True):
    """Sent by the answerer when a probe has arrived."""


def measure_line(channel: Channel) -> MeasuredLine:
    """Time probes. This is the prober's role."""
    times = []
    for size in (*[0] * _EMPTY, PROBE_BYTES):
        began = time.perf_counter()
        channel.send(LineProbe(data=bytes(size)))
        channel.receive(ProbeAnswer)
        times.append(time.perf_counter() - began)
    round_trip_s = min(times[:-1])
    # The extra time of the large probe beyond a round trip; on a fast line it is too short for clocks.
    beyond_s = max(times[-1] - round_trip_s, PROBE_BYTES / FASTEST)
    return MeasuredLine(round_trip_s=round_trip_s, bytes_per_s=PROBE_BYTES / beyond_s)


def answer_probes(channel: Channel) -> None:
    """Answer each probe as it arrives. This is the answerer's role."""
    for _ in range(_EMPTY + 1):
        channel.receive(LineProbe)
        channel.send(ProbeAnswer())
