"""Find numbers and dates that may be times in another unit, calendar or order, and say how to correct them."""

import re
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.tables.stand_ins import STAND_IN_DAYS
from tallystick.tables.text import as_number, beyond_years
from tallystick.tables.times import read_times

DIGIT_DATES = {
    6: ("%Y%m", "%y%m%d", "%d%m%y"),
    7: ("%Y%j",),
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y"),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
"""Dates of digits alone, by the number of their digits."""
YEARS, LAST_YEAR = (1900, 2100), 9999
FEWEST_NUMBERS, FEWEST_MONTHS, FEWEST_YEARS = 20, 3, 3  # different cells from which on a column may hold such dates
LOOKED_AT, SAMPLED = 100_000, 1000  # greatest number of distinct cells that are checked; first cells that must fit
SINCE_1990 = (631_152_000, 2_114_380_800)
"""Seconds since 1970 at the begins of 1990 and 2037."""
UNITS = {"seconds": 1, "milliseconds": 10**3, "microseconds": 10**6, "nanoseconds": 10**9}
"""What multiplies seconds in finer units."""
MOST_OTHERS = 0.05  # share of other numbers beside times in several units
HISTORIC = "Islamic or Iranian"
ERAS = {"Buddhist (543 years more)": (2443, 2643), "Hebrew (3,760 years more)": (5650, 5810), HISTORIC: (1279, 1450)}
"""First and last years that other calendars write for times since 1900."""
ALL_ERAS = (1279, 5810)
NO_HISTORY = (1451, 1850)  # a column with such years has old dates, too
LAST_DAY_OF_BOTH = 12  # later days of a month are no month
FEWEST_TURNED, FEWEST_DAYS = (4, 10), 20  # months without later days and their dates; different dates of a later table


def digits_warning(column: pl.Series) -> str | None:
    """Warn if all numbers of a column, or all cells that consist of digits, look like dates such as 20240131 or like months such
    as 3.2019, and say how to read them as dates.
    """
    kind = column.dtype
    if not (kind.is_numeric() or kind == pl.String) or (len(column) > SAMPLED and not _formats(column.head(SAMPLED), least=1)):
        return None
    formats = _formats(column.drop_nulls().unique().head(LOOKED_AT))
    if not formats:
        return None
    cells_are, taken_as, listed = ("numbers", "number", "numeric") if kind.is_numeric() else ("cells", "category", "categorical")
    lines = [f'`dates: {{{column.name}: "{words}"}}`' for words in formats]
    look_like = "months such as 3.2019" if "." in formats[0] else "dates without separators, such as 20240131"
    return (
        f"column {column.name!r}: all its {cells_are} look like {look_like}, but each becomes a "
        f"{taken_as}; to read them as dates, name their format by {' or by '.join(lines)} in the party file"
        f"{' (all cells fit each)' if len(lines) > 1 else ''}; if they are not dates, list the column under features.{listed}"
    )


def _formats(column: pl.Series, *, least: int = FEWEST_NUMBERS) -> list[str]:
    """List the formats of dates without separators, or of months as fractions, that fit all cells."""
    cells = column.drop_nulls().unique()
    if cells.dtype.is_float() or isinstance(cells.dtype, pl.Decimal):
        cells = cells.cast(pl.Float64)
        if not (cells.is_finite() & (cells.abs() < 1e15)).all():
            return []
        if not (cells == cells.round()).all():
            return _month_formats(cells) if len(cells) >= min(FEWEST_MONTHS, least) else []
        cells = cells.cast(pl.Int64)
    text = cells.cast(pl.String).str.strip_chars()
    digits = set(text.str.len_chars().to_list())
    if len(text) < (min(2, least) if min(digits, default=0) >= 8 else least):
        return []
    if len(digits) != 1 or not text.str.contains("^[0-9]+$").all():
        return []
    formats = []
    for words in DIGIT_DATES.get(digits.pop(), ()):
        times = read_times(text, words)
        usual = times.dt.year().is_between(*YEARS) | (times.dt.year() == LAST_YEAR)
        if not times.null_count() and usual.all() and (times.dt.year() != LAST_YEAR).any():
            formats.append(words)
    return formats


def _month_formats(cells: pl.Series) -> list[str]:
    """Read 3.2019 as March 2019, or 2019.03, in which a number has lost zeros at its end."""
    numbers_N = cells.to_numpy()
    whole_N = np.floor(numbers_N)
    for words, whole, places, parts in (("%m.%Y", (1, 12), 10_000, YEARS), ("%Y.%m", YEARS, 100, (1, 12))):
        part_N = np.round((numbers_N - whole_N) * places)
        is_exact = np.abs(whole_N + part_N / places - numbers_N) < 1e-9
        is_such = (whole[0] <= whole_N) & (whole_N <= whole[1]) & (parts[0] <= part_N) & (part_N <= parts[1])
        if (is_exact & is_such).all():
            return [words]
    return []


def times_warnings(column: pl.Series, *, trained: Sequence[float] = ()) -> list[str]:
    """Warn about times in several units, in years of another calendar, and with day and month turned round in some rows.

    Args:
        column: numbers, dates or time stamps.
        trained: least and greatest number that a training had of this column, dates as days and times as seconds.
    """
    kind = column.dtype
    if not (kind.is_numeric() or isinstance(kind, pl.Date | pl.Datetime)):
        return []
    known = column.drop_nulls()
    known = known.filter(known.is_finite() if kind.is_float() else ~beyond_years(known)) if len(known) else known
    warnings = []
    if len(units := _units(known, trained)) > 1:
        examples = " beside ".join(f"{1_700_000_000 * UNITS[unit]} ({unit})" for unit in units)
        warnings.append(
            f"column {column.name!r}: its times since 1970 are in several units, such as {examples}"
            f"{', counting those of the training' if trained else ''}; write all in one unit"
        )
    days = known.cast(pl.Date).unique() if kind.is_temporal() else known.clear()
    if kind.is_temporal():
        years = days.filter(~days.is_in(list(STAND_IN_DAYS))).dt.year().unique()
    else:
        least, most = (int(known.min()), int(known.max())) if kind.is_integer() and len(known) else (0, 0)  # type: ignore[arg-type]
        may_be_years = ALL_ERAS[0] <= least <= most <= ALL_ERAS[1]
        years = known.unique().cast(pl.Int64) if may_be_years else pl.Series(dtype=pl.Int64)
    if (year := foreign_year(years, is_date=kind.is_temporal())) is not None:
        warnings.append(
            f"column {column.name!r}: years such as {year[0]} look like those of another calendar, {year[1]}: convert them to "
            "the Gregorian calendar, or if they mean missing cells, make them null"
        )
    if _are_turned(days):
        warnings.append(
            f"column {column.name!r}: day and month look turned round in some rows: whole months are there, and of other months "
            "only days that are numbers of these; read the dates again in one format from their source"
        )
    return warnings


def _units(known: pl.Series, trained: Sequence[float]) -> list[str]:
    """List the units in which these numbers and those of the training may be times since 1990; none if many are no times."""
    first, last = SINCE_1990
    if not known.dtype.is_temporal() and not (known.head(SAMPLED).cast(pl.Float64) >= first).any():
        return []
    in_a_day = 86_400 if known.dtype == pl.Date else 1
    bounds = pl.Series(known.name, trained, dtype=pl.Float64) * in_a_day
    times = pl.concat([as_number(known).cast(pl.Float64) * in_a_day, bounds])
    if known.dtype.is_temporal():
        # Seconds that were taken for milliseconds or less are in the first days of 1970
        is_early = times.is_between(0, last / UNITS["milliseconds"], closed="right")
        is_late = times.is_between(first, last)
        is_both = is_early.any() and is_late.any() and (is_early | is_late | (times == 0)).all()
        return ["seconds", "milliseconds"] if is_both else []
    if len(bounds) and not any(bounds.is_between(first * unit, last * unit).all() for unit in UNITS.values()):
        return []
    counts = {name: int(times.is_between(first * unit, last * unit).sum()) for name, unit in UNITS.items()}
    return [name for name, count in counts.items() if count] if sum(counts.values()) >= (1 - MOST_OTHERS) * len(times) else []


def foreign_year(years: pl.Series, *, is_date: bool = True) -> tuple[int, str] | None:
    """Return a year of another calendar and the calendar's name, if some of these different years are of another calendar.

    Numbers that are no dates are years only if all are either of this calendar or usual, and some of each.
    """
    usual = years.is_between(*YEARS)
    for name, bounds in ERAS.items():
        is_such = years.is_between(*bounds)
        if not is_such.any() or (name == HISTORIC and years.is_between(*NO_HISTORY).any()):
            continue
        if is_date or ((is_such | usual).all() and min(is_such.sum(), usual.sum()) >= FEWEST_YEARS):
            return int(years.filter(is_such).max()), name  # type: ignore[arg-type]
    return None


def _are_turned(days: pl.Series) -> bool:
    """Tell whether different dates look as if day and month had been turned round wherever the day may be a month.

    Then the months of the table are whole, and all others have only days that are the numbers of whole months.
    """
    if not len(days):
        return False
    day, month = days.dt.day(), days.dt.strftime("%Y-%m")
    whole = month.filter(day > LAST_DAY_OF_BOTH).unique()
    is_other = ~month.is_in(whole.implode())
    others = days.filter(is_other)
    months, dates = FEWEST_TURNED
    if len(others) < dates or month.filter(is_other).n_unique() < months or others.dt.day().n_unique() < 2:
        return False
    turned = others.dt.strftime("%Y-%d")
    return bool(turned.is_in(whole.implode()).all())


def either_way(column: pl.Series, words: str) -> str | None:
    """Say that dates that were read in this format fit another one too, because no day of them is beyond the twelfth."""
    if not isinstance(column.dtype, pl.Date | pl.Datetime) or not (re.search("%-?d", words) and re.search("%-?m", words)):
        return None
    day, month = column.dt.day(), column.dt.month()
    if not (day <= LAST_DAY_OF_BOTH).all() or not (day != month).any():
        return None
    turned = re.sub("%(-?)([dm])", lambda part: f"%{part[1]}{'m' if part[2] == 'd' else 'd'}", words)
    return (
        f"dates.{column.name} = {words!r}: all cells fit {turned!r}, too, and then day and month are turned round; look up one "
        "of these dates at its source"
    )


def has_late_days(values_N: NDArray[np.float64], *, in_days: bool) -> bool:
    """Tell whether some date, in days or seconds since 1970, is of a day beyond the twelfth of its month."""
    days_N = np.floor(values_N if in_days else values_N / 86_400).astype("datetime64[D]")
    return bool((days_N - days_N.astype("datetime64[M]") >= LAST_DAY_OF_BOTH).any())


def lacks_late_days(column: pl.Series) -> bool:
    """Tell whether a column has many dates and none beyond the twelfth day of a month."""
    days = column.drop_nulls().cast(pl.Date).unique()
    return len(days) >= FEWEST_DAYS and bool((days.dt.day() <= LAST_DAY_OF_BOTH).all())
