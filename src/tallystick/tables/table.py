"""Read tables: a party's rows.

They come from CSV, TSV or Parquet files, here or in an object store, from a Delta table, or from a query that DuckDB, PostgreSQL,
SQLite or any database with an ADBC driver runs.
"""

import re
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol
from urllib.parse import unquote, urlsplit

import polars as pl
import polars.selectors as cs

from tallystick.config.party import PartyFile
from tallystick.config.table import TABLE_SUFFIXES, TableConfig
from tallystick.errors import DataError, StorageError
from tallystick.machine import require_polars_threads
from tallystick.reading import did_you_mean, redacted
from tallystick.storage import refuse_pipe, scratch_folder
from tallystick.tables.adbc import DriverError, read_by_driver, read_sqlite
from tallystick.tables.arrow import as_polars, every_column
from tallystick.tables.delimited import NULL_WORDS, read_delimited
from tallystick.tables.delta import is_delta, read_delta
from tallystick.tables.file_kinds import refuse_other_kind
from tallystick.tables.lazy_table import Frame, LazyTable, store
from tallystick.tables.names import require_usable
from tallystick.tables.parquet import announced_rows, read_parquet
from tallystick.tables.postgres import QueryError, postgres_errors, read_postgres, with_password
from tallystick.tables.rows import refuse_rows_beyond
from tallystick.tables.stand_ins import marks_missing
from tallystick.tables.stores import Store, StoredFile, TableFile, copied
from tallystick.tables.times import read_times, with_dates
from tallystick.tables.vectors import with_vectors

if TYPE_CHECKING:
    import pyarrow as pa

UNNAMED_INDEX = "__index_level_"  # Arrow's name for a pandas index without a name
ARROW_LACKS = ("TIME WITH TIME ZONE", "UHUGEINT")  # DuckDB drops the zone of the first, and reverses the sign of the second


class TrainedForms(Protocol):
    """The forms in which the training read a party's columns, as its encoder keeps them."""

    @property
    def columns(self) -> Collection[str]:
        """Return the columns that the encoder reads."""
        ...

    @property
    def text_columns(self) -> Collection[str]:
        """Return the columns that were text."""
        ...

    @property
    def decimal(self) -> Literal[",", "."] | None:
        """Return the files' decimal sign, or None if nothing shows it."""
        ...

    @property
    def missing(self) -> Mapping[str, tuple[str, ...]]:
        """Return the words that marked a missing cell in columns of the files."""
        ...

    @property
    def text_categories(self) -> Mapping[str, Sequence[str]]:
        """Return the categories of the columns that were text."""
        ...

    @property
    def vectors(self) -> Mapping[str, int]:
        """Return the number of numbers in each vector."""
        ...


def read_party_table(party: PartyFile, *, trained: TrainedForms | None = None) -> LazyTable:
    """Read a party's table, with its key columns kept as they are written. See read_rows."""
    if party.table is None:
        raise DataError(f"party {party.party}: its party file names no table")
    frame = read_rows(party.table, party, trained=trained)
    labels = (("label", name) for name in party.labels)
    for use, column in [*(("key", name) for name in party.keys.values()), *labels, ("weight", party.weight)]:
        if column is not None:
            require_named(frame, column, use=use)
    return frame


def read_rows(source: TableConfig, party: PartyFile, *, trained: TrainedForms | None) -> LazyTable:
    """Read a table of a party, with keys and categories as they are written. See read_table.

    Args:
        source: place of the rows.
        party: party file that names the columns.
        trained: forms in which a training read these columns, if there was one; a file's cells are read in the same way.
    """
    text, made_of = set(party.text_columns), party.repeats.aggregate if party.repeats is not None else {}
    if trained is not None:
        text_columns = set(trained.text_columns)
        text |= text_columns
        text |= {column for column, statistics in made_of.items() if text_columns & {f"{column}_{each}" for each in statistics}}
        if source.path is not None and source.decimal is None and trained.decimal is not None:
            source = source.model_copy(update={"decimal": trained.decimal})
        usual = source.missing if source.missing is not None else NULL_WORDS
        words = {name: (*source.missing_in.get(name, usual), *marks) for name, marks in trained.missing.items()}
        for name, categories in trained.text_categories.items():
            if name not in source.missing_in and not set(categories).isdisjoint(usual):
                words[name] = tuple(word for word in words.get(name, usual) if word not in categories)
        if source.path is not None and words:
            source = source.model_copy(update={"missing_in": dict(source.missing_in) | words})
    widths = trained.vectors if trained is not None else {}
    trained_columns = set(trained.columns) if trained is not None else set()

    def asks_for(name: str) -> bool:
        return party.asks_for(name) or name in trained_columns

    frame = with_dates(read_table(source, text=text, asks_for=asks_for), party.dates)
    assert isinstance(frame, LazyTable)
    # The party file names a date that means a missing cell as the file writes it; a later table may hold it as a date
    missing = dict(frame.missing)
    for name, form in party.dates.items():
        dates = read_times(pl.Series(missing.get(name, ()), dtype=pl.String), form).drop_nulls()
        missing |= {name: (*missing[name], *map(str, dates))} if len(dates) else {}
    frame = with_vectors(replace(frame, missing=missing), party.vectors, widths=widths)
    assert isinstance(frame, LazyTable)
    return frame


