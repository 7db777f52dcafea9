"""Make links over plain TLS 1.3. A frame is its length and its bytes.

A listener accepts calls as long as it runs, so that a peer can come back. It holds at most 64 callers whose TLS handshake is not
finished, and at most a sixteenth of the process's file descriptors. Each may stay for ``deadline_s``, and the next one replaces
the oldest. Of callers with a good certificate that have not said who they are, it holds four for each party and four for all
others, for two seconds. So connections that are held open cost a job nothing. Not protected: a flood of new callers can keep a
peer out.
"""

import asyncio
import resource
import socket
import ssl
import time
from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct
from typing import Any

import numpy as np

from tallystick.errors import IdentityError
from tallystick.network.certificates import ALPN, Identity, no_tallystick, not_accepted, reason, refusal, tls_context
from tallystick.network.link import Arriving, FrameTooLarge, Link, LinkBroken
from tallystick.network.loop import Loop
from tallystick.network.messages import ALIGNMENT, Buffer
from tallystick.network.proxy import MAX_ANSWER_BYTES, Proxy, check_answer, connect_request, is_whole
from tallystick.network.session import Limits

LENGTH = Struct("<I")
# A frame of at most a TLS record's size is sent in one.
RECORD_BYTES = 16_384
# Other tasks, and a thread that waits for the loop, get their turn after at most this many bytes; a record counts as full.
TURN_BYTES = 4 << 20
# RFC 8446, section 5.5: an AES-GCM key is good for 2^24.5 full records. A link is closed, and dialled again, before that.
RENEW_BYTES = RECORD_BYTES << 24
# The first frame of a link is a Hello, which is small.
HELLO_BYTES = 1 << 16
# Greatest number of callers in the middle of a TLS handshake, or their share of this process's file descriptors if that is less.
# The next caller replaces the one that has taken longest.
STRANGERS = 64
STRANGERS_SHARE = 16
RETRY_S = 0.1

Meet = Callable[[Link], Awaitable[None]]
"""Called with a dialled link. It returns when the link has ended."""

Welcome = Callable[[Link, list[str]], Awaitable[None]]
"""Called with a caller's link and the names in its certificate. It returns when the link has ended."""

Refused = Callable[[str], None]
"""Called with the problem of a caller whose TLS handshake failed."""


class WrongCertificate(IdentityError):
    """Raised if the certificate that answers a call is not the peer's. Nothing was sent to it."""


class HandshakeFailed(LinkBroken):
    """Raised if one side's TLS refuses the other's. Its text says why."""


