"""Recognise words, numbers and dates that mean a missing cell, such as -999, ? and 9999-12-31.

The party file names them as the table's file writes them. Every reader compares cells with them by the column's own type.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from datetime import date, datetime, time
from decimal import Decimal, localcontext
from typing import Any, Literal

import numpy as np
import polars as pl

from tallystick.tables.column_formats import MOST_DIGITS
from tallystick.tables.text import Spelt, as_number, beyond_years
from tallystick.tables.times import FINER, iso_moments

STAND_INS = frozenset(
    [
        *(sign * (10**digits - 1) for digits in range(1, 19) for sign in (1, -1)),
        *(bound for bits in (16, 32, 64) for bound in (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 2**bits - 1)),
    ]
)
"""Numbers that mean a missing cell in many tables, such as -999, if no other number is near."""
STAND_IN_DAYS = frozenset(
    date.fromisoformat(day)
    for day in (
        *("0001-01-01", "1753-01-01", "1800-01-01", "1899-12-30", "1899-12-31", "1900-01-01", "1970-01-01"),
        *("2099-12-31", "2999-12-31", "9999-01-01", "9999-12-31"),
    )
)
"""Dates that mean a missing cell."""
LARGEST_FLOAT = float(np.finfo(np.float32).max)  # in map data, this and its spelling in seven digits mean a missing cell
FEWEST_NUMBERS, FEWEST_ROWS, FAR = 20, 3, 2.0  # other numbers; rows of the same one; times the others' whole range
_NANOSECONDS = {"d": 86_400 * 10**9, "ms": 10**6, "us": 10**3, "ns": 1}


def marks_missing(
    cells: Spelt, kind: pl.DataType, words: Sequence[str], *, decimal: Literal[",", "."] | None = None
) -> Spelt | None:
    """Mark the cells that are one of the words for a missing cell, or return None if no word fits the column's type.

    Cells are compared by their own type: whole numbers as whole numbers, because beyond 2^53 floating point cannot distinguish
    neighbours. ``decimal`` is the decimal sign of the words.
    """
    values = [value for word in words if (value := _value_named(word.strip(), kind, decimal)) is not None]
    held = pl.concat(values).drop_nulls() if values else pl.Series(dtype=kind)
    if not len(held):
        return None
    compared = cells.cast(pl.String).str.strip_chars() if held.dtype == pl.String else cells
    return compared.is_in(held.implode())


def _value_named(word: str, kind: pl.DataType, decimal: Literal[",", "."] | None) -> pl.Series | None:
    """Convert a word to a cell of this type, or return None if it is not of this type."""
    with suppress(ValueError, ArithmeticError, pl.exceptions.PolarsError):
        if kind.is_numeric():
            plain = word.replace(".", "").replace(",", ".") if decimal == "," else word
            if kind.is_float():
                return pl.Series([float(plain)]).cast(kind)
            number, scale = Decimal(plain), (kind.scale or 0) if isinstance(kind, pl.Decimal) else 0
            with localcontext(prec=2 * MOST_DIGITS):
                is_held = number.is_finite() and number.adjusted() < MOST_DIGITS and number == round(number, scale)
            return pl.Series([f"{number:.{scale}f}"]).cast(kind, strict=False) if is_held else None
        if isinstance(kind, pl.Date | pl.Datetime):
            moments, _ = iso_moments(pl.Series([word]))
            if (microseconds := moments.item()) is None:
                return None
            finer = FINER.search(word)
            nanoseconds = 1000 * microseconds + (int(finer[1].ljust(3, "0")) if finer is not None else 0)
            whole, rest = divmod(nanoseconds, _NANOSECONDS[kind.time_unit if isinstance(kind, pl.Datetime) else "d"])
            if kind == pl.Date:
                return pl.Series([whole], dtype=pl.Int32).cast(kind) if not rest else None
            return pl.Series([whole], dtype=pl.Int64).cast(kind) if -(2**63) <= whole < 2**63 else None
        if kind == pl.Time and ":" in word:
            return pl.Series([time.fromisoformat(word)])
        if kind in (pl.String, pl.Categorical, pl.Enum):
            return pl.Series([word])
    return None


def stand_in_warning(values: pl.Series) -> str | None:
    """Warn about a number or date that may mean a missing cell: it is in several rows, and far from all others."""
    kind, known = values.dtype, values.drop_nulls()
    if kind.is_float():
        known = known.filter(known.is_finite())
    if not (kind.is_numeric() or isinstance(kind, pl.Date | pl.Datetime)) or beyond_years(known).any():
        return None
    extremes: set[Any] = {known.min(), known.max()} if len(known) else set()
    for extreme in extremes:
        is_date = isinstance(extreme, date)
        if is_date:
            is_common = (extreme.date() if isinstance(extreme, datetime) else extreme) in STAND_IN_DAYS
        else:
            is_common = extreme in STAND_INS or math.isclose(abs(float(extreme)), LARGEST_FLOAT, rel_tol=1e-6)
        is_other = known != extreme
        others = known.filter(is_other)
        rows = len(known) - len(others)
        # Of few different numbers, such as grades, many rows must tell that this one is rare
        is_rare = others.n_unique() >= FEWEST_NUMBERS or (others.n_unique() > 1 and len(others) >= max(FEWEST_NUMBERS, rows))
        if not is_common or rows < FEWEST_ROWS or not is_rare:
            continue
        numbers_N = as_number(known).to_numpy()
        others_M, place = numbers_N[is_other.to_numpy()], numbers_N[(~is_other.to_numpy()).argmax()]
        lowest, highest = float(others_M.min()), float(others_M.max())
        if min(abs(place - lowest), abs(place - highest)) > FAR * (highest - lowest):
            shown = str(int(extreme)) if extreme in STAND_INS else str(extreme)
            first, last = (others.min(), others.max()) if is_date else (float(f"{lowest:.6g}"), float(f"{highest:.6g}"))
            return (
                f"column {values.name!r} is {shown} in {rows} rows, and {first!s} to {last!s} in all "
                f"others; if {shown} means a missing cell, make these cells null, or name it as the file has it, "
                f"such as table.missing_in: {{{values.name}: ['{shown}']}}"
            )
    return None
