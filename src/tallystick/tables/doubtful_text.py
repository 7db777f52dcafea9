"""Doubtful text: columns of text of which most cells look like something else, and what to write to have them as that."""

import polars as pl

from tallystick.tables.times import likely_formats

NUMBER_LIKE = (
    r"^([^\w]{0,4}|\p{L}{1,3}(\p{Sc}|\.)?[ \u00a0]|\p{L}{1,3}\p{Sc})"  # such as €, EUR and US$
    r"\d[\d.,'\u2019\s_/]*([eEdD][+-]?\d+|\u00d710\^?-?\d+)?\s*[^\d]{0,8}$|^0[xX][0-9a-fA-F]+$"
)
DATE_LIKE = (
    r"^\s*(\d{1,4}[./-]\d{1,2}[./-]\d{1,4}|\d{4}[./-]\d{1,2}|\d{1,2}[ ./-]?\p{L}{3,9}\.?[ ,./-]*\d{2,4}"
    r"|\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?|\d+ days?|P[T\d][\w.]*|\p{L}{3,9}\.? \d{1,2}, ?\d{4}"
    r"|\d{4}-?[QWTS]\d{1,2}|[QTS]\d[ /-]?\d{2,4})([T, ]+\d.*)?\s*$"
)
CLOCK_LIKE = r"^\s*\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?\s*$"
FEWEST_NUMBERS = 20  # different cells from which such a column could be one of numbers
LOOKED_AT = 100_000  # of these


def text_warning(column: pl.Series) -> str | None:
    """Say what becomes of a column of text of which most different cells look like something else, and how to mend it.

    These are numbers with a sign, a unit or spaces, such as € 9.50 and <0.01, and dates and times that are not ISO 8601. Cells
    that differ in spaces or case alone are said, too.
    """
    if column.dtype != pl.String:
        return None
    cells = column.drop_nulls().unique().head(LOOKED_AT)
    if twins := len(cells) - cells.str.strip_chars().str.to_lowercase().str.normalize("NFC").n_unique():
        return (
            f"column {column.name!r}: {twins} of its {len(cells)} different cells differ from another one in spaces, case or the "
            "codes of a letter alone, and each is a category of its own; spell them alike in the table if that is not meant"
        )
    if len(cells) < FEWEST_NUMBERS:
        return None
    if _most(cells, CLOCK_LIKE):
        return (
            f"column {column.name!r}: most of its different cells look like times of day or durations, and each is taken as a "
            "category; write all as 08:05 or 08:05:30, or as a number of minutes, or list it under features.categorical if that "
            "is meant"
        )
    if _most(cells, DATE_LIKE):
        return (
            f"column {column.name!r}: most of its different cells look like dates or times, and each is taken as a category; "
            f"{dates_mend(column)}, or list it under features.categorical if that is meant"
        )
    if _most(cells, NUMBER_LIKE):
        return (
            f"column {column.name!r}: most of its different cells look like numbers, and each is taken as a category; bring it "
            "as numbers (name words for a missing cell under table.missing, the sign before a fraction under table.decimal, take "
            "units out), or list it under features.categorical if these are codes"
        )
    return None


def dates_mend(column: pl.Series) -> str:
    """Say what to write into the party file for a column of dates that are no ISO 8601: its format, if all cells fit one."""
    formats = likely_formats(column.head(LOOKED_AT))
    lines = [f'`dates: {{{column.name}: "{words}"}}`' for words in formats or ["%d.%m.%Y"]]
    if not formats:
        return f"write all in one way, and name it in the party file, such as by {lines[0]}"
    return f"say how they are written, by {' or by '.join(lines)} in the party file{': all fit both' if len(lines) > 1 else ''}"


def _most(cells: pl.Series, pattern: str) -> bool:
    return float(cells.str.contains(pattern).mean() or 0.0) > 0.5  # type: ignore[arg-type]
