"""Hold the ids of a table in one buffer. Only a piece of them at a time becomes Python objects.

Shapes: N ids, M of them.
"""

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.errors import DataError

PIECE = 32_768
"""How many ids are bytes objects at the same time."""


class Ids(Sequence[bytes]):
    """A sequence of ids (N): a Polars column of type Binary, without nulls.

    Args:
        column: the ids.
        distinct: whether the ids are known to be distinct, so that no check is needed.
    """

    def __init__(self, column: pl.Series, *, distinct: bool = False) -> None:
        assert column.dtype == pl.Binary
        self._column, self._distinct = column, distinct

    @classmethod
    def of(cls, ids: Sequence[bytes]) -> "Ids":
        """Wrap these ids. Raises DataError if any of them is not bytes."""
        if isinstance(ids, Ids):
            return ids
        wrong = sum(not isinstance(identifier, bytes) for identifier in ids)
        if wrong:
            raise DataError(f"{wrong} of this side's {len(ids)} ids are not bytes; encode them")
        return cls(pl.Series(ids, dtype=pl.Binary))

    def __len__(self) -> int:
        return len(self._column)

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> "Ids": ...
    def __getitem__(self, index: int | slice) -> "bytes | Ids":
        if isinstance(index, slice):
            return Ids(self._column[index])
        identifier: bytes = self._column[int(index)]  # Polars does not accept NumPy integers
        return identifier

    def __iter__(self) -> Iterator[bytes]:
        for piece in self.pieces():
            yield from piece

    def pieces(self) -> Iterator[list[bytes]]:
        """Yield all ids in order, a piece at a time."""
        for start in range(0, len(self), PIECE):
            yield self._column.slice(start, PIECE).to_list()

    def __repr__(self) -> str:
        return f"Ids({len(self)})"

    def gather(self, rows_M: "NDArray[np.integer[Any]]") -> "Ids":
        """Select these of the ids (M)."""
        return Ids(self._column.gather(rows_M))

    def prefixed(self, prefix: bytes) -> "Ids":
        """Return the same ids, each with this prefix."""
        return Ids(pl.Series([prefix], dtype=pl.Binary) + self._column, distinct=self._distinct)

    @classmethod
    def joined(cls, parts: "Sequence[Ids]", *, distinct: bool = False) -> "Ids":
        """Return the ids of all parts, one part after the other. ``distinct`` says that they are known to be distinct."""
        return cls(pl.concat([part._column for part in parts]), distinct=distinct)

    def sorted(self) -> "tuple[Ids, NDArray[np.int64]]":
        """Return the ids in the order of their bytes, and each one's earlier position."""
        place_N = self._column.arg_sort().to_numpy().astype(np.int64)
        return self.gather(place_N), place_N

    def repeated(self) -> int:
        """Count the ids that already occur earlier in the list."""
        return 0 if self._distinct else len(self) - int(self._column.n_unique())

    def begin_with(self, prefix: bytes) -> bool:
        """Tell whether any id begins with this prefix."""
        return bool(self._column.bin.starts_with(prefix).any())
