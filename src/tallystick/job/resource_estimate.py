"""Predict the memory and disk that a party's run needs, from its rows and columns, to refuse it before hours are spent."""

from dataclasses import dataclass

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DataError, StorageError
from tallystick.machine import free_memory, memory_of_process, size_in_words, temporary_folder
from tallystick.tables.encoder import Encoder, feature_columns
from tallystick.tables.features import NUMBER_BYTES
from tallystick.tables.lazy_table import Frame
from tallystick.tables.records import IN_MEMORY_BYTES, fits_memory

LIBRARIES = 600 * 2**20
"""Bytes of a process without rows: libraries, a network, a few batches."""
ROW_BYTES, UNION_ROW_BYTES = 160, 230
"""Bytes of memory for a row, in an intersection and in a union. Ids and their alignment take the most, and training takes less
(``bench alignment``, ``bench memory``, ``bench table``).
"""
WORTH_SAYING = 1_000_000
"""Rows from which a run says how much it will need."""


@dataclass(frozen=True, kw_only=True)
class Room:
    """Memory and disk of a run on this many rows.

    Args:
        rows: number of rows in the run.
        memory: bytes.
        disk: bytes of its encoded rows in a temporary file; 0 if they stay in memory.
    """

    rows: int
    memory: int
    disk: int

    @classmethod
    def of(cls, rows: int, *, row_bytes: int, union: bool = False) -> "Room":
        """Estimate from the bytes of an encoded row, and whether rows are linked in a union."""
        disk = 0 if fits_memory(rows, row_bytes) else rows * row_bytes
        held_bytes = IN_MEMORY_BYTES if disk else rows * row_bytes
        linked = (UNION_ROW_BYTES if union else ROW_BYTES) * rows
        return cls(rows=rows, memory=LIBRARIES + linked + held_bytes, disk=disk)

    def require(self) -> None:
        """Raise DataError if this machine has less free memory, and StorageError if it has less free disk."""
        folder, room, is_memory = temporary_folder()
        free_bytes = _memory_of_run()
        memory = self.memory + self.disk * is_memory
        if free_bytes is not None and memory > free_bytes:
            where = f" ({folder} lies in memory: set TMPDIR to a folder on a disk)" if self.disk and is_memory else ""
            raise DataError(
                f"table: its {self.rows:,} rows take some {size_in_words(memory)} of memory in a run, and "
                f"{size_in_words(free_bytes)} "
                f"are free{where}; use a machine with more, or bring fewer rows"
            )
        if self.disk > room:
            raise StorageError(
                f"{folder}: {self.rows:,} encoded rows take {size_in_words(self.disk)} there in a run, and "
                f"{size_in_words(room)} are free; make room, or name a folder with more by setting TMPDIR"
            )

    def describe(self) -> str:
        """Describe the prediction, and what is free."""
        folder, room, is_memory = temporary_folder()
        free_bytes = _memory_of_run()
        of = f" (free: {size_in_words(free_bytes)})" if free_bytes is not None else ""
        lines = f"{self.rows:,} rows take some {size_in_words(self.memory)} of memory in a run{of}"
        if not self.disk:
            return f"{lines}; once encoded they stay in memory"
        where = f"{folder}, which lies in memory itself" if is_memory else str(folder)
        return f"{lines}, and encoded {size_in_words(self.disk)} in a file under {where} (free: {size_in_words(room)})"


def least_room(contract: Contract, party: PartyFile, frame: Frame) -> Room:
    """Return the least that a run can need, before its columns are read: a byte for each category."""
    columns = feature_columns(frame, party)
    items = sum(each.length for each in party.sequences.values())
    least = NUMBER_BYTES * len(columns.numeric) + len(columns.categorical) + items
    return Room.of(frame.height, row_bytes=least, union=contract.linkage.imputes)


def room_of(contract: Contract, encoder: Encoder, *, rows: int) -> Room:
    """Return what a run needs, according to the encoder."""
    return Room.of(rows, row_bytes=encoder.packing.row_bytes, union=contract.linkage.imputes)


def _memory_of_run() -> int | None:
    """Return the free memory plus what this process uses already."""
    free_bytes = free_memory()
    return free_bytes + memory_of_process() if free_bytes is not None else None