class _Link:
    """A connection, before, during and after its TLS handshake. Raises LinkBroken if it is gone already.

    The socket never blocks; the network's loop drives it. A tensor's bytes are not copied between its memory and the cipher.
    """

    def __init__(
        self, raw: socket.socket, context: ssl.SSLContext, driver: Loop, *, server_name: str | None, max_bytes: int
    ) -> None:
        try:
            self.host = raw.getpeername()[0]  # raises if the caller has gone, because wrap_socket() would leave a socket behind
            raw.setblocking(False)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket = context.wrap_socket(
                raw, server_side=server_name is None, server_hostname=server_name, do_handshake_on_connect=False
            )
        except OSError as error:
            raw.close()
            raise LinkBroken(reason(error)) from None
        self._file = self._socket.fileno()
        self._driver = driver
        self._loop = asyncio.get_running_loop()
        self._max_bytes = max_bytes
        self._waiting: dict[Callable[..., Any], asyncio.Future[None]] = {}
        self._closed = False
        self._bytes = self._turn = 0
        self.names: list[str] = []
        self.speaks_tallystick = False
        self.heard = False
        self.progress = 0.0
        self.arriving: Arriving | None = None
        self.stalled = False

    async def handshake(self) -> None:
        """Check both certificates, and note the peer's names and whether it speaks the same protocol.

        Raises ssl.SSLCertVerificationError for the peer's certificate, HandshakeFailed for other refusals by TLS, and LinkBroken
        if the connection ends.
        """
        while not self._closed:  # it may be closed between the turn in which the socket was ready and this one
            try:
                self._socket.do_handshake()
                break
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError, ssl.SSLEOFError) as error:
                await self._wait_or_raise(error)
            except ssl.SSLCertVerificationError:
                raise
            except ssl.SSLError as error:
                raise HandshakeFailed(reason(error)) from None
            except OSError as error:
                raise LinkBroken(reason(error)) from None
        else:
            raise LinkBroken("this side hung up")
        try:
            certificate: Any = self._socket.getpeercert() or {}
        except ValueError:
            raise HandshakeFailed("the names in its certificate are not readable text") from None
        self.names = [name for kind, name in certificate.get("subjectAltName", ()) if kind == "DNS"]
        self.speaks_tallystick = self._socket.selected_alpn_protocol() == ALPN

    async def read(self) -> memoryview:
        """Wait for the next frame."""
        (length,) = LENGTH.unpack(await self._read_bytes(LENGTH.size))
        limit = self._max_bytes if self.heard else HELLO_BYTES
        if length > limit:
            raise FrameTooLarge(f"a frame of {length} bytes is over the limit of {limit}")
        self.arriving = Arriving(size=length, began=time.monotonic())
        with self._driver.urgent():
            frame = await self._read_bytes(length)
        self.arriving, self.heard = None, True
        return frame

    async def write(self, parts: tuple[Buffer, ...]) -> None:
        """Send a frame that consists of these parts. Only small parts are copied, so that they are sent together."""
        small = bytearray(LENGTH.pack(sum(map(len, parts))))
        for part in parts:
            if len(part) < RECORD_BYTES:
                small += part
            else:
                await self._write_bytes(small)
                await self._write_bytes(part)
                small = bytearray()
        await self._write_bytes(small)

    async def _read_bytes(self, count: int) -> memoryview:
        # Aligned, as tensors need it, and not filled with zeros first.
        room = np.empty(count + ALIGNMENT, dtype=np.uint8)
        start = -room.ctypes.data % ALIGNMENT
        view = memoryview(room[start : start + count])  # type: ignore[arg-type]
        # recv_into() calls read() after some checks, which add up.
        read: Callable[[int, memoryview], Any] = self._socket.read
        read_count = 0
        while read_count < count:
            try:
                got = read(count - read_count, view[read_count:])
            except ValueError:  # closed by this side
                raise LinkBroken("this side hung up") from None
            except OSError as error:
                await self._wait_or_raise(error)
                continue
            if got == 0:
                raise LinkBroken("the peer hung up")
            read_count += got
            self.progress = time.monotonic()
            self._turn += RECORD_BYTES  # read() gives at most one record
            if self._turn >= TURN_BYTES:
                await self._end_turn()
        return view

    async def _write_bytes(self, data: Buffer) -> None:
        view, send, written = memoryview(data), self._socket.send, 0
        while written < len(data):
            try:
                sent_count = send(view[written : written + TURN_BYTES])
            except OSError as error:
                self.stalled = True
                await self._wait_or_raise(error)
                self.stalled = False
                continue
            written += sent_count
            self._turn += max(sent_count, RECORD_BYTES)
            if self._turn >= TURN_BYTES:
                await self._end_turn()

    async def _end_turn(self) -> None:
        self._bytes, self._turn = self._bytes + self._turn, 0
        if self._bytes > RENEW_BYTES:
            self.close()
            raise LinkBroken("its keys have been used long enough")
        await asyncio.sleep(0)

    async def _wait_or_raise(self, error: OSError) -> None:
        """Wait until the socket is ready for what it could not do yet. Raises LinkBroken for any other error."""
        if isinstance(error, ssl.SSLWantReadError):
            await self._ready(self._loop.add_reader, self._loop.remove_reader)
        elif isinstance(error, ssl.SSLWantWriteError):
            await self._ready(self._loop.add_writer, self._loop.remove_writer)
        else:
            raise LinkBroken(reason(error)) from None

    async def _ready(self, add: Callable[..., None], remove: Callable[[int], bool]) -> None:
        """Wait until the socket is readable or writable. A reader and a writer may both wait for the same event."""
        ready = self._waiting.get(remove)
        if ready is None or ready.done():  # done: the waiting task was cancelled
            ready = self._waiting[remove] = self._loop.create_future()
            add(self._file, self._is_ready, remove)
        await ready

    def _is_ready(self, remove: Callable[[int], bool]) -> None:
        remove(self._file)
        if remove == self._loop.remove_reader:
            # Bytes arrived, but perhaps only a part of a record: then read() returns nothing, on a slow line for a long time.
            self.progress = time.monotonic()
        ready = self._waiting.pop(remove)
        if not ready.done():
            ready.set_result(None)

    def close(self) -> None:
        """Close the connection. Waiting tasks learn that the link is broken."""
        self._closed = True
        for remove, ready in self._waiting.items():
            remove(self._file)
            if not ready.done():
                ready.set_exception(LinkBroken("this side hung up"))
                ready.exception()  # perhaps nothing waits any more
        self._waiting.clear()
        self._socket.close()


