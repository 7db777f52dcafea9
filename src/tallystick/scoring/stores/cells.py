"""Cells from outside, such as JSON's, as the column of a table that they stand for. An error names no cell."""

from collections.abc import Mapping, Sequence
from datetime import date, datetime, time
from typing import Any

import polars as pl

from tallystick.errors import FeatureError
from tallystick.tables.encoder import Encoder

Cell = Any


def typed_column(name: str, cells: Sequence[Cell], kind: pl.DataType) -> pl.Series:
    """Return the column of these cells, in a type that encodes as the table's own.

    Raises FeatureError for a cell of another type.
    """
    try:
        if kind.is_temporal():
            return pl.Series(name, [None if cell is None else _moment(cell, kind) for cell in cells], dtype=kind)
        if kind.is_numeric() or kind == pl.Boolean:
            is_real = any(isinstance(cell, float) for cell in cells)
            return pl.Series(name, cells, dtype=pl.Float64 if is_real else pl.Int64)
        if isinstance(kind, pl.List | pl.Array):
            return pl.Series(name, cells, dtype=pl.List(kind.inner))
        return pl.Series(name, cells, dtype=pl.String, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        hint = '; write it as text, such as "17"' if kind == pl.String else ""
        raise FeatureError(f"column {name!r}: a cell is not of the type {kind} that this column has here{hint}") from None


def _moment(cell: Cell, kind: pl.DataType) -> date | datetime | time:
    """Read a day, a point in time or a time of day by ISO 8601, with an offset if the column has a time zone and else without."""
    if isinstance(kind, pl.Date):
        return date.fromisoformat(cell)
    if isinstance(kind, pl.Time):
        return time.fromisoformat(cell)
    if not isinstance(kind, pl.Datetime):
        raise TypeError(f"JSON has no {kind}")
    moment = datetime.fromisoformat(cell)
    if (moment.tzinfo is None) != (kind.time_zone is None):
        raise ValueError("an offset is missing, or one too many")
    return moment


def columns_read(encoder: Encoder | None) -> list[str]:
    """List the columns of a table that an encoder reads."""
    if encoder is None:
        return []
    columns = [column.name for column in encoder.numeric] + [column.name for column in encoder.categorical]
    columns += [column.name for column in encoder.sequences]
    return list(dict.fromkeys([*columns, *(each.target for each in encoder.sequences if each.target is not None)]))


def frame_of(rows: Sequence[Mapping[str, Cell]], names: Sequence[str], schema: Mapping[str, pl.DataType]) -> pl.DataFrame:
    """Make a table of these columns from rows. Raises FeatureError for a column that a row lacks, or a cell of another type."""
    for name in names:
        if any(name not in row for row in rows):
            raise FeatureError(f"column {name!r} is missing")
    return pl.DataFrame([typed_column(name, [row[name] for row in rows], schema.get(name, pl.String())) for name in names])
