"""Read a table that is not held in memory. A column is read when it is needed, one at a time if the table is large.

Files of any kind are first copied, piece by piece, to a compressed temporary file. So a table does not change during a job, even
if somebody writes to its files, and only one column of a large table is in memory. In a wide table some neighbouring columns are
read together, because each read parses the names of all columns.
"""

import gzip
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal, TypeAlias, cast

import numpy as np
import polars as pl
import polars.selectors as cs
from numpy.typing import NDArray

from tallystick.errors import StorageError
from tallystick.tables.arrow import as_polars, every_column

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_IN_A_GROUP = 2**17  # rows of the file that are decoded at a time
COPIED_BYTES = 2**20  # bytes that are copied at a time
CELLS_HELD = 2**22  # greatest number of cells of neighbouring columns that are read together
GZIP = b"\x1f\x8b"
_FULL = ("os error 28", "No space left", "os error 27", "File too large", "os error 122", "quota exceeded")
SELF = Path("/proc/self/fd")  # Linux: paths of open files, even of deleted ones


class _Held:
    """A file that is closed when nothing refers to it."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        weakref.finalize(self, file.close)


class _Block:
    """The columns that were read last."""

    def __init__(self) -> None:
        self.columns: dict[str, pl.Series] = {}


@dataclass(frozen=True)
class LazyTable:
    """Rows of a table, in some order. ``get_column`` reads one column, and indexing selects rows without reading them.

    Args:
        source: the columns, in memory or in a file.
        rows: numbers of these rows in the source; by default all of them.
        held: open files of the source, which stay open as long as the table is in use.
        block: columns of the source that were read last.
        decimal: the decimal sign of the files, if some of their numbers show it.
        missing: words that mark a missing cell in the files, in addition to an empty cell: for each column of text, and for each
            column of numbers or times that has such words of its own.
        notes: warnings of the reader.
    """

    source: pl.LazyFrame
    rows: NDArray[np.int64] | NDArray[np.int32] | None = None
    held: "_Held | None" = None
    block: _Block = field(default_factory=_Block, repr=False, compare=False)
    decimal: Literal[",", "."] | None = None
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, frame: pl.DataFrame) -> "LazyTable":
        """Wrap rows that stay in memory."""
        return cls(frame.lazy())

    @cached_property
    def schema(self) -> pl.Schema:
        """Return column names and types."""
        return self.source.collect_schema()

    @cached_property
    def height(self) -> int:
        """Return the number of rows."""
        return len(self.rows) if self.rows is not None else self._source_height

    @cached_property
    def _source_height(self) -> int:
        return int(self.source.select(pl.len()).collect().item())

    @property
    def columns(self) -> list[str]:
        """Return column names."""
        return self.schema.names()

    @property
    def width(self) -> int:
        """Return the number of columns."""
        return len(self.columns)

    def get_column(self, name: str) -> pl.Series:
        """Read a column. Raises Polars' ColumnNotFoundError."""
        column = self.block.columns.get(name)
        if column is None:
            # Read the column and as many of the following ones as may be held
            names = self.columns
            if name not in names:
                raise pl.exceptions.ColumnNotFoundError(name)
            first, many = names.index(name), max(1, CELLS_HELD // max(1, self._source_height))
            neighbours = self.source.select(cs.by_name(*names[first : first + many])).collect()
            self.block.columns = read = {column.name: column for column in neighbours}
            column = read[name]
        return column if self.rows is None else column.gather(self.rows)

    def forget_columns(self) -> None:
        """Drop the columns in memory. They are read again when they are needed."""
        self.block.columns = {}

    def __getitem__(self, rows: "NDArray[np.int64] | NDArray[np.int32] | pl.Series") -> "LazyTable":
        """Select the rows of these numbers, in this order."""
        picked = rows.to_numpy() if isinstance(rows, pl.Series) else rows
        if len(picked) > CELLS_HELD and picked.max() < 2**31:
            picked = picked.astype(np.int32)
        return replace(self, rows=picked if self.rows is None else self.rows[picked])

    def select(self, names: Iterable[str]) -> pl.DataFrame:
        """Read some columns."""
        return pl.DataFrame([self.get_column(name) for name in names])

    def beside(self, names: Iterable[str], columns: pl.DataFrame) -> "LazyTable":
        """Select some of the columns, and add others that stay in memory."""
        assert self.rows is None, "a table as it was read"
        source = pl.concat([self.source.select(cs.by_name(*names)), columns.lazy()], how="horizontal")
        return replace(self, source=source, rows=None, block=_Block())

    def collect(self) -> pl.DataFrame:
        """Read all columns."""
        return self.select(self.columns)


Frame: TypeAlias = pl.DataFrame | LazyTable
"""A table in memory, or one that is read by column. Code that reads columns takes either."""


def in_order(frame: Frame) -> tuple[Frame, "NDArray[np.int32] | None"]:
    """Return the distinct rows in storage order, and the place of each of the frame's rows among them.

    Return None if the frame already has this order. Rows in another order could only be read by whole columns.
    """
    if not isinstance(frame, LazyTable) or frame.rows is None or bool((np.diff(frame.rows) > 0).all()):
        return frame, None
    whole = replace(frame, rows=None)
    is_taken = np.zeros(whole.height, dtype=bool)
    is_taken[frame.rows] = True
    place = (np.cumsum(is_taken, dtype=np.int32) - 1)[frame.rows]
    return (whole if is_taken.all() else whole[np.flatnonzero(is_taken)]), place


def slices_of(frame: Frame, rows: int) -> Iterator[Frame]:
    """Yield a frame, whose rows are in storage order, in parts of at most ``rows`` rows."""
    if isinstance(frame, pl.DataFrame):
        yield from frame.iter_slices(rows)
        return
    whole = replace(frame, rows=None)
    for start in range(0, whole.height, rows):
        piece = LazyTable(whole.source.slice(start, rows), held=frame.held)
        if frame.rows is not None:
            first, last = np.searchsorted(frame.rows, [start, start + rows])
            piece = piece[frame.rows[first:last] - start]
        if piece.height:
            yield piece


def store(source: pl.LazyFrame, folder: Path | None = None) -> LazyTable:
    """Copy a source piece by piece into a file, and return it as a table.

    Only this process can find the file, and it disappears with the process. If the system has no such files, only its owner may
    read it. With ``folder``, the file is kept there as long as the folder exists.

    Raises StorageError if the disk is full, and Polars' errors for a source that cannot be read.
    """
    place = folder or Path(tempfile.gettempdir())
    with room_for(place):
        if folder is not None:
            handle, path = tempfile.mkstemp(dir=folder)
            os.close(handle)
            hold = None
        else:
            hold, path = _own_file()
        source.sink_parquet(path, compression="zstd", compression_level=1, row_group_size=ROWS_IN_A_GROUP)
    return LazyTable(pl.scan_parquet(path, glob=False), held=hold)


def store_batches(
    schema: "pa.Schema", batches: "Iterable[pa.RecordBatch]", *, asks_for: Callable[[str], bool] = every_column
) -> LazyTable:
    """Copy Arrow's batches into a file as store() does, and return it as a table in Polars' types.

    Columns that are not needed may be unreadable (as_polars).

    Raises StorageError if the disk is full, and the errors of reading a batch.
    """
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    hold, path = _own_file()
    # Begin with a batch without rows, which gives the types; Arrow's empty_table() would import pandas if it is installed
    tables = chain([pa.Table.from_batches([], schema=schema)], (pa.Table.from_batches([batch]) for batch in batches))
    frames = (as_polars(rows.replace_schema_metadata(None), asks_for=asks_for) for rows in tables)
    pieces = (frame.to_arrow(compat_level=pl.CompatLevel.oldest()) for frame in frames)
    first = next(pieces)
    with (
        room_for(Path(tempfile.gettempdir())),
        ParquetWriter(path, first.schema, compression="zstd", compression_level=1) as file,
    ):
        for piece in pieces:
            file.write_table(piece)
    return LazyTable(pl.scan_parquet(path, glob=False), held=hold)


def sample(source: pl.LazyFrame, most: int | None, *, seed: int) -> tuple[pl.LazyFrame, int]:
    """Draw ``most`` rows at random, in their order, or take all if there are fewer. Also return the number of all rows."""
    rows = int(source.select(pl.len()).collect(engine="streaming").item())
    if most is None or rows <= most:
        return source, rows
    row_numbers = np.sort(np.random.default_rng(seed).choice(rows, size=most, replace=False, shuffle=False))
    name = "row number"
    numbered = source.with_row_index(name).filter(pl.col(name).is_in(pl.Series(row_numbers, dtype=pl.UInt32).implode()))
    return numbered.drop(name), most


@contextmanager
def unpacked(path: Path) -> Iterator[str]:
    """Provide within this block a file that can be read piece by piece: this one or, if it is gzipped, a temporary copy."""
    if not is_gzipped(path):
        yield str(path)
        return
    with room_for(Path(tempfile.gettempdir())):
        hold, copy = _own_file()
        with gzip.open(path) as packed:
            shutil.copyfileobj(packed, hold.file, COPIED_BYTES)
        hold.file.flush()
    yield copy


def is_gzipped(path: Path) -> bool:
    """Tell whether a file is a gzip file by its first bytes, whatever its name is."""
    with path.open("rb") as file:
        return file.read(len(GZIP)) == GZIP


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Raise StorageError, which says what to do, if the disk becomes full while a copy of a table is made there."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        if any(words in str(error) for words in _FULL):
            raise StorageError(
                f"{path}: the disk has no space for a copy of the table; free some, or set TMPDIR to a folder with more space"
            ) from None
        raise


def _own_file() -> tuple[_Held, str]:
    """Open a temporary file, without a name if the system allows it, and return the path to read and write it."""
    if SELF.is_dir():
        file = tempfile.TemporaryFile()  # noqa: SIM115
        return _Held(file), str(SELF / str(file.fileno()))
    handle = tempfile.NamedTemporaryFile(prefix="tallystick-")  # noqa: SIM115
    return _Held(cast(IO[bytes], handle)), handle.name
