"""Convert Arrow's types to Polars', for every reader. Without this Polars panics at some types."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from tallystick.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa


_UUID_GROUPS = ((0, 8), (8, 4), (12, 4), (16, 4), (20, 12))


DROP = ", or list it under drop in the party file"


def unreadable_errors() -> tuple[type[BaseException], ...]:
    """Return the errors that Arrow and Polars raise for a column that they cannot read."""
    import pyarrow as pa

    return pa.ArrowException, pl.exceptions.PolarsError, pl.exceptions.PanicException, TypeError, ValueError, OverflowError


def every_column(_: str) -> bool:
    """Ask for all columns, so that any unreadable column is an error."""
    return True


def as_polars(table: "pa.Table", *, asks_for: Callable[[str], bool] = every_column) -> pl.DataFrame:
    """Return an Arrow table as a Polars frame.

    Time stamps with a fixed offset move to UTC. UUIDs become text. Other extension types become their storage types, run-end
    encodings plain columns, and decimals of 256 bits decimals of 128. A column that cannot be read and is not asked for becomes
    nulls.

    Raises DataError, naming the column and its type, for intervals, maps, unions, decimals too long for 128 bits, times of day
    beyond midnight, and whatever Polars cannot hold.
    """
    import pyarrow as pa

    columns = []
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            adapted = _adapted(column)
            read = pl.Series(name, pl.from_arrow(adapted))
            if getattr(column.type, "extension_name", "") == "arrow.uuid":
                read = uuid_text(read)
            if read.dtype == pl.Time and read.null_count() > adapted.null_count:
                raise ValueError("Polars has no 24:00")
        except unreadable_errors():
            if not asks_for(name):
                columns.append(_nulls(name, column))
                continue
            kind, mend = column.type, "convert it"
            if pa.types.is_interval(kind):
                mend = "convert it to seconds, for example by epoch(...) in a query"
            elif pa.types.is_decimal(kind):
                mend = "convert it to floating point"
            elif pa.types.is_time(kind):
                mend = "write 24:00 and later times otherwise"
            raise DataError(f"column {name!r} has Arrow type {kind}, which is not read; {mend}{DROP}") from None
        columns.append(read)
    return pl.DataFrame(columns) if columns else pl.DataFrame(height=table.num_rows)


def _nulls(name: str, column: Any) -> pl.Series:
    """Return as many nulls, of the column's type if Polars has it, because another piece of the table may be readable."""
    try:
        kind = pl.Series(pl.from_arrow(_adapted(column.slice(0, 0)))).dtype
    except unreadable_errors():
        kind = pl.Null()
    return pl.repeat(None, len(column), dtype=kind, eager=True).alias(name)


def uuid_text(column: pl.Series) -> pl.Series:
    """Write UUIDs, which come as 16 bytes, as text."""
    digits = column.bin.encode("hex")
    groups = [digits.str.slice(*group) for group in _UUID_GROUPS]
    return pl.select(pl.concat_str(groups, separator="-")).to_series().alias(column.name)


def _adapted(column: Any) -> Any:
    """Convert a column to a type that Polars reads."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = column.type
    if isinstance(kind, pa.BaseExtensionType):
        storage = pa.chunked_array([chunk.storage for chunk in column.chunks], type=kind.storage_type)
        return _adapted(storage.cast(pa.bool_()) if kind.extension_name == "arrow.bool8" else storage)
    if pa.types.is_run_end_encoded(kind):
        return _adapted(pa.chunked_array([pc.run_end_decode(chunk) for chunk in column.chunks], type=kind.value_type))
    if pa.types.is_dictionary(kind) and not (pa.types.is_string(kind.value_type) or pa.types.is_large_string(kind.value_type)):
        return _adapted(column.cast(kind.value_type))
    if pa.types.is_timestamp(kind) and kind.tz is not None and (kind.tz[:1] in "+-" or kind.tz == "Z"):
        return _adapted(column.cast(pa.timestamp(kind.unit, "UTC")))
    if pa.types.is_timestamp(kind) and kind.unit == "s":  # Polars multiplies without an overflow check
        return column.cast(pa.timestamp("ms", kind.tz))
    if pa.types.is_duration(kind) and kind.unit == "s":
        return column.cast(pa.duration("ms"))
    if pa.types.is_decimal256(kind):
        return column.cast(pa.decimal128(38, kind.scale))
    if pa.types.is_float16(kind):
        return column.cast(pa.float32())
    if pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        return pa.chunked_array([_lists_of(chunk) for chunk in column.chunks], type=pa.large_list(kind.value_type))
    if pa.types.is_map(kind) or holds_interval(kind):
        raise TypeError
    return column


def holds_interval(kind: Any) -> bool:
    """Tell whether a type contains intervals or unions, at which Polars panics."""
    import pyarrow as pa

    if isinstance(kind, pa.BaseExtensionType):
        return holds_interval(kind.storage_type)
    is_such = pa.types.is_interval(kind) or pa.types.is_union(kind)
    return is_such or any(holds_interval(kind.field(place).type) for place in range(kind.num_fields))


def _lists_of(views: Any) -> Any:
    """Convert list views to lists, copying their items. Arrow's own cast gives wrong ends next to a null."""
    import pyarrow as pa

    is_null = views.is_null().to_numpy(zero_copy_only=False)
    sizes = np.where(is_null, 0, views.sizes.to_numpy())
    ends = np.cumsum(sizes)
    items = np.repeat(views.offsets.to_numpy() - (ends - sizes), sizes) + np.arange(sizes.sum())
    return pa.LargeListArray.from_arrays(np.append(0, ends), views.values.take(pa.array(items)), mask=pa.array(is_null))
