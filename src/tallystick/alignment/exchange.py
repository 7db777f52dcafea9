"""Exchange the parts that all alignment protocols share: sizes first, then rows in chunks, checked before they are used.

Shapes: N rows of a list; B rows of a chunk; W bytes of a row.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import numpy as np

from tallystick.alignment.group import InvalidElement
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import DuplicateTags, Tags, repeated
from tallystick.errors import DataError, PeerError, ProtocolError, SharedDataError, TallystickError, told_of
from tallystick.network.channel import Channel
from tallystick.network.messages import Array, MalformedMessage, Message, Stopped

CHUNK_ROWS = 2048
"""Rows per message: 64 KiB of group elements, a tenth of a second's work for one core."""
MAX_ROWS = 50_000_000
"""Greatest number of ids in a list unless the caller sets another limit; each takes some 150 bytes of memory."""
FIRST_ROWS = 32 * CHUNK_ROWS
"""Rows of an announced list for which memory is allocated at once. Memory for further rows grows as they arrive."""
USUAL_RATIO, USUAL_ROWS = 10, 100_000
"""If the contract sets no limit: a peer may bring this many times a party's own ids, and this many in any case."""
RESERVED = b"\x00tallystick/"
"""No id may begin with this, because dummy ids do."""

ChunkRows = np.ndarray[Any, Any]


class Size(Message, frozen=True):
    """Row count of the list ``of``. Both sides check it before memory is allocated."""

    of: str
    rows: int


class Chunk(Message, frozen=True):
    """The next rows of the list ``of``."""

    limit: ClassVar[int] = 1 << 20
    of: str
    rows: Array


REMEDY = (
    "; if it may bring so many, agree on it: set alignment.max_rows in the contract, on every side alike (null accepts "
    f"{USUAL_RATIO} times a party's own ids, and at least {USUAL_ROWS:,})"
)


def spans(count: int) -> Iterator[slice]:
    """Split ``count`` rows into chunks."""
    return (slice(start, min(start + CHUNK_ROWS, count)) for start in range(0, count, CHUNK_ROWS))


def chunks(rows_N: ChunkRows) -> Iterator[ChunkRows]:
    """Split an array into chunks (views)."""
    return (rows_N[span] for span in spans(len(rows_N)))


def send_size(channel: Channel, of: str, rows: int) -> None:
    """Announce the size of a list."""
    channel.send(Size(of=of, rows=rows))


def receive_size(channel: Channel, of: str, *, at_least: int = 0, at_most: int, remedy: str = "") -> int:
    """Receive the size of the list ``of``. Raises ProtocolError if it is another list or outside the limits."""
    size = channel.receive(Size)
    if size.of != of:
        raise ProtocolError(channel.peer, f"{channel.peer} announced {size.of[:80]!r} where {of!r} is due")
    if size.rows < at_least:
        raise ProtocolError(channel.peer, f"{channel.peer} announced {size.rows} rows of {of!r}; at least {at_least} are due")
    if size.rows > at_most:
        raise ProtocolError(
            channel.peer, f"{channel.peer} announced {size.rows} rows of {of!r}; this side takes at most {at_most}{remedy}"
        )
    return size.rows


def usual_max_rows(own: int) -> int:
    """Return how many ids to accept from a peer if the contract sets no ``alignment.max_rows``.

    A peer that brings every possible telephone number learns which of them the other side has. So a list much longer than the own
    one is accepted only if the contract, which both sides read, allows it.
    """
    return max(USUAL_RATIO * own, USUAL_ROWS)


def exchange_sizes(ids: int, channels: Sequence[Channel], *, max_rows: int) -> list[int]:
    """Tell every peer how many ids this side has, and learn how many each peer has.

    Raises DataError, on every side, if a list is empty, and ProtocolError if one is longer than ``max_rows``.
    """
    for channel in channels:
        send_size(channel, "ids", ids)
    sizes = [receive_size(channel, "ids", at_most=max_rows, remedy=REMEDY) for channel in channels]
    if ids == 0:
        raise DataError("alignment needs ids on every side: this side has 0; check the table and its key column")
    for channel, size in zip(channels, sizes, strict=True):
        if size == 0:
            raise DataError(f"alignment needs ids on every side: {channel.peer} has 0; ask it to check its table and key column")
    return sizes


def check_ids(ids: Sequence[bytes], *, max_rows: int) -> Ids:
    """Return the ids. Raises DataError if they repeat, exceed the limit, are not bytes or begin with the reserved prefix."""
    if len(ids) > max_rows:
        raise DataError(
            f"this side has {len(ids)} ids, over alignment.max_rows = {max_rows} in the contract; raise it or align fewer rows"
        )
    checked = Ids.of(ids)
    if duplicates := checked.repeated():
        raise DataError(f"{duplicates} of this side's {len(ids)} ids are duplicates; keep one row per id before aligning")
    if checked.begin_with(RESERVED):
        raise DataError(f"an id begins with {RESERVED!r}, which is reserved for dummy ids; rename it")
    return checked


