"""Define Channel, the protocols' view of the network, and the in-memory pair for tests and simulations.

A protocol is written once per role over a Channel. The session (session.py) has the same shape.
"""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from tallystick.errors import PeerLost, PeerStopped, ProtocolError
from tallystick.network.messages import Buffer, MalformedMessage, Message, Stopped, decode, encode

M = TypeVar("M", bound=Message)


@dataclass(kw_only=True)
class Traffic:
    """Bytes and messages that crossed a channel, counted as encoded payloads."""

    bytes_sent: int = 0
    bytes_received: int = 0
    messages_sent: int = 0
    messages_received: int = 0


class Channel(Protocol):
    """A reliable, ordered, typed link to one peer.

    ``send`` may return before the peer has the message. ``receive`` waits for the next message and raises PeerLost (unreachable
    for longer than the deadline, or silent for ``within_s`` if given; math.inf is for waits that are long by nature), PeerStopped
    (it ended and said why) or ProtocolError (not a valid ``kind``).
    """

    @property
    def peer(self) -> str:
        """Name of the party at the other end."""
        ...

    @property
    def traffic(self) -> Traffic:
        """Return the traffic so far."""
        ...

    def send(self, message: Message) -> None:
        """Send one message."""
        ...

    def receive(self, kind: type[M], *, within_s: float | None = None) -> M:
        """Receive the next message, which must be a ``kind``."""
        ...

    def check(self) -> None:
        """Raise PeerLost or PeerStopped if that is known already. For a party that computes for a long time between messages."""
        ...


def open_payload(payload: Buffer, kind: type[M], *, peer: str) -> M:
    """Decode a payload from ``peer``. Turn malformed bytes and Stopped into errors that name the peer."""
    try:
        message = decode(payload, kind)
    except MalformedMessage as error:
        raise ProtocolError(peer, f"{peer} broke the protocol: {error}") from None
    if isinstance(message, Stopped):
        raise PeerStopped(peer, f"{peer} stopped: {message.reason}", final=message.final)
    return message


class MemoryChannel:
    """One end of an in-memory pair. Messages pass through the codec, so tests see the same as a wire."""

    def __init__(
        self, peer: str, inbox: "queue.SimpleQueue[bytearray]", outbox: "queue.SimpleQueue[bytearray]", *, timeout_s: float
    ) -> None:
        self._peer = peer
        self._inbox = inbox
        self._outbox = outbox
        self._timeout_s = timeout_s
        self._traffic = Traffic()

    @property
    def peer(self) -> str:
        """Name of the party at the other end."""
        return self._peer

    @property
    def traffic(self) -> Traffic:
        """Return the traffic so far."""
        return self._traffic

    def send(self, message: Message) -> None:
        """Put the encoded message into the peer's inbox."""
        payload = encode(message)
        self._traffic.bytes_sent += len(payload)
        self._traffic.messages_sent += 1
        self._outbox.put(payload)

    def receive(self, kind: type[M], *, within_s: float | None = None) -> M:
        """Wait for the next message. Raises PeerLost after ``within_s``, or the pair's timeout."""
        timeout_s = self._timeout_s if within_s is None else min(within_s, self._timeout_s)
        try:
            payload = self._inbox.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerLost(self._peer, f"{self._peer} sent nothing for {timeout_s:g} s") from None
        self._traffic.bytes_received += len(payload)
        self._traffic.messages_received += 1
        return open_payload(payload, kind, peer=self._peer)

    def check(self) -> None:
        """Do nothing: a pair in memory notices its peer's end when it receives."""

    def abort(self, reason: str) -> None:
        """Tell the peer that this side ends, and why."""
        self._outbox.put(encode(Stopped(reason=reason)))


def memory_channels(first: str, second: str, *, timeout_s: float = 60.0) -> tuple[MemoryChannel, MemoryChannel]:
    """Make a connected pair. The first element is the end for ``first`` (its peer is ``second``)."""
    to_first: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    to_second: queue.SimpleQueue[bytearray] = queue.SimpleQueue()
    return (
        MemoryChannel(second, to_first, to_second, timeout_s=timeout_s),
        MemoryChannel(first, to_second, to_first, timeout_s=timeout_s),
    )


Progress = Callable[[str, int, int], None]
"""Called as progress(what, done, total) by anything that can take long. It must return at once."""


def no_progress(what: str, completed: int, total: int) -> None:
    """Ignore progress."""
