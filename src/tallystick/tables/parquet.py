"""Copy Parquet files a piece at a time, because a few kilobytes can unpack into any number of rows, values or characters.

Text that is in a file's dictionary once may occur in every row of the table. So it is read in dictionary form, its length is
counted row by row, and only what fits in memory is written out.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.tables import rows as limits
from tallystick.tables.lazy_table import ROWS_IN_A_GROUP, LazyTable, store_batches
from tallystick.tables.rows import refuse_rows_beyond
from tallystick.tables.stores import TableFile, opened

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.parquet import ColumnChunkMetaData, FileMetaData, ParquetFile

TEXT_AT_A_TIME = 2**27  # bytes of text that are in memory at a time
SHARE_OF_A_COLUMN = 4  # a column may need at most a quarter of the machine's memory
NOT_AS_DICTIONARY = {"DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"}  # encodings that Arrow cannot read as a dictionary
PREFIXED = "DELTA_BYTE_ARRAY"  # each value may repeat any part of the one before it


def announced_rows(path: TableFile, *, reason: Callable[[Exception], str]) -> int:
    """Return the row count that a file's footer states."""
    with _open(path, reason=reason) as file:
        return int(file.metadata.num_rows)


def read_parquet(
    path: TableFile, table: TableConfig, *, reason: Callable[[Exception], str], asks_for: Callable[[str], bool]
) -> LazyTable:
    """Copy a file's rows.

    Args:
        path: the file.
        table: has the limit of rows.
        reason: returns an error's text without private parts.
        asks_for: tells whether a column is needed; others become nulls if they cannot be read.

    Raises DataError for a file that is damaged, has too many rows, or unpacks into more than this machine can hold.
    """
    with pieces_of(path, table, reason=reason, asks_for=asks_for) as (schema, pieces):
        return store_batches(schema, pieces, asks_for=asks_for)