def read_table(table: TableConfig, *, text: Collection[str] = (), asks_for: Callable[[str], bool] = every_column) -> LazyTable:
    """Read a table. Files are copied, and their columns are read one at a time; the rows of a query stay in memory.

    Args:
        table: place of the rows.
        text: columns that a CSV or TSV keeps as text instead of guessing a type, so that a key 00123 stays 00123.
        asks_for: tells whether a column is needed. Other columns never cause an error: a CSV keeps them as text, and if they
            cannot be read they become nulls.

    Raises DataError, naming the file or the database (never its password), if it is absent, unreadable or without rows.
    """
    require_polars_threads()
    source = str(table.path) if table.path is not None else _database_name(table)
    try:
        if table.path is not None:
            frame = _read_files(table.path, table, text, asks_for)
        else:
            frame = LazyTable.of(_query(table, text, asks_for))
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise DataError(
            f"{source}: PyArrow, which reads whatever is not a local CSV or TSV file, is not installed; run: pip install pyarrow"
        ) from None
    if frame.width == 0 or frame.height == 0:
        raise DataError(f"{source}: has no rows; a party needs at least one")
    refuse_rows_beyond(frame.height, table, source=source)
    require_usable(frame.columns, source=source)
    # Make cells null that the party file names as missing; -999 may come from a CSV or from Parquet, and so may a word
    nulled, missing = [], dict(frame.missing)
    for name, kind in frame.schema.items():
        words, cells = table.missing_in.get(name, table.missing or ()), cs.by_name(name).as_expr()
        if (is_stand_in := marks_missing(cells, kind, words, decimal=frame.decimal or table.decimal)) is not None:
            nulled.append(pl.when(~is_stand_in).then(cells))
            missing[name] = tuple(dict.fromkeys((*missing.get(name, ()), *words)))
    if nulled:
        frame = replace(frame, source=frame.source.with_columns(nulled), block=type(frame.block)(), missing=missing)
    if index := [name for name in frame.columns if name.startswith(UNNAMED_INDEX)]:
        note = "the index of pandas has no name and was left out"
        source_columns = frame.source.drop(*(cs.by_name(name) for name in index))
        return replace(frame, source=source_columns, block=type(frame.block)(), notes=(*frame.notes, note))
    return frame


def require_column(frame: Frame, column: str, *, use: str) -> pl.Series:
    """Return a column. Raises DataError naming the closest column if it is absent."""
    require_named(frame, column, use=use)
    return frame.get_column(column)


def label_column(frame: Frame, party: PartyFile) -> pl.Series:
    """Return the labels; several labels of a row are a struct with a field for each. Raises DataError for an absent column."""
    columns = [require_column(frame, name, use="label") for name in party.labels]
    return columns[0] if len(columns) == 1 else pl.DataFrame(columns).to_struct("label")


def require_named(frame: Frame, column: str, *, use: str) -> None:
    """Raise DataError, naming the closest column, if there is no column of this name. It reads nothing."""
    if column not in frame.schema:
        raise DataError(f"{use} column {column!r} is not in the table; {did_you_mean(column, frame.columns)}")


