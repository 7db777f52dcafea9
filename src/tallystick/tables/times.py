"""Read times that order rows: for a split by time, the latest row of a key, and the periods of monitoring."""

import re
from collections.abc import Mapping
from itertools import islice

import polars as pl

from tallystick.errors import DataError
from tallystick.reading import did_you_mean
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.text import as_text, rows_listed

ISO = (
    r"^\s*(?P<day>\d{4}-\d{2}-\d{2})"
    r"(?:[T ](?P<time>\d{2}:\d{2})(?::(?P<second>\d{2})(?:[.,](?P<fraction>\d{1,6})\d*)?)?\s*(?P<zone>Z|[+-]\d{2}:?\d{2})?)?\s*$"
)
"""A date, or a date and time with or without a zone, in the form of ISO 8601 and RFC 3339."""
FINER = re.compile(r"[.,]\d{6}(\d{1,3})")
"""Digits of a second beyond microseconds."""
FIRST_YEAR = 1000
_DAYS = (
    *("%d/%m/%Y", "%m/%d/%Y", "%d.%m.%Y", "%d-%m-%Y", "%m-%d-%Y", "%Y/%m/%d", "%Y.%m.%d", "%Y-%m-%d", "%Y-%j"),
    *("%d/%m/%y", "%m/%d/%y", "%d.%m.%y", "%d-%m-%y", "%m-%d-%y"),
    *("%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y"),
)
_MONTHS = (
    *("%Y-%m", "%Y/%m", "%Y.%m", "%Y_%m", "%Y %m", "%YM%m", "%Ym%m", "%m/%Y", "%m-%Y", "%m.%Y", "%m_%Y", "%m %Y"),
    *("%b-%Y", "%b-%y", "%b %Y", "%B %Y"),
)
FORMATS = (
    *_DAYS,
    *_MONTHS,
    *(f"{day} {clock}" for clock in ("%H:%M", "%H:%M:%S", "%I:%M %p", "%I:%M:%S %p") for day in _DAYS),
    "%Y%m%dT%H%M%S",
)
"""Common formats of dates and of times after them, which a message proposes for ``dates`` in the party file."""


def ordered_times(column: pl.Series, *, use: str) -> pl.Series:
    """Return a column as values that can be ordered by time: dates, time stamps and numbers unchanged, ISO text as time stamps.

    Text is never compared as text, because ``31.12.2023`` would come after ``05.03.2024``. Nulls stay null, and NaN becomes null.

    Raises DataError, naming the use, the column and rows by number, for text that is not an ISO date or time, for text with a
    zone in only some cells, and for types without an order.
    """
    kind = column.dtype
    if kind in (pl.String, pl.Categorical, pl.Enum):
        text = column.cast(pl.String)
        column_name = f"{use} column {text.name!r}"
        times, is_zoned = iso_moments(text)
        wrong = times.is_null() & text.is_not_null() & (text.str.strip_chars() != "")
        if wrong.any():
            raise DataError(
                f"{column_name}: text that is not an ISO date or time in {rows_listed(wrong)} rows, so their order is unknown; "
                "write dates such as 2024-01-31 or 2024-01-31T13:00:00Z, or name their format under dates in the party file"
            )
        if is_zoned.any() and not is_zoned.all():
            raise DataError(f"{column_name}: only some cells have a time zone; write a zone in all of them, or in none")
        return times.cast(pl.Datetime("us")).alias(text.name)
    if not (kind.is_temporal() or kind.is_numeric() or kind == pl.Null):
        raise DataError(f"{use} column {column.name!r} has type {kind}; give dates, time stamps, numbers or ISO text")
    return column.fill_nan(None) if kind.is_float() else column  # NaN would come last


def with_dates(frame: Frame, formats: Mapping[str, str]) -> Frame:
    """Read columns of text as dates, or as time stamps if their format has hours. Raises DataError, naming rows, for others.

    Numbers such as 20240131 are read as they are spelt. A column that holds dates already stays unchanged.
    """
    dated = {}
    for name, words in formats.items():
        if name not in frame.schema:
            raise DataError(f"dates.{name}: is not in the table; {did_you_mean(name, frame.columns)}")
        column = frame.get_column(name)
        if column.dtype.is_temporal():
            continue
        text = (as_text(column) if column.dtype.is_numeric() else column.cast(pl.String)).str.strip_chars()
        text = text.set(text == "", None)
        dated[name] = read_times(text, words)
        wrong = dated[name].is_null() & text.is_not_null()
        if wrong.any():
            raise DataError(
                f"dates.{name} = {words!r}: cells have another format in {rows_listed(wrong)} rows (%Y is a year of four digits, "
                "%y one of two); if these mean missing cells, name their words under table.missing_in"
            )
    if not dated:
        return frame
    if isinstance(frame, LazyTable):
        return frame.beside([name for name in frame.columns if name not in dated], pl.DataFrame(list(dated.values())))
    return frame.with_columns(**dated)


def read_times(text: pl.Series, words: str) -> pl.Series:
    """Read text in one format as dates, or as time stamps if the format has hours; null if it does not fit.

    A year before 1000 is null, too, because it is a year of two digits, or the rest of a number that has lost a leading zero. A
    year of two digits (%y) means 1970 to 2069, and a day of a year (%j) has three digits. A month without a day means its first.
    """
    if not re.search("%[-_0]?[dj]", words):
        text, words = text + " 1", f"{words} %d"
    has_clock = "%H" in words or "%I" in words or "%T" in words
    times = text.str.to_datetime(words, time_unit="us", strict=False) if has_clock else text.str.to_date(words, strict=False)
    if "%j" in words:
        pattern = re.sub("%(.)", lambda part: {"j": r"\d{3}", "Y": r"\d{4}"}.get(part[1], ".+"), re.escape(words))
        times = times.set(~text.str.contains(f"^{pattern}$").fill_null(True), None)
    return times.set((times.dt.year() < FIRST_YEAR).fill_null(False), None)


def likely_formats(text: pl.Series) -> list[str]:
    """List formats that fit all cells: two if nothing distinguishes the day from the month, none if no known format fits."""
    cells = text.drop_nulls().str.strip_chars()
    return list(islice((words for words in FORMATS if len(cells) and not read_times(cells, words).null_count()), 2))


def iso_moments(text: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Read ISO text as microseconds since 1970, in UTC if a cell has a zone. Other text becomes null.

    Also return whether each cell has a zone, null if its time is null.
    """
    part = text.str.extract_groups(ISO).struct.unnest()
    clock = part["day"] + " " + part["time"].fill_null("00:00") + ":" + part["second"].fill_null("00")
    times = clock.str.to_datetime("%Y-%m-%d %H:%M:%S", time_unit="us", strict=False).cast(pl.Int64)
    fraction = part["fraction"].str.pad_end(6, "0").cast(pl.Int64).fill_null(0)
    zone = part["zone"].fill_null("")
    hours, minutes = zone.str.extract(r"^[+-](\d{2})").cast(pl.Int64), zone.str.extract(r"(\d{2})$").cast(pl.Int64)
    sign = zone.str.starts_with("-").cast(pl.Int64) * -2 + 1
    offset = (sign * (hours * 60 + minutes)).fill_null(0)
    return times + fraction - offset * 60_000_000, (zone != "").set(times.is_null(), None)
