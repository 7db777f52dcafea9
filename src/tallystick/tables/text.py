"""Write cells as text, with one spelling per value, whatever type the column has in a party's file."""

import sys
import unicodedata
from functools import cache
from typing import TypeVar

import numpy as np
import polars as pl

from tallystick.errors import DataError, FeatureError

FIRST_DAY, LAST_DAY = -719_162, 2_932_896  # 0001-01-01 and 9999-12-31 in days since 1970
Spelt = TypeVar("Spelt", pl.Series, pl.Expr)
WHOLE_NUMBER = r"^([+-]?[0-9]+)\.0+$"
FRACTION = r"^([+-]?[0-9]+\.[0-9]*[1-9])0+$"  # a fraction with zeros at its end, which a number loses


def as_text(column: pl.Series) -> pl.Series:
    """Spell every cell as text. Nulls, NaN and infinities become null.

    1, 1.0, "1", "1.0" and decimal 1.00 all become "1", and "007" stays. Decimal 1.50 becomes "1.5", and text "1.50" stays. A
    float gets the shortest spelling that reads back the same. True becomes "true". Dates are written as in ISO 8601, and a time
    stamp at midnight as its date. Time stamps with a zone are converted to UTC first.
    Raises DataError for a type that has no spelling (list, struct, binary), and for times beyond the years 1 to 9999.
    """
    kind = column.dtype
    refuse_beyond_years(column)
    if kind.is_float():
        finite = column.cast(pl.Float64).set(~column.is_finite().fill_null(False), None)
        # Below 2^63 a whole number is spelt in full; other numbers have the shortest spelling that reads back the same.
        whole = (finite == finite.round()) & (finite.abs() < 9.2e18)
        spelt = finite.set(~whole.fill_null(False), None).cast(pl.Int64).cast(pl.String)
        text = spelt.zip_with(whole.fill_null(False), column.set(~column.is_finite().fill_null(False), None).cast(pl.String))
    elif isinstance(kind, pl.Datetime):
        moved = column.dt.convert_time_zone("UTC") if kind.time_zone else column
        text = moved.dt.strftime("%Y-%m-%dT%H:%M:%S%.f").str.strip_suffix("T00:00:00")
    elif isinstance(kind, pl.Decimal):
        text = column.cast(pl.String).str.replace(r"(\.[0-9]*?)0+$", "$1").str.strip_suffix(".")
    elif kind in (pl.String, pl.Categorical, pl.Enum, pl.Boolean, pl.Date, pl.Time, pl.Null) or kind.is_integer():
        text = column.cast(pl.String)
    else:
        raise DataError(f"column {column.name!r} has type {kind}, which cannot be compared as text; convert it or drop it")
    # Each replacement copies the column, so it is made only if there is something to replace.
    if text.str.contains(".0", literal=True).any():
        text = text.str.replace(WHOLE_NUMBER, "$1")
    if (text == "-0").any():
        text = text.str.replace(r"^-0$", "0")
    return text.alias(column.name)


def as_number(column: pl.Series, *, advice: str = "list it under categorical, or clean it") -> pl.Series:
    """Return a column as float64: dates as days and time stamps as seconds since 1970, durations in seconds; NaN becomes null.

    Raises DataError, naming the column, for text that is not a number, with the count of such cells and ``advice``, and for times
    beyond the years 1 to 9999.
    """
    kind = column.dtype
    if kind in (pl.String, pl.Categorical, pl.Enum):
        numbers = column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
        wrong = numbers.null_count() - column.null_count()
        if wrong:
            raise DataError(f"column {column.name!r}: {wrong} of {len(column)} cells are text that is not a number; {advice}")
    elif isinstance(kind, pl.Datetime | pl.Duration):
        refuse_beyond_years(column)
        fraction = {"ms": 1e3, "us": 1e6, "ns": 1e9}[kind.time_unit]
        numbers = column.to_physical().cast(pl.Float64) / fraction
    elif kind == pl.Time:
        numbers = column.to_physical().cast(pl.Float64) / 1e9
    elif kind.is_numeric() or kind in (pl.Boolean, pl.Date, pl.Null):
        refuse_beyond_years(column)
        numbers = column.to_physical().cast(pl.Float64) if kind == pl.Date else column.cast(pl.Float64)
    else:
        raise DataError(f"column {column.name!r} has type {kind}, which is not a number; convert it or drop it")
    # Replacing with nulls is a separate query, which takes longer than everything else for the single row of a request.
    return (numbers.fill_nan(None) if np.isnan(numbers.to_numpy()).any() else numbers).alias(column.name)


def beyond_years(column: pl.Series) -> pl.Series:
    """Tell which dates or time stamps are outside the years 1 to 9999, like a database's infinity: Python has no such date."""
    kind, in_a_day = column.dtype, 1
    if isinstance(kind, pl.Datetime):
        in_a_day = {"ms": 10**3, "us": 10**6, "ns": 10**9}[kind.time_unit] * 86_400
    elif kind != pl.Date:
        return pl.repeat(False, len(column), eager=True)
    first, last = max(FIRST_DAY * in_a_day, -(2**63)), min((LAST_DAY + 1) * in_a_day - 1, 2**63 - 1)
    return (~column.to_physical().is_between(first, last)).fill_null(False)


def refuse_beyond_years(column: pl.Series) -> None:
    """Raise FeatureError, naming the column, for dates and time stamps beyond the years 1 to 9999."""
    if isinstance(column.dtype, pl.Date | pl.Datetime) and (beyond := beyond_years(column)).any():
        raise FeatureError(
            f"column {column.name!r} has times beyond the years 1 to 9999, such as a database's infinity, in "
            f"{rows_listed(beyond)} rows; make them null or clip them"
        )


def has_foreign_digits(text: pl.Series) -> bool:
    """Tell whether some cell has a decimal digit beyond ASCII."""
    return bool(text.str.contains(r"[\p{Nd}--[0-9]]").any())


def ascii_digits(text: Spelt) -> Spelt:
    """Convert the decimal digits of every script to ASCII."""
    digits = _decimal_digits()
    return text.str.replace_many(list(digits), list(digits.values()))


@cache
def _decimal_digits() -> dict[str, str]:
    """Map each decimal digit beyond ASCII to the ASCII digit."""
    characters = map(chr, range(128, sys.maxunicode + 1))
    return {each: str(unicodedata.decimal(each)) for each in characters if unicodedata.category(each) == "Nd"}


LISTED_ROWS = 5


def rows_listed(rows: pl.Series) -> str:
    """Name the first few rows for which a mask is true, by number (from 0) and never by content."""
    row_numbers = rows.fill_null(False).arg_true()
    numbers = ", ".join(str(row) for row in row_numbers.head(LISTED_ROWS))
    return f"{len(row_numbers)} (row {numbers}{', ...' if len(row_numbers) > LISTED_ROWS else ''}, counted from 0)"
