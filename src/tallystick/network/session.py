"""Talk to one peer reliably, over links that may break. A Session is a Channel, and tls.py makes the links below it.

A link carries frames: a small header and usually an encoded message. These are all the rules:

- Every ``heartbeat_s`` a side that sent nothing else sends an empty frame.
- A side that heard nothing for ``deadline_s`` raises PeerLost. Every byte counts, so a slow line is not silent.
- So does a side if ``FUTILE_LINKS`` links in a row, over more than ``deadline_s``, transferred no frame that was due.
- A link that breaks is dialled again every half second until then. Both sides say what they have received and repeat the rest, so
  no message is lost or doubled.
- A peer process that was restarted is not the same session: PeerLost at once.
- A side that waits for a message for ``QUIET_S`` reports it, while its peer's heartbeats go on, because a peer may compute for
  long.
- At the start a side waits ``wait_s`` for its peers.
- At most ``WINDOW_BYTES`` are sent ahead of what the peer has consumed; then send() waits. A frame counts as its bytes and
  ``FRAME_COST``, the memory that keeping it needs.
- A link without a byte for half of ``deadline_s`` is closed, and another is dialled, because a firewall may have dropped it.
- A frame over ``max_message_bytes`` is refused before it is read into memory.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from struct import Struct
from typing import Annotated, Literal, Protocol, TypeVar

import msgspec

from tallystick.errors import ConfigError, IdentityError, PeerError, PeerLost, ProtocolError
from tallystick.network.channel import Traffic, open_payload
from tallystick.network.link import FrameTooLarge, Link, LinkBroken
from tallystick.network.loop import Loop
from tallystick.network.messages import ALIGNMENT, MEBIBYTE, WIRE_VERSION, Buffer, Message, Stopped, encode_parts, is_a

M = TypeVar("M", bound=Message)

WINDOW_BYTES = 64 * MEBIBYTE
FRAME_COST = 1_200
ACK_BYTES = 8 * MEBIBYTE
FUTILE_LINKS = 3
QUIET_S = 30.0
# The slowest line, in bytes per second, for which a normal end waits until everything sent has arrived.
SLOWEST_LINE = 500

# kind, sequence number, received so far, bytes consumed so far; long enough to keep an array's bytes aligned
HEADER = Struct("<BQQQ39x")
assert HEADER.size == ALIGNMENT
HELLO, DATA, HEARTBEAT, BYE, REFUSAL = 1, 2, 3, 4, 5
PROCESS_BYTES = 16


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Times in seconds and sizes in bytes. See the rules above."""

    heartbeat_s: float = 2.0
    deadline_s: float = 10.0
    wait_s: float = 60.0
    max_message_bytes: int = 64 * MEBIBYTE


class Hello(Message, frozen=True):
    """First frame of a link: the party, its process, and how much of the session it already has."""

    wire_version: Annotated[int, msgspec.Meta(ge=0, le=999)]
    party: Annotated[str, msgspec.Meta(max_length=63)]
    process: Annotated[bytes, msgspec.Meta(max_length=PROCESS_BYTES)]
    peer_process: Annotated[bytes, msgspec.Meta(max_length=PROCESS_BYTES)]
    received: Annotated[int, msgspec.Meta(ge=0)]


class Refusal(Message, frozen=True):
    """The answer to a Hello that is not accepted: the kind of problem, and the reason in words."""

    matter: Literal["identity", "protocol", "restarted", "early"]
    reason: str


@dataclass(frozen=True, kw_only=True)
class _Frame:
    kind: int
    sequence: int
    parts: tuple[Buffer, ...] = ()


class Note(Protocol):
    """A function that reports a line to the user of the job: once, or ``again`` each time."""

    def __call__(self, line: str, *, again: bool = False) -> None:
        """Report the line."""
        ...


