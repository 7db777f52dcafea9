"""Spoil bytes and messages, blindly and by their structure. The random generator determines every change."""

import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec
import numpy as np

from tallystick.network.messages import ALIGNMENT, BODY_LENGTH, Array, MalformedMessage, Message, Stopped, decode

ODD_NUMBERS: tuple[Any, ...] = (
    *(0, -1, 1, 2, 255, 65_536, 2**31 - 1, -(2**31), 2**40, 10**9, 2**63 - 1, -(2**63), 2**64 - 1),
    *(float("nan"), float("inf"), float("-inf"), 1e308, -0.0, 5e-324),
)
TEXTS = (
    "",
    "\x1b[2K\rall is well",
    "\x1b]0;title\x07",
    "a\x00b",
    "\u202egnihtyna\u202c",
    "line\nline\r\nline",
    "\x9b31m",
    "x" * 100_000,
    "../../etc/passwd",
    "{0.__class__}",
    "%s%n",
    "\U0001f4a5",
)
RUBBISH: tuple[Any, ...] = (None, True, [], {}, [[]] * 50, {"a": {"b": [1, {"c": None}]}}, b"", b"\xff" * 100, "text", -1.5)


# --- bytes


def flip_bits(content: bytes, draw: random.Random) -> bytes:
    """Flip up to eight bits."""
    spoilt = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 8))):
        if spoilt:
            spoilt[draw.randrange(len(spoilt))] ^= 1 << draw.randrange(8)
    return bytes(spoilt)


def truncate(content: bytes, draw: random.Random) -> bytes:
    """Cut off the end."""
    return content[: draw.randrange(len(content) or 1)]


def extend(content: bytes, draw: random.Random) -> bytes:
    """Append rubbish, or the content's own beginning."""
    return content + (draw.randbytes(draw.choice((1, 8, 1000))) if draw.random() < 0.5 else content[: draw.randrange(1, 200)])


def blank(content: bytes, draw: random.Random) -> bytes:
    """Overwrite a stretch with one byte, as a lost disk block does."""
    if not content:
        return b"\0"
    start = draw.randrange(len(content))
    stop = min(len(content), start + draw.choice((1, 4, 16, 512, 4096)))
    return content[:start] + bytes((draw.choice((0, 255, 32)),)) * (stop - start) + content[stop:]


def swap_blocks(content: bytes, draw: random.Random) -> bytes:
    """Exchange two stretches of equal length."""
    size = draw.choice((1, 8, 64))
    if len(content) < 2 * size:
        return content[::-1]
    first, second = sorted(draw.sample(range(0, len(content) - size), 2))
    if second < first + size:
        return content[:first] + draw.randbytes(size) + content[first + size :]
    one, other = content[first : first + size], content[second : second + size]
    return content[:first] + other + content[first + size : second] + one + content[second + size :]


def insert(content: bytes, draw: random.Random) -> bytes:
    """Insert rubbish."""
    place = draw.randrange(len(content) + 1)
    return content[:place] + draw.randbytes(draw.choice((1, 1, 7, 64))) + content[place:]


def replace_all(content: bytes, draw: random.Random) -> bytes:
    """Replace the message by something completely different."""
    return draw.choice((b"", b"\0" * len(content), draw.randbytes(min(len(content), 4096)), b"PAR1", b"\x89PNG\r\n"))


ByteMutation = Callable[[bytes, random.Random], bytes]
BYTE_MUTATIONS: dict[str, ByteMutation] = {
    "bits flipped": flip_bits,
    "cut short": truncate,
    "extended": extend,
    "a stretch blanked": blank,
    "stretches swapped": swap_blocks,
    "rubbish in between": insert,
    "something else": replace_all,
}


def spoil_bytes(content: bytes, draw: random.Random) -> tuple[str, bytes]:
    """Spoil bytes in one way, and name it."""
    how = draw.choice(list(BYTE_MUTATIONS))
    return how, BYTE_MUTATIONS[how](content, draw)


# --- values that YAML, JSON and MessagePack give


def spoil_value(value: Any, draw: random.Random) -> Any:
    """Replace a value by one of another size, sign or type."""
    choices: list[Any] = [draw.choice(ODD_NUMBERS), draw.choice(TEXTS), draw.choice(RUBBISH)]
    if isinstance(value, bool):
        choices += [not value, int(value)]
    elif isinstance(value, int | float):
        choices += [-value, value + 1, value * 10**9, str(value), float(value) if abs(value) < 1e300 else 0.0]
    elif isinstance(value, str):
        choices += [value + "\x1b[31m", value[:-1], value * 50, value.swapcase()]
    elif isinstance(value, list):
        choices += [value * 2, value[1:], [value], dict(enumerate(value))]
    elif isinstance(value, dict):
        choices += [list(value), {**value, "unknown": 1}, {key: value[key] for key in list(value)[1:]}]
    elif isinstance(value, bytes):
        choices += [value[:-1], value * 2, draw.randbytes(len(value)), bytes(len(value))]
    return draw.choice(choices)