def exchange(
    channels: Sequence[Channel],
    *,
    sends: str,
    outgoing: Iterable[ChunkRows],
    receives: str,
    incoming: Sequence[int],
    shape: tuple[int, ...] = (),
    dtype: type[np.generic] = np.uint8,
) -> Iterator[tuple[int, ChunkRows]]:
    """Send the chunks of one list to every channel and receive a list from each. Yield (channel's index, rows).

    The sides take turns, a chunk out and a chunk in, so neither side's buffers overflow. ``incoming`` gives the announced length
    of each channel's list, ``shape`` and ``dtype`` describe its rows.

    Raises ProtocolError if a peer sends another list, another number of rows, or rows of another shape.
    """
    pieces = iter(outgoing)
    expected = [spans(count) for count in incoming]
    busy = True
    while busy:
        busy = False
        piece = next(pieces, None)
        if piece is not None:
            busy = True
            message = Chunk(of=sends, rows=Array.of(piece))
            for channel in channels:
                channel.send(message)
        for index, channel in enumerate(channels):
            span = next(expected[index], None)
            if span is not None:
                busy = True
                yield index, receive_chunk(channel, receives, span, shape, dtype)


def send_list(channel: Channel, of: str, rows_N: ChunkRows) -> None:
    """Send a list whose length the peer already knows."""
    for _ in exchange([channel], sends=of, outgoing=chunks(rows_N), receives="", incoming=[0]):
        raise AssertionError("nothing is due")


def receive_list(
    channel: Channel, of: str, count: int, *, shape: tuple[int, ...] = (), dtype: type[np.generic] = np.uint8
) -> ChunkRows:
    """Receive a whole list of announced length. Memory grows with the rows that arrive, not with the announced length."""
    rows_N = np.empty((min(count, FIRST_ROWS), *shape), dtype=dtype)
    arriving = exchange([channel], sends="", outgoing=(), receives=of, incoming=[count], shape=shape, dtype=dtype)
    for span, (_, rows_B) in zip(spans(count), arriving, strict=True):
        if span.stop > len(rows_N):
            rows_N.resize((min(count, 2 * len(rows_N)), *shape), refcheck=False)
        rows_N[span] = rows_B
    return rows_N


def receive_chunk(channel: Channel, of: str, span: slice, shape: tuple[int, ...], dtype: type[np.generic]) -> ChunkRows:
    """Receive the rows ``span`` of the list ``of``, a view. Raises ProtocolError for another list, shape or type."""
    chunk = channel.receive(Chunk)
    if chunk.of != of:
        raise ProtocolError(channel.peer, f"{channel.peer} sent rows of {chunk.of[:80]!r} where {of!r} are due")
    try:
        rows_B = chunk.rows.numpy(span.stop - span.start, *shape)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer} broke off {of!r} at row {span.start}: {error}") from None
    if rows_B.dtype != dtype:
        raise ProtocolError(channel.peer, f"{channel.peer} sent {of!r} as {rows_B.dtype}, expected {np.dtype(dtype)}")
    return rows_B


def require_distinct(channel: Channel, of: str, tags_N16: Tags) -> None:
    """Raise ProtocolError if the peer's list contains an element twice."""
    if count := repeated(tags_N16):
        raise ProtocolError(channel.peer, f"{channel.peer} sent, among {of!r}, {count} duplicates; its ids must be unique")


@contextmanager
def attribute_errors(channel: Channel, of: str) -> Iterator[None]:
    """Turn errors in elements that this peer sent into a ProtocolError that names the peer and the list."""
    try:
        yield
    except InvalidElement:
        wrong = "an element that is the identity or not a canonical ristretto255 encoding"
        raise ProtocolError(channel.peer, f"{channel.peer} sent, among {of!r}, {wrong}") from None
    except DuplicateTags as error:
        wrong = f"{error.count} duplicates; its ids must be unique"
        raise ProtocolError(channel.peer, f"{channel.peer} sent, among {of!r}, {wrong}") from None


@contextmanager
def notify_peers(channels: Sequence[Channel]) -> Iterator[None]:
    """Tell the peers if the block fails, before the error goes on, so that none of them waits forever.

    A peer is told what it did wrong, but not what is wrong with this side's ids.
    """
    try:
        yield
    except TallystickError as error:
        lost = error.peer if isinstance(error, PeerError) and not isinstance(error, ProtocolError) else None
        reason = error.told if isinstance(error, SharedDataError) else "its ids cannot be aligned; its own log says why"
        for channel in channels:
            if channel.peer != lost:
                stop_reason = told_of(error, channel.peer) if isinstance(error, PeerError) else reason
                with suppress(PeerError):
                    channel.send(Stopped(reason=stop_reason, final=isinstance(error, DataError)))
        raise