class Session:
    """A reliable connection to one peer.

    Args:
        loop: drives everything here.
        own: this party's name.
        process: random bytes that distinguish this process from earlier and later ones.
        peer: the other party's name.
        limits: see the rules above.
        raise_elsewhere: raises the failure of any other session, because a job needs all of its parties.
        note: reports a line about a slow or broken link once, and each one about a peer that sends nothing for long ``again``.
    """

    def __init__(
        self,
        loop: Loop,
        *,
        own: str,
        process: bytes,
        peer: str,
        limits: Limits,
        raise_elsewhere: Callable[[], None],
        note: Note,
    ) -> None:
        self._loop = loop
        self._own, self._process, self._peer = own, process, peer
        self._limits = limits
        self._raise_elsewhere = raise_elsewhere
        self._note = note
        self._traffic = Traffic()
        self._peer_process = b""
        self._link: Link | None = None
        self._at_its_start = (0, 0)  # frames that had crossed in both directions when the link began
        self._futile_links = 0
        self._futile_since = 0.0
        self._said_slow = False
        self._writing: Link | None = None
        self._ever_connected = False
        self._last_heard = self._last_sent = time.monotonic()
        self.failure: PeerError | None = None
        self.trouble = ""  # why there is no link now
        self._unsent: deque[_Frame] = deque()
        self._unreceived: deque[_Frame] = deque()  # written, but perhaps not arrived
        self._sequence = 0
        self._sent_bytes = 0
        self._arrived_bytes = 0  # bytes of these messages
        self._arrived = 0  # the last frame whose arrival the peer has confirmed
        self._awaited_since = 0.0  # when the first unconfirmed frame was written, or became the first
        self._peer_consumed = 0
        self._inbox: deque[memoryview] = deque()
        self._received = 0
        self._received_bytes = 0
        self._consumed = 0
        self._consumed_told = 0
        self._peer_said_bye = False
        self._leaving = False

    # Channel

    @property
    def peer(self) -> str:
        """Name of the party at the other end."""
        return self._peer

    @property
    def traffic(self) -> Traffic:
        """Return the traffic so far, without frame headers and TLS."""
        return self._traffic

    def send(self, message: Message) -> None:
        """Queue a message and start to write it. It waits only while the peer is a whole window behind."""
        parts = encode_parts(message)
        size = sum(map(len, parts))
        if size > self._limits.max_message_bytes - HEADER.size:
            raise ConfigError(
                f"{type(message).__name__} of {size} bytes is over the contract's network.max_message_mib; raise it"
            )
        with self._loop:
            while self._sent_bytes - min(self._peer_consumed, self._arrived_bytes) > WINDOW_BYTES:
                self._expect("to be ready for more")
                self._loop.spin()
            self.check()
            self._traffic.bytes_sent += size
            self._traffic.messages_sent += 1
            self._sent_bytes += size + HEADER.size + FRAME_COST
            self._queue(DATA, parts)
            self._loop.turn()
            # A peer that reads as fast as we write is waiting for it; for other peers the rest is written while we go on.
            while self._writing is not None and self._writing is self._link and not self._link.stalled:
                self._loop.turn()

    def receive(self, kind: type[M], *, within_s: float | None = None) -> M:
        """Wait for the next message. Raises PeerLost if no part of a message arrives for ``within_s``.

        A wait of QUIET_S is reported, and again whenever it has doubled. A wait of math.inf may last and is not reported.
        """
        if not self._inbox:
            with self._loop:
                began, quiet_s = time.monotonic(), QUIET_S if within_s != math.inf else math.inf
                while not self._inbox:
                    self._expect(f"to send a {kind.__name__}")
                    if time.monotonic() >= began + quiet_s:
                        if self._link is not None and self._link.arriving is None:
                            self._note(
                                f"{self._peer} is there, and this side has waited {quiet_s:g} s for its {kind.__name__}: it "
                                "computes, or hangs",
                                again=True,
                            )
                        quiet_s *= 2
                    until = min(self._due(kind, began, math.inf if within_s is None else within_s), began + quiet_s)
                    self._loop.spin(until=until)
        payload = self._inbox.popleft()
        self._consumed += len(payload) + HEADER.size + FRAME_COST
        if self._consumed - self._consumed_told > ACK_BYTES:
            self._consumed_told = self._consumed
            self._loop.later(self._queue, HEARTBEAT)
        self._traffic.bytes_received += len(payload)
        self._traffic.messages_received += 1
        return open_payload(payload, kind, peer=self._peer)

    def check(self) -> None:
        """Raise a known failure of the peer. For a thread that computes for a long time between messages."""
        self._loop.raise_pending()
        if self.failure is not None:
            raise self.failure

    def _expect(self, what: str) -> None:
        """Raise instead of waiting if this peer, or another one, will not come. The job needs all of them."""
        self.check()
        if self._peer_said_bye:
            raise ProtocolError(self._peer, f"{self._peer} ended its side while this side waits for it {what}")
        self._raise_elsewhere()

    def _due(self, kind: type[Message], began: float, within_s: float) -> float:
        """Return the latest time for a message that is awaited since ``began``. Raises PeerLost if it is overdue."""
        arriving = self._link is not None and self._link.arriving is not None
        due = max(began, self._link.progress if self._link is not None and arriving else began) + within_s
        if time.monotonic() > due:
            why = f"{self._peer} is there, and sent no {kind.__name__} for {within_s:g} s"
            self._queue(DATA, encode_parts(Stopped(reason=why)))
            self._loop.turn()
            self.fail(PeerLost(self._peer, why))  # for all threads that use this session
            self.check()
        return due

    def fail(self, error: PeerError) -> None:
        """End the session: every later call raises the first such error."""
        if self.failure is None:
            self.failure = error
        self._loop.wake()

    # Writing: one frame at a time, a task only while there is something to write

    def _queue(self, kind: int, parts: tuple[Buffer, ...] = ()) -> None:
        if kind in (DATA, BYE):
            self._sequence += 1
        # Any frame also serves as a heartbeat, because its header is made when it is written. So no peer can make us queue many.
        if kind != HEARTBEAT or not self._unsent:
            self._unsent.append(_Frame(kind=kind, sequence=self._sequence, parts=parts))
        if self._link is not None and self._writing is not self._link:
            self._writing = self._link
            self._loop.start(self._write_all(self._link), urgent=True)

    async def _write_all(self, link: Link) -> None:
        try:
            while self._unsent and self._link is link:
                frame = self._unsent.popleft()
                if frame.kind != HEARTBEAT:
                    if not self._unreceived:
                        self._awaited_since = time.monotonic()
                    self._unreceived.append(frame)
                self._consumed_told = self._consumed
                self._last_sent = time.monotonic()
                header = HEADER.pack(frame.kind, frame.sequence, self._received, self._consumed)
                await link.write((header, *frame.parts))
        except LinkBroken as error:
            self.drop(link, str(error))
        finally:
            # A replaced link may end much later: the new one has its own writer.
            if self._writing is link:
                self._writing = None
                if self._unsent and self._link is link and self.failure is None:
                    self._queue(HEARTBEAT)
                if self._leaving:
                    self._loop.wake()  # see_off() waits for it

    # Reading

    async def run_link(self, link: Link, hello: Hello) -> None:
        """Serve a link whose Hellos are exchanged, until it ends."""
        self._peer_process = hello.process
        self._forget(hello.received)
        self._unsent = deque((*self._unreceived, *(frame for frame in self._unsent if frame.kind != HEARTBEAT)))
        self._unreceived.clear()
        self._link, self._ever_connected, self._last_heard = link, True, time.monotonic()
        self._at_its_start = (self._arrived, self._received)
        self._queue(HEARTBEAT)
        self._loop.wake()
        try:
            while True:
                frame = await link.read()
                if self._link is not link:
                    return  # replaced: the new link says it again
                self._take(frame)
                await self._loop.delivery()
        except FrameTooLarge as error:
            # Tell the peer what it did, and keep the link until the job ends, without reading from it
            failure = ProtocolError(self._peer, f"{self._peer} sent {error} (network.max_message_mib)")
            self._queue(DATA, encode_parts(Stopped(reason=str(failure))))
            self.fail(failure)
            await asyncio.get_running_loop().create_future()
        except LinkBroken as error:
            self.drop(link, str(error))

    def _take(self, frame: Buffer) -> None:
        if len(frame) < HEADER.size:
            self.fail(ProtocolError(self._peer, f"{self._peer} sent a frame of {len(frame)} bytes, too short for a header"))
            return
        kind, sequence, received, consumed = HEADER.unpack_from(frame)
        self._last_heard = time.monotonic()
        if received > self._sequence or consumed > self._sent_bytes:
            self.fail(ProtocolError(self._peer, f"{self._peer} claims to have received something that was never sent"))
            return
        self._forget(received)
        self._peer_consumed = max(self._peer_consumed, consumed)
        if kind in (DATA, BYE):
            if sequence <= self._received:
                self._loop.wake()  # repeated on a new link although the old one had delivered it; its header may be new
                return
            if sequence != self._received + 1:
                self.fail(ProtocolError(self._peer, f"{self._peer} sent frame {sequence} where {self._received + 1} is due"))
                return
            if self._peer_said_bye:
                self.fail(ProtocolError(self._peer, f"{self._peer} sent more after its last message"))
                return
            self._received = sequence
            payload = memoryview(frame)[HEADER.size :]
            if kind == BYE:
                self._peer_said_bye = True
                self._queue(HEARTBEAT)  # so that the peer knows: a side that is over sends nothing more by itself
            elif is_a(payload, Stopped):
                try:
                    open_payload(payload, Stopped, peer=self._peer)
                except PeerError as error:
                    self.fail(error)
                self._queue(HEARTBEAT)  # so that the peer need not wait for a sign of life
            else:
                self._received_bytes += len(frame) + FRAME_COST
                if self._received_bytes - self._consumed > WINDOW_BYTES + self._limits.max_message_bytes + FRAME_COST:
                    self.fail(ProtocolError(self._peer, f"{self._peer} sent more than {WINDOW_BYTES} bytes ahead"))
                    return
                self._inbox.append(payload)
        elif kind != HEARTBEAT:
            self.fail(ProtocolError(self._peer, f"{self._peer} sent a frame of unknown kind {kind}"))
        self._loop.wake()

    def _forget(self, received: int) -> None:
        while self._unreceived and self._unreceived[0].sequence <= received:
            self._arrived_bytes += _cost(self._unreceived.popleft())
            self._awaited_since = time.monotonic()
        self._arrived = max(self._arrived, received)

    def drop(self, link: Link | None, why: str) -> None:
        """Drop a link, if it is the current one. Give up the peer if several links in a row were useless."""
        if link is None or self._link is not link:
            return
        self._link, self.trouble = None, why
        if not (self._leaving or self._peer_said_bye):
            self._note(f"the connection to {self._peer} broke: {why}; another is made")
            if (self._arrived, self._received) != self._at_its_start:
                self._futile_links = 0
            elif self._unreceived or self._unsent or link.arriving is not None:
                now = time.monotonic()
                if self._futile_links == 0:
                    self._futile_since = now
                self._futile_links += 1
                if self._futile_links >= FUTILE_LINKS and now - self._futile_since > self._limits.deadline_s:
                    reason = f"{self._futile_links} connections in a row broke before a message had crossed whole, last: {why}"
                    self.fail(PeerLost(self._peer, f"{self._peer} cannot be reached long enough for a message: {reason}"))
        self._loop.wake()

    @property
    def link(self) -> Link | None:
        """Return the current link."""
        return self._link

    # Connecting

    def hello(self) -> Hello:
        """Return this side's first message on a new link."""
        return Hello(
            wire_version=WIRE_VERSION,
            party=self._own,
            process=self._process,
            peer_process=self._peer_process,
            received=self._received,
        )

    def hello_frame(self) -> tuple[Buffer, ...]:
        """Return the same message as a frame."""
        return first_frame(HELLO, self.hello())

    def refuse(self, hello: Hello) -> Refusal | None:
        """Judge the peer's Hello: return None if the session may go on, else the reason why not."""
        if hello.wire_version != WIRE_VERSION:
            reason = (
                f"{self._peer} speaks version {hello.wire_version}, not {WIRE_VERSION}; install the same version on both sides"
            )
            self.fail(ProtocolError(self._peer, reason))
            return Refusal(matter="protocol", reason=reason)
        if self._peer_process and hello.process != self._peer_process:
            twice = (
                f"{self._peer} was restarted in the middle of the run, or runs twice: a second process calls with its certificate"
            )
            self.fail(PeerLost(self._peer, twice))
            early = f"{self._own} is still in a run with an earlier process of {self._peer}"
            return Refusal(matter="restarted" if hello.peer_process else "early", reason=early)
        if hello.peer_process and hello.peer_process != self._process:
            return Refusal(matter="restarted", reason=f"{self._own} was restarted in the middle of the run")
        if hello.received > self._sequence:
            reason = f"{self._peer} claims to have received {hello.received} frames, of {self._sequence} that were sent"
            self.fail(ProtocolError(self._peer, reason))
            return Refusal(matter="protocol", reason=reason)
        if hello.received < self._arrived:
            # It was sent on a connection that the peer has dropped meanwhile, so it must not end a session that goes on.
            return Refusal(
                matter="early", reason=f"{self._peer} has received more frames than the {hello.received} of this Hello"
            )
        return None

    @property
    def connected(self) -> bool:
        """Tell whether a link has been established at least once."""
        return self._ever_connected

    @property
    def over(self) -> bool:
        """Tell whether nothing more will be sent."""
        return self._peer_said_bye and not self._unreceived

    # Time

    def tick(self, now: float) -> None:
        """Send a heartbeat if one is due, and give up if nothing was heard for too long.

        It is called several times per heartbeat.
        """
        if self.over:
            return
        if self._link is not None and now - self._last_sent >= self._limits.heartbeat_s:
            self._queue(HEARTBEAT)
        if self._link is not None and not self._said_slow:
            # Report once, with numbers, that messages take longer than the deadline, so that the user does not think it hangs
            arriving, waited_s, what = self._link.arriving, now - self._awaited_since, ""
            if arriving is not None and (took_s := now - arriving.began) > self._limits.deadline_s:
                what = f"a message of {arriving.size:,} bytes has been arriving for {took_s:.0f} s"
            elif self._unreceived and waited_s > self._limits.deadline_s:
                size = sum(map(len, self._unreceived[0].parts))
                what = f"a message of {size:,} bytes has been on its way for {waited_s:.0f} s"
            if what:
                self._said_slow = True
                self._note(f"the line to {self._peer} is slow: {what}; the job goes on as fast as the line allows")
        silent_s = now - max(self._last_heard, self._link.progress if self._link is not None else 0.0)
        if self._link is not None and silent_s > self._limits.deadline_s / 2:
            link, self._last_heard = self._link, now - silent_s  # the time when the link last heard something still counts
            self.drop(link, "silent for half of network.deadline_s")
            link.close()
        patience = self._limits.deadline_s if self._ever_connected else self._limits.wait_s
        if silent_s > patience:
            silence = "fell silent" if self._ever_connected else "did not come up"
            why = f" ({self.trouble})" if self.trouble else ""
            self.fail(PeerLost(self._peer, f"{self._peer} {silence}: nothing heard for {patience:g} s{why}"))

    def take_leave(self, reason: str | None, *, final: bool = False) -> None:
        """Send that nothing more comes, or the ``reason`` for an early end, ``final`` if resuming cannot help."""
        if self.connected and self.failure is None:
            self._leaving = True
            if reason is None:
                self._queue(BYE)
            else:
                self._queue(DATA, encode_parts(Stopped(reason=reason[:4000], final=final)))

    def see_off(self, until: float, *, reason: str | None) -> None:
        """Wait after take_leave() until the peer has everything and, unless it ends early, says the same."""
        if not self._leaving:
            return
        arrived_by = until + (sum(map(_cost, (*self._unreceived, *self._unsent))) / SLOWEST_LINE if reason is None else 0.0)
        while True:
            is_writing = self._writing is not None and self._writing is self._link
            unheard = bool(self._unreceived or self._unsent or is_writing)
            if not unheard and (reason is not None or self._peer_said_bye):
                return
            has_left = self._peer_said_bye and self._link is None  # it has everything that it wanted, and left
            patience = arrived_by if unheard else until
            patience = min(patience, self._loop.hurried_until)
            if has_left or self.failure is not None or time.monotonic() > patience:
                return
            self._loop.spin(until=patience)


