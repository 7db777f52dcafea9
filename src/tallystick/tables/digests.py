"""Compute digests of columns, which show whether a table's values have changed without keeping any of them."""

import hashlib
from collections.abc import Iterable

import numpy as np
import polars as pl

from tallystick.tables.text import as_number, as_text

CELLS_AT_A_TIME = 1 << 20


def column_digest(columns: Iterable[pl.Series]) -> str:
    """Return a digest of the cells of columns in their order, the same for the same values of another type.

    Numbers, dates and times count as numbers, everything else as text, lists item by item. Raises DataError for other cells.
    """
    digest = hashlib.blake2b(digest_size=16)
    for column in columns:
        for start in range(0, len(column), CELLS_AT_A_TIME):
            cells = column.slice(start, CELLS_AT_A_TIME)
            if isinstance(cells.dtype, pl.Array):
                cells = cells.arr.to_list()
            if isinstance(cells.dtype, pl.List):
                digest.update(_bytes_of(cells.list.len()))
                cells = cells.explode()
            digest.update(_bytes_of(cells))
    return digest.hexdigest()


def _bytes_of(cells: pl.Series) -> bytes:
    if cells.dtype == pl.Date:  # a date is the time stamp at its midnight
        cells = cells.cast(pl.Datetime("us"))
    if cells.dtype.is_numeric() or cells.dtype.is_temporal() or cells.dtype == pl.Boolean:
        numbers = as_number(cells).to_numpy() + 0.0  # so that zero has no sign
        return np.where(np.isnan(numbers), np.nan, numbers).tobytes()
    text = as_text(cells)
    lengths = text.str.len_bytes().cast(pl.Int64).fill_null(-1).to_numpy()
    return lengths.tobytes() + "".join(text.drop_nulls().to_list()).encode()
