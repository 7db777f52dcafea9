"""Convert a table of any library to a Polars frame."""

from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from typing import Any

import polars as pl

from tallystick.errors import DataError
from tallystick.tables.arrow import as_polars, every_column, unreadable_errors
from tallystick.tables.names import require_usable
from tallystick.tables.table import UNNAMED_INDEX


def as_frame(table: Any, *, source: str, asks_for: Callable[[str], bool] = every_column) -> pl.DataFrame:
    """Convert a table of Polars, pandas, PyArrow, DuckDB or any library with Arrow's PyCapsule interface to a Polars frame.

    A named pandas index becomes a column; an unnamed one is left out. A column that cannot be read and is not needed becomes
    nulls.

    Raises DataError, naming the source, for anything else, for column names that occur twice, and for columns that hold several
    types.
    """
    if isinstance(table, pl.DataFrame):
        require_usable(table.columns, source=source)
        return _without_index(table)
    if isinstance(table, pl.LazyFrame | pl.Series) or not hasattr(table, "__arrow_c_stream__") or hasattr(table, "to_frame"):
        raise DataError(
            f"{source}: the table is a {type(table).__name__}; give a DataFrame of Polars or pandas (2.2 or newer), "
            "a PyArrow table, or another with __arrow_c_stream__; collect a lazy one"
        )
    import pyarrow as pa

    require_usable([name for name in getattr(table, "columns", ()) if isinstance(name, str)], source=source)
    # Arrow would leave out a pandas index that only counts, even if it has a name.
    index_names = [name for name in getattr(getattr(table, "index", None), "names", ()) if name is not None]
    if twice := [name for name in index_names if name in table.columns]:
        raise DataError(f"{source}: its index and a column are both named {twice[0]!r}; rename one of them")
    try:
        if index_names:
            table = table.reset_index(level=index_names)
        try:
            arrow = pa.table(table)
        except unreadable_errors():
            if not (idle := [name for name in _unreadable(table) if not asks_for(name)]):
                raise
            table = table.copy(deep=False)
            for name in idle:
                table[name] = None
            arrow = pa.table(table)
        types: Iterable[tuple[str, Any]] = getattr(getattr(table, "dtypes", None), "items", dict)()
        for name in (name for name, kind in types if str(kind) == "object"):
            if pa.types.is_date(arrow.schema.field(name).type) and any(
                isinstance(cell, datetime)
                for cell in table[name].dropna()  # pandas' NaT is a datetime, too
            ):
                raise TypeError("mixed", f"column {name!r} holds dates beside time stamps, which would lose their time of day")
    except unreadable_errors() as error:
        # The first part of Arrow's message quotes a cell, the last names the column.
        if len(error.args) > 1:
            reason = error.args[-1]
        elif (column := next(_unreadable(table), None)) is not None:
            reason = f"column {column!r} has type {table.dtypes[column]}; convert it, such as by astype"
        else:
            reason = type(error).__name__
        raise DataError(f"{source}: the table cannot be read as columns of one type each: {reason}") from None
    require_usable(arrow.column_names, source=source)
    try:
        return _without_index(as_polars(arrow, asks_for=asks_for))
    except DataError as error:
        raise DataError(f"{source}: {error}") from None


def _unreadable(table: Any) -> Iterator[str]:
    """Yield the names of a pandas table's columns that Arrow cannot hold, such as sparse ones."""
    import pyarrow as pa

    for name in getattr(table, "columns", ()):
        try:
            pa.table(table[[name]])
        except unreadable_errors():
            yield name


def _without_index(frame: pl.DataFrame) -> pl.DataFrame:
    names = [name for name in frame.columns if not name.startswith(UNNAMED_INDEX)]
    return frame if len(names) == frame.width else frame.select(names)