def _cost(frame: _Frame) -> int:
    """Count what a frame uses of the window."""
    return FRAME_COST + HEADER.size + sum(map(len, frame.parts))


def open_hello(frame: Buffer, peer: str) -> Hello:
    """Read the first frame of a link.

    Raises ProtocolError for anything else, LinkBroken for a Refusal that may not be repeated next time, and the matching
    PeerError for any other Refusal.
    """
    if len(frame) < HEADER.size or frame[0] not in (HELLO, REFUSAL):
        raise ProtocolError(peer, f"{peer} does not speak tallystick: its first frame is no Hello")
    payload = memoryview(frame)[HEADER.size :]
    if frame[0] == HELLO:
        return open_payload(payload, Hello, peer=peer)
    refusal = open_payload(payload, Refusal, peer=peer)
    if refusal.matter == "identity":
        raise IdentityError(peer, f"{peer} turned this party away: {refusal.reason}")
    if refusal.matter == "protocol":
        raise ProtocolError(peer, f"{peer} turned this party away: {refusal.reason}")
    if refusal.matter == "restarted":
        raise PeerLost(peer, refusal.reason)
    raise LinkBroken(refusal.reason)


def first_frame(kind: int, message: Message) -> tuple[Buffer, ...]:
    """Build the first frame that a side sends on a link: a HELLO or a REFUSAL."""
    return (HEADER.pack(kind, 0, 0, 0), *encode_parts(message))