def spoil_tree(tree: Any, draw: random.Random) -> tuple[str, Any]:
    """Spoil one place in nested mappings and lists, and say how."""
    if isinstance(tree, dict) and tree:
        key = draw.choice(list(tree))
        if isinstance(tree[key], dict | list) and tree[key] and draw.random() < 0.7:
            how, inner = spoil_tree(tree[key], draw)
            return how, {**tree, key: inner}
        act = draw.choice(("removed", "retyped", "retyped", "retyped", "renamed"))
        if act == "removed":
            return "a key removed", {name: value for name, value in tree.items() if name != key}
        if act == "renamed":
            return "a key renamed", {(f"{name}x" if name == key else name): value for name, value in tree.items()}
        return "a value replaced", {**tree, key: spoil_value(tree[key], draw)}
    if isinstance(tree, list) and tree:
        index = draw.randrange(len(tree))
        how, inner = spoil_tree(tree[index], draw) if isinstance(tree[index], dict | list) else ("", None)
        changed = inner if how else spoil_value(tree[index], draw)
        return how or "a value replaced", [*tree[:index], changed, *tree[index + 1 :]]
    return "a value replaced", spoil_value(tree, draw)


# --- messages


@dataclass(frozen=True)
class MessageParts:
    """Hold the parts of an encoded message."""

    version: int
    name: bytes
    fields: dict[str, Any]
    bulk: bytes

    @classmethod
    def of(cls, payload: bytes) -> "MessageParts":
        """Take an honest payload apart."""
        name = payload[2 : 2 + payload[1]]
        start = 2 + len(name)
        (length,) = BODY_LENGTH.unpack_from(payload, start)
        start += BODY_LENGTH.size
        end = start + length
        return cls(payload[0], name, msgspec.msgpack.decode(payload[start:end]), payload[end + -end % ALIGNMENT :])

    def payload(self, *, body: bytes | None = None, length: int | None = None) -> bytes:
        """Put the message together again, if asked with other bytes for the fields, or a wrong length."""
        packed = msgspec.msgpack.encode(self.fields) if body is None else body
        stated = BODY_LENGTH.pack((len(packed) if length is None else length) & 0xFFFFFFFF)
        head = bytes((self.version, len(self.name) & 255)) + self.name + stated + packed
        return head + (bytes(-len(head) % ALIGNMENT) + self.bulk if self.bulk else b"")

    def arrays(self) -> list[str]:
        """List the fields that are arrays: element type, shape, place."""
        return [name for name, value in self.fields.items() if _is_array(value)]