def _read_files(path: Path | str, table: TableConfig, text: Collection[str], asks_for: Callable[[str], bool]) -> LazyTable:
    place = path if isinstance(path, Path) else Store.at(path, table.store)
    if is_delta(place):
        return read_delta(place, table, reason=_reason, asks_for=asks_for)
    if table.version is not None:
        raise DataError(f"{path}: is not a Delta table; table.version is only for Delta tables, so remove it")
    files: Sequence[TableFile]
    if isinstance(place, Path):
        files = _files(place)
    else:
        files = [file for file in place.listed() if not file.name.startswith((".", "_")) and _ending(file)]
        if not files:
            endings = ", ".join(TABLE_SUFFIXES)
            raise DataError(f"{place.address}: holds no file that ends in {endings}; an Iceberg table is not read")
    ending = _ending(files[0])
    for file in files:
        if _ending(file) != ending:
            raise DataError(f"{path}: holds {files[0].name} and {file.name}; the files of one table must be of one kind")
    try:
        if ending != ".parquet":
            with _local(files, table) as paths:
                return read_delimited(paths, table, text=text, asks_for=asks_for)
        for file in files:
            if isinstance(file, Path):
                refuse_other_kind(file, parquet=True)
        refuse_rows_beyond(sum(announced_rows(file, reason=_reason) for file in files), table, source=path, has="announces")
        tables = [read_parquet(file, table, reason=_reason, asks_for=asks_for) for file in files]
        return tables[0] if len(tables) == 1 else store(_joined(files, [table.source for table in tables], asks_for))
    except StorageError:
        raise
    except pl.exceptions.NoDataError:
        raise DataError(f"{path}: is empty") from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be read: {_reason(error)}") from None


@contextmanager
def _local(files: Sequence[TableFile], table: TableConfig) -> Iterator[list[Path]]:
    """Provide within this block local files of the same content. Errors about a copy name the file in the store."""
    stored = [file for file in files if isinstance(file, StoredFile)]
    if not stored:
        yield [file for file in files if isinstance(file, Path)]
        return
    with scratch_folder() as folder:
        copies = {copied(file, folder, table): file for file in stored}
        try:
            yield list(copies)
        except DataError as error:
            text = str(error)
            for copy, file in copies.items():
                text = text.replace(str(copy), str(file))
            raise DataError(text) from None


def _files(path: Path) -> list[Path]:
    """List a path's files by name: the file itself, those of a folder, or those that fit a pattern such as part-*.parquet."""
    refuse_pipe(path)
    if path.is_file():
        return [path]
    if path.is_dir():
        # Refuse the folder of an Iceberg table, and its single data files, because some of their rows may have been deleted
        for place in (path, path.parent):
            if any((place / "metadata").glob("*.metadata.json")):
                raise DataError(
                    f"{path}: is {'of ' if place != path else ''}an Iceberg table, which is not read here; have its engine "
                    "export it as Parquet, or DuckDB: "
                    "INSTALL iceberg; LOAD iceberg; COPY (FROM iceberg_scan('...')) TO 'rows.parquet'"
                )
        files = [each for each in path.iterdir() if not each.name.startswith((".", "_")) and _ending(each)]
        if not files:
            raise DataError(f"{path}: the folder holds no file that ends in {', '.join(TABLE_SUFFIXES)}")
    else:
        anchor = Path(path.anchor)
        files = [each for each in anchor.glob(str(path.relative_to(anchor))) if each.is_file() and _ending(each)]
        if not files and any(sign in str(path) for sign in "*?["):
            raise DataError(f"{path}: no file fits this pattern; check table.path, or the option that names it")
        if not files:
            raise DataError(f"{path}: there is no such file; check table.path, or the option that names it")
    return sorted(files)


def _ending(path: TableFile) -> str | None:
    """Return a file's kind by its name, or None for any other name."""
    return next(
        (ending for ending in (".csv", ".tsv", ".parquet") if path.name.lower().removesuffix(".gz").endswith(ending)), None
    )


def _joined(paths: Sequence[TableFile], parts: Sequence[pl.LazyFrame], asks_for: Callable[[str], bool]) -> pl.LazyFrame:
    """Join Parquet files of the same columns to one table. Numbers of several widths get the widest type.

    A column that differs between files and is not needed becomes nulls.
    """
    schemas = [part.collect_schema() for part in parts]
    idle = {name for schema in schemas for name in schema if not asks_for(name) and len({each.get(name) for each in schemas}) > 1}
    schemas = [pl.Schema({name: kind for name, kind in schema.items() if name not in idle}) for schema in schemas]
    first = schemas[0]
    for path, schema in zip(paths, schemas, strict=True):
        if odd := set(schema) ^ set(first):
            other = ", ".join(map(repr, sorted(odd)))
            raise DataError(f"{path}: has other columns than {paths[0]}: {other} in only one; the files of one table must agree")
        for name, kind in schema.items():
            alike = kind == first[name] or (kind.is_numeric() and first[name].is_numeric()) or pl.Null in (kind, first[name])
            if not alike:
                raise DataError(f"{path}: column {name!r} has type {kind}, and {first[name]} in {paths[0]}; convert one of them")
    ordered = [part.select([cs.by_name(name) for name in first]) for part in parts]
    return pl.concat(ordered, how="vertical_relaxed").with_columns(**dict.fromkeys(sorted(idle), pl.lit(None)))


