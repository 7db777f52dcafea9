"""Tables of SQLite, Snowflake, BigQuery, Flight SQL and any other database that has an ADBC driver, which hands over Arrow."""

import importlib
import importlib.resources
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from tallystick.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

WHOLE_TABLE = {"adbc.sqlite.query.batch_rows": str(2_000_000_000)}
"""SQLite has a type for each cell. Its driver takes a column's type from the first batch, and refuses a later cell of another
type: so all rows are one batch."""


def read_by_driver(
    driver: str, query: str, options: Mapping[str, str], *, of_query: Mapping[str, str] | None = None
) -> "pa.Table":
    """Run a query through the installed driver ``adbc_driver_NAME``, and return its rows.

    Nothing is committed where the driver has transactions. Where it has none, a query that changes rows changes them.

    Args:
        driver: the name.
        query: in the database's language.
        options: of the driver, such as its ``uri``; secrets among them.
        of_query: options of the statement.

    Raises DataError if the driver is not installed. Raises DriverError, with the driver's own words, which may quote options
    and cells, if the database does not answer or refuses.
    """
    import pyarrow as pa

    package = f"adbc_driver_{driver}"
    try:
        import adbc_driver_manager
        import adbc_driver_manager.dbapi as dbapi

        importlib.import_module(package)
    except ImportError:
        raise DataError(
            f"table.database: the driver of {driver} is not installed; run: pip install adbc-driver-{driver.replace('_', '-')}"
        ) from None
    library = importlib.resources.files(package).joinpath(f"lib{package}.so")  # under this name on every system
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # some drivers have no transactions, and say so
            connection = dbapi.connect(driver=str(library) if library.is_file() else package, db_kwargs=dict(options))
        with connection, connection.cursor() as cursor:
            if of_query:
                cursor.adbc_statement.set_options(**of_query)
            cursor.execute(query)
            return cursor.fetch_arrow_table()
    except (adbc_driver_manager.Error, pa.ArrowException, OSError) as error:
        raise DriverError(error) from None


class DriverError(Exception):
    """A driver's error, whose text may hold secrets and cells."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(type(error).__name__)


def read_sqlite(file: Path, query: str) -> "pa.Table":
    """Run a query on a SQLite file, which is opened for reading alone. Raises what read_by_driver does."""
    return read_by_driver("sqlite", query, {"uri": f"file:{quote(str(file))}?mode=ro"}, of_query=WHOLE_TABLE)
