"""Sessions over gRPC: mutual TLS 1.3, pinned names, heartbeats, and streams that survive a broken connection.

The label party (and a helper) listens, the others dial. A session is one bidirectional stream of frames, each a
small header and an encoded message. The rules, all of them:

- Every ``heartbeat_s`` a side that sent nothing else sends an empty frame.
- A side that heard nothing for ``deadline_s`` raises PeerLost. It is the only rule that ends a silent session.
- A stream that breaks is dialled again every half second until then; both sides say what they have received and
  repeat the rest, so no message is lost or doubled.
- A peer process that was restarted is not the same session: PeerLost at once.
- At the start a side waits ``wait_s`` for its peers.
- At most ``WINDOW_BYTES`` are sent ahead of what the peer has consumed; then send() waits.
- A frame over ``max_message_bytes`` is refused before it is read into memory.

The event loop runs in the thread that sends and receives, which saves two thread switches a message; while that
thread computes, a housekeeping thread runs the loop. One thread may use the sessions of a Network.
"""

import asyncio
import contextlib
import os
import secrets
import signal
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

# The only suites left for TLS 1.2 need a pre-shared key, which nobody has: what remains is TLS 1.3, whose suites
# this setting does not touch. gRPC for Python has no other way to state a minimum version.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
# gRPC's own log repeats on standard error, in its words, what our errors say in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from tallystick.errors import ConfigError, IdentityError, PeerError, PeerLost, ProtocolError, TallystickError
from tallystick.network.certificates import Identity, probe
from tallystick.network.channel import Traffic, open_payload
from tallystick.network.messages import MEBIBYTE, WIRE_VERSION, Message, Stopped, encode, is_a

M = TypeVar("M", bound=Message)

WINDOW_BYTES = 64 * MEBIBYTE
ACK_BYTES = 8 * MEBIBYTE
REDIAL_S = 0.5
IDLE_S = 0.02
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
METHOD = "/tallystick.Party/Session"

# kind, sequence number, received so far, bytes consumed so far
_HEADER = struct.Struct("<BQQQ")
_HELLO, _DATA, _HEARTBEAT, _BYE = 1, 2, 3, 4


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Times in seconds and sizes in bytes; see the rules above."""

    heartbeat_s: float = 2.0
    deadline_s: float = 10.0
    wait_s: float = 60.0
    max_message_bytes: int = 64 * MEBIBYTE


class Hello(Message, frozen=True):
    """First frame of a stream: who speaks, in which process, and what of the session it already has."""

    wire_version: int
    party: str
    process: bytes
    peer_process: bytes
    received: int


class _Link:
    """The stream below a session at the moment: a client call or a server context, which read and write alike."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self.closed = asyncio.Event()

    async def read(self) -> bytes | None:
        frame = await self.stream.read()
        return None if frame is _EOF else frame

    async def write(self, frame: bytes) -> None:
        await self.stream.write(frame)