def _query(table: TableConfig, text: Collection[str], asks_for: Callable[[str], bool]) -> pl.DataFrame:
    assert table.query is not None, "a table without a path has a query"
    url = table.database.get_secret_value() if table.database is not None else "duckdb::memory:"
    kind, _, place = url.partition(":")
    name = _database_name(table)
    if kind == "adbc":
        secrets = {key: secret.read(f"table.secret_options.{key}") for key, secret in table.secret_options.items()}
        read = partial(read_by_driver, place, table.query, {**table.options, **secrets})
        return _rows_of_driver(name, read, asks_for, secrets.values())
    if kind.startswith("postgres"):
        if table.password is not None:
            url = with_password(url, table.password.read("table.password"))
        try:
            names, columns = read_postgres(url, table.query, text=text, asks_for=asks_for)
        except QueryError as error:
            raise DataError(f"{name}: the query failed: {_reason(error.error, [url])}") from None
        except postgres_errors() as error:
            raise DataError(f"{name}: cannot be reached: {_reason(error, [url])}") from None
        except DataError as error:
            raise DataError(f"{name}: {error}") from None
        require_usable(names, source=name)
        return pl.DataFrame(columns)
    file = table.folder / Path(place).expanduser() if place != ":memory:" else None
    if file is not None and not file.is_file():
        raise DataError(f"{name}: there is no such database file; check table.database in the party file")
    if kind == "sqlite":
        assert file is not None
        return _rows_of_driver(name, partial(read_sqlite, file, table.query), asks_for)
    try:
        import duckdb
    except ImportError:
        raise DataError("table.query: DuckDB, which runs it, is not installed; run: pip install duckdb") from None

    try:
        with duckdb.connect(":memory:" if file is None else str(file), read_only=file is not None) as connection:
            connection.execute("SET file_search_path = $folder", {"folder": str(table.folder)})
            relation = connection.sql(table.query)
            for column, column_type in zip(relation.columns, relation.types, strict=True):
                if str(column_type) in ARROW_LACKS and asks_for(column):
                    raise DataError(
                        f"{name}: column {column!r} has DuckDB type {column_type}, which is not read; cast it in the query, or "
                        "leave it out"
                    )
            rows = relation.to_arrow_table()
    except duckdb.Error as error:
        raise DataError(f"{name}: the query failed: {_reason(error)}") from None
    except AttributeError:
        # DuckDB answers None to a statement that yields no rows, such as CREATE.
        raise DataError(f"{name}: the query gives no table; start it with SELECT") from None
    return _as_frame(rows, name, asks_for)


def _database_name(table: TableConfig) -> str:
    return redacted(table.database.get_secret_value()) if table.database is not None else "table.query"


def _rows_of_driver(
    name: str, read: Callable[[], "pa.Table"], asks_for: Callable[[str], bool], secrets: Collection[str] = ()
) -> pl.DataFrame:
    try:
        rows = read()
    except DriverError as error:
        raise DataError(f"{name}: the query failed: {_reason(error.error, secrets)}") from None
    if not rows.column_names:
        raise DataError(f"{name}: the query gives no table; start it with SELECT")
    return _as_frame(rows, name, asks_for)


def _as_frame(rows: "pa.Table", name: str, asks_for: Callable[[str], bool]) -> pl.DataFrame:
    require_usable(rows.column_names, source=name)
    try:
        return as_polars(rows, asks_for=asks_for)
    except DataError as error:
        raise DataError(f"{name}: {error}") from None


def _reason(error: Exception, secrets: Collection[str] = ()) -> str:
    """Return the first line of an error, without secrets such as the password of a URL, and without quoted cells."""
    lines = str(error).strip().splitlines() or [""]
    text = redacted(lines[0])
    words = set(secrets)
    for secret in secrets:
        with suppress(ValueError):
            password = urlsplit(secret).password or ""
            words |= {password, unquote(password)}
    for word in sorted(words - {""}, key=len, reverse=True):
        text = text.replace(word, "***")
    return f"{type(error).__name__}: {re.sub(r'`[^`]*`', '`...`', text)[:300]}"
