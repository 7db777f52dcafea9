"""Read the columns of a party's training rows one at a time, so that only one column of a large table is in memory.

An encoder is fitted on these columns, with the same bits for a table in memory and for one in a file: numbers come in the order
of the training rows, and cells that are only counted need no order.

Shapes: M training rows, S distinct rows of the table, in storage order.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.errors import DataError, FeatureError
from tallystick.tables.lazy_table import CELLS_HELD, Frame, LazyTable, in_order, slices_of
from tallystick.tables.table import require_column
from tallystick.tables.text import as_number

Floats = NDArray[np.float64]


def numbers_of(frame: Frame, name: str) -> Floats:
    """Return a column as float64 with NaN for missing."""
    values_N = as_number(require_column(frame, name, use="feature")).to_numpy()
    if infinite := int(np.isinf(values_N).sum()):
        raise FeatureError(
            f"numeric column {name!r} has {infinite} infinite number{'s' if infinite > 1 else ''}; make them null or clip them"
        )
    return values_N


class TrainingColumns:
    """The columns of some rows of a frame. They are checked on all of its rows.

    Args:
        frame: the table.
        rows: numbers of the training rows in it (M,).
    """

    def __init__(self, frame: Frame, rows: NDArray[np.int64]) -> None:
        self.frame, self.rows = frame, rows
        self._is_large = isinstance(frame, LazyTable) and frame.height > CELLS_HELD
        if self._is_large:
            self._ordered, place = in_order(frame)
            self._place_M = rows if place is None else place[rows]

    def numbers(self, name: str) -> Floats:
        """Read a column as float64 with NaN for missing (M,). Raises DataError for infinite numbers and text."""
        if not self._is_large:
            return numbers_of(self.frame, name)[self.rows]
        values_S, first = np.empty(self._ordered.height), 0
        try:
            for piece in slices_of(self._ordered, CELLS_HELD):
                values_S[first : first + piece.height] = numbers_of(piece, name)
                first += piece.height
        except DataError:
            numbers_of(self.frame, name)  # raises an error that counts the wrong cells of all rows
            raise
        return values_S[self._place_M]

    def cells(self, name: str) -> Iterator[pl.Series]:
        """Yield a column's cells in parts, in any order, each cell as often as its row occurs among the training rows."""
        if not self._is_large:
            yield require_column(self.frame, name, use="feature").gather(self.rows)
            return
        # Count how often each of the S rows occurs among the training rows
        times_S: NDArray[np.integer] = np.zeros(self._ordered.height, dtype=np.uint8)
        times_S[self._place_M] = 1
        if np.count_nonzero(times_S) < len(self._place_M):
            times_S = np.bincount(self._place_M, minlength=len(times_S))
        first = 0
        for piece in slices_of(self._ordered, CELLS_HELD):
            times_P = times_S[first : first + piece.height]
            first += piece.height
            yield require_column(piece, name, use="feature").gather(np.repeat(np.arange(len(times_P)), times_P))
