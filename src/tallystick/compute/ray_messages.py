"""Messages between this process and the one that belongs to a Ray cluster for it: frames of a head and a body, no pickle.

A head is one of the structs below, in MessagePack, and the body is bytes. Lengths come first, and both have limits. Whoever runs
a machine of the cluster can run code in the other process, so what comes from there is read like a peer's.
"""

import socket
import struct
import time
from typing import Annotated, Any, TypeAlias

import msgspec

from tallystick.msgspec_threads import prepared

HEAD_BYTES = 1 << 16
BODY_BYTES = 1 << 32
SLOWEST = 1 << 20
"""Bytes a second that the other side has to take or to give, beside its time to answer."""
_LENGTHS = struct.Struct(">IQ")
_CHUNK = 1 << 20

Words = Annotated[str, msgspec.Meta(max_length=4000)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
Counts = Annotated[list[Number], msgspec.Meta(max_length=4096)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class JoinCluster(_Message, frozen=True):
    """The first: which cluster, what each task needs, for how many there has to be room, and how long to wait for what."""

    address: str
    threads: int
    resources: dict[str, float]
    versions: str
    room: int
    answer_s: float
    head_s: float
    lost_s: float
    pulse_s: float


class Share(_Message, frozen=True):
    """Bytes that tasks, and questions that say so, are given from now on."""


class Task(_Message, frozen=True):
    """Begin a task with the body. The answer comes once, after a ``Wait``."""

    number: Number
    prepare: str


class Keep(_Message, frozen=True):
    """Begin a process that stays, made ready with the body."""

    number: Number
    prepare: str


class Ask(_Message, frozen=True):
    """Ask a process that stays, with the blocks of these sizes that the body is made of."""

    number: Number
    sizes: Counts
    shared: bool


class Wait(_Message, frozen=True):
    """Give one answer of those that are due."""


class Measure(_Message, frozen=True):
    """Run a task on every machine that loads a module and does nothing."""

    loads: str


Request: TypeAlias = JoinCluster | Share | Task | Keep | Ask | Wait | Measure


class Joined(_Message, frozen=True):
    """It belongs to the cluster, which has the room that was asked for."""


class Alive(_Message, frozen=True):
    """Still waiting for the cluster."""


class TaskAnswer(_Message, frozen=True):
    """The body is what a task or a process answered."""

    number: Number


class GivenUp(_Message, frozen=True):
    """Ray has no answer of that task or process. The words are Ray's."""

    number: Number
    kind: Words
    words: Words


class Machines(_Message, frozen=True):
    """The bytes that the idle task took on each machine, and the memory of all."""

    took: Counts
    memory: Number


class Lost(_Message, frozen=True):
    """The last: the cluster cannot be used, and why."""

    why: Words


Reply: TypeAlias = Joined | Alive | TaskAnswer | GivenUp | Machines | Lost


def send(connection: socket.socket, message: Request | Reply, *blocks: bytes, limit_s: float | None = None) -> None:
    """Send a message whose body is these blocks.

    Raises TimeoutError where the other side takes none of it for that long, EOFError where it has ended.
    """
    head = msgspec.msgpack.encode(message)
    views = [memoryview(block).cast("B") for block in blocks]
    size = sum(map(len, views))
    if len(head) > HEAD_BYTES or size > BODY_BYTES:
        raise ValueError(f"a message of {len(head)} and {size} bytes; a cluster is handed at most {BODY_BYTES} at a time")
    connection.settimeout(limit_s)
    for view in (memoryview(_LENGTHS.pack(len(head), size) + head), *views):
        start = 0
        while start < len(view):
            try:
                start += connection.send(view[start : start + _CHUNK])
            except TimeoutError:
                raise
            except OSError:
                raise EOFError from None


def receive(connection: socket.socket, kind: Any, *, limit_s: float | None = None) -> tuple[Any, bytearray]:
    """Receive a message of a kind, or of one of several, and its body.

    Raises TimeoutError where it has not come within ``limit_s`` and a second for each ``SLOWEST`` bytes, EOFError where the other
    side has ended, ValueError for what is no such message.
    """
    until = None if limit_s is None else time.monotonic() + limit_s
    head_size, size = _LENGTHS.unpack(_taken(connection, _LENGTHS.size, until))
    if head_size > HEAD_BYTES or size > BODY_BYTES:
        raise ValueError(f"a message of {head_size} and {size} bytes")
    if until is not None:
        until += size / SLOWEST
    head = _taken(connection, head_size, until)
    return msgspec.msgpack.decode(head, type=prepared(kind)), _taken(connection, size, until)


def _taken(connection: socket.socket, size: int, until: float | None) -> bytearray:
    """Take so many bytes. Memory grows as they come, whatever was announced."""
    taken = bytearray()
    while len(taken) < size:
        left = None if until is None else until - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError
        connection.settimeout(left)
        try:
            chunk = connection.recv(min(size - len(taken), _CHUNK))
        except TimeoutError:
            raise
        except OSError:
            raise EOFError from None
        if not chunk:
            raise EOFError
        taken += chunk
    return taken
