"""Connections of clients: the head of a request comes soon and is small, or the connection is closed.

uvicorn itself waits for the first request of a connection for ever, and takes a header of any size.
"""

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 5.0
MOST_HEAD_BYTES = 1 << 16


class BoundedProtocol(HttpToolsProtocol):
    """A connection on which the head of each request has so many seconds and bytes.

    ``_head`` is the timer of the head that is awaited; None while a request is answered, or the next one has not begun.
    """

    _head: asyncio.TimerHandle | None = None
    _head_bytes = 0

    def connection_made(self, transport: Any) -> None:
        """Await the first request."""
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Await nothing more."""
        self._have_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of a head are counted, in whole pieces, as they come."""
        if self._head is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head is not None and self._head_bytes > MOST_HEAD_BYTES:
            self.transport.close()

    def on_message_begin(self) -> None:
        """A request begins."""
        if self._head is None:
            self._await_head()
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Its head is here."""
        self._have_head()
        super().on_headers_complete()

    def _await_head(self) -> None:
        self._head, self._head_bytes = self.loop.call_later(HEAD_S, self.transport.close), 0

    def _have_head(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
