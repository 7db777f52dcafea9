"""Read PostgreSQL through Arrow's driver: the server runs the query, in a read-only transaction."""

from collections.abc import Callable, Collection, Sequence
from typing import Any
from urllib.parse import quote

import polars as pl

from tallystick.errors import DataError
from tallystick.tables.arrow import holds_interval, uuid_text
from tallystick.tables.column_formats import MOST_DIGITS


class QueryError(Exception):
    """A server's refusal of a query, in the driver's own words."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        super().__init__(type(error).__name__)


def read_postgres(
    url: str, query: str, *, text: Collection[str], asks_for: Callable[[str], bool]
) -> tuple[list[str], list[pl.Series]]:
    """Run a query on a server and return its columns' names and values.

    ``numeric`` becomes a float, or a decimal if listed in ``text``. A column that cannot be read and is not needed becomes nulls.

    Raises DataError if the driver is not installed, and for types that cannot be read. Raises QueryError, whose text may quote
    cells, if the server or the driver refuses the query. The driver's errors of connecting (``adbc_driver_manager.Error``), which
    may quote the URL, pass through.
    """
    dbapi = _driver()
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        try:
            cursor.execute("SET TRANSACTION READ ONLY")
            return _rows(cursor, query, None, text, asks_for)
        except postgres_errors() as error:
            raise QueryError(error) from None


def with_password(url: str, password: str) -> str:
    """Put the user's password into a server's address."""
    scheme, rest = url.split("://", 1)
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user}:{quote(password, safe='')}@{host if at else rest}"


def connected(url: str, *, statement_s: float) -> Any:
    """Open a lasting connection that may only read, and whose statements end after this many seconds.

    Raises DataError if there is no driver, and the driver's own errors.
    """
    connection = _driver().connect(url, autocommit=True)
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET default_transaction_read_only = on")
            cursor.execute(f"SET statement_timeout = {int(1000 * statement_s)}")
    except BaseException:  # also an interrupt, because nobody else can close the connection yet
        connection.close()
        raise
    return connection


def query_postgres(
    connection: Any, query: str, *, text: Collection[str], keys: Sequence[str], asks_for: Callable[[str], bool]
) -> tuple[list[str], list[pl.Series]]:
    """Run a query over such a connection, with an array of keys for ``$1``, and return the same as ``read_postgres``.

    The driver's own errors pass through.
    """
    with connection.cursor() as cursor:
        return _rows(cursor, query, (list(keys),), text, asks_for)


def _rows(
    cursor: Any, query: str, values: tuple[Any, ...] | None, text: Collection[str], asks_for: Callable[[str], bool]
) -> tuple[list[str], list[pl.Series]]:
    cursor.execute(query, values)
    fields = list(cursor.fetch_record_batch().schema)
    # The driver fails at a column of records, and then for the whole table, so ask only for the other columns
    records = [field for field in fields if _is_record(field.type)]
    for field in records:
        if asks_for(field.name):
            raise _unreadable(field)
    if records:
        others = ", ".join('"{}"'.format(field.name.replace('"', '""')) for field in fields if field not in records)
        cursor.execute(f"SELECT {others} FROM (\n{query.strip().rstrip(';')}\n) AS these_rows", values)  # noqa: S608
    table = cursor.fetch_arrow_table()
    cells, columns = iter(table.columns), []
    for field in fields:
        try:
            columns.append(_column(field, next(cells) if field not in records else None, text))
        except DataError:
            if asks_for(field.name):
                raise
            columns.append(pl.repeat(None, table.num_rows, dtype=pl.Null, eager=True).alias(field.name))
    return [field.name for field in fields], columns


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


def _is_record(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_struct(kind) or (pa.types.is_list(kind) and _is_record(kind.value_type))


def _type_of(field: Any) -> str:
    return str((field.metadata or {}).get(b"POSTGRESQL:type", b"").decode())


def _unreadable(field: Any) -> DataError:
    return DataError(
        f"column {field.name!r} has PostgreSQL type {_type_of(field)}, which is not read; cast it in the query, or leave it out"
    )


def _decimals(text: pl.Series) -> pl.Series:
    """Convert the server's text of ``numeric`` to decimals, which every reader spells in the same way.

    NaN and infinities become null. Numbers too long for 38 digits stay text.
    """
    text = text.set(text.str.contains("^-?[a-zA-Z]"), None)
    scale = int(text.str.extract(r"\.([0-9]*)$").str.len_bytes().max() or 0)  # type: ignore[arg-type]
    if scale > MOST_DIGITS:
        return text
    numbers = text.cast(pl.Decimal(MOST_DIGITS, scale), strict=False)
    return numbers if numbers.null_count() == text.null_count() else text


def _column(field: Any, values: Any, text: Collection[str]) -> pl.Series:
    """Convert a column, whose cells are ``values`` if they were available, from its PostgreSQL type to a Polars one."""
    import pyarrow as pa

    kind = _type_of(field)
    if values is None:
        raise _unreadable(field)
    if isinstance(values.type, pa.BaseExtensionType):
        values = pa.chunked_array([chunk.storage for chunk in values.chunks], type=values.type.storage_type)
    if kind == "money" or holds_interval(values.type) or (kind not in ("uuid", "bytea") and pa.types.is_binary(values.type)):
        raise _unreadable(field)
    column = pl.Series(field.name, values)
    if column.dtype == pl.Time and column.null_count() > values.null_count:
        raise DataError(f"column {field.name!r} has PostgreSQL type time, and cells of 24:00, which are not read; change these")
    if kind == "numeric":
        return _decimals(column) if field.name in text else column.cast(pl.Float64)
    if kind == "bpchar":  # char(n): padding spaces are not part of the value
        return column.str.strip_chars_end(" ")
    if kind == "oid":  # the driver reads it as a signed number
        return column.cast(pl.Int64) & 0xFFFFFFFF
    if kind == "uuid":
        return uuid_text(column)
    return column
