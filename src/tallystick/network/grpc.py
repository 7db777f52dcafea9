"""Links over gRPC: one bidirectional stream of frames, for where HTTP/2 is what gets through.

Mutual TLS 1.3 as in tls.py, by gRPC's own library. It needs about twice the time for a large message.
"""

import asyncio
import os
from typing import Any

# The only suites left for TLS 1.2 need a pre-shared key, which nobody has: what remains is TLS 1.3, whose suites
# this setting does not touch. gRPC for Python has no other way to state a minimum version.
os.environ["GRPC_SSL_CIPHER_SUITES"] = "ECDHE-PSK-AES128-CBC-SHA"
# gRPC's own log repeats on standard error, in its words, what our errors say in one line.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import grpc.aio

from tallystick.errors import IdentityError, ProtocolError
from tallystick.network.certificates import Identity, probe
from tallystick.network.loop import Loop
from tallystick.network.messages import MEBIBYTE, Buffer
from tallystick.network.session import Limits, LinkBroken
from tallystick.network.transport import Meet, Welcome

METHOD = "/tallystick.Party/Session"
_EOF: Any = grpc.aio.EOF  # type: ignore[attr-defined]
# What a stream raises when it ended under a reader or a writer, in whichever state.
_BROKEN = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)


class _Link:
    """A client call or a server context, which read and write alike."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.heard = False
        self.progress = 0.0  # gRPC does not tell
        self.stalled = True  # it has threads of its own

    async def read(self) -> bytes:
        """Wait for the next frame."""
        try:
            frame: bytes = await self._stream.read()
        except _BROKEN as error:
            raise LinkBroken(_reason(error)) from None
        if frame is _EOF:
            raise LinkBroken("the stream ended")
        self.heard = True
        return frame

    async def write(self, parts: tuple[Buffer, ...]) -> None:
        """Send a frame that consists of these parts."""
        try:
            await self._stream.write(b"".join(parts))
        except _BROKEN as error:
            raise LinkBroken(_reason(error)) from None

    def close(self) -> None:
        """Do nothing: a stream ends with its call."""


class GrpcTransport:
    """gRPC over TLS 1.3, both sides verified.

    Threat model: as for TlsTransport.
    """

    def __init__(self, identity: Identity, limits: Limits, loop: Loop) -> None:
        self._identity = identity
        self._limits = limits
        self._loop = loop
        self._server: Any = None

    def _options(self) -> list[tuple[str, int]]:
        return [
            ("grpc.max_receive_message_length", self._limits.max_message_bytes),
            ("grpc.max_send_message_length", self._limits.max_message_bytes),
            ("grpc.max_concurrent_streams", 16),
            ("grpc.so_reuseport", 0),
            # Frames and windows of HTTP/2's defaults split a batch's message into many and stall the second in flight.
            ("grpc.http2.max_frame_size", MEBIBYTE),
            ("grpc.http2.lookahead_bytes", 16 * MEBIBYTE),
            ("grpc.use_local_subchannel_pool", 1),
        ]

    # Dialling

    async def dial(self, address: str, peer: str, meet: Meet) -> None:
        """Call ``peer`` once and hang up after ``meet``.

        Raises LinkBroken for what may be better next time, IdentityError for a certificate that will never do, ProtocolError for
        a message over the peer's limit.
        """
        identity = self._identity
        credentials = grpc.ssl_channel_credentials(identity.ca, identity.key.read_bytes(), identity.certificate.read_bytes())
        options = [*self._options(), ("grpc.ssl_target_name_override", peer), ("grpc.enable_retries", 0)]
        # A fresh channel per attempt: gRPC's own back-off between attempts grows past our deadline.
        connection: Any = grpc.aio.secure_channel(address, credentials, options=options)
        async with connection:
            call = connection.stream_stream(METHOD)()
            link = _Link(call)
            try:
                await meet(link)
            finally:
                await self._judge_status(call, link, address, peer)
                call.cancel()

    async def _judge_status(self, call: Any, link: _Link, address: str, peer: str) -> None:
        """Some endings will not get better by dialling again; of others a probe tells more than gRPC does."""
        if not call.done():
            return
        code, details = await call.code(), (await call.details()) or ""
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise ProtocolError(peer, f"the stream with {peer} was refused: {details}")
        if code is grpc.StatusCode.UNAVAILABLE and not link.heard:
            # Off the loop: the probe blocks.
            trouble = await asyncio.to_thread(probe, self._identity, peer, address, transport="grpc", timeout_s=2.0)
            if trouble is not None and "certificate is refused" in trouble:
                raise IdentityError(peer, trouble)
            if trouble is not None:
                raise LinkBroken(trouble)

    # Listening

    async def listen(self, address: str, welcome: Welcome) -> int:
        """Take calls at ``host:port`` from now on and give the port; raises OSError or RuntimeError."""

        async def accept(_requests: Any, context: Any) -> None:
            names = [name.decode(errors="replace") for name in context.auth_context().get("x509_subject_alternative_name", [])]
            try:
                await welcome(_Link(context), names)
            except (LinkBroken, asyncio.CancelledError):
                pass  # a caller that hangs up in the middle dials again
            except Exception as error:
                self._loop.fail(error)  # gRPC would keep it to itself
                raise

        self._server = grpc.aio.server(options=self._options(), maximum_concurrent_rpcs=16)
        handler = grpc.stream_stream_rpc_method_handler(accept)
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("tallystick.Party", {"Session": handler}),))
        identity = self._identity
        own = (identity.key.read_bytes(), identity.certificate.read_bytes())
        credentials = grpc.ssl_server_credentials([own], identity.ca, require_client_auth=True)
        port: int = self._server.add_secure_port(address, credentials)
        if port == 0:
            raise OSError("bind failed")
        await self._server.start()
        return port

    async def stop(self) -> None:
        """Take no more calls and hang up on all callers."""
        if self._server is not None:
            await self._server.stop(0.2)


def _reason(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        said = (error.details() or error.code().name).splitlines()[0]
        return said.rpartition("last error: ")[2].removeprefix("UNAVAILABLE: ")[:300]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
