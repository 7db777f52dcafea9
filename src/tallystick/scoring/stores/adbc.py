"""Look up rows in SQLite, or in any other database with an ADBC driver."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from tallystick.config.serving import Adbc
from tallystick.errors import ConfigError, DataError
from tallystick.tables.adbc import WHOLE_TABLE, driver_errors, fetched, is_rounded, lasting_connection, sqlite_options
from tallystick.tables.arrow import as_polars


class AdbcDatabase:
    """A database behind an ADBC driver. Changes by a query are rolled back, if the driver has transactions.

    Keys are passed as one parameter, the text of a JSON array, because not every driver binds arrays, but every database reads
    JSON.

    Args:
        config: the driver, its options, and the query with the parameter.

    Raises ConfigError if the driver is not installed, or a secret cannot be read.
    """

    def __init__(self, config: Adbc) -> None:
        kind, _, place = config.database.partition(":")
        self.name = config.database if kind == "adbc" else "SQLite"
        self._query = config.query
        self._driver = "sqlite" if kind == "sqlite" else place
        self._of_query = WHOLE_TABLE if kind == "sqlite" else {}
        secrets = {name: secret.read(f"serving.store.secret_options.{name}") for name, secret in config.secret_options.items()}
        self._options = sqlite_options(Path(place)) if kind == "sqlite" else {**config.options, **secrets}
        try:
            self.errors = driver_errors(self._driver, use="serving.store")
        except DataError as error:
            raise ConfigError(str(error)) from None

    def connect(self) -> Any:
        """Open a connection."""
        return lasting_connection(self._driver, self._options)

    def ask(self, connection: Any, keys: Sequence[str], *, asks_for: Callable[[str], bool]) -> tuple[list[str], list[pl.Series]]:
        """Run the query, and end the transaction that it began."""
        table = fetched(connection, self._query, [msgspec.json.encode(keys).decode()], of_query=self._of_query)
        connection.rollback()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if self._driver == "sqlite" and asks_for(name) and is_rounded(column):
                raise DataError(f"column {name!r} holds text and fractions, which the driver then rounds; cast it in the query")
        columns = [as_polars(table.select([place]), asks_for=asks_for).to_series() for place in range(table.num_columns)]
        return table.column_names, columns

    def is_broken(self, error: Exception) -> bool:  # noqa: ARG002
        """Return True for every error: drivers name broken connections in many ways, and a read-only query may be repeated."""
        return True

    def code(self, error: Exception) -> str:
        """Return the driver's status, and the database's state if it has one."""
        status, state = getattr(error, "status_code", None), getattr(error, "sqlstate", None)
        return ", ".join([*([status.name] if status is not None else []), *([f"SQLSTATE {state}"] if state else [])])
