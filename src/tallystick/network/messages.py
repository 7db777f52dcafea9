"""Define messages: frozen structs with a schema, a name on the wire and a size limit.

A message is encoded as its type's name and its fields in MessagePack (msgspec), followed by the bytes of arrays. Decoding cannot
run code. Sizes are checked before anything is decoded, and an array's bytes are a view of the received buffer.
"""

from math import prod
from struct import Struct
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import msgspec
import numpy as np

from tallystick.lazy_torch import Tensor, torch
from tallystick.msgspec_threads import prepared

WIRE_VERSION = 1
MEBIBYTE = 1 << 20
MAX_MESSAGE_BYTES = 256 * MEBIBYTE
MAX_DIMENSIONS = 4
# Arrays start at multiples of this, from the payload's start. If the buffer is aligned as well, a tensor can use it directly.
ALIGNMENT = 64

DType = Literal["float32", "float64", "int64", "int32", "uint8", "bool"]

_NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("float32", "float64", "int64", "int32", "uint8", "bool")
}


class MalformedMessage(ValueError):
    """Raised if the received bytes are not a message of the expected type. A channel turns it into a ProtocolError."""


Buffer = bytes | bytearray | memoryview


class Bulk:
    """An array's bytes: on the wire a place after the fields, here views of the pieces of the array."""

    __slots__ = ("pieces",)

    def __init__(self, *pieces: memoryview) -> None:
        self.pieces = pieces


