"""Turn cells from outside, such as JSON's, into columns like those of the table. No error shows a cell."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

import polars as pl

from tallystick.errors import FeatureError
from tallystick.tables.encoder import Encoder
from tallystick.tables.text import FRACTION, as_text
from tallystick.tables.times import FINER

Cell = Any


def typed_column(name: str, cells: Sequence[Cell], kind: pl.DataType) -> pl.Series:
    """Return these cells as a column, in a type that is encoded like the table's own.

    Raises FeatureError for a cell of another type.
    """
    try:
        if kind.is_temporal():
            moments = pl.Series(name, [None if cell is None else _moment(cell, kind) for cell in cells], dtype=kind)
            if isinstance(kind, pl.Datetime) and kind.time_unit == "ns":  # Python's values have microseconds
                finer = [FINER.search(cell) if cell is not None else None for cell in cells]
                nanoseconds = pl.Series([int(each[1].ljust(3, "0")) if each is not None else 0 for each in finer], dtype=pl.Int64)
                moments = moments + nanoseconds.cast(pl.Duration("ns"))
            return moments.alias(name)
        if kind.is_numeric() or kind == pl.Boolean:
            if any(isinstance(cell, float) for cell in cells):  # 7.0 may occur together with 2^53 + 1
                cells = [int(cell) if isinstance(cell, float) and cell.is_integer() else cell for cell in cells]
            if any(isinstance(cell, float) or (isinstance(cell, int) and abs(cell) >= 2**127) for cell in cells):
                return pl.Series(name, [None if cell is None else float(cell) for cell in cells], dtype=pl.Float64)
            is_long = any(isinstance(cell, int) and abs(cell) >= 2**63 for cell in cells)
            return pl.Series(name, cells, dtype=pl.Int128 if is_long else pl.Int64)
        if isinstance(kind, pl.List | pl.Array):
            return pl.Series(name, cells, dtype=pl.List(kind.inner))
        return pl.Series(name, cells, dtype=pl.String, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        hint = '; write it as text, such as "17"' if kind == pl.String else ""
        raise FeatureError(f"column {name!r}: a cell is not of the type {kind} that this column has here{hint}") from None


def key_column(name: str, cells: Sequence[Cell], kind: pl.DataType) -> pl.Series:
    """Return these cells of a key as a column, in types that are spelt like the table's own.

    Numbers of any size may also be text, because many clients' numbers end at 2^53. The text 1.50 then equals 1.5.

    Raises FeatureError for a cell of another type, and for fractions or whole numbers that floating point cannot represent
    exactly.
    """
    if kind == pl.Boolean:
        if all(cell is None or isinstance(cell, bool) for cell in cells):
            return pl.Series(name, cells, dtype=pl.Boolean)
        raise FeatureError(f"column {name!r}: a cell is neither true nor false")
    if not kind.is_numeric():
        return typed_column(name, cells, kind)
    return spelt_as(pl.Series(name, [_spelt(name, cell, kind) for cell in cells], dtype=pl.String), kind)


def spelt_as(column: pl.Series, kind: pl.DataType) -> pl.Series:
    """Return keys that may be text as a column of this type spells them: if it has fractions, without trailing zeros."""
    has_fractions = kind.is_float() or (isinstance(kind, pl.Decimal) and kind.scale)
    return column.str.replace(FRACTION, "$1") if has_fractions and column.dtype == pl.String else column


def _spelt(name: str, cell: Cell, kind: pl.DataType) -> str | None:
    """Spell one key of a numeric column as ``as_text`` does."""
    if cell is None or isinstance(cell, str):
        return cell
    if isinstance(cell, float) and abs(cell) < 2**53:
        return str(as_text(pl.Series([cell], dtype=kind if kind.is_float() else pl.Float64)).item())
    if isinstance(cell, int) and not isinstance(cell, bool):
        return str(cell)
    raise FeatureError(
        f'column {name!r}: a cell is neither a whole number, nor a fraction below 2^53, nor text; write it as text, such as "17"'
    )


def _moment(cell: Cell, kind: pl.DataType) -> date | datetime | time:
    """Read a date, a time stamp or a time of day in ISO 8601, with an offset if and only if the column has a time zone."""
    if isinstance(kind, pl.Date):
        return date.fromisoformat(cell)
    if isinstance(kind, pl.Time):
        clock = time.fromisoformat(cell)
        if clock.tzinfo is not None:
            raise ValueError("a time of day of the column has no offset")
        return clock
    if not isinstance(kind, pl.Datetime):
        raise TypeError(f"JSON has no {kind}")
    moment = datetime.fromisoformat(cell)
    if (moment.tzinfo is None) != (kind.time_zone is None):
        raise ValueError("an offset is missing, or one too many")
    return moment


def columns_read(encoder: Encoder | None) -> list[str]:
    """List the columns of a table that an encoder reads."""
    return list(encoder.columns) if encoder is not None else []


def frame_of(rows: Sequence[Mapping[str, Cell]], names: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Make a table of these columns from rows. Raises FeatureError if a row lacks a column, or for a cell of another type."""
    for name in names:
        if any(name not in row for row in rows):
            raise FeatureError(f"column {name!r} is missing")
    return pl.DataFrame([typed_column(name, [row[name] for row in rows], schema.get(name, pl.String())) for name in names])
