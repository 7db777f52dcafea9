"""Read tables of SQLite, Snowflake, BigQuery, Flight SQL and other databases through their ADBC drivers, which return Arrow."""

import importlib
import importlib.resources
import importlib.util
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


IN_PACKAGES = ("bigquery", "flightsql", "postgresql", "snowflake", "sqlite")
"""Drivers that PyPI has by Apache Arrow's own hand."""


def read_by_driver(
    driver: str, query: str, options: Mapping[str, str], *, of_query: Mapping[str, str] | None = None
) -> "pa.Table":
    """Run a query through an installed driver, and return its rows.

    If the driver has transactions, nothing is committed. If it has none, a query that changes rows changes them.

    Args:
        driver: the name: of a package ``adbc_driver_NAME``, or of a driver manifest ``NAME.toml``.
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
    installed or cannot be loaded.
    """
    import pyarrow as pa

    of_package = f"run: pip install adbc-driver-{driver}"  # only packages of Apache Arrow: anybody may take another such name
    advice = of_package if driver in IN_PACKAGES else f"install one that brings a manifest {driver}.toml (docs.adbc-drivers.org)"
    missing = f"{use}: the driver of {driver} is not installed; {advice}"
    try:
        import adbc_driver_manager
    except ImportError:
        raise DataError(missing) from None
    errors = (adbc_driver_manager.Error, pa.ArrowException, OSError)
    try:
        importlib.import_module(f"adbc_driver_{driver}")
    except ImportError:
        try:
            adbc_driver_manager.AdbcDatabase(driver=driver).close()
        except adbc_driver_manager.Error as error:
            # Other errors are of options, which a driver lacks here
            if error.status_code == adbc_driver_manager.AdbcStatusCode.NOT_FOUND or f"{driver}.toml" in str(error):
                broken = next((line.strip() for line in str(error).splitlines() if f"{driver}.toml" in line), None)
                raise DataError(
                    f"{use}: the driver of {driver} cannot be loaded: {broken}" if broken is not None else missing
                ) from None
    return errors


def lasting_connection(driver: str, options: Mapping[str, str]) -> Any:
    """Connect through an installed driver, in a transaction if it has them. Raises the driver's errors."""
    import adbc_driver_manager.dbapi as dbapi

    place = package = f"adbc_driver_{driver}"
    if importlib.util.find_spec(package) is None:
        place = driver  # the manager finds its manifest
    elif (library := importlib.resources.files(package).joinpath(f"lib{package}.so")).is_file():  # so named on every system
        place = str(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some drivers warn that they have no transactions
        return dbapi.connect(driver=place, db_kwargs=dict(options))


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
            cells = [row[number] for row in rows]
            numbers = as_text(pl.Series([cell if isinstance(cell, float) else None for cell in cells], dtype=pl.Float64))
            others = [None if cell is None or isinstance(cell, float) else str(cell) for cell in cells]
            spelt = pl.Series(others, dtype=pl.String).zip_with(numbers.is_null(), numbers)
            table = table.set_column(place, table.column_names[place], spelt.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return table


def is_rounded(column: Any) -> bool:
    """Tell whether text has numbers such as 1.250000e+00. SQLite's driver writes fractions like this, with seven digits, in a
    column that also has text.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    is_text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    return is_text and bool(pc.any(pc.match_substring_regex(column, r"^-?\d\.\d{6}e[+-]\d{2,3}$")).as_py())
