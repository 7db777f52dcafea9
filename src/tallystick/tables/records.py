"""Keep packed rows in memory or, if there are many, in a memory-mapped file from which only the rows of batches are loaded.

The file is in the same folder as the copy of the table. It has no name, only this process can find it, and it disappears with
the process. It is never in a run folder. Like the copy, it is not encrypted.

Shapes: N rows, R bytes of a packed row.
"""

import mmap
import tempfile
from collections import deque
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tallystick.tables.lazy_table import room_for

IN_MEMORY_BYTES = 2**28  # more bytes of packed rows than this go to a file
PIECE_BYTES = 2**26  # bytes of packed rows that are made at a time
ANNOUNCED = 16  # greatest number of batches that are read ahead
LEAST_ROWS = 2**15  # least number of rows of a piece; for smaller pieces, much of a file's column would be read again


def fits_memory(rows: int, row_bytes: int) -> bool:
    """Tell whether this many packed rows stay in memory."""
    return rows * row_bytes <= IN_MEMORY_BYTES


def rows_of_a_piece(row_bytes: int) -> int:
    """Return how many rows are packed at a time."""
    return max(LEAST_ROWS, PIECE_BYTES // max(1, row_bytes))


class RowFile:
    """Packed rows in a file without a name. Batches read scattered rows of it.

    By default the system reads ahead as if the whole file were read in order, megabytes for each row. This is turned off.
    Instead, the system is told which rows a batch will need, and reads all their pages together.

    Args:
        pages: the mapped file.
        row_bytes: bytes of a packed row.
    """

    def __init__(self, pages: mmap.mmap, *, row_bytes: int) -> None:
        pages.madvise(mmap.MADV_RANDOM)
        self.records_NR = np.frombuffer(pages, dtype=np.uint8).reshape(-1, row_bytes)
        self._pages, self._row_bytes = pages, row_bytes
        self._announced: deque[NDArray[np.integer]] = deque(maxlen=ANNOUNCED)

    def announce(self, place_B: NDArray[np.integer]) -> None:
        """Let the system read these rows, which will be needed soon."""
        self._read(place_B)
        self._announced.append(place_B)

    def require(self, place_B: NDArray[np.integer]) -> None:
        """Load rows that are needed now, unless they were announced."""
        if not any(np.array_equal(place_B, each) for each in self._announced):
            self._read(place_B)

    def _read(self, place_B: NDArray[np.integer]) -> None:
        first_B = place_B.astype(np.int64) * self._row_bytes
        page_P = np.unique(np.concatenate([first_B, first_B + self._row_bytes - 1]) // mmap.PAGESIZE)
        for page in page_P.tolist():
            self._pages.madvise(mmap.MADV_WILLNEED, page * mmap.PAGESIZE, mmap.PAGESIZE)


def mapped(pieces: Iterable[NDArray[np.uint8]], *, row_bytes: int) -> RowFile:
    """Write pieces of packed rows (N, R) to a file, one after the other, and map it.

    Raises StorageError if the disk is full, and the errors of making a piece.
    """
    with room_for(Path(tempfile.gettempdir())), tempfile.TemporaryFile(prefix="tallystick-") as file:
        for piece_NR in pieces:
            file.write(np.ascontiguousarray(piece_NR).data)
        file.flush()
        return RowFile(mmap.mmap(file.fileno(), 0), row_bytes=row_bytes)
