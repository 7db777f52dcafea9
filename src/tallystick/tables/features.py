"""Hold a party's encoded columns, ready for a bottom model.

Shapes: N rows, B rows of a batch, F numeric columns, G categorical columns, R bytes of a packed row.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.tables.records import RowFile

Numbers = Literal["plain", "piecewise-linear", "periodic"]
"""The way in which a bottom model reads numeric columns: unchanged, or with an embedding of each in addition."""

NUMBER_BYTES = 4
CODE_TYPES = (torch.uint8, torch.int16, torch.int32)  # a column gets the smallest type that holds its codes


@dataclass(frozen=True, kw_only=True)
class SequenceShape:
    """Shape of a sequence, for a model: columns of codes that share one embedding table.

    Args:
        codes: number of codes; 0 pads.
        length: L, the greatest number of items of a row.
        has_target: whether the code of the target item comes before them.
        built_for: number of codes when the network was built; 0 if it is unchanged.
    """

    codes: int
    length: int
    has_target: bool
    built_for: int = 0

    @property
    def columns(self) -> int:
        """Return the number of columns of codes."""
        return self.length + self.has_target


@dataclass(frozen=True, kw_only=True)
class FeatureShape:
    """Shape of a party's encoded columns, for a model: how many are numeric, and how many codes each categorical one has.

    Args:
        numeric: F.
        cardinalities: codes of each categorical column.
        numbers: how the built-in bottom embeds the numeric columns.
        edges: of each numeric column the edges of its bins, ascending, in the units of the encoded numbers; none for one that
            stays a plain number. For ``periodic`` only whether there are any counts.
        sequences: whose codes stand after those of the categorical columns, one sequence after the other.
        built_for: codes of each categorical column when the network was built, which decide the width of its embedding if later
            trainings added more; empty if unchanged.
        screened: whether useless columns, except sequences, may be closed (``training/screening.py``).
        rows: number of training rows; 0 if unknown.
    """

    numeric: int
    cardinalities: tuple[int, ...]
    numbers: Numbers = "plain"
    edges: tuple[tuple[float, ...], ...] = ()
    sequences: tuple[SequenceShape, ...] = ()
    built_for: tuple[int, ...] = ()
    screened: bool = False
    rows: int = 0

    @property
    def codes(self) -> tuple[int, ...]:
        """Return the number of codes of each column of codes, including those of sequences."""
        return self.cardinalities + tuple(each.codes for each in self.sequences for _ in range(each.columns))

    @property
    def tables(self) -> tuple[int, ...]:
        """Return the number of codes of each embedding table: one table per categorical column, then one per sequence."""
        return self.cardinalities + tuple(each.codes for each in self.sequences)

    @property
    def tables_built_for(self) -> tuple[int, ...]:
        """Return the number of codes of each embedding table when the network was built, which decides the table's width."""
        return (self.built_for or self.cardinalities) + tuple(each.built_for or each.codes for each in self.sequences)


@dataclass(frozen=True, kw_only=True)
class Features:
    """Encoded rows as a model takes them: standardised numbers and category codes, and which rows they are.

    A model reads only the columns. ``who_N`` is for noise that belongs to a row: it identifies a row, at any place, among rows
    with equal columns.
    """

    numeric_NF: Tensor  # float32
    categorical_NG: Tensor  # int64, column g in [0, codes[g]) of the FeatureShape: sequences come last
    who_N: Tensor | None = None  # int64; None if no batch was picked: then its place identifies a row

    def __len__(self) -> int:
        return self.numeric_NF.shape[0]

    def rows(self, index_B: Tensor) -> "Features":
        """Pick rows, in the order of the index."""
        return Features(
            numeric_NF=self.numeric_NF.index_select(0, index_B),
            categorical_NG=self.categorical_NG.index_select(0, index_B),
            who_N=index_B if self.who_N is None else self.who_N.index_select(0, index_B),
        )

    @classmethod
    def stacked(cls, parts: "Sequence[Features]") -> "Features":
        """Stack the rows of all parts. Either all parts have ``who_N`` or none."""
        if len(parts) == 1:
            return parts[0]
        whose = [part.who_N for part in parts if part.who_N is not None]
        return cls(
            numeric_NF=torch.cat([part.numeric_NF for part in parts]),
            categorical_NG=torch.cat([part.categorical_NG for part in parts]),
            who_N=torch.cat(whose) if len(whose) == len(parts) else None,
        )

    def crossing(self, cuts_ND: Sequence[Tensor], index_B: Tensor) -> list[Tensor]:
        """Select the feature parties' cut embeddings of the picked rows from those of all these rows."""
        return [cut_ND.index_select(0, index_B) for cut_ND in cuts_ND]

    def to(self, device: torch.device) -> "Features":
        """Move to a device."""
        who_N = None if self.who_N is None else self.who_N.to(device)
        return Features(numeric_NF=self.numeric_NF.to(device), categorical_NG=self.categorical_NG.to(device), who_N=who_N)


class FeatureRows(Protocol):
    """Encoded rows that batches are taken from, packed or not."""

    def __len__(self) -> int: ...

    def rows(self, index_B: Tensor) -> Features:
        """Pick rows, in the order of the index."""
        ...


