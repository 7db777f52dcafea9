"""Read tables of SQLite, Snowflake, BigQuery, Flight SQL and other databases through their ADBC drivers, which return Arrow."""

import importlib
import importlib.resources
import sqlite3
import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import polars as pl

from tallystick.errors import DataError
from tallystick.tables.text import as_text

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_TABLE = {"adbc.sqlite.query.batch_rows": str(2_000_000_000)}
"""SQLite has a type for each cell. Its driver takes a column's type from the first batch, and refuses a later cell of another
type. So all rows are read in one batch.
"""


def read_by_driver(
    driver: str, query: str, options: Mapping[str, str], *, of_query: Mapping[str, str] | None = None
) -> "pa.Table":
    """Run a query through the installed driver ``adbc_driver_NAME``, and return its rows.

    If the driver has transactions, nothing is committed. If it has none, a query that changes rows changes them.

    Args:
        driver: the name.
        query: in the database's language.
        options: of the driver, such as its ``uri``; they may be secret.
        of_query: options of the statement.

    Raises DataError if the driver is not installed. Raises DriverError, with the driver's own words, which may quote options
    and cells, if the database does not answer or refuses.
    """
    errors = driver_errors(driver, use="table.database")
    try:
        with lasting_connection(driver, options) as connection:
            return fetched(connection, query, of_query=of_query)
    except errors as error:
        raise DriverError(error) from None


def driver_errors(driver: str, *, use: str) -> tuple[type[Exception], ...]:
    """Return the errors that an installed driver may raise. Raises DataError, naming the key ``use``, if the driver is not
    installed.
    """
    import pyarrow as pa

    try:
        import adbc_driver_manager

        importlib.import_module(f"adbc_driver_{driver}")
    except ImportError:
        raise DataError(
            f"{use}: the driver of {driver} is not installed; run: pip install adbc-driver-{driver.replace('_', '-')}"
        ) from None
    return (adbc_driver_manager.Error, pa.ArrowException, OSError)


def lasting_connection(driver: str, options: Mapping[str, str]) -> Any:
    """Connect through an installed driver, in a transaction if it has them. Raises the driver's errors."""
    import adbc_driver_manager.dbapi as dbapi

    package = f"adbc_driver_{driver}"
    library = importlib.resources.files(package).joinpath(f"lib{package}.so")  # under this name on every system
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some drivers warn that they have no transactions
        return dbapi.connect(driver=str(library) if library.is_file() else package, db_kwargs=dict(options))


def fetched(
    connection: Any, query: str, parameters: Sequence[str] = (), *, of_query: Mapping[str, str] | None = None
) -> "pa.Table":
    """Run a query over a connection, with parameters if it has any, and return its rows. Raises the driver's errors."""
    with connection.cursor() as cursor:
        if of_query:
            cursor.adbc_statement.set_options(**of_query)
        cursor.execute(query, tuple(parameters) or None)
        return cursor.fetch_arrow_table()


class DriverError(Exception):
    """A driver's error, whose text may hold secrets and cells."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(type(error).__name__)


def sqlite_options(file: Path) -> dict[str, str]:
    """Return the driver's options that open a SQLite file read-only."""
    return {"uri": f"file:{quote(str(file))}?mode=ro"}


def read_sqlite(file: Path, query: str) -> "pa.Table":
    """Run a query on a SQLite file. Raises what read_by_driver raises."""
    table = read_by_driver("sqlite", query, sqlite_options(file), of_query=WHOLE_TABLE)
    rounded = [place for place, column in enumerate(table.columns) if is_rounded(column)]
    if rounded:
        try:
            with closing(sqlite3.connect(sqlite_options(file)["uri"], uri=True)) as connection:
                rows = [[row[place] for place in rounded] for row in connection.execute(query)]
        except sqlite3.Error as error:
            raise DriverError(error) from None
        if len(rows) != table.num_rows:
            raise DataError(f"{file}: changed while it was read; run the command again")
        for number, place in enumerate(rounded):
            cells = _spelt([row[number] for row in rows])
            table = table.set_column(place, table.column_names[place], cells.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return table


def is_rounded(column: Any) -> bool:
    """Tell whether text has numbers such as 1.250000e+00. SQLite's driver writes fractions like this, with seven digits, in a
    column that also has text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return is_text and bool(pc.any(pc.match_substring_regex(column, r"^-?\d\.\d{6}e[+-]\d{2,3}$")).as_py())


def _spelt(cells: Sequence[Any]) -> pl.Series:
    """Spell cells of several types as text: a number as ``as_text`` does."""
    numbers = as_text(pl.Series([cell if isinstance(cell, float) else None for cell in cells], dtype=pl.Float64))
    others = [None if cell is None or isinstance(cell, float) else str(cell) for cell in cells]
    return pl.Series(others, dtype=pl.String).zip_with(numbers.is_null(), numbers)
