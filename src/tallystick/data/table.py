"""Tables: a party's rows, from CSV, TSV or Parquet files, or from a query that DuckDB runs on files or databases."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import polars as pl

from tallystick.config.party import PartyFile, Table
from tallystick.config.reading import did_you_mean, redacted
from tallystick.errors import DataError

NULL_WORDS = ["", "NA", "NaN", "nan", "null", "NULL"]


def read_party_table(party: PartyFile) -> pl.DataFrame:
    """Read a party's table, with its key columns kept as they are written; see read_table."""
    if party.table is None:
        raise DataError(f"party {party.party}: its party file names no table")
    frame = read_table(party.table, text=party.keys.values())
    for use, column in [*(("key", name) for name in party.keys.values()), ("label", party.label), ("weight", party.weight)]:
        if column is not None:
            require_column(frame, column, use=use)
    return frame


def read_table(table: Table, *, text: Collection[str] = ()) -> pl.DataFrame:
    """Read all rows of a table into memory.

    Args:
        table: where the rows are.
        text: columns that a CSV or TSV keeps as text instead of guessing a type, so that a key 00123 stays 00123.

    Raises DataError, naming the file or the database (never its password), if it is absent, unreadable or without rows.
    """
    if table.path is not None:
        source, frame = str(table.path), _read_file(table.path, text)
    else:
        source, frame = _database_name(table), _query(table)
    if frame.width == 0 or frame.height == 0:
        raise DataError(f"{source}: has no rows; a party needs at least one")
    return frame


def require_column(frame: pl.DataFrame, column: str, *, use: str) -> pl.Series:
    """Give a column; raises DataError naming the closest column if it is absent."""
    if column not in frame.columns:
        raise DataError(f"{use} column {column!r} is not in the table; {did_you_mean(column, frame.columns)}")
    return frame.get_column(column)


def _read_file(path: Path, text: Collection[str]) -> pl.DataFrame:
    if not path.is_file():
        raise DataError(f"{path}: there is no such file; check table.path in the party file")
    try:
        if path.suffix.lower() == ".parquet":
            return pl.read_parquet(path, glob=False, hive_partitioning=False)
        separator = "\t" if ".tsv" in path.name.lower() else ","
        return pl.read_csv(
            path,
            separator=separator,
            infer_schema_length=None,
            null_values=NULL_WORDS,
            schema_overrides=dict.fromkeys(text, pl.String),
            glob=False,
        )
    except pl.exceptions.NoDataError:
        raise DataError(f"{path}: is empty") from None
    except (pl.exceptions.PolarsError, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from None


def _query(table: Table) -> pl.DataFrame:
    import duckdb

    assert table.query is not None
    url = table.database.get_secret_value() if table.database is not None else "duckdb::memory:"
    kind, _, rest = url.partition(":")
    name = _database_name(table)
    file = table.folder / Path(rest).expanduser() if rest != ":memory:" else None
    if kind == "duckdb" and file is not None and not file.is_file():
        raise DataError(f"{name}: there is no such database file; check table.database in the party file")
    try:
        local = kind != "duckdb" or file is None
        with duckdb.connect(":memory:" if local else str(file), read_only=not local) as connection:
            connection.execute("SET file_search_path = $folder", {"folder": str(table.folder)})
            if kind != "duckdb":
                _attach_postgres(connection, url)
            result: pl.DataFrame = connection.sql(table.query).pl()
            return result
    except duckdb.Error as error:
        raise DataError(f"{name}: the query failed: {_reason(error, secret=url)}") from None
    except AttributeError:
        # DuckDB answers None to a statement that yields no rows, such as CREATE.
        raise DataError(f"{name}: the query gives no table; start it with SELECT") from None


def _attach_postgres(connection: Any, url: str) -> None:
    import duckdb

    try:
        # Nothing is downloaded behind the user's back.
        connection.execute("SET autoinstall_known_extensions = false")
        connection.execute("LOAD postgres")
    except duckdb.Error as error:
        raise DataError(
            f"{redacted(url)}: DuckDB's postgres extension cannot be loaded: {_reason(error, secret=url)}; install it once, "
            "where the internet can be reached, with: python -c \"import duckdb; duckdb.sql('INSTALL postgres')\""
        ) from None
    try:
        quoted = url.replace("'", "''")
        connection.execute(f"ATTACH '{quoted}' AS source (TYPE postgres, READ_ONLY)")
        connection.execute("USE source")
    except duckdb.Error as error:
        raise DataError(f"{redacted(url)}: cannot be reached: {_reason(error, secret=url)}") from None


def _database_name(table: Table) -> str:
    return redacted(table.database.get_secret_value()) if table.database is not None else "table.query"


def _reason(error: Exception, *, secret: str = "") -> str:
    """First line of an error, without the password and without quoted cells."""
    lines = str(error).strip().splitlines() or [""]
    text = redacted(lines[0])
    password = _password(secret)
    for word in {secret, password, unquote(password)} - {""}:
        text = text.replace(word, "***")
    return f"{type(error).__name__}: {re.sub(r'`[^`]*`', '`...`', text)[:300]}"


def _password(url: str) -> str:
    try:
        return urlsplit(url).password or ""
    except ValueError:
        return ""
