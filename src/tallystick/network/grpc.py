"""Network: this party's sessions over gRPC, with mutual TLS 1.3 and pinned names.

The label party (and a helper) listens, the others dial. A link of a session is one bidirectional stream of frames; what
holds a session together while links come and go is in session.py. One thread may use the sessions of a Network.
"""

import asyncio
import os
import secrets
import time
from collections.abc import Callable
from typing import Any

# The only suites left for TLS 1.2 need a pre-shared key, which nobody has: what remains is TLS 1.3, whose suites
# this setting does not touch. gRPC for Python has no other way to state a minimum version.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
# gRPC's own log repeats on standard error, in its words, what our errors say in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from tallystick.errors import ConfigError, IdentityError, PeerError, PeerLost, ProtocolError
from tallystick.network.certificates import Identity, probe
from tallystick.network.loop import Loop
from tallystick.network.messages import MEBIBYTE, WIRE_VERSION
from tallystick.network.session import Limits, LinkBroken, Session, open_hello

REDIAL_S = 0.5
METHOD = "/tallystick.Party/Session"
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# What a stream raises when it ended under a reader or a writer, in whichever state.
_BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class _Stream:
    """A link: a client call or a server context, which read and write alike."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def read(self) -> bytes:
        """Wait for the next frame."""
        try:
            frame: bytes = await self._stream.read()
        except _BROKEN as error:
            raise LinkBroken(_reason(error)) from None
        if frame is _EOF:
            raise LinkBroken("the stream ended")
        return frame

    async def write(self, frame: bytes) -> None:
        """Send a frame."""
        try:
            await self._stream.write(frame)
        except _BROKEN as error:
            raise LinkBroken(_reason(error)) from None


class Network:
    """This party's end of all its sessions: one event loop, one server if it listens."""

    def __init__(self, identity: Identity, *, limits: Limits, listen: str | None = None) -> None:
        self.identity = identity
        self.limits = limits
        self.port: int | None = None
        self._process = secrets.token_bytes(16)
        self._loop = Loop()
        self._sessions: dict[str, Session] = {}
        self._dialled: set[str] = set()
        self._server: Any = None
        self._turned_away: str | None = None
        if listen is not None:
            try:
                self._loop.run(self._serve(listen))
            except (RuntimeError, OSError) as error:
                self._loop.end(self._stop_serving())
                raise ConfigError(f"listen = {listen}: cannot listen there ({error}); is the port taken?") from None
        self._loop.begin()

    def connect(self, peers: dict[str, str | None], *, waiting: Callable[[list[str]], None] | None = None) -> dict[str, Session]:
        """Establish a session with every peer: dial those with an address, wait for the call of the others.

        ``waiting`` is called about once a second with the names of those that are not there yet. Raises PeerLost
        after ``wait_s``, IdentityError for a certificate that will never do.
        """
        with self._loop:
            for peer, address in peers.items():
                session = self._sessions[peer] = Session(
                    self._loop,
                    own=self.identity.name,
                    process=self._process,
                    peer=peer,
                    limits=self.limits,
                    raise_elsewhere=self._raise_failures,
                )
                if address is not None:
                    self._dialled.add(peer)
                    self._loop.start(self._dial(session, address))
            self._loop.start(self._tick())
            told = time.monotonic()
            while missing := [peer for peer in peers if not self._sessions[peer].connected]:
                self._loop.raise_pending()
                self._raise_turned_away(missing)
                self._raise_failures()
                if waiting is not None and time.monotonic() - told > 1.0:
                    told = time.monotonic()
                    waiting(missing)
                self._loop.spin(until=time.monotonic() + 1.0)
        return dict(self._sessions)

    def close(self, reason: str | None = None) -> None:
        """End every session: in peace, so that both sides have every message, or with the ``reason`` why not."""
        if self._loop.closed:
            return
        self._loop.ignore_interrupts()
        with self._loop:
            until = time.monotonic() + (2.0 if reason is not None else self.limits.deadline_s)
            for session in self._sessions.values():
                session.take_leave(reason)
            for session in self._sessions.values():
                session.see_off(until, reason=reason)
        self._loop.end(self._stop_serving())

    def _raise_failures(self) -> None:
        """Raise the failure of any session: a job needs all of its parties."""
        for session in self._sessions.values():
            session.check()

    def _raise_turned_away(self, missing: list[str]) -> None:
        """A peer that never came, while someone was turned away: the two may be the same."""
        for peer in missing:
            failure = self._sessions[peer].failure
            if self._turned_away is not None and isinstance(failure, PeerLost):
                raise PeerLost(peer, f"{failure}; {self._turned_away}")

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(min(self.limits.heartbeat_s, self.limits.deadline_s) / 4)
            for session in self._sessions.values():
                session.tick(time.monotonic())

    def _options(self) -> list[tuple[str, int]]:
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

    # Dialling

    async def _dial(self, session: Session, address: str) -> None:
        """Keep a stream to the peer's address until the session fails or closes."""
        identity = self.identity
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key, identity.certificate)
        options = [*self._options(), ("grpc.ssl_target_name_override", session.peer), ("grpc.enable_retries", 0)]
        while session.failure is None and not session.over:
            # A fresh channel per attempt: gRPC's own back-off between attempts grows past our deadline.
            async with grpc.aio.secure_channel(address, credentials, options=options) as channel:
                await self._dial_once(session, channel, address)
            await asyncio.sleep(REDIAL_S)

    async def _dial_once(self, session: Session, channel: Any, address: str) -> None:
        call = channel.stream_stream(METHOD)()
        stream = _Stream(call)
        try:
            await stream.write(session.hello_frame())
            hello = open_hello(await asyncio.wait_for(stream.read(), self.limits.deadline_s), session.peer)
            if session.refuse(hello) is None:
                await session.run_link(stream, hello)
        except TimeoutError:
            session.trouble = f"{address} took the call but said nothing"
        except PeerError as error:
            session.fail(error)
        except LinkBroken as error:
            session.trouble = str(error)
        finally:
            await self._judge_status(session, call, address)
            call.cancel()

    async def _judge_status(self, session: Session, call: Any, address: str) -> None:
        """Some endings will not get better by dialling again."""
        if not call.done():
            return
        peer = session.peer
        code, details = await call.code(), (await call.details()) or ""
        if code in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED):
            session.fail(IdentityError(peer, f"{peer} turned this party away: {details}"))
        elif code in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.INVALID_ARGUMENT):
            session.fail(ProtocolError(peer, f"the stream with {peer} was refused: {details}"))
        elif code is grpc.StatusCode.ABORTED:
            session.fail(PeerLost(peer, details))
        elif code is grpc.StatusCode.UNAVAILABLE and not session.connected:
            # Off the loop: the probe blocks, and only certificates that can never work end the wait early.
            trouble = await asyncio.to_thread(probe, self.identity, peer, address, timeout_s=2.0)
            if trouble is not None:
                session.trouble = trouble
                if "certificate is refused" in trouble or "CERTIFICATE" in trouble:
                    session.fail(IdentityError(peer, trouble))

    # Serving

    async def _serve(self, listen: str) -> None:
        self._server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=16)
        handler = grpc.stream_stream_rpc_method_handler(self._accept)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tallystick.Party", {"Session": handler}),))
        identity = self.identity
        credentials = grpc.ssl_server_credentials([(identity.key, identity.certificate)], identity.ca, require_client_auth=True)
        self.port = self._server.add_secure_port(listen, credentials)
        if self.port == 0:
            raise OSError("bind failed")
        await self._server.start()

    async def _accept(self, _requests: Any, context: Any) -> None:
        try:
            await self._welcome(context)
        except (LinkBroken, asyncio.CancelledError):
            pass  # a caller that hangs up in the middle dials again
        except grpc.aio.AbortError:
            raise  # how context.abort() ends a call
        except Exception as error:
            self._loop.fail(error)  # gRPC would keep it to itself
            raise

    async def _welcome(self, context: Any) -> None:
        names = [name.decode(errors="replace") for name in context.auth_context().get("x509_subject_alternative_name", [])]
        held = ", ".join(names)
        stream = _Stream(context)
        try:
            hello = open_hello(await asyncio.wait_for(stream.read(), self.limits.deadline_s), held or "a caller")
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "no Hello within the deadline")
        except PeerError as error:
            self._turned_away = str(error)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if hello.party not in names:
            self._turned_away = f"a caller who says to be {hello.party!r} holds a certificate for {held or 'nobody'}"
            denied = f"your certificate is for {held}, not for {hello.party!r}"
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, denied)
        session = self._sessions.get(hello.party)
        if session is None or hello.party in self._dialled:
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"{self.identity.name} does not expect {hello.party!r} (yet)")
            return
        reason = session.refuse(hello)
        if reason is not None:
            code = grpc.StatusCode.ABORTED if hello.peer_process else grpc.StatusCode.UNAVAILABLE
            if hello.wire_version != WIRE_VERSION:
                code = grpc.StatusCode.INVALID_ARGUMENT
            await context.abort(code, reason)
        session.drop(session.link, "replaced by a new stream")  # before we say how far it came
        await stream.write(session.hello_frame())
        await session.run_link(stream, hello)

    async def _stop_serving(self) -> None:
        for session in self._sessions.values():
            session.drop(session.link, "closed")
        if self._server is not None:
            await self._server.stop(0.2)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        said = (error.details() or error.code().name).splitlines()[0]
        return said.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ")[:300]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


__all__ = ["Limits", "Network", "PeerError", "Session"]