@contextmanager
def pieces_of(
    path: TableFile, table: TableConfig, *, reason: Callable[[Exception], str], asks_for: Callable[[str], bool]
) -> "Iterator[tuple[pa.Schema, Iterator[pa.RecordBatch]]]":
    """Provide within this block a file's schema, and its rows in batches of some text each, checked as ``read_parquet`` says."""
    import pyarrow as pa

    with _open(path, reason=reason) as file:
        # Text and bytes take the types that a dictionary unpacks into
        plain = {pa.string_view(): pa.large_string(), pa.binary_view(): pa.large_binary()}
        schema = pa.schema([field.with_type(plain.get(field.type, field.type)) for field in file.schema_arrow])
        metadata = file.metadata
        # Refuse by the footer's own numbers of values and bytes; neither follows from the rows if a cell is a list
        values: dict[str, int] = {}
        left_out = {field.name for field in schema if pa.types.is_map(field.type) and not asks_for(field.name)}
        for chunk in _chunks(metadata):
            name, wide = chunk.path_in_schema, chunk.total_uncompressed_size
            values[name] = values.get(name, 0) + chunk.num_values
            if max(wide, 8 * values[name]) > _room():
                what = f"{wide:,} bytes in one piece" if wide > _room() else f"{values[name]:,} values"
                column = next(each for each in schema.names if name == each or name.startswith(f"{each}."))
                if asks_for(column):
                    raise _too_large(path, name, f"announces {what}")
                left_out.add(column)
    # List columns of text and bytes, without those that Arrow cannot read in this form
    chunks = list(_chunks(metadata))
    unfit = {chunk.path_in_schema for chunk in chunks if NOT_AS_DICTIONARY & set(chunk.encodings)}
    with _open(
        path,
        reason=reason,
        read_dictionary=sorted({chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"} - unfit),
    ) as file:
        names = [name for name in schema.names if name not in left_out]
        yield schema, _pieces(file, schema, names, table, path, asks_for)


@contextmanager
def _open(path: TableFile, *, reason: Callable[[Exception], str], **options: Any) -> "Iterator[ParquetFile]":
    """Open a file with Arrow's reader, because a single flipped bit can make the reader of Polars end the whole process."""
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        with opened(path) as source, ParquetFile(source, **options) as file:
            yield file
    except (pa.ArrowException, MemoryError, UnicodeError, KeyError) as error:  # KeyError: a name that is missing in the footer
        raise DataError(f"{path}: cannot be read: {reason(error)}") from None


def _chunks(metadata: "FileMetaData", group: int | None = None) -> "Iterator[ColumnChunkMetaData]":
    for number in range(metadata.num_row_groups) if group is None else (group,):
        for column in range(metadata.num_columns):
            yield metadata.row_group(number).column(column)


def _room() -> int:
    """Return the number of bytes that one column may need."""
    return limits.machine_memory() // SHARE_OF_A_COLUMN


def _too_large(path: TableFile, name: str, what: str) -> DataError:
    return DataError(
        f"{path}: column {name!r} {what}, over the {_room():,} bytes that a column may take, a quarter of this machine's memory; "
        "leave it out of the file, or use a machine with more memory"
    )


def _pieces(
    file: "ParquetFile",
    schema: "pa.Schema",
    names: Sequence[str],
    table: TableConfig,
    path: TableFile,
    asks_for: Callable[[str], bool],
) -> "Iterator[pa.RecordBatch]":
    """Yield all rows in the types of ``schema``, in batches of limited text. Columns other than ``names`` become nulls."""
    import pyarrow as pa

    some = list(names) if len(names) < len(schema) else None
    read_schema = pa.schema([schema.field(name) for name in names])
    seen_rows, rows = _Seen(path, asks_for), 0
    for group in range(file.num_row_groups):
        waiting: list[pa.RecordBatch] = []
        text = 0
        # If every value may repeat the one before it, a single value may be as long as the whole column: read so few rows that
        # even such values fit
        wide = [int(chunk.total_uncompressed_size) for chunk in _chunks(file.metadata, group) if PREFIXED in chunk.encodings]
        for batch in file.iter_batches(
            batch_size=max(1, min(ROWS_IN_A_GROUP, TEXT_AT_A_TIME // max([1, *wide]))), row_groups=[group], columns=some
        ):
            refuse_rows_beyond(rows := rows + len(batch), table, source=path, has="announces fewer rows and holds at least")
            batch = batch.select(names)  # Arrow also reads columns whose name continues with a point
            batch.validate(full=True)
            batch = seen_rows.counted(batch)
            for piece, more in _halved(batch, path):
                if waiting and (sum(map(len, waiting)) + len(piece) > ROWS_IN_A_GROUP or text + more > TEXT_AT_A_TIME):
                    yield from _together(waiting)
                    waiting, text = [], 0
                waiting.append(_whole(piece.cast(read_schema), schema))
                text += more
        yield from _together(waiting)


def _whole(piece: "pa.RecordBatch", schema: "pa.Schema") -> "pa.RecordBatch":
    """Add nulls for the columns that were not read."""
    import pyarrow as pa

    if len(piece.schema) == len(schema):
        return piece
    columns = [piece[field.name] if field.name in piece.schema.names else pa.nulls(len(piece), field.type) for field in schema]
    return pa.record_batch(columns, schema=schema)


@dataclass
class _Seen:
    """Bytes of text by column, over all batches of a file."""

    path: TableFile
    asks_for: Callable[[str], bool]
    text: dict[str, int] = field(default_factory=dict)

    def counted(self, batch: "pa.RecordBatch") -> "pa.RecordBatch":
        """Count the text of a batch and return the batch. Columns with too much text become nulls if they are not needed.

        Raises DataError if a needed column has too much text.
        """
        import pyarrow as pa

        not_asked_for = 0
        for place, name in enumerate(batch.schema.names):
            text = _text_of(batch.column(place))
            self.text[name] = self.text.get(name, 0) + text
            if self.asks_for(name):
                if self.text[name] > _room():
                    raise _too_large(self.path, name, f"unpacks into at least {self.text[name]:,} bytes")
                continue
            not_asked_for += text
            if self.text[name] > _room() or not_asked_for > TEXT_AT_A_TIME // 2:
                not_asked_for -= text
                field_of_column = batch.schema.field(place)
                batch = batch.set_column(place, field_of_column, pa.nulls(len(batch), field_of_column.type))
        return batch


def _halved(batch: "pa.RecordBatch", path: TableFile) -> "Iterator[tuple[pa.RecordBatch, int]]":
    """Halve the batch until each part, with its text unpacked, fits into memory. Yield the parts with their bytes."""
    text = sum(map(_text_of, batch.columns))
    if text <= TEXT_AT_A_TIME:
        yield batch, text
    elif len(batch) == 1:
        raise DataError(f"{path}: a row holds more than {TEXT_AT_A_TIME:,} bytes; leave out the column with the longest cells")
    else:
        half = len(batch) // 2
        yield from _halved(batch.slice(0, half), path)
        yield from _halved(batch.slice(half), path)


def _text_of(column: Any) -> int:
    """Return the bytes of a column's text with every value unpacked. For numbers, the bytes are those that the footer states."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(column.type):
        lengths = pc.take(pc.binary_length(column.dictionary), column.indices)
        return int(pc.sum(lengths).as_py() or 0)
    if pa.types.is_nested(column.type) and not pa.types.is_map(column.type):
        parts = column.flatten()
        return sum(map(_text_of, parts if isinstance(parts, list) else [parts]))
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type) or pa.types.is_large_string(column.type):
        return int(column.nbytes)
    return 0


def _together(batches: "list[pa.RecordBatch]") -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    if batches:
        yield from pa.Table.from_batches(batches).combine_chunks().to_batches()
