"""Look up rows in PostgreSQL."""

from collections.abc import Callable, Sequence
from typing import Any

import polars as pl

from tallystick.config.serving import Postgres
from tallystick.errors import ConfigError, DataError
from tallystick.tables.postgres import connected, postgres_errors, query_postgres, with_password

STATEMENT_S = 1.5
"""Time limit of a statement. The server ends it then, before the call's own limit."""


class PostgresDatabase:
    """A PostgreSQL server, asked over read-only connections.

    Args:
        config: the server, and the query, in which ``$1`` is the array of keys.
        text: columns to read as text.

    Raises ConfigError if the driver is not installed, or the password cannot be read.
    """

    name = "PostgreSQL"

    def __init__(self, config: Postgres, *, text: Sequence[str]) -> None:
        try:
            self.errors = postgres_errors()
        except DataError as error:
            raise ConfigError(f"serving.store: {error}") from None
        self._url, self._query, self._text = config.database, config.query, text
        if config.password is not None:
            self._url = with_password(config.database, config.password.read("serving.store.password"))

    def connect(self) -> Any:
        """Open a connection."""
        return connected(self._url, statement_s=STATEMENT_S)

    def ask(self, connection: Any, keys: Sequence[str], *, asks_for: Callable[[str], bool]) -> tuple[list[str], list[pl.Series]]:
        """Run the query."""
        return query_postgres(connection, self._query, text=self._text, keys=keys, asks_for=asks_for)

    def is_broken(self, error: Exception) -> bool:
        """Tell by the state: 08 is a broken connection, 57P a connection that the server ended. Without a state the driver found
        it broken.
        """
        return (getattr(error, "sqlstate", None) or "08").startswith(("08", "57P"))

    def code(self, error: Exception) -> str:
        """Return the state."""
        state = getattr(error, "sqlstate", None)
        return f"SQLSTATE {state}" if state else ""
