"""Encode sequences. A column whose cells list items becomes columns of codes, padded and cut to one length.

Shapes: N rows, L codes of a sequence.
"""

from collections.abc import Iterator, Mapping

import msgspec
import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.party import EncodingConfig, SequenceConfig
from tallystick.errors import FeatureError
from tallystick.tables.categories import FIRST_CATEGORY, cells_at_a_time, codes_of, count_values, kept_categories
from tallystick.tables.features import SequenceShape
from tallystick.tables.lazy_table import Frame
from tallystick.tables.table import require_column

_TEXT = (pl.String, pl.Categorical, pl.Enum)


class SequenceColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One column of lists. Code 0 pads, 1 is every unseen or rare item, 2 + k the k-th most frequent item of the training rows.

    If a column names a target item, it shares these codes, and its code comes first.
    """

    name: str
    items: tuple[str, ...]
    length: int
    separator: str | None = None
    target: str | None = None
    built_for: int | None = None  # number of items when the network was built, if later trainings added more

    @property
    def shape(self) -> SequenceShape:
        """Return the shape of encoded rows."""
        built_for = FIRST_CATEGORY + self.built_for if self.built_for is not None else 0
        codes, has_target = FIRST_CATEGORY + len(self.items), self.target is not None
        return SequenceShape(codes=codes, length=self.length, has_target=has_target, built_for=built_for)

    def encode(self, frame: Frame) -> Iterator[tuple[slice, NDArray[np.int64]]]:
        """Yield the codes (N, columns of the shape), some rows at a time. Raises DataError if the column does not hold lists."""
        column = require_column(frame, self.name, use="sequence")
        target = _target(frame, self.target, self.separator) if self.target is not None else None
        start = 0
        for part in cells_at_a_time(column):
            rows = slice(start, start + len(part))
            items, count_N = _listed(part, self.separator, self.length)
            codes_NL = np.zeros((len(part), self.length), dtype=np.int64)
            place = np.arange(len(items)) - np.repeat(np.cumsum(count_N) - count_N, count_N)
            codes_NL[np.repeat(np.arange(len(part)), count_N), place] = codes_of(items, self.items)
            if target is not None:
                codes_NL = np.column_stack([codes_of(target[rows], self.items), codes_NL])
            yield rows, codes_NL
            start = rows.stop


def fit_sequence(
    frame: Frame, name: str, config: SequenceConfig, rows: NDArray[np.int64], encoding: EncodingConfig
) -> tuple[SequenceColumn | None, str]:
    """Fit on the items of the training rows ``rows``. Return a note on what was cut and left out, and None if no item is left.

    Raises FeatureError for cells that are not lists of plain values, or for a separator that is missing or not needed.
    """
    training, separator = require_column(frame, name, use="sequence").gather(rows), config.separator
    parts, longer, empty = [], 0, 0
    for part in cells_at_a_time(training):
        _, whole_N = _listed(part, separator, None)
        longer, empty = longer + int((whole_N > config.length).sum()), empty + int((whole_N == 0).sum())
        parts.append(count_values([_listed(part, separator, config.length)[0]]))
    if empty == len(rows):
        return None, f"sequence {name!r} is empty on all training rows and was left out"
    if config.target is not None:
        parts.append(count_values([_target(frame, config.target, separator).gather(rows)]))
    counts = pl.concat(parts).group_by("text").agg(pl.col("len").sum())
    items, least = kept_categories(counts, encoding, cells=int(counts.get_column("len").sum()))
    if not items:
        return None, f"sequence {name!r} was left out: no item occurs {least} times in the training rows"
    note = (
        f"sequence {name!r}: the last {config.length} items of a row count; of {len(rows):,} training rows {longer:,} have more "
        f"and {empty:,} none; {len(items):,} items have a code of their own, and all others share one"
    )
    return SequenceColumn(name=name, items=items, length=config.length, separator=separator, target=config.target), note


def check_separators(frame: Frame, sequences: Mapping[str, SequenceConfig]) -> None:
    """Raise FeatureError for a separator that occurs in no cell of the whole table. Single rows may lack it."""
    for name, config in sequences.items():
        column = require_column(frame, name, use="sequence")
        if config.separator is None or column.dtype not in _TEXT:
            continue
        if not column.cast(pl.String).str.contains(config.separator, literal=True).any():
            raise FeatureError(
                f"sequences.{name}.separator = {config.separator!r}: is in none of {len(column)} cells; give the separator "
                "between the items, or use the column as a category"
            )


def _target(frame: Frame, name: str, separator: str | None) -> pl.Series:
    """Return the column of target items, without surrounding blanks, as splitting at a separator would give them."""
    column = require_column(frame, name, use="target")
    if separator is None or column.dtype not in _TEXT:
        return column
    return column.cast(pl.String).str.strip_chars().replace("", None)


def _listed(column: pl.Series, separator: str | None, length: int | None) -> tuple[pl.Series, NDArray[np.int64]]:
    """Return the last ``length`` items of each cell, one after the other, and each cell's number of items, 0 if it is missing."""
    lists = _lists(column, separator).list.drop_nulls()
    last_items = lists if length is None else lists.list.tail(length)
    # A cell without items leaves one null behind.
    items = last_items.explode().drop_nulls().rename(column.name)
    return items, last_items.list.len().fill_null(0).cast(pl.Int64).to_numpy()


def _lists(column: pl.Series, separator: str | None) -> pl.Series:
    kind, where = column.dtype, f"sequences.{column.name}"
    if isinstance(kind, pl.Array):
        column = column.arr.to_list()
        kind = column.dtype
    if isinstance(kind, pl.List):
        if kind.inner.is_nested():
            raise FeatureError(f"{where}: its cells have type {kind}; expected lists of plain values, so flatten them")
        if separator is not None:
            raise FeatureError(
                f"{where}.separator = {separator!r}: the column holds lists, which need no separator; leave it out"
            )
        if kind.inner.is_float():  # otherwise items without a spelling, such as NaN, would shift the others
            return column.list.eval(pl.when(pl.element().is_finite()).then(pl.element()))
        return column
    if kind in _TEXT:
        if separator is None:
            raise FeatureError(f"{where}: the column holds text; give the separator between its items, or give lists")
        parted = column.cast(pl.String).str.split(separator)
        return parted.list.eval(pl.element().str.strip_chars().replace("", None))
    if kind == pl.Null:
        return column.cast(pl.List(pl.String))
    raise FeatureError(f"{where}: the column has type {kind}; expected lists, or text with a separator between items")