class Session:
    """One peer, reliably: a Channel over gRPC."""

    def __init__(self, network: "Network", peer: str, address: str | None) -> None:
        self._network = network
        self._peer = peer
        self._address = address
        self._traffic = Traffic()
        self._peer_process = b""
        self._link: _Link | None = None
        self._writing: _Link | None = None
        self._ever_connected = False
        self._last_heard = time.monotonic()
        self._last_sent = self._last_heard
        self._failure: PeerError | None = None
        self._trouble = ""
        self._unsent: deque[tuple[int, int, bytes]] = deque()  # kind, sequence number, payload
        self._unreceived: deque[tuple[int, int, bytes]] = deque()  # written, but not known to have arrived
        self._sequence = 0
        self._sent_bytes = 0
        self._peer_consumed = 0
        self._inbox: deque[bytes] = deque()
        self._received = 0
        self._consumed = 0
        self._consumed_told = 0
        self._peer_said_bye = False

    @property
    def peer(self) -> str:
        """Name of the party at the other end."""
        return self._peer

    @property
    def traffic(self) -> Traffic:
        """What crossed so far, without frame headers and TLS."""
        return self._traffic

    def send(self, message: Message) -> None:
        """Queue a message and start writing it; waits only while the peer is a whole window behind."""
        payload = encode(message)
        limit = self._network.limits.max_message_bytes - _HEADER.size
        if len(payload) > limit:
            raise ConfigError(
                f"{type(message).__name__} of {len(payload)} bytes is over the contract's network.max_message_mib; raise it"
            )
        with self._network.driving():
            while self._sent_bytes - self._peer_consumed > WINDOW_BYTES:
                self._expect("to be ready for more")
                self._network.spin()
            self._raise_failure()
            self._traffic.bytes_sent += len(payload)
            self._traffic.messages_sent += 1
            self._sent_bytes += len(payload)
            self._queue(_DATA, payload)
            self._network.turn()

    def receive(self, kind: type[M]) -> M:
        """Wait for the next message."""
        with self._network.driving():
            while not self._inbox:
                self._expect(f"to send a {kind.__name__}")
                self._network.spin()
            payload = self._inbox.popleft()
            self._consumed += len(payload)
            if self._consumed - self._consumed_told > ACK_BYTES:
                self._queue(_HEARTBEAT, b"")
                self._network.turn()
        self._traffic.bytes_received += len(payload)
        self._traffic.messages_received += 1
        return open_payload(payload, kind, peer=self._peer)

    def check(self) -> None:
        """Raise what is known to be wrong with the peer: for a thread that computes for long between messages."""
        self._raise_failure()

    def _expect(self, what: str) -> None:
        """Raise instead of waiting for the peer if it, or another peer, which the job needs as much, will not come."""
        self._raise_failure()
        if self._peer_said_bye:
            raise ProtocolError(self._peer, f"{self._peer} ended its side while this side waits for it {what}")
        self._network.raise_failures()

    def _raise_failure(self) -> None:
        self._network.raise_interrupt()
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: PeerError) -> None:
        if self._failure is None:
            self._failure = error
        self._network.wake()

    # Writing: one write at a time, a task only while there is something to write.

    def _queue(self, kind: int, payload: bytes) -> None:
        if kind in (_DATA, _BYE):
            self._sequence += 1
        self._unsent.append((kind, self._sequence, payload))
        if self._link is not None and self._writing is not self._link:
            self._writing = self._link
            self._network.start(self._write_all(self._link))

    async def _write_all(self, link: _Link) -> None:
        try:
            while self._unsent and self._link is link:
                kind, sequence, payload = self._unsent.popleft()
                if kind != _HEARTBEAT:
                    self._unreceived.append((kind, sequence, payload))
                self._consumed_told = self._consumed
                self._last_sent = time.monotonic()
                await link.write(_HEADER.pack(kind, sequence, self._received, self._consumed) + payload)
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            self._detach(link, _reason(error))
        finally:
            # A stream that was replaced may end long after: the new one has a writer of its own.
            if self._writing is link:
                self._writing = None
                if self._unsent and self._link is link and self._failure is None:
                    self._queue(_HEARTBEAT, b"")

    # Reading

    async def run_link(self, link: _Link, hello: Hello) -> None:
        """Serve a stream whose Hellos are exchanged, until it ends."""
        self.drop_link("replaced by a new stream")
        self._peer_process = hello.process
        self._forget(hello.received)
        self._unsent = deque((*self._unreceived, *(frame for frame in self._unsent if frame[0] != _HEARTBEAT)))
        self._unreceived.clear()
        self._link, self._ever_connected, self._last_heard = link, True, time.monotonic()
        self._queue(_HEARTBEAT, b"")
        self._network.wake()
        try:
            while (frame := await link.read()) is not None and self._link is link:
                self._take(frame)
                await self._network.delivery()
            self._detach(link, "the stream ended")
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError) as error:
            self._detach(link, _reason(error))

    def _take(self, frame: bytes) -> None:
        if len(frame) < _HEADER.size:
            self._fail(ProtocolError(self._peer, f"{self._peer} sent a frame of {len(frame)} bytes, too short for a header"))
            return
        kind, sequence, received, consumed = _HEADER.unpack_from(frame)
        self._last_heard = time.monotonic()
        self._forget(received)
        self._peer_consumed = max(self._peer_consumed, consumed)
        if kind in (_DATA, _BYE):
            if sequence <= self._received:
                return  # said again on a new stream although the old one had brought it
            if sequence != self._received + 1:
                self._fail(ProtocolError(self._peer, f"{self._peer} sent frame {sequence} where {self._received + 1} is due"))
                return
            self._received = sequence
            payload = frame[_HEADER.size :]
            if kind == _BYE:
                self._peer_said_bye = True
            elif is_a(payload, Stopped):
                self._take_stop(payload)
            else:
                self._inbox.append(payload)
        elif kind != _HEARTBEAT:
            self._fail(ProtocolError(self._peer, f"{self._peer} sent a frame of unknown kind {kind}"))
        self._network.wake()

    def _take_stop(self, payload: bytes) -> None:
        """The peer ends the job: whoever sends to it, or computes for it, shall know; receive() first gives what came before."""
        try:
            open_payload(payload, Stopped, peer=self._peer)
        except PeerError as error:
            self._fail(error)
        self._queue(_HEARTBEAT, b"")  # so that it need not wait to be heard

    def _forget(self, received: int) -> None:
        while self._unreceived and self._unreceived[0][1] <= received:
            self._unreceived.popleft()

    def drop_link(self, why: str) -> None:
        """Let go of the present stream, if there is one."""
        if self._link is not None:
            self._detach(self._link, why)

    def _detach(self, link: _Link, why: str) -> None:
        link.closed.set()
        if self._link is link:
            self._link, self._trouble = None, why
            self._network.wake()

    # Connecting

    def hello(self) -> Hello:
        """What this side says first on a new stream."""
        return Hello(
            wire_version=WIRE_VERSION,
            party=self._network.identity.name,
            process=self._network.process,
            peer_process=self._peer_process,
            received=self._received,
        )

    def refuse(self, hello: Hello) -> str | None:
        """Judge the peer's Hello: None if the session may go on, else the reason why not."""
        if hello.wire_version != WIRE_VERSION:
            reason = (
                f"{self._peer} speaks version {hello.wire_version}, not {WIRE_VERSION}; install the same version on both sides"
            )
            self._fail(ProtocolError(self._peer, reason))
            return reason
        if self._peer_process and hello.process != self._peer_process:
            self._fail(PeerLost(self._peer, f"{self._peer} was restarted in the middle of the run"))
            return f"{self._network.identity.name} is still in a run with an earlier process of {self._peer}"
        if hello.peer_process and hello.peer_process != self._network.process:
            return f"{self._network.identity.name} was restarted in the middle of the run"
        return None

    async def dial(self) -> None:
        """Keep a stream to the peer's address until the session fails or closes."""
        assert self._address is not None
        identity = self._network.identity
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        options = [*self._network.options(), ("grpc.ssl_target_name_override", self._peer), ("grpc.enable_retries", 0)]
        while self._failure is None and not (self._peer_said_bye and not self._unreceived):
            # A fresh channel per attempt: gRPC's own back-off between attempts grows past our deadline.
            async with grpc.aio.secure_channel(self._address, credentials, options=options) as channel:
                await self._dial_once(channel)
            await asyncio.sleep(REDIAL_S)

    async def _dial_once(self, channel: Any) -> None:
        call = channel.stream_stream(METHOD)()
        try:
            await call.write(_HEADER.pack(_HELLO, 0, self._received, self._consumed) + encode(self.hello()))
            frame = await asyncio.wait_for(call.read(), self._network.limits.deadline_s)
            if frame is _EOF:
                await self._judge_status(call)
                return
            hello = _open_hello(frame, self._peer)
            reason = self.refuse(hello)
            if reason is not None:
                call.cancel()
                return
            await self.run_link(_Link(call), hello)
            await self._judge_status(call)
        except TimeoutError:
            self._trouble = f"{self._address} took the call but said nothing"
        except ProtocolError as error:
            self._fail(error)
        except (grpc.RpcError, grpc.aio.UsageError, asyncio.InvalidStateError) as error:
            self._trouble = _reason(error)
            await self._judge_status(call)
        finally:
            call.cancel()

    async def _judge_status(self, call: Any) -> None:
        """Some endings will not get better by dialling again."""
        if not call.done():
            return
        code, details = await call.code(), (await call.details()) or ""
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            self._fail(IdentityError(self._peer, f"{self._peer} turned this party away: {details}"))
        elif code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT):
            self._fail(ProtocolError(self._peer, f"the stream with {self._peer} was refused: {details}"))
        elif code is grpc.StatusCode.ABORTED:
            self._fail(PeerLost(self._peer, details))
        elif code is grpc.StatusCode.UNAVAILABLE and not self._ever_connected and self._address is not None:
            # Off the loop: the probe blocks, and only certificates that can never work end the wait early.
            trouble = await asyncio.to_thread(probe, self._network.identity, self._peer, self._address, timeout_s=2.0)
            if trouble is not None:
                self._trouble = trouble
                if "certificate is refused" in trouble or "CERTIFICATE" in trouble:
                    self._fail(IdentityError(self._peer, trouble))

    # Time

    def tick(self, now: float) -> None:
        """Called every fraction of a heartbeat: send one if due, give up if nothing was heard for too long."""
        limits = self._network.limits
        if self._peer_said_bye and not self._unreceived:
            return
        if self._link is not None and now - self._last_sent >= limits.heartbeat_s:
            self._queue(_HEARTBEAT, b"")
        patience = limits.deadline_s if self._ever_connected else limits.wait_s
        if now - self._last_heard > patience:
            seen = "fell silent" if self._ever_connected else "did not come up"
            why = f" ({self._trouble})" if self._trouble else ""
            self._fail(PeerLost(self._peer, f"{self._peer} {seen}: nothing heard for {patience:g} s{why}"))

    @property
    def connected(self) -> bool:
        """Whether a stream has been established at least once."""
        return self._ever_connected

    def farewell(self, until: float, *, answered: bool) -> None:
        """Wait until the peer has everything and, if it is to be ``answered``, until both have said that nothing more comes."""
        if answered:
            self._queue(_BYE, b"")
        while self._unreceived or self._unsent or (answered and not self._peer_said_bye):
            if self._failure is not None or time.monotonic() > until:
                return
            self._network.spin(until=until)


