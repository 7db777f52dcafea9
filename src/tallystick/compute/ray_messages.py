"""Define the messages to the process that joined a Ray cluster: frames of a head and a body, no pickle.

A head is one of the structs below, in MessagePack, and the body is bytes. Lengths come first, and both have limits. The operator
of a machine of the cluster can run code in the other process, so its messages are read like a peer's.
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
"""Bytes per second that the other side must transfer, in addition to its time for an answer."""
_LENGTHS = struct.Struct(">IQ")
_CHUNK = 1 << 20

Words = Annotated[str, msgspec.Meta(max_length=4000)]
Number = Annotated[int, msgspec.Meta(ge=0, lt=1 << 48)]
Counts = Annotated[list[Number], msgspec.Meta(max_length=4096)]


class _Message(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag=True):
    pass


class JoinCluster(_Message, frozen=True):
    """The first request: the cluster, the needs of each task, the number of tasks to make room for, and time limits."""

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
    """Bytes for all later tasks, and for requests that ask for them."""


class Task(_Message, frozen=True):
    """Start a task with the body. The answer comes once, after a ``Wait``."""

    number: Number
    prepare: str


class Keep(_Message, frozen=True):
    """Start a process that stays, prepared with the body."""

    number: Number
    prepare: str


class Ask(_Message, frozen=True):
    """Send a request to a process that stays. The body consists of blocks of these sizes."""

    number: Number
    sizes: Counts
    shared: bool


class Wait(_Message, frozen=True):
    """Return one of the answers that are due."""


class Measure(_Message, frozen=True):
    """Run a task on every machine that loads a module and does nothing."""

    loads: str


Request: TypeAlias = JoinCluster | Share | Task | Keep | Ask | Wait | Measure


class Joined(_Message, frozen=True):
    """The process has joined the cluster, which has the requested room."""


class Alive(_Message, frozen=True):
    """The process still waits for the cluster."""


class TaskAnswer(_Message, frozen=True):
    """The body is the answer of a task or a process."""

    number: Number


class GivenUp(_Message, frozen=True):
    """Ray has no answer of that task or process. The words are Ray's."""

    number: Number
    kind: Words
    words: Words


class Machines(_Message, frozen=True):
    """The bytes that the idle task used on each machine, and the memory of all machines."""

    took: Counts
    memory: Number


class Lost(_Message, frozen=True):
    """The last message: the cluster cannot be used, and why."""

    why: Words


Reply: TypeAlias = Joined | Alive | TaskAnswer | GivenUp | Machines | Lost


def send(connection: socket.socket, message: Request | Reply, *blocks: bytes, limit_s: float | None = None) -> None:
    """Send a message whose body is these blocks.

    Raises TimeoutError if the other side accepts nothing for that long, EOFError if it has ended.
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
    """Receive a message of one kind, or of several, and its body.

    Raises TimeoutError if it has not arrived within ``limit_s`` and a second for each ``SLOWEST`` bytes, EOFError if the other
    side has ended, and ValueError for an invalid message.
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
    """Receive this many bytes. Memory grows as they arrive, whatever was announced."""
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
