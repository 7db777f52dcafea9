"""Read and check keys for linking by similarity. Rows without a key are left out as the contract says.

Shapes: N rows of the table, R rows with a key, D numbers of a key.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import IdError
from tallystick.tables.lazy_table import Frame
from tallystick.tables.normalise import normalise
from tallystick.tables.table import require_column
from tallystick.tables.text import as_text, rows_listed


def read_similar_keys(
    frame: Frame, *, columns: Mapping[str, str], terms: SimilarityConfig, nulls: str
) -> tuple[SimilarKeys, np.ndarray[Any, np.dtype[np.int64]]]:
    """Return the keys of the rows that have one, and these rows.

    Raises DataError for an absent column. Raises IdError if all keys are null, for a null if ``nulls`` is ``error``, and for a
    number that is not one, is infinite or is outside the contract's range. Rows are named by number, never by content.
    """
    values: dict[str, pl.Series] = {}
    for dimension in terms.dimensions:
        name = columns[dimension.name]
        column = require_column(frame, name, use="key")
        if dimension.kind == "text":
            values[dimension.name] = normalise(column, dimension.normalise)
            continue
        where = f"key {dimension.name} (column {name})"
        text = as_text(column)
        text = text.set(text.str.strip_chars() == "", None)
        is_numeric = column.dtype.is_numeric()
        numbers = column.cast(pl.Float64) if is_numeric else text.str.strip_chars().cast(pl.Float64, strict=False)
        wrong = numbers.is_null() & text.is_not_null()
        if wrong.any():
            raise IdError(
                f"{where}: not a number in {rows_listed(wrong)} rows; the contract's alignment.similarity compares numbers here"
                + (f" of unit {dimension.unit}" if dimension.unit else "")
            )
        infinite = (~numbers.is_finite()).fill_null(False)
        if infinite.any():
            raise IdError(f"{where}: NaN or infinite in {rows_listed(infinite)} rows; empty these cells, or correct them")
        if terms.helper_sees != "clear":
            outside = ((numbers < dimension.low) | (numbers > dimension.high)).fill_null(False)
            if outside.any():
                raise IdError(
                    f"{where}: outside the contract's range, {dimension.low:g} to {dimension.high:g}, in {rows_listed(outside)} "
                    "rows; check the unit, or agree on a wider low and high"
                )
        values[dimension.name] = numbers
    null_N = np.zeros(frame.height, dtype=bool)
    for column in values.values():
        null_N |= column.is_null().to_numpy()
    names = ", ".join(columns[d.name] for d in terms.dimensions)
    if null_N.all():
        raise IdError(f"key ({names}): all {frame.height} rows are null or empty; check the columns and the normalise steps")
    if null_N.any() and nulls == "error":
        raise IdError(
            f"key ({names}): null or empty in {rows_listed(pl.Series(null_N))} rows; the contract's alignment.nulls is error"
        )
    rows_R = np.flatnonzero(~null_N)
    number_columns = [values[d.name].gather(rows_R).to_numpy() for d in terms.numbers]
    texts = tuple(tuple(values[d.name].gather(rows_R).to_list()) for d in terms.texts)
    numbers_RD = np.stack(number_columns, axis=1) if number_columns else np.empty((len(rows_R), 0))
    return SimilarKeys(numbers_RD=numbers_RD.astype(np.float64), texts=texts), rows_R
