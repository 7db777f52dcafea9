"""Read a client's Arrow IPC stream as a table, with limits that are checked before memory is allocated.

A stream can expand to much more than its bytes: compressed buffers thirty thousand times, a dictionary's text once for each
row, lists of empty items without limit. So these are refused, rows are counted in the headers, and texts are measured before
they are copied.
"""

import struct

import polars as pl
import pyarrow as pa

from tallystick.errors import DataError
from tallystick.serving.problem_details import Problem
from tallystick.tables.arrow import DROP, as_polars

NONE = Problem(status=400, detail="the body is no Arrow IPC stream; write the rows as one")
PLAIN = Problem(
    status=400, detail="the Arrow stream has a dictionary or is compressed; write it without (for pandas: no categories)"
)
DICTIONARIES, ROWS = 2, 3  # types of an IPC message's header
LISTS = (
    *(pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list),
    *(pa.types.is_list_view, pa.types.is_large_list_view),
)
HEADER_KIND, HEADER, LENGTH, COMPRESSION = 1, 2, 0, 3  # numbers of these tables' fields in the format's schema


def read_stream(body: bytes, *, most_rows: int, most_bytes: int) -> pl.DataFrame:
    """Read the rows. Raises Problem if this is not a stream, has too many rows, or uses a refused encoding."""
    try:
        counts = [_rows_of(bytes(message.metadata)) for message in pa.ipc.MessageReader.open_stream(body)]
        if min(counts, default=0) < 0:
            raise NONE
        if sum(counts) > most_rows:
            detail = f"rows: are {sum(counts)}, but at most {most_rows} are accepted at once; send several requests"
            raise Problem(status=413, detail=detail)
        with pa.ipc.open_stream(body) as stream:
            if len(set(stream.schema.names)) < len(stream.schema.names):
                raise Problem(status=422, detail="two columns have one name; give each a name of its own")
            for name, kind in zip(stream.schema.names, stream.schema.types, strict=True):
                item = kind.value_field if any(is_such(kind) for is_such in LISTS) else None
                inner = item.type if item is not None else None
                if item is not None and not item.name.isprintable():  # decoded here, because Polars panics if it is not UTF-8
                    raise NONE
                if pa.types.is_nested(inner or kind) or (inner is not None and pa.types.is_null(inner)):
                    raise Problem(
                        status=422,
                        detail=f"column {name!r} is nested; a cell is a value, or a list of values for a sequence or a vector",
                    )
            table = stream.read_all()
        table.validate(full=True)
        for name, column in zip(table.column_names, table.columns, strict=True):
            is_view = pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type)
            if is_view and any(sum(chunk.sizes.to_pylist()) > len(chunk.values) for chunk in column.chunks):
                raise Problem(status=422, detail=f"column {name!r} has lists that share items; write it as plain lists")
        frame = as_polars(table)
    except DataError as error:
        raise Problem(status=422, detail=str(error).removesuffix(DROP)) from None
    except (pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, struct.error, ValueError, OSError):
        raise NONE from None
    if sum(map(_text_bytes, frame.iter_columns())) > most_bytes:
        raise Problem(status=413, detail=f"the rows' texts are over {most_bytes >> 10} KiB (serving.max_body_kib); ask for fewer")
    return frame


def _rows_of(metadata: bytes) -> int:
    """Return the row count of a message. Raises Problem for a compressed message or a dictionary, struct.error for a malformed
    one.
    """
    message = _Table(metadata, struct.unpack_from("<I", metadata)[0])
    (kind,) = struct.unpack_from("<B", metadata, message.at(HEADER_KIND)) if message.has(HEADER_KIND) else (0,)
    if kind == DICTIONARIES:
        raise PLAIN
    if kind != ROWS:
        return 0
    batch = message.table(HEADER)
    if batch.has(COMPRESSION):
        raise PLAIN
    return int(struct.unpack_from("<q", metadata, batch.at(LENGTH))[0]) if batch.has(LENGTH) else 0


class _Table:
    """A FlatBuffers table, the format of an IPC message's header. Raises struct.error for a place outside of it."""

    def __init__(self, content: bytes, at: int) -> None:
        self._content, self._at = content, at
        self._fields = at - int(struct.unpack_from("<i", content, at)[0])
        self._size = int(struct.unpack_from("<H", content, max(self._fields, 0))[0])

    def at(self, field: int) -> int:
        """Return the place of a field's value, or the table's own place if it has none."""
        place = 4 + 2 * field
        return self._at + (int(struct.unpack_from("<H", self._content, self._fields + place)[0]) if place < self._size else 0)

    def has(self, field: int) -> bool:
        """Tell whether the table has a field."""
        return self.at(field) != self._at

    def table(self, field: int) -> "_Table":
        """Return the table that a field points to."""
        place = self.at(field)
        return _Table(self._content, place + int(struct.unpack_from("<I", self._content, place)[0]))


def _text_bytes(column: pl.Series) -> int:
    """Count the bytes of a column's texts, and of texts in its lists. Several may share the same bytes of the stream."""
    column = column.explode() if isinstance(column.dtype, pl.List | pl.Array) else column
    if column.dtype == pl.Binary:
        return int(column.bin.size().sum())
    return int(column.str.len_bytes().sum()) if column.dtype == pl.String else 0
