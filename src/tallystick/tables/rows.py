"""Limit the rows of a table before they are in memory, because a small file can announce, or unpack into, any number."""

from functools import cache

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.machine import whole_memory

BYTES_OF_A_ROW = 100  # least memory of a row, for its id and its place


@cache
def machine_memory() -> int:
    """Return the greatest number of bytes that this process may use."""
    return whole_memory()


def rows_allowed(table: TableConfig) -> int:
    """Return the greatest number of rows that may be read from a table."""
    return table.max_rows if table.max_rows is not None else machine_memory() // BYTES_OF_A_ROW


def refuse_rows_beyond(rows: int, table: TableConfig, *, source: object, has: str = "has") -> None:
    """Raise DataError, naming the source, for more rows than may be read. ``has`` is the verb before the count."""
    most = rows_allowed(table)
    if rows > most:
        limit = f"table.max_rows = {most:,}"
        if table.max_rows is None:
            limit = f"the {most:,} rows of {BYTES_OF_A_ROW} bytes that fit into this machine's memory"
        raise DataError(f"{source}: {has} {rows:,} rows, over {limit}; to read them, raise table.max_rows in the party file")