def _is_array(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and isinstance(value[0], str) and isinstance(value[2], list)


Spoilt = tuple[str, bytes]


def _field(frame: MessageParts, draw: random.Random) -> Spoilt:
    name = draw.choice(list(frame.fields))
    fields = {**frame.fields, name: spoil_value(frame.fields[name], draw)}
    return "a field replaced", replace(frame, fields=fields).payload()


def _keys(frame: MessageParts, draw: random.Random) -> Spoilt:
    name = draw.choice(list(frame.fields))
    act = draw.choice(("removed", "renamed", "unknown", "twice"))
    if act == "twice":  # write it by hand, because a mapping cannot hold a key twice
        pairs = [*frame.fields.items(), (name, spoil_value(frame.fields[name], draw))]
        body = bytes((0x80 | len(pairs),)) + b"".join(
            msgspec.msgpack.encode(key) + msgspec.msgpack.encode(value) for key, value in pairs
        )
        return "a field twice", frame.payload(body=body)
    fields = {key: value for key, value in frame.fields.items() if key != name or act == "unknown"}
    if act != "removed":
        fields[f"{name}x" if act == "renamed" else "unknown"] = frame.fields[name]
    return f"a field {act}", replace(frame, fields=fields).payload()


def _array(frame: MessageParts, draw: random.Random) -> Spoilt:
    """Make an array's type, shape or place wrong."""
    names = frame.arrays()
    if not names:
        return _field(frame, draw)
    name = draw.choice(names)
    dtype, shape, place = (part if isinstance(part, str) else list(part) for part in frame.fields[name])
    act = draw.choice(("type", "shape", "place"))
    if act == "type":
        dtype = draw.choice(("float32", "float64", "int64", "int32", "uint8", "bool", "object", "float16", ""))
    else:
        numbers = shape if act == "shape" else place
        assert isinstance(numbers, list)
        change = draw.choice(("replace", "append", "reverse", "drop"))
        if change == "replace" and numbers:
            numbers[draw.randrange(len(numbers))] = draw.choice(ODD_NUMBERS)
        elif change == "append":
            numbers.append(draw.choice(ODD_NUMBERS))
        elif change == "reverse":
            numbers.reverse()
        elif numbers:
            numbers.pop()
    fields = {**frame.fields, name: [dtype, shape, place]}
    return f"an array's {act}", replace(frame, fields=fields).payload()


def _elements(frame: MessageParts, draw: random.Random) -> Spoilt:
    """Change an array's elements to wrong values. Its type and shape stay as announced."""
    names = frame.arrays()
    if not names or not frame.bulk:
        return _field(frame, draw)
    dtype, _, (start, length) = frame.fields[draw.choice(names)]
    values = np.frombuffer(frame.bulk[start : start + length], dtype=dtype).copy()
    if not len(values):
        return _field(frame, draw)
    place = draw.randrange(len(values))
    if values.dtype.kind == "f":
        values[place] = draw.choice((float("nan"), float("inf"), float("-inf"), 1e30, -1e30, 0.0, 5e-39))
    elif values.dtype.kind == "b":
        values = ~values
    else:
        act = draw.choice(("one", "all", "repeat"))
        limits = np.iinfo(values.dtype)
        number = draw.choice((limits.min, limits.max, 0, 1, len(values)))
        if act == "repeat":  # a list whose elements repeat
            values[:] = values[: max(1, len(values) // 2)].repeat(2)[: len(values)] if len(values) > 1 else values
        else:
            values[slice(None) if act == "all" else place] = min(max(number, limits.min), limits.max)
    bulk = frame.bulk[:start] + values.tobytes() + frame.bulk[start + length :]
    return "elements", replace(frame, bulk=bulk).payload()


def _envelope(frame: MessageParts, draw: random.Random) -> Spoilt:
    act = draw.choice(("version", "name", "length", "rubbish", "nesting"))
    if act == "version":
        return "another version", replace(frame, version=draw.randrange(256)).payload()
    if act == "name":
        name = draw.choice((b"", b"Stopped", b"CutEmbedding", b"Finished", b"\x1b[31m", frame.name.lower(), draw.randbytes(9)))
        return "another name", replace(frame, name=name).payload()
    if act == "length":
        return "a wrong length", frame.payload(length=draw.choice((0, 1, 2**31, 2**32 - 1, draw.randrange(5000))))
    if act == "nesting":  # deeper than any schema
        depth = draw.choice((100, 10_000, 100_000))
        return "nested rubbish", frame.payload(body=draw.choice((b"\x91", b"\x81\xa1a")) * depth + b"\xc0")
    body = draw.choice(
        (b"", b"\xc1", b"\xdf\xff\xff\xff\xff", b"\xc6\xff\xff\xff\xff", struct.pack("<d", 1.5), draw.randbytes(64))
    )
    return "rubbish for fields", frame.payload(body=body)


def _blind(frame: MessageParts, draw: random.Random) -> Spoilt:
    return spoil_bytes(frame.payload(), draw)


def _stopped(_frame: MessageParts, draw: random.Random) -> Spoilt:
    """End the job as the peer, with unusual text as its words."""
    text = draw.choice(TEXTS) if draw.random() < 0.7 else draw.choice(TEXTS) * 20
    return "Stopped", MessageParts(1, b"Stopped", {"reason": text}, b"").payload()


MESSAGE_MUTATIONS = (_field, _field, _keys, _array, _elements, _elements, _envelope, _blind, _blind, _stopped)


def spoil_message(payload: bytes, draw: random.Random) -> Spoilt:
    """Spoil an honest message in one way, and say how."""
    return draw.choice(MESSAGE_MUTATIONS)(MessageParts.of(payload), draw)


Due = Literal["refuse", "same", "may"]
"""What a spoilt message deserves: an error, the honest result, or either, because the peer might have meant it."""

ENVELOPE_FIELDS = ("step", "of", "position")
"""Fields that identify a message and do not carry its content. Another value must be noticed."""


def due(honest: bytes, spoilt: bytes, kind: type[Message]) -> Due:
    """Say what the receiver of a ``kind`` must do with a spoilt message."""
    try:
        before, after = decode(honest, kind), decode(spoilt, kind)
        if isinstance(after, Stopped) and kind is not Stopped:
            return "refuse"
        changed = [name for name in kind.__struct_fields__ if not _alike(getattr(before, name), getattr(after, name))]
    except (MalformedMessage, TypeError, ValueError):
        return "refuse"
    if not changed:
        return "same"
    for name in changed:
        old, new = getattr(before, name), getattr(after, name)
        if name in ENVELOPE_FIELDS or (isinstance(new, float) and not np.isfinite(new)):
            return "refuse"
        if isinstance(old, Array) and isinstance(new, Array):
            if (old.dtype, old.shape) != (new.dtype, new.shape):
                return "refuse"
            values = new.numpy()
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                return "refuse"
    return "may"


def _alike(one: Any, other: Any) -> bool:
    if isinstance(one, Array) and isinstance(other, Array):
        old, new = one.numpy(), other.numpy()
        return old.dtype == new.dtype and old.shape == new.shape and old.tobytes() == new.tobytes()
    return bool(one == other)
