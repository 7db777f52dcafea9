"""Warn about a later table: notes of its reader, and columns whose cells the training never saw.

A column in another unit or spelling is read without an error: numbers beyond the training's range are replaced by its end, and
new words share a code. So there is a warning, which only this party sees.
"""

import numpy as np
import polars as pl

from tallystick.tables.categories import MISSING, UNSEEN
from tallystick.tables.columns import numbers_of
from tallystick.tables.delimited import DOUBTFUL
from tallystick.tables.doubtful_text import encoding_warning, plainly
from tallystick.tables.doubtful_times import lacks_late_days, times_warnings
from tallystick.tables.encoder import Encoder, NumericColumn, transformed
from tallystick.tables.lazy_table import Frame, LazyTable, slices_of
from tallystick.tables.stand_ins import stand_in_warning
from tallystick.tables.table import require_column
from tallystick.tables.text import as_text

LOOKED_AT = 10_000  # number of first rows that are checked
FEWEST, MOST = 20, 0.5  # known cells that a judged column needs; share of numbers beyond the training's range
MOST_NEW, MORE_NEW = 0.2, 2.0  # share of cells that are new or rare; times the share of rare ones in the training
MOST_ABSENT = 0.1  # share of missing cells, if none was missing in the training
GROWING = ("date", "moment", "zoned")  # later rows have later times
ROUNDING = 1e-6  # rounding error of a standardised number


def later_doubts(frame: Frame, encoder: Encoder | None) -> list[str]:
    """Warn about a table that a trained model will score, leaving out warnings that the training gave already.

    Raises FeatureError if the table does not fit the encoder.
    """
    told = encoder.notes if encoder is not None else ()
    lines = [note for note in frame.notes if note not in told] if isinstance(frame, LazyTable) else []
    if encoder is None or not frame.height:
        return lines
    first = encoder.fitted(next(slices_of(frame, LOOKED_AT)))
    of_rows = f"the first {first.height:,} rows" if first.height < frame.height else f"{first.height:,} rows"
    for column in encoder.numeric:
        if column.vector:
            continue
        values_N = numbers_of(first, column.name)
        known = values_N[~np.isnan(values_N)]
        if not len(known) and first.height >= FEWEST:
            lines.append(f"column {column.name!r} is missing in all of {of_rows}")
        absent = len(values_N) - len(known)
        if not column.indicator and len(known) and absent > MOST_ABSENT * len(values_N) and len(values_N) >= FEWEST:
            lines.append(
                f"column {column.name!r}: its number is missing in {absent:,} of {of_rows}, but was never missing in training; "
                "missing numbers are replaced by the mean"
            )
        cells = require_column(first, column.name, use="feature")
        broken = int((known % 1 != 0).sum()) if column.whole else 0
        if column.transform == "rank":
            is_beyond = (known < column.knots[0]) | (known > column.knots[-1])
        else:
            scaled = (transformed(known, column.transform, column.knots, column.scores) - column.mean) / column.deviation
            is_beyond = (scaled < column.low - ROUNDING) | (scaled > column.high + ROUNDING)
        beyond = int(is_beyond.sum()) if column.form not in GROWING else 0
        stand_in = stand_in_warning(cells) if is_beyond.any() else None
        times = [line for line in times_doubts(column, cells) if line not in told]
        lines += times
        if times:
            continue
        if broken:
            lines.append(
                f"column {column.name!r}: its numbers were whole in training, and have fractions in {broken:,} of {of_rows}; if "
                "a point or a comma separates thousands, name the decimal sign by table.decimal"
            )
        elif len(known) >= FEWEST and beyond > MOST * len(known):
            lines.append(
                f"column {column.name!r}: in {beyond:,} of {of_rows} its number is outside the training's range, and is replaced "
                "by the end of the range; compare its unit with the training's"
            )
        elif stand_in is not None:
            lines.append(stand_in)
    for categorical in encoder.categorical:
        cells = require_column(first, categorical.name, use="feature")
        codes_N = categorical.encode(cells)
        known_cells = int((codes_N != MISSING).sum())
        unseen = as_text(cells.filter(pl.Series(codes_N == UNSEEN)))
        if alike := _alike(unseen, categorical.categories):
            lines.append(
                f"column {categorical.name!r}: in {alike:,} of {of_rows} a cell differs from a category of the training only in "
                "spaces, case, quotes, leading zeros or the codes of a letter, and counts as new; spell it as in training"
            )
            continue
        if (warning := encoding_warning(unseen)) is not None:
            lines.append(warning)
        marks = unseen.filter(unseen.str.strip_chars().is_in(["", *DOUBTFUL]))
        if len(marks):
            lines.append(
                f"column {categorical.name!r}: in {len(marks):,} of {of_rows} its cell is "
                f"{', '.join(map(repr, marks.unique().sort()))}, which may mean a missing cell but counts as a new or rare word; "
                "if it means a missing cell, make it null"
            )
        if not known_cells and first.height >= FEWEST:
            lines.append(f"column {categorical.name!r} is missing in all of {of_rows}")
        absent = first.height - known_cells
        if not categorical.missing and known_cells and absent > MOST_ABSENT * first.height and first.height >= FEWEST:
            lines.append(
                f"column {categorical.name!r}: its cell is missing in {absent:,} of {of_rows}, but was never missing in training"
            )
        rare, rare_before = int((codes_N == UNSEEN).sum()), categorical.rare_share
        if known_cells >= FEWEST and categorical.categories and rare == known_cells:
            lines.append(f"column {categorical.name!r}: in {of_rows} no cell is a category of the training; compare the spelling")
        elif warning is None and known_cells >= FEWEST and rare > max(MOST_NEW, MORE_NEW * rare_before) * known_cells:
            lines.append(
                f"column {categorical.name!r}: in {rare:,} of {of_rows} its cell is new or rare, and in {rare_before:.0%} of the "
                "training's rows; compare how it is written"
            )
    return lines


def times_doubts(column: NumericColumn, cells: pl.Series) -> list[str]:
    """Warn about times that are in another unit, calendar or order than those of the training, or than others of this column."""
    lines = times_warnings(cells, trained=column.bounds)
    if column.late_days and lacks_late_days(cells):
        lines.append(
            f"column {column.name!r}: no date is beyond the twelfth of a month, and in training some were; look up one of them, "
            "because day and month may be turned round"
        )
    return lines


def _alike(unseen: pl.Series, categories: tuple[str, ...]) -> int:
    """Count the cells that differ from a category only in spelling."""
    plain, known = (plainly(text).str.replace(r"^0+([0-9])", "$1") for text in (unseen, pl.Series(categories, dtype=pl.String)))
    return int(plain.is_in(known.implode()).sum()) if len(plain) else 0