class TlsTransport:
    """Plain TLS 1.3, both sides verified.

    Threat model: anyone on the way. A dialler accepts only a certificate for the name that it dials, a listener only those of its
    CAs, and passes their names on. Nothing is sent before. Not protected: the names in SNI, sizes and times.
    """

    def __init__(self, identity: Identity, limits: Limits, loop: Loop, proxy: Proxy | None = None) -> None:
        self._limits = limits
        self._proxy = proxy
        self._loop = loop
        self._dials = tls_context(identity)
        self._listens = tls_context(identity, listens=True)
        self._listeners: list[socket.socket] = []
        self._links: set[_Link] = set()
        self._strangers: deque[_Link] = deque()  # a limited number at any time, whatever they do and however busy the loop is
        self._most_strangers = _most_strangers()

    # Dialling

    async def dial(self, address: str, peer: str, meet: Meet) -> None:
        """Call ``peer`` once and hang up after ``meet``.

        Raises LinkBroken for failures that may pass, WrongCertificate if another party answers, and IdentityError if the peer
        refuses this party.
        """
        where = f"{peer} at {address}"
        raw = await (self._call(address, where) if self._proxy is None else self._call_through(self._proxy, address, where))
        link = self._link(raw, self._dials, peer)
        try:
            try:
                await asyncio.wait_for(link.handshake(), self._limits.deadline_s)
            except TimeoutError:
                raise LinkBroken(f"{where}: accepted the connection but sent nothing") from None
            except ssl.SSLCertVerificationError as error:
                raise WrongCertificate(peer, f"{where}: {refusal(error)}") from None
            except LinkBroken as error:
                raise LinkBroken(f"{where}: TLS 1.3 handshake failed: {error}") from None
            if not link.speaks_tallystick:
                raise LinkBroken(no_tallystick(peer, address))
            try:
                await meet(link)
            except LinkBroken as error:
                if link.heard:
                    raise
                # In TLS 1.3 a listener checks our certificate after our side of the handshake is done.
                raise LinkBroken(not_accepted(peer, address, str(error))) from None
        finally:
            self._hang_up(link)

    async def _call(self, address: str, where: str) -> socket.socket:
        """Connect to the first of the host's addresses that answers."""
        deadline_s = self._limits.deadline_s
        try:
            addresses = await _resolve(address)
            failure: OSError = TimeoutError()
            for family, kind, protocol, _, place in addresses:
                raw = None
                try:
                    raw = socket.socket(family, kind, protocol)
                    raw.setblocking(False)
                    connecting = asyncio.get_running_loop().sock_connect(raw, place)
                    await asyncio.wait_for(connecting, deadline_s / len(addresses))
                except BaseException as error:
                    if raw is not None:
                        raw.close()
                    if not isinstance(error, OSError):
                        raise
                    failure = error
                else:
                    return raw
            raise failure
        except TimeoutError:
            raise LinkBroken(f"{where}: no answer within {deadline_s:g} s; check the firewall") from None
        except OSError as error:
            raise LinkBroken(f"{where}: {reason(error)}") from None

    async def _call_through(self, proxy: Proxy, address: str, where: str) -> socket.socket:
        """Make the proxy connect. After that, bytes from the socket come from the peer."""
        raw = await self._call(proxy.address, f"{where}: the proxy at {proxy.address}")
        loop = asyncio.get_running_loop()
        answer = bytearray()
        try:
            async with asyncio.timeout(self._limits.deadline_s):
                await loop.sock_sendall(raw, connect_request(proxy, address))
                while not is_whole(answer) and (chunk := await loop.sock_recv(raw, MAX_ANSWER_BYTES - len(answer))):
                    answer += chunk
            check_answer(answer, proxy)
        except BaseException as error:
            raw.close()
            if isinstance(error, LinkBroken):
                raise type(error)(f"{where}: {error}") from None
            if isinstance(error, TimeoutError):
                said_nothing = f"accepted the connection but did not answer within {self._limits.deadline_s:g} s"
                raise LinkBroken(f"{where}: the proxy at {proxy.address} {said_nothing}") from None
            if isinstance(error, OSError):
                raise LinkBroken(f"{where}: the proxy at {proxy.address}: {reason(error)}") from None
            raise
        return raw

    # Listening

    async def listen(self, address: str, welcome: Welcome, refused: Refused) -> int:
        """Accept calls at ``host:port`` from now on and return the port. Raises OSError."""
        port = 0
        for family, _, _, _, where in await _resolve(address):
            dual = family == socket.AF_INET6 and where[0] == "::" and socket.has_dualstack_ipv6()
            listener = socket.create_server((where[0], port or where[1]), family=family, backlog=STRANGERS, dualstack_ipv6=dual)
            self._listeners.append(listener)
            listener.setblocking(False)
            port = listener.getsockname()[1]
            self._take_calls(listener, welcome, refused)
        return port

    def _take_calls(self, listener: socket.socket, welcome: Welcome, refused: Refused) -> None:
        if listener in self._listeners:
            asyncio.get_running_loop().add_reader(listener, self._take_call, listener, welcome, refused)

    def _take_call(self, listener: socket.socket, welcome: Welcome, refused: Refused) -> None:
        try:
            raw, _ = listener.accept()
            link = self._link(raw, self._listens, None)
        except (BlockingIOError, LinkBroken):
            return  # the caller is gone already
        except OSError:  # for example, no file descriptor is left: this party's own work needs the rest
            loop = asyncio.get_running_loop()
            loop.remove_reader(listener)
            loop.call_later(RETRY_S, self._take_calls, listener, welcome, refused)
            while self._strangers:
                self._hang_up(self._strangers.popleft())
            return
        self._strangers.append(link)
        if len(self._strangers) > self._most_strangers:
            self._hang_up(self._strangers.popleft())
        self._loop.start(self._serve(link, welcome, refused))

    async def _serve(self, link: _Link, welcome: Welcome, refused: Refused) -> None:
        try:
            try:
                async with asyncio.timeout(self._limits.deadline_s):
                    await link.handshake()
            finally:
                if link in self._strangers:
                    self._strangers.remove(link)
            if link.speaks_tallystick:
                await welcome(link, link.names)
        except ssl.SSLCertVerificationError as error:
            refused(f"a caller from {link.host} is refused: its certificate: {error.verify_message} (is its CA in tls.ca?)")
        except HandshakeFailed as error:
            refused(f"a caller from {link.host} is refused: the TLS 1.3 handshake failed: {error}")
        except (LinkBroken, TimeoutError):
            pass  # a caller that hangs up dials again
        finally:
            self._hang_up(link)

    async def stop(self) -> None:
        """Accept no more calls and close the links of all callers."""
        while self._listeners:
            listener = self._listeners.pop()
            asyncio.get_running_loop().remove_reader(listener)
            listener.close()
        for link in tuple(self._links):
            self._hang_up(link)

    def _link(self, raw: socket.socket, context: ssl.SSLContext, server_name: str | None) -> _Link:
        """Make a link that stop() closes unless it was closed before. Raises LinkBroken."""
        link = _Link(raw, context, self._loop, server_name=server_name, max_bytes=self._limits.max_message_bytes)
        self._links.add(link)
        return link

    def _hang_up(self, link: _Link) -> None:
        self._links.discard(link)
        link.close()


def _most_strangers() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return STRANGERS if descriptors == resource.RLIM_INFINITY else max(1, min(STRANGERS, descriptors // STRANGERS_SHARE))


async def _resolve(address: str) -> list[tuple[Any, ...]]:
    host, _, port = address.rpartition(":")
    try:
        return await asyncio.get_running_loop().getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except UnicodeError:
        raise OSError(f"{host} is not a host name") from None
