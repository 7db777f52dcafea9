"""Connections of clients: each has so long and so many bytes for the head of a request, and so many there are at most.

Whoever can reach the port can call, before any token is asked for. uvicorn itself waits for the first request of a connection for
ever, takes a header of any size, and any number of connections. Here a connection has 5 seconds and 64 KiB for the head of a
request, and 5 seconds for its body. One that waits for the next request is kept for 75 seconds. Eight requests may wait behind
one that is being answered, and an answer that is not read is waited with for 10 seconds. There are at most 4,096 connections, and
at most a quarter of the process's file descriptors, whatever they do: the one that has said nothing for longest makes room, and
where all are being answered, the one whose request came first. Not bounded: calls whose TLS handshake does not end.
"""

import asyncio
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 5.0
MOST_HEAD_BYTES = 1 << 16
MOST_CONNECTIONS = 4096
MOST_PIPELINED = 8
"""Requests of one connection that wait while another one of it is answered."""
UNREAD_S = 10.0
"""Seconds until a client that reads nothing is hung up."""
SHARE = 4
"""Of the process's file descriptors: the others are for the partners, tables and journals."""


class BoundedProtocol(HttpToolsProtocol):
    """One client's connection; those that wait for a request, and those with one, hang together, the first one first."""

    most = MOST_CONNECTIONS
    waiting: dict["BoundedProtocol", None] = {}  # noqa: RUF012 - of all connections of the server
    busy: dict["BoundedProtocol", None] = {}  # noqa: RUF012

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a call, in the place of the one that has waited longest where there are too many."""
        super().connection_made(transport)
        self._head_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None
        while len(self.waiting) + len(self.busy) >= self.most:
            next(iter(self.waiting or self.busy))._hang_up()
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
                self._hang_up()

    def on_headers_complete(self) -> None:
        """Go on with the request: its body and its score have limits of their own."""
        if len(self.pipeline) >= MOST_PIPELINED:
            self._hang_up()
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
            self._unread = asyncio.get_running_loop().call_later(UNREAD_S, self._hang_up)

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
            self._timer = asyncio.get_running_loop().call_later(HEAD_S, self._hang_up)

    def _hang_up(self) -> None:
        self._forget()
        self.transport.abort()


def bounded_protocol(most: int | None = None) -> type[BoundedProtocol]:
    """Build the connections of one server: so many at most, or as many as the process's file descriptors allow."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(MOST_CONNECTIONS, descriptors // SHARE)
    members: dict[str, Any] = {"most": most or allowed, "waiting": {}, "busy": {}}
    return type("Protocol", (BoundedProtocol,), members)