class Packing:
    """Places of the columns in a packed row: four bytes for a number, one for an indicator, as few as possible for a code.

    Args:
        numbers: number of columns of numbers.
        indicators: number of columns of 0 and 1, which are numeric, too, and follow the others.
        cardinalities: number of codes of each categorical column.
    """

    def __init__(self, *, numbers: int, indicators: int, cardinalities: tuple[int, ...]) -> None:
        self.numbers, self.indicators = numbers, indicators
        kinds = [next(kind for kind in CODE_TYPES if size <= torch.iinfo(kind).max + 1) for size in cardinalities]
        self.places = {kind: [place for place, its in enumerate(kinds) if its == kind] for kind in CODE_TYPES}
        self.starts: list[int] = [0] * len(kinds)
        end = self._codes_start = NUMBER_BYTES * numbers + indicators
        for kind, places in self.places.items():
            for place in places:
                self.starts[place] = end
                end += kind.itemsize
        self.kinds, self.row_bytes = kinds, end

    def write_number(self, records_NR: NDArray[np.uint8], column: int, values_N: NDArray[np.float64]) -> None:
        """Put a column of numbers in its place, rounded to float32."""
        start = NUMBER_BYTES * column
        records_NR[:, start : start + NUMBER_BYTES] = _bytes_of(values_N.astype(np.float32))

    def write_indicator(self, records_NR: NDArray[np.uint8], column: int, is_N: NDArray[np.bool_]) -> None:
        """Put a column of indicators in its place."""
        records_NR[:, NUMBER_BYTES * self.numbers + column] = is_N

    def write_codes(self, records_NR: NDArray[np.uint8], column: int, codes_N: NDArray[np.int64]) -> None:
        """Put a column of codes in its place."""
        kind = self.kinds[column]
        start, of_numpy = self.starts[column], str(kind).removeprefix("torch.")
        records_NR[:, start : start + kind.itemsize] = _bytes_of(codes_N.astype(of_numpy))

    def unpack(self, records_BR: Tensor) -> Features:
        """Unpack rows into what a model takes."""
        end = NUMBER_BYTES * self.numbers
        numeric_BF = _viewed(records_BR, 0, end, torch.float32)
        if self.indicators:
            indicators_BI = records_BR[:, end : end + self.indicators].to(torch.float32)
            numeric_BF = torch.cat((numeric_BF, indicators_BI), dim=1)
        codes_BG = torch.empty(len(records_BR), len(self.kinds), dtype=torch.int64, device=records_BR.device)
        start = self._codes_start
        for kind, places in self.places.items():
            if places:
                end = start + kind.itemsize * len(places)
                codes_BG[:, places] = _viewed(records_BR, start, end, kind).to(torch.int64)
                start = end
        return Features(numeric_NF=numeric_BF, categorical_NG=codes_BG)


@dataclass(frozen=True, kw_only=True)
class PackedFeatures:
    """Encoded rows in the form that a party keeps: a third to a half of the bytes of a model's input.

    Args:
        records_MR: the packed rows (M, R), bytes, in memory or in a memory-mapped file.
        packing: places of the columns in a packed row.
        place_M: place of each of the M rows among the records, which may have another order and number; by default its own.
        rows_N: the M rows that these N rows are, in this order; by default all of them.
        who_M: a number that identifies each packed row, in other tables, too; by default its place.
        file: the file of the records, if they are in one.
    """

    records_MR: Tensor
    packing: Packing
    rows_N: Tensor | None = None
    who_M: Tensor | None = None
    place_M: Tensor | None = None
    file: RowFile | None = None

    def __len__(self) -> int:
        return len(next(each for each in (self.rows_N, self.place_M, self.records_MR) if each is not None))

    def rows(self, index_B: Tensor) -> Features:
        """Pick rows, in the order of the index, unpacked."""
        row_B, place_B = self._places(index_B)
        who_B = row_B if self.who_M is None else self.who_M.index_select(0, row_B)
        if self.file is not None:
            self.file.require(place_B.numpy())
        return replace(self.packing.unpack(self.records_MR.index_select(0, place_B)), who_N=who_B)

    def records_of(self, index_B: Tensor) -> Tensor:
        """Pick rows, in the order of the index, as they are packed."""
        return self.records_MR.index_select(0, self._places(index_B)[1])

    def announce(self, index_B: Tensor) -> None:
        """Announce rows that will be picked soon, so that they are read from a file in the background."""
        if self.file is not None:
            self.file.announce(self._places(index_B)[1].numpy())

    def _places(self, index_B: Tensor) -> tuple[Tensor, Tensor]:
        """Split positions into the rows' numbers among the M and their places among the records."""
        row_B = index_B if self.rows_N is None else self.rows_N.index_select(0, index_B)
        return row_B, row_B if self.place_M is None else self.place_M.index_select(0, row_B)

    def picked(self, index_N: Tensor) -> "PackedFeatures":
        """Select rows without unpacking or copying them."""
        return replace(self, rows_N=index_N if self.rows_N is None else self.rows_N.index_select(0, index_N))

    def unpacked(self) -> Features:
        """Unpack all rows at once."""
        return self.rows(torch.arange(len(self), device=self.records_MR.device))

    def to(self, device: torch.device) -> "PackedFeatures":
        """Move to a device."""
        rows_N, who_M, place_M = (each if each is None else each.to(device) for each in (self.rows_N, self.who_M, self.place_M))
        file = self.file if device.type == "cpu" else None
        return replace(self, records_MR=self.records_MR.to(device), rows_N=rows_N, who_M=who_M, place_M=place_M, file=file)


def _bytes_of(values_N: NDArray[np.generic]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(values_N).view(np.uint8).reshape(len(values_N), values_N.itemsize)


def _viewed(records_BR: Tensor, start: int, end: int, kind: torch.dtype) -> Tensor:
    part_B = records_BR[:, start:end]
    # Copy, because a part of the records may not have the alignment that its type needs.
    return part_B.clone(memory_format=torch.contiguous_format).view(kind) if end > start else part_B.to(kind)
