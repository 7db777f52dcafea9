"""Limit the connections of clients: their number, and the time and bytes that each has for the head of a request.

Anyone who can reach the port can connect before a token is asked for. So a connection has 5 seconds for its TLS handshake, 5
seconds, 64 KiB and 100 headers for the head of a request, and 5 seconds for its body. An idle connection is kept for 75
seconds. Eight requests may wait behind one that is being answered, and an answer that the client does not read is kept for 10
seconds. There are at most 4,096 connections, 1,024 with TLS, and they use at most a quarter of the process's file descriptors.
Beyond that, the connection that has been idle longest is closed; if none is idle, the one with the oldest request.

Connected clients do not wait for newcomers: handshakes begin one after the other, taking turns by address, and if they are more
than a quarter of the connections, a new handshake replaces another handshake.
"""

import asyncio
import ipaddress
import os
import resource
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 5.0
MOST_HEAD_BYTES = 1 << 16
MOST_HEADERS = 100
MOST_CONNECTIONS, MOST_WITH_TLS = 4096, 1024
"""Greatest number of connections. With TLS each takes a quarter of a MiB."""
ACCEPTED_AT_ONCE, LISTENS = 8, 2048
"""Calls that asyncio accepts before it returns to the connections that it has, so that few handshakes run in that time, and calls
that the system holds until then.
"""
MOST_PIPELINED = 8
"""Requests of one connection that wait while another one of it is answered."""
FREE_PIECES, FIRST_PAUSE_S, LONGEST_PAUSE_S = 8, 0.05, 1.0
"""Pieces of one head that are read as they come, and how long the later ones are gathered."""
HANDSHAKE_EVERY_S = 0.002
"""Seconds from the beginning of one handshake to that of the next one."""
DOORS_SHARE = 4
"""One connection in this many may be in its handshake."""
MOST_HELLO_BYTES = 5 + (1 << 14)
"""Greatest number of bytes of the TLS record with which a client begins its handshake."""
UNREAD_S = 10.0
"""Seconds until the connection of a client that reads nothing is closed."""
_HANDSHAKE = b"\x16"
"""The first bytes of a TLS record of a handshake."""
SHARE = 4
"""One in this many of the process's file descriptors is for connections. The others are for partners, tables and journals."""


class BoundedProtocol(HttpToolsProtocol):
    """One client's connection. Idle connections and busy ones are two lists, oldest first."""

    most = MOST_CONNECTIONS
    line: asyncio.Transport | None = None
    """The connection below TLS."""
    doors: dict["TlsDoor", None] = {}  # noqa: RUF012 - of all connections of the server
    waiting: dict["BoundedProtocol", None] = {}  # noqa: RUF012
    busy: dict["BoundedProtocol", None] = {}  # noqa: RUF012

    @classmethod
    def make_room(cls) -> None:
        """Close the connection that has waited longest, if there are too many for one more."""
        while len(cls.doors) + len(cls.waiting) + len(cls.busy) >= cls.most:
            crowd: Iterable[TlsDoor | BoundedProtocol] = cls.waiting or cls.doors or cls.busy
            if len(cls.doors) > cls.most // DOORS_SHARE:
                crowd = cls.doors
            next(iter(crowd)).hang_up()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection. If there are too many, close the one that has waited longest."""
        super().connection_made(transport)
        self._head_bytes = self._pieces = 0
        self.line = self.line or transport
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.make_room()
        self._wait()
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        """Receive bytes, up to the limit for the head of a request."""
        if self in self.waiting:
            self._limit_head()
        super().data_received(data)
        if self in self.waiting:
            self._head_bytes += len(data)
            self._pieces += 1
            if self._head_bytes > MOST_HEAD_BYTES:
                self.hang_up()
            elif self._pieces > FREE_PIECES:  # pause reading this head: each piece costs as much as a request
                pause_s = min(FIRST_PAUSE_S * 2 ** (self._pieces - FREE_PIECES - 1), LONGEST_PAUSE_S)
                assert self.line is not None, "a connection was made"
                self.line.pause_reading()
                asyncio.get_running_loop().call_later(pause_s, self._read_on)

    def _read_on(self) -> None:
        if self.line is not None and not self.line.is_closing():
            self.line.resume_reading()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive a header. An error ends the parser, and a malformed request gets an error as answer."""
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """End the limits of the head: the body and the score have limits of their own."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self.hang_up()
            return
        self._leave()
        if not self.transport.is_closing():
            self.busy[self] = None
        super().on_headers_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        if not self.pipeline and not self.transport.is_closing():
            self.busy.pop(self, None)
            self._wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Wait, for a limited time, until the client reads the answer."""
        super().pause_writing()
        if self._unread is None:
            self._unread = asyncio.get_running_loop().call_later(UNREAD_S, self.hang_up)

    def resume_writing(self) -> None:
        """Go on sending the answer."""
        super().resume_writing()
        self._read()

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _forget(self) -> None:
        self._leave()
        self._read()
        self.busy.pop(self, None)
        self.pipeline.clear()

    def _wait(self) -> None:
        self.waiting[self] = None

    def _leave(self) -> None:
        self.waiting.pop(self, None)
        self._head_bytes = self._pieces = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _limit_head(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.hang_up)

    def hang_up(self) -> None:
        """Close the connection at once."""
        self._forget()
        self.transport.abort()


