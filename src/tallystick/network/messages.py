"""Messages: frozen structs with a schema, a name on the wire and a size limit.

A message is encoded as its type's name and its fields in MessagePack (msgspec). Decoding can run no code:
it yields the fields that the type declares or an error. Sizes are checked before anything is decoded, and an
array's bytes are a view of the received buffer, so decoding never allocates more than was received.
"""

from math import prod
from typing import Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np
import torch
from torch import Tensor

WIRE_VERSION = 1
MEBIBYTE = 1 << 20
MAX_MESSAGE_BYTES = 256 * MEBIBYTE
MAX_DIMENSIONS = 4

DType = Literal["float32", "float64", "int64", "int32", "uint8", "bool"]

_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float64", "int64", "int32", "uint8", "bool")
}


class MalformedMessage(ValueError):
    """The received bytes are not a message of the expected type; a channel turns this into a ProtocolError."""


class Array(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """A dense array on the wire: element type, shape and little-endian C-ordered bytes."""

    dtype: DType
    shape: tuple[int, ...]
    data: memoryview

    @classmethod
    def of(cls, values: Tensor | np.ndarray[Any, Any]) -> "Array":
        """Wrap a CPU or CUDA tensor, or a numpy array; copies only if it is not contiguous."""
        array = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
        array = np.ascontiguousarray(array).reshape(array.shape)
        return cls(array.dtype.name, array.shape, memoryview(array.reshape(-1).view(np.uint8)))  # type: ignore[arg-type]

    def numpy(self, *shape: int | None) -> np.ndarray[Any, Any]:
        """Give the array read-only, checked against ``shape`` (None matches any length).

        Raises MalformedMessage if the bytes do not fill the shape, or the shape is not the expected one.
        """
        dtype = _NUMPY_DTYPES[self.dtype]
        if len(self.shape) > MAX_DIMENSIONS or any(length < 0 for length in self.shape):
            raise MalformedMessage(f"array shape {self.shape} is not allowed: at most {MAX_DIMENSIONS} dimensions, none negative")
        if prod(self.shape) * dtype.itemsize != len(self.data):
            raise MalformedMessage(f"array of shape {self.shape} and type {self.dtype} does not fit its {len(self.data)} bytes")
        if shape and (
            len(shape) != len(self.shape)
            or any(want is not None and want != got for want, got in zip(shape, self.shape, strict=True))
        ):
            raise MalformedMessage(f"array has shape {self.shape}, expected {tuple('any' if n is None else n for n in shape)}")
        return np.frombuffer(self.data, dtype=dtype).reshape(self.shape)

    def tensor(self, *shape: int | None, dtype: torch.dtype | None = None) -> Tensor:
        """Give the array as a CPU tensor that owns its memory; checks ``shape`` as numpy() does and ``dtype`` exactly."""
        tensor = torch.from_numpy(self.numpy(*shape).copy())
        if dtype is not None and tensor.dtype != dtype:
            raise MalformedMessage(f"array has type {tensor.dtype}, expected {dtype}")
        return tensor


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message; a subclass states its fields and, if it may be large, its ``limit`` in bytes."""

    limit: ClassVar[int] = MEBIBYTE


class Stopped(Message, frozen=True):
    """The sender ends the job, and why; any receive() turns it into PeerStopped."""

    reason: str


M = TypeVar("M", bound=Message)

_encoder = msgspec.msgpack.Encoder()
_decoders: dict[type[Message], "msgspec.msgpack.Decoder[Any]"] = {}


def encode(message: Message) -> bytes:
    """Encode a message; raises ValueError if it is over its type's limit."""
    return b"".join(encode_parts(message))


def encode_parts(message: Message) -> tuple[bytes, bytes]:
    """Encode a message as two pieces, for a sender that joins them with more: a large message is then copied once less."""
    name = type(message).__name__.encode()
    body = _encoder.encode(message)
    if len(body) > type(message).limit:
        raise ValueError(
            f"{type(message).__name__} of {len(body)} bytes is over its limit of {type(message).limit}; send it in chunks"
        )
    return bytes((WIRE_VERSION, len(name))) + name, body


def is_a(payload: bytes | memoryview, kind: type[Message]) -> bool:
    """Whether a payload says that it is a ``kind``; it need not be a valid one."""
    name = kind.__name__.encode()
    return payload[1 : 2 + len(name)] == bytes((len(name),)) + name


def decode(payload: bytes | memoryview, kind: type[M]) -> M | Stopped:
    """Decode a payload that should hold a ``kind``; a Stopped is let through in place of any kind.

    Raises MalformedMessage for another version, another type, a body over the type's limit or one that does
    not match the type's schema.
    """
    view = memoryview(payload)
    if len(view) < 2 or len(view) < 2 + view[1]:
        raise MalformedMessage(f"a message of {len(view)} bytes is cut short")
    if view[0] != WIRE_VERSION:
        raise MalformedMessage(
            f"message version {view[0]} is not spoken here (version {WIRE_VERSION}); install the same tallystick on both sides"
        )
    name, body = bytes(view[2 : 2 + view[1]]), view[2 + view[1] :]
    if name == b"Stopped":
        return _decode_body(body, Stopped)
    if name != kind.__name__.encode():
        raise MalformedMessage(f"got a message of type {name[:64]!r} where {kind.__name__} is due")
    return _decode_body(body, kind)


def _decode_body(body: memoryview, kind: type[M]) -> M:
    if len(body) > kind.limit:
        raise MalformedMessage(f"{kind.__name__} of {len(body)} bytes is over its limit of {kind.limit}")
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        decoded: M = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError) as error:
        raise MalformedMessage(f"a {kind.__name__} does not match its schema: {error}") from None
    return decoded
