"""Read Delta tables: the files that belong to a version according to the log, with the checks of every Parquet file.

The log is read by the library ``deltalake``, the rows by Arrow. Tables with features that Arrow lacks (deletion vectors, mapped
columns) are refused.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tallystick.config.table import StoreConfig, TableConfig
from tallystick.errors import DataError
from tallystick.tables.lazy_table import LazyTable, store_batches
from tallystick.tables.parquet import announced_rows, pieces_of
from tallystick.tables.rows import refuse_rows_beyond
from tallystick.tables.stores import CONNECT_S, REQUEST_S, Store, StoredFile

if TYPE_CHECKING:
    import pyarrow as pa

LOG = "_delta_log"


def is_delta(place: Path | Store) -> bool:
    """Tell whether a folder holds a Delta table. Some of its files may not belong to it, and some columns may be in no file."""
    return (place / LOG).is_dir() if isinstance(place, Path) else place.holds(LOG)


def read_delta(place: Path | Store, table: TableConfig, *, reason: Any, asks_for: Callable[[str], bool]) -> LazyTable:
    """Read a version of a Delta table, the latest unless ``table.version`` names one.

    Raises DataError if the library is not installed, or the table is damaged, unsupported or too large.
    """
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ImportError:
        raise DataError(
            f"{_named(place)}: is a Delta table, whose reader is not installed; run: pip install 'tallystick[delta]'"
        ) from None
    from pyarrow.dataset import get_partition_keys
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    try:
        if not isinstance(place, Path) and not place.address.startswith("s3://"):
            raise DataError(f"{place.address}: is a Delta table; such tables are read from folders and s3:// only")
        options = None if isinstance(place, Path) else _s3_client_options(table.store)
        delta = DeltaTable(_named(place), version=table.version, storage_options=options)
        if delta.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise DataError(f"{place}: maps its columns to other names, which is not supported; write it without column mapping")
        if isinstance(place, Path):
            filesystem = SubTreeFileSystem(str(place), LocalFileSystem())
        else:
            filesystem = SubTreeFileSystem(place.key, place.files)
        dataset = delta.to_pyarrow_dataset(filesystem=filesystem)
        files: list[tuple[Path | StoredFile, dict[str, Any]]] = []
        for fragment in dataset.get_fragments():
            if not isinstance(place, Path):
                address, key = f"{place.address.rstrip('/')}/{fragment.path}", f"{place.key}/{fragment.path}"
                file: Path | StoredFile = StoredFile(address, key, place.files)
            elif not (file := (place / str(fragment.path)).resolve()).is_relative_to(place.resolve()):
                raise DataError(f"{place}: its log names {file}, which is not in its folder; copy the table with its files")
            # The partition's values, which all rows of the file have; a partition column that is absent here is null
            values = get_partition_keys(fragment.partition_expression)
            files.append((file, {name: values[name] for name in delta.metadata().partition_columns if name in values}))
    except (DeltaError, OSError) as error:
        raise DataError(f"{_named(place)}: cannot be read as a Delta table: {reason(error)}") from None
    rows = sum(announced_rows(file, reason=reason) for file, _ in files)
    refuse_rows_beyond(rows, table, source=_named(place), has="announces")
    return store_batches(dataset.schema, _rows(files, dataset.schema, table, reason, asks_for), asks_for=asks_for)


def _s3_client_options(store: StoreConfig) -> dict[str, str]:
    """Return the settings of the S3 client that ``deltalake`` has."""
    options = {
        "AWS_ENDPOINT_URL": store.endpoint,
        "AWS_REGION": store.region,
        "AWS_ACCESS_KEY_ID": store.secret("access_key"),
        "AWS_SECRET_ACCESS_KEY": store.secret("secret_key"),
        "AWS_SESSION_TOKEN": store.secret("session_token"),
        "AWS_SKIP_SIGNATURE": "true" if store.anonymous else None,
        "AWS_ALLOW_HTTP": "true" if (store.endpoint or "").startswith("http://") else None,
        "connect_timeout": f"{CONNECT_S}s",
        "timeout": f"{REQUEST_S}s",
        "max_retries": "3",
        "retry_timeout": f"{REQUEST_S}s",
    }
    return {name: value for name, value in options.items() if value is not None}


def _rows(
    files: list[tuple[Path | StoredFile, dict[str, Any]]],
    schema: "pa.Schema",
    table: TableConfig,
    reason: Any,
    asks_for: Callable[[str], bool],
) -> "Iterator[pa.RecordBatch]":
    import pyarrow as pa

    for file, partition in files:
        with pieces_of(file, table, reason=reason, asks_for=asks_for) as (_, pieces):
            for piece in pieces:
                # files lack the partition's values, and older files lack new columns
                columns = []
                for field in schema:
                    if field.name in piece.schema.names:
                        columns.append(piece.column(field.name).cast(field.type))
                    elif partition.get(field.name) is None:
                        columns.append(pa.nulls(len(piece), field.type))
                    else:
                        columns.append(pa.repeat(pa.scalar(partition[field.name], type=field.type), len(piece)))
                yield pa.record_batch(columns, schema=schema)


def _named(place: Path | Store) -> str:
    return str(place) if isinstance(place, Path) else place.address