class TlsDoor(asyncio.Protocol):
    """One client's connection until its TLS handshake has ended.

    It needs asyncio's own loop, because uvloop reads bytes before the handshake begins.
    """

    context: ssl.SSLContext
    behind: type[BoundedProtocol]
    porter: "Porter"

    def __init__(self, **of_server: Any) -> None:
        self._of_server = of_server
        self._hello, self._early = bytearray(), list[bytes]()
        self._opening: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Wait for the first message of a handshake."""
        self._transport, self.caller = transport, _caller(transport)
        self.behind.make_room()
        self.behind.doors[self] = None
        self._timer = asyncio.get_running_loop().call_later(HEAD_S, self.hang_up)

    def data_received(self, data: bytes) -> None:
        """Collect the first message, then ask the porter for a turn; or keep bytes that arrive right after the handshake."""
        if self._opening is not None:
            self._early.append(data)
            return
        self._hello += data
        if not self._hello.startswith(_HANDSHAKE) or len(self._hello) > MOST_HELLO_BYTES:
            self.hang_up()
        elif len(self._hello) >= 5 + int.from_bytes(self._hello[3:5], "big"):
            self._transport.pause_reading()
            self.porter.call(self)

    def open(self) -> None:
        """Begin the handshake."""
        self._opening = asyncio.get_running_loop().create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        if self._transport.is_closing():  # closed before its turn
            return
        loop = asyncio.get_running_loop()
        loop.call_soon(loop.call_soon, self._say_hello)  # a turn later, when the handshake is connected
        try:
            secured = await loop.start_tls(self._transport, self, self.context, server_side=True, ssl_handshake_timeout=HEAD_S)
        except OSError:  # includes the errors of ssl and of a timeout
            secured = None
        except asyncio.CancelledError:  # the server stops
            self._transport.abort()
            raise
        finally:
            self._leave()
        if secured is None or secured.is_closing():
            self._transport.abort()
            return
        connection = self.behind(**self._of_server)
        connection.line = self._transport
        connection.connection_made(secured)
        secured.set_protocol(connection)
        for data in self._early:
            connection.data_received(data)

    def _say_hello(self) -> None:
        """Give the handshake the message that was read before it began."""
        protocol = self._transport.get_protocol()
        if isinstance(protocol, asyncio.BufferedProtocol) and not self._transport.is_closing():
            memoryview(protocol.get_buffer(len(self._hello)))[: len(self._hello)] = self._hello
            protocol.buffer_updated(len(self._hello))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """Forget the connection."""
        self._leave()

    def hang_up(self) -> None:
        """Close the connection at once."""
        self._leave()
        self._transport.abort()

    def _leave(self) -> None:
        self._timer.cancel()
        self.behind.doors.pop(self, None)
        self.porter.forget(self)


def _caller(transport: asyncio.Transport) -> str:
    """Return the caller: the address, or for IPv6 its network, because one caller has many addresses there."""
    host = str((transport.get_extra_info("peername") or ("",))[0]).partition("%")[0]
    return str(ipaddress.ip_network(f"{host}/64", strict=False)) if ":" in host else host


class Porter:
    """Opens doors, one every HANDSHAKE_EVERY_S. Callers take turns, and each caller's newest connection comes first.

    If there are too many doors, the oldest ones wait in vain: the newest has waited least.
    """

    def __init__(self) -> None:
        self._callers: dict[str, dict[TlsDoor, None]] = {}
        self._round: asyncio.Task[None] | None = None

    def call(self, door: TlsDoor) -> None:
        """Queue a door, to be opened in its turn."""
        self._callers.setdefault(door.caller, {})[door] = None
        if self._round is None or self._round.done():
            self._round = asyncio.get_running_loop().create_task(self._open())

    def forget(self, door: TlsDoor) -> None:
        """Remove a door from the queue."""
        if doors := self._callers.get(door.caller):
            doors.pop(door, None)

    async def _open(self) -> None:
        while self._callers:
            caller = next(iter(self._callers))
            doors = self._callers.pop(caller)
            if not doors:
                continue
            door, _ = doors.popitem()
            self._callers[caller] = doors  # behind the others
            door.open()
            await asyncio.sleep(HANDSHAKE_EVERY_S)


def bounded_protocol(most: int | None = None, *, tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Build the connections of one server: at most this many, or as many as the process's file descriptors allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_CONNECTIONS if tls is None else MOST_WITH_TLS
    allowed = allowed if descriptors == resource.RLIM_INFINITY else min(allowed, descriptors // SHARE)
    members: dict[str, Any] = {"most": most or allowed, "doors": {}, "waiting": {}, "busy": {}}
    protocol = type("Protocol", (BoundedProtocol,), members)
    return protocol if tls is None else type("Door", (TlsDoor,), {"context": tls, "behind": protocol, "porter": Porter()})


class PatientServer(uvicorn.Server):
    """A server that accepts a few connections at a time, while the system queues many more."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(LISTENS)
