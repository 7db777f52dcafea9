"""Packed rows in memory or, where they are many, in a file that is mapped into it: then only what batches read of it is there.

The file lies where the copy of the table does. Only this process can find it, it has no name, and it is gone with the process,
however that ends. So an encrypted run folder holds nothing of it. Its content is not encrypted, as that of the copy is not.

Shapes: N rows, R bytes of a packed row.
"""

import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tallystick.data.lazy import room_for

IN_MEMORY_BYTES = 2**28  # of packed rows; more lie in a file
PIECE_BYTES = 2**26  # of packed rows that are made at a time
LEAST_ROWS = 2**15  # of a piece: a column of a file is read in no smaller ones without reading much of it again


def fits_memory(rows: int, row_bytes: int) -> bool:
    """Whether so many packed rows stay in memory."""
    return rows * row_bytes <= IN_MEMORY_BYTES


def rows_of_a_piece(row_bytes: int) -> int:
    """How many rows are packed at a time."""
    return max(LEAST_ROWS, PIECE_BYTES // max(1, row_bytes))


def mapped(pieces: Iterable[NDArray[np.uint8]], *, row_bytes: int) -> NDArray[np.uint8]:
    """Write pieces of packed rows (N, R) to a file, one after the other, and map it.

    Raises StorageError where the disk is full, and whatever making a piece raises.
    """
    rows = 0
    with room_for(Path(tempfile.gettempdir())), tempfile.TemporaryFile(prefix="tallystick-") as file:
        for piece_NR in pieces:
            file.write(np.ascontiguousarray(piece_NR).data)
            rows += len(piece_NR)
        file.flush()
        return np.memmap(file, dtype=np.uint8, mode="r+", shape=(rows, row_bytes))
