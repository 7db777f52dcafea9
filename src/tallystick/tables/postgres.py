"""PostgreSQL through Arrow's own driver: the server runs the query, in a transaction that may only read."""

from collections.abc import Collection, Sequence
from typing import Any
from urllib.parse import quote

import polars as pl

from tallystick.errors import DataError
from tallystick.tables.arrow import uuid_text


def read_postgres(url: str, query: str, *, text: Collection[str]) -> tuple[list[str], list[pl.Series]]:
    """Run a query on a server and give its columns' names and values. ``numeric`` becomes a float, or text if listed in ``text``.

    Raises DataError if the driver is not installed and for types that have no like here; the driver's own errors
    (``adbc_driver_manager.Error``), which may quote the URL, pass through.
    """
    dbapi = _driver()
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION READ ONLY")
        cursor.execute(query)
        table = cursor.fetch_arrow_table()
    return table.column_names, [_column(field, table.column(place), text) for place, field in enumerate(table.schema)]


def with_password(url: str, password: str) -> str:
    """Put the user's password into a server's address."""
    scheme, rest = url.split("://", 1)
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host if at else rest}"


def connected(url: str, *, statement_s: float) -> Any:
    """Open a lasting connection that may only read, and that ends a statement after so many seconds.

    Raises DataError where there is no driver, and the driver's own errors.
    """
    connection = _driver().connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute(f"SET statement_timeout = {int(1000 * statement_s)}")
    except BaseException:  # an interrupt too: nobody else knows of the connection yet
        connection.close()
        raise
    return connection


def query_postgres(
    connection: Any, query: str, *, text: Collection[str], keys: Sequence[str]
) -> tuple[list[str], list[pl.Series]]:
    """Run a query, in which ``$1`` stands for an array of keys, over such a connection, and return what ``read_postgres``
    does.
    """
    with connection.cursor() as cursor:
        cursor.execute(query, (list(keys),))
        table = cursor.fetch_arrow_table()
    return table.column_names, [_column(field, table.column(place), text) for place, field in enumerate(table.schema)]


def postgres_errors() -> tuple[type[Exception], ...]:
    """Return the driver's exceptions. Raises DataError, saying how to install it, if there is no driver."""
    _driver()
    import adbc_driver_manager

    return (adbc_driver_manager.Error,)


def _driver() -> Any:
    try:
        import adbc_driver_postgresql.dbapi as dbapi
    except ImportError:
        raise DataError(
            "table.database: PostgreSQL is read through a driver that is not installed; run: pip install 'tallystick[postgres]'"
        ) from None
    return dbapi


def _column(field: Any, values: Any, text: Collection[str]) -> pl.Series:
    """Convert a column from its PostgreSQL type to a Polars one."""
    import pyarrow as pa

    kind = (field.metadata or {}).get(b"POSTGRESQL:type", b"").decode()
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)
    if kind in ("money", "interval") or (kind not in ("uuid", "bytea") and pa.types.is_binary(values.type)):
        raise DataError(
            f"column {field.name!r} has PostgreSQL type {kind}, which is not read; cast it in the query, or leave it out"
        )
    column = pl.Series(field.name, values)
    if column.dtype == pl.Time and column.null_count() > values.null_count:
        raise DataError(f"column {field.name!r} has PostgreSQL type time, and cells of 24:00, which are not read; change these")
    if kind == "numeric" and field.name not in text:
        return column.cast(pl.Float64)
    if kind == "bpchar":  # char(n): the spaces that fill it up are no part of the value
        return column.str.strip_chars_end(" ")
    if kind == "oid":  # the driver takes it for a number with a sign
        return column.cast(pl.Int64) & 0xFFFFFFFF
    if kind == "uuid":
        return uuid_text(column)
    return column