class Array(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """A dense array on the wire: element type, shape and little-endian C-ordered bytes."""

    dtype: DType
    shape: Annotated[tuple[int, ...], msgspec.Meta(max_length=MAX_DIMENSIONS)]
    data: Bulk

    @classmethod
    def of(cls, values: Tensor | np.ndarray[Any, Any]) -> "Array":
        """Copy a CPU or CUDA tensor, or a numpy array."""
        return cls.lend(np.array(_numpy(values), order="C"))

    @classmethod
    def lend(cls, *pieces: Tensor | np.ndarray[Any, Any]) -> "Array":
        """Wrap tensors or arrays, one after the other, without copying contiguous ones.

        They must not change until the peer has them.
        """
        arrays = [np.asarray(_numpy(piece), order="C") for piece in pieces]
        (dtype,) = {array.dtype.name for array in arrays}
        shape = arrays[0].shape
        if len(arrays) > 1:
            (inner,) = {array.shape[1:] for array in arrays}
            shape = (sum(map(len, arrays)), *inner)
        return cls(dtype, shape, Bulk(*(memoryview(array.reshape(-1).view(np.uint8)) for array in arrays)))  # type: ignore[arg-type]

    def numpy(self, *shape: int | None) -> np.ndarray[Any, Any]:
        """Return the array read-only, checked against ``shape`` (None matches any length).

        Raises MalformedMessage if the bytes do not fill the shape, or the shape is not the expected one.
        """
        array = self._checked(shape)
        array.flags.writeable = False
        return array

    def tensor(self, *shape: int | None, dtype: "torch.dtype | None" = None) -> Tensor:
        """Return the array as a CPU tensor. It checks ``shape`` as numpy() does and ``dtype`` exactly.

        It uses the received buffer if that is aligned and writable, and otherwise its own memory.
        """
        array = self._checked(shape)
        if not array.flags.writeable or array.ctypes.data % ALIGNMENT:
            array = array.copy()
        tensor = torch.from_numpy(array)
        if dtype is not None and tensor.dtype != dtype:
            raise MalformedMessage(f"array has type {tensor.dtype}, expected {dtype}")
        return tensor

    def _checked(self, shape: tuple[int | None, ...]) -> np.ndarray[Any, Any]:
        dtype = _NUMPY_DTYPES[self.dtype]
        pieces = self.data.pieces
        data: Buffer = pieces[0] if len(pieces) == 1 else bytearray().join(pieces)
        if len(self.shape) > MAX_DIMENSIONS or any(length < 0 for length in self.shape):
            raise MalformedMessage(f"array shape {self.shape} is not allowed: at most {MAX_DIMENSIONS} dimensions, none negative")
        if prod(self.shape) * dtype.itemsize != len(data):
            raise MalformedMessage(f"array of shape {self.shape} and type {self.dtype} does not fit its {len(data)} bytes")
        if shape and (
            len(shape) != len(self.shape)
            or any(want is not None and want != got for want, got in zip(shape, self.shape, strict=True))
        ):
            raise MalformedMessage(f"array has shape {self.shape}, expected {tuple('any' if n is None else n for n in shape)}")
        try:
            return np.frombuffer(data, dtype=dtype).reshape(self.shape)
        except ValueError as error:  # an empty array whose other lengths are too large
            raise MalformedMessage(f"array shape {self.shape} is not allowed: {error}") from None


def _numpy(values: Tensor | np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = values if isinstance(values, np.ndarray) else values.detach().cpu().numpy()
    return array


class Message(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of every message. A subclass states its fields and, if it may be large, its ``limit`` in bytes."""

    limit: ClassVar[int] = MEBIBYTE


class Stopped(Message, frozen=True):
    """Sent by a side that ends the job, with the reason. Any receive() turns it into PeerStopped. If ``final``, resuming cannot
    help.
    """

    reason: str
    final: bool = False


M = TypeVar("M", bound=Message)

BODY_LENGTH = Struct("<I")


class _Packing:
    """The arrays of a message that is being encoded: their bytes, each with the padding before it."""

    def __init__(self) -> None:
        self.parts: list[Buffer] = []
        self.size = 0

    def place(self, bulk: Any) -> tuple[int, int]:
        """Add an array's bytes and return their place: the start, from that of the first array, and the number."""
        if not isinstance(bulk, Bulk):
            raise TypeError(f"a message cannot hold a {type(bulk).__name__}")
        start = self.size + -self.size % ALIGNMENT
        length = sum(map(len, bulk.pieces))
        self.parts += (bytes(start - self.size), *bulk.pieces)
        self.size = start + length
        return start, length


def encode(message: Message) -> bytearray:
    """Encode a message. Raises ValueError if it is over its type's limit."""
    return bytearray().join(encode_parts(message))


def encode_parts(message: Message) -> tuple[Buffer, ...]:
    """Encode a message as pieces, for a sender that adds more or writes them one by one. No array is copied."""
    name = type(message).__name__.encode()
    packing = _Packing()
    body = msgspec.msgpack.encode(message, enc_hook=packing.place)
    size = len(body) + packing.size
    if size > type(message).limit:
        raise ValueError(
            f"{type(message).__name__} of {size} bytes is over its limit of {type(message).limit}; send it in chunks"
        )
    head = b"".join((bytes((WIRE_VERSION, len(name))), name, BODY_LENGTH.pack(len(body)), body))
    return (head, bytes(-len(head) % ALIGNMENT), *packing.parts) if packing.parts else (head,)


def is_a(payload: Buffer, kind: type[Message]) -> bool:
    """Tell whether a payload claims to be a ``kind``. It need not be a valid one."""
    name = kind.__name__.encode()
    return payload[1 : 2 + len(name)] == bytes((len(name),)) + name


def decode(payload: Buffer, kind: type[M]) -> M | Stopped:
    """Decode a payload that should hold a ``kind``. A Stopped is accepted in place of any kind.

    Raises MalformedMessage for another version, another type, a body over the type's limit, or a body that does not match the
    type's schema.
    """
    view = memoryview(payload)
    if len(view) < 2 or len(view) < 2 + view[1]:
        raise MalformedMessage(f"a message of {len(view)} bytes is cut short")
    if view[0] != WIRE_VERSION:
        raise MalformedMessage(
            f"message version {view[0]} is not spoken here (version {WIRE_VERSION}); install the same tallystick on both sides"
        )
    name, rest = bytes(view[2 : 2 + view[1]]), view[2 + view[1] :]
    if name == b"Stopped":
        return _decode_fields(view, rest, Stopped)
    if name != kind.__name__.encode():
        raise MalformedMessage(f"got a message of type {name[:64]!r} where {kind.__name__} is due")
    return _decode_fields(view, rest, kind)


def _decode_fields(payload: memoryview, rest: memoryview, kind: type[M]) -> M:
    if len(rest) > kind.limit + BODY_LENGTH.size + ALIGNMENT:
        raise MalformedMessage(f"{kind.__name__} of {len(rest)} bytes is over its limit of {kind.limit}")
    if len(rest) < BODY_LENGTH.size:
        raise MalformedMessage(f"a {kind.__name__} is cut short")
    (length,) = BODY_LENGTH.unpack_from(rest)
    body = rest[BODY_LENGTH.size :]
    if length > len(body):
        raise MalformedMessage(f"a {kind.__name__} is cut short: {len(body)} of {length} bytes of its fields")
    head = len(payload) - len(body) + length
    bulk = payload[head + -head % ALIGNMENT :]
    free = 0

    def find(message_type: type, place: Any) -> Bulk:
        nonlocal free  # no two arrays share bytes
        start, count = place
        if message_type is not Bulk or not (type(start) is type(count) is int and free <= start <= start + count <= len(bulk)):
            raise ValueError(f"an array lies at {str(place)[:80]} of {len(bulk)} bytes")
        free = start + count
        return Bulk(bulk[start:free])

    try:
        return msgspec.msgpack.decode(body[:length], type=prepared(kind), dec_hook=find)
    except (msgspec.DecodeError, UnicodeDecodeError, OverflowError, RecursionError, TypeError, ValueError) as error:
        raise MalformedMessage(f"a {kind.__name__} does not match its schema: {error}") from None
