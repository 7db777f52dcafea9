"""Connections of clients: each has so long and so many bytes for the head of a request, and so many there are at most.

Whoever can reach the port can call, before any token is asked for. uvicorn itself waits for the first request of a connection
for ever, takes a header of any size, and any number of connections. Here a connection has 5 seconds for its TLS handshake, 5
seconds, 64 KiB and 100 headers for the head of a request, and 5 seconds for its body. One that waits for the next request is
kept for 75 seconds. Eight requests may wait behind one that is being answered, and an answer that is not read is waited with
for 10 seconds. There are at most 4,096 connections, 1,024 with TLS, and at most a quarter of the process's file descriptors,
whatever they do: the one that has said nothing for longest makes room, and where all are being answered, the one whose request
came first.
"""

import asyncio
import os
import resource
import socket
import ssl
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 5.0
MOST_HEAD_BYTES = 1 << 16
MOST_HEADERS = 100
MOST_CONNECTIONS, MOST_WITH_TLS = 4096, 1024
"""With TLS each takes a quarter of a MiB."""
ACCEPTED_AT_ONCE, LISTENS = 8, 2048
"""Calls that asyncio takes before it goes on with those that it has: one whose handshake goes on is not to be too many meanwhile.
And those that the system holds until then."""
MOST_PIPELINED = 8
"""Requests of one connection that wait while another one of it is answered."""
UNREAD_S = 10.0
"""Seconds until a client that reads nothing is hung up."""
SHARE = 4
"""Of the process's file descriptors: the others are for the partners, tables and journals."""


class BoundedProtocol(HttpToolsProtocol):
    """One client's connection; those that wait for a request, and those with one, hang together, the first one first."""

    most = MOST_CONNECTIONS
    waiting: dict["BoundedProtocol | TlsDoor", None] = {}  # noqa: RUF012 - of all connections of the server
    busy: dict["BoundedProtocol", None] = {}  # noqa: RUF012

    @classmethod
    def make_room(cls) -> None:
        """Hang up who has waited longest, where connections are too many for one more."""
        while len(cls.waiting) + len(cls.busy) >= cls.most:
            next(iter(cls.waiting or cls.busy)).hang_up()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a call, in the place of the one that has waited longest where there are too many."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        self.make_room()
        self._wait()
        self._limit_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes, as long as they are not too many of one head."""
        if self in self.waiting:
            self._limit_head()
        super().data_received(data)
        if self in self.waiting:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEAD_BYTES:
                self.hang_up()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; the parser ends at an error, and a request that is none is answered so."""
        if len(self.headers) >= MOST_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Go on with the request: its body and its score have limits of their own."""
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
        """Wait with an answer that is not read, but not for ever."""
        super().pause_writing()
        if self._unread is None:
            self._unread = asyncio.get_running_loop().call_later(UNREAD_S, self.hang_up)

    def resume_writing(self) -> None:
        """Go on with it."""
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
        self._head_bytes = 0
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
    """One client's call until its TLS handshake has ended: it waits, as those do that have sent no request yet.

    It takes asyncio's own loop: uvloop reads what comes before the handshake begins.
    """

    context: ssl.SSLContext
    behind: type[BoundedProtocol]

    def __init__(self, **of_server: Any) -> None:
        self._connection = self.behind(**of_server)
        self._early: list[bytes] = []

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin the handshake."""
        self._transport = transport
        transport.pause_reading()  # what comes is read by the handshake alone
        self._connection.make_room()
        self._connection.waiting[self] = None
        self._handshake = asyncio.get_running_loop().create_task(self._shake_hands())

    async def _shake_hands(self) -> None:
        try:
            secured = await asyncio.get_running_loop().start_tls(
                self._transport, self, self.context, server_side=True, ssl_handshake_timeout=HEAD_S
            )
        except OSError:  # among them what ssl and a time that is over raise
            secured = None
        finally:
            self._connection.waiting.pop(self, None)
        if secured is None or secured.is_closing():
            self._transport.abort()
            return
        self._connection.connection_made(secured)
        secured.set_protocol(self._connection)
        for data in self._early:
            self._connection.data_received(data)

    def data_received(self, data: bytes) -> None:
        """Keep what comes right behind the handshake."""
        self._early.append(data)

    def hang_up(self) -> None:
        """Close the connection at once."""
        self._connection.waiting.pop(self, None)
        self._transport.abort()


def bounded_protocol(most: int | None = None, *, tls: ssl.SSLContext | None = None) -> type[asyncio.Protocol]:
    """Build the connections of one server: so many at most, or as many as the process's file descriptors allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_CONNECTIONS if tls is None else MOST_WITH_TLS
    allowed = allowed if descriptors == resource.RLIM_INFINITY else min(allowed, descriptors // SHARE)
    members: dict[str, Any] = {"most": most or allowed, "waiting": {}, "busy": {}}
    protocol = type("Protocol", (BoundedProtocol,), members)
    return protocol if tls is None else type("Door", (TlsDoor,), {"context": tls, "behind": protocol})


class PatientServer(uvicorn.Server):
    """A server that takes a few calls at once, while the system holds many more."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen."""
        await super().startup(sockets)
        for server in self.servers:
            for listening in server.sockets:
                with socket.socket(fileno=os.dup(listening.fileno())) as same:
                    same.listen(LISTENS)