class Network:
    """This party's end of all its sessions: one event loop, one server if it listens."""

    def __init__(self, identity: Identity, *, limits: Limits, listen: str | None = None) -> None:
        self.identity = identity
        self.limits = limits
        self.process = secrets.token_bytes(16)
        self._listen = listen
        self._sessions: dict[str, Session] = {}
        self._loop = asyncio.new_event_loop()
        self._lock = threading.Lock()
        self._last_driven = time.monotonic()
        self._spinning = False
        self._parked: list[asyncio.Future[None]] = []
        self._closing = False
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: Any = None
        self._turned_away: str | None = None
        self.port: int | None = None
        if listen is not None:
            try:
                self._loop.run_until_complete(self._serve(listen))
            except (RuntimeError, OSError) as error:
                self._loop.close()
                raise ConfigError(f"listen = {listen}: cannot listen there ({error}); is the port taken?") from None
        self._driver = 0
        self._interrupted = False
        self._former_handlers = self._catch_interrupts()
        self._housekeeper = threading.Thread(target=self._keep_house, name="tallystick-network", daemon=True)
        self._housekeeper.start()

    def options(self) -> list[tuple[str, int]]:
        """gRPC channel options, the same on both sides."""
        return [
            ("grpc.max_receive_message_length", self.limits.max_message_bytes),
            ("grpc.max_send_message_length", self.limits.max_message_bytes),
            ("grpc.max_concurrent_streams", 16),
            ("grpc.so_reuseport", 0),
            # Frames and windows of HTTP/2's defaults split a batch's message into many and stall the second in flight.
            ("grpc.http2.max_frame_size", MEBIBYTE),
            ("grpc.http2.lookahead_bytes", 16 * MEBIBYTE),
            ("grpc.use_local_subchannel_pool", 1),
        ]

    def connect(self, peers: dict[str, str | None], *, waiting: Callable[[list[str]], None] | None = None) -> dict[str, Session]:
        """Establish a session with every peer: dial those with an address, wait for the call of the others.

        ``waiting`` is called about once a second with the names of those that are not there yet. Raises PeerLost
        after ``wait_s``, IdentityError for a certificate that will never do.
        """
        with self.driving():
            for peer, address in peers.items():
                session = self._sessions[peer] = Session(self, peer, address)
                if address is not None:
                    self.start(session.dial())
            self.start(self._tick())
            told = time.monotonic()
            while missing := [peer for peer in peers if not self._sessions[peer].connected]:
                self.raise_interrupt()
                for peer in missing:
                    failure = self._sessions[peer]._failure
                    if failure is not None and self._turned_away is not None and isinstance(failure, PeerLost):
                        raise PeerLost(peer, f"{failure}; {self._turned_away}")
                self.raise_failures()
                if waiting is not None and time.monotonic() - told > 1.0:
                    told = time.monotonic()
                    waiting(missing)
                self.spin(until=time.monotonic() + 1.0)
        return dict(self._sessions)

    def raise_failures(self) -> None:
        """Raise the failure of any session: a job needs all of its parties."""
        for session in self._sessions.values():
            session._raise_failure()

    def close(self, reason: str | None = None) -> None:
        """End every session: in peace, so that both sides have every message, or with the ``reason`` why not."""
        if self._closed:
            return
        self._closing = True
        with self.driving():
            until = time.monotonic() + (2.0 if reason is not None else self.limits.deadline_s)
            for session in self._sessions.values():
                if session.connected and session._failure is None:
                    if reason is not None:
                        session._queue(_DATA, encode(Stopped(reason=reason[:4000])))
                    session.farewell(until, answered=reason is None)
            self._closed = True
            ending = self._loop.create_task(self._shut_down())
            ending.add_done_callback(lambda _: self._loop.stop())
            # Not run_until_complete: an interrupted turn() may have left a stop behind, which ends it early.
            while not ending.done():
                self._loop.run_forever()
        self._housekeeper.join()
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._former_handlers.items():
                signal.signal(number, handler)
        self._loop.close()

    # Interrupts: raised between turns of the loop, never within one, where they would tear a half-sent frame

    def _catch_interrupts(self) -> dict[signal.Signals, Any]:
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._driver != threading.get_ident() or self._closed:
            raise KeyboardInterrupt
        self._interrupted = True
        self._loop.call_soon_threadsafe(self._loop.stop)

    def raise_interrupt(self) -> None:
        """Raise KeyboardInterrupt if the operator asked for the end since the last turn."""
        if self._interrupted and not self._closing:
            self._interrupted = False
            raise KeyboardInterrupt

    # Driving the loop

    @contextlib.contextmanager
    def driving(self) -> Iterator[None]:
        """Take the loop from the housekeeper for the calling thread."""
        if not self._lock.acquire(blocking=False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lock.acquire()
        self._driver = threading.get_ident()
        try:
            yield
        finally:
            self._driver = 0
            self._last_driven = time.monotonic()
            self._lock.release()

    async def delivery(self) -> None:
        """Let a waiting thread have what came before the next read is prepared: that takes time, which the peer would wait."""
        if self._spinning:
            self._parked.append(self._loop.create_future())
            await self._parked[-1]

    def _unpark(self) -> None:
        for reader in self._parked:
            if not reader.done():
                reader.set_result(None)
        self._parked.clear()

    def turn(self) -> None:
        """Run what is ready, without waiting; writes that were queued start before reads."""
        self._unpark()
        self._loop.call_soon(self._loop.stop)
        self._loop.run_forever()

    def spin(self, until: float | None = None) -> None:
        """Run until something happens to a session, or until that time."""
        timer = (
            None if until is None else self._loop.call_at(self._loop.time() + max(until - time.monotonic(), 0), self._loop.stop)
        )
        self._unpark()
        self._spinning = True
        try:
            self._loop.run_forever()
        finally:
            self._spinning = False
            if timer is not None:
                timer.cancel()

    def wake(self) -> None:
        """Something happened: let spin() return."""
        if self._spinning:
            self._loop.stop()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine beside the others."""
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _keep_house(self) -> None:
        while not self._closed:
            time.sleep(IDLE_S)
            if time.monotonic() - self._last_driven > IDLE_S and self._lock.acquire(blocking=False):
                try:
                    if not self._closed:
                        self._unpark()
                        self._loop.run_forever()
                finally:
                    self._lock.release()

    async def _tick(self) -> None:
        while not self._closed:
            await asyncio.sleep(min(self.limits.heartbeat_s, self.limits.deadline_s) / 4)
            for session in self._sessions.values():
                session.tick(time.monotonic())

    # Serving

    async def _serve(self, listen: str) -> None:
        self._server = grpc.aio.server(options=self.options(), maximum_concurrent_rpcs=16)
        handler = grpc.stream_stream_rpc_method_handler(self._accept)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tallystick.Party", {"Session": handler}),))
        credentials = grpc.ssl_server_credentials(
            [(self.identity.key, self.identity.certificate)], self.identity.ca, require_client_auth=True
        )
        self.port = self._server.add_secure_port(listen, credentials)
        if self.port == 0:
            raise OSError("bind failed")
        await self._server.start()

    async def _accept(self, _requests: Any, context: Any) -> None:
        names = [name.decode(errors="replace") for name in context.auth_context().get("x509_subject_alternative_name", [])]
        try:
            frame = await asyncio.wait_for(context.read(), self.limits.deadline_s)
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within the deadline")
            return
        try:
            hello = _open_hello(b"" if frame is _EOF else frame, ", ".join(names) or "a caller")
        except ProtocolError as error:
            self._turned_away = str(error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            return
        if hello.party not in names:
            self._turned_away = f"a caller who says to be {hello.party!r} holds a certificate for {', '.join(names) or 'nobody'}"
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, f"your certificate is for {', '.join(names)}, not for {hello.party!r}"
            )
        session = self._sessions.get(hello.party)
        if session is None or session._address is not None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.identity.name} does not expect {hello.party!r} (yet)")
            return
        reason = session.refuse(hello)
        if reason is not None:
            code = grpc.StatusCode.ABORTED if hello.peer_process else grpc.StatusCode.UNAVAILABLE
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT if hello.wire_version != WIRE_VERSION else code, reason)
        session.drop_link("replaced by a new stream")  # before we say how far it came
        await context.write(_HEADER.pack(_HELLO, 0, session._received, session._consumed) + encode(session.hello()))
        link = _Link(context)
        with contextlib.suppress(asyncio.CancelledError):
            await session.run_link(link, hello)

    async def _shut_down(self) -> None:
        for session in self._sessions.values():
            session._link = None
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(0.2)
        # gRPC's own tasks end a moment after what they served; left behind, they complain on standard error.
        if left := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(left, timeout=1.0)


def _open_hello(frame: bytes, peer: str) -> Hello:
    if len(frame) < _HEADER.size or frame[0] != _HELLO:
        raise ProtocolError(peer, f"{peer} does not speak tallystick: its first frame is no Hello")
    return open_payload(frame[_HEADER.size :], Hello, peer=peer)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return (error.details() or error.code().name).splitlines()[0][:300]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


__all__ = ["Limits", "Network", "Session", "TallystickError"]
