"""Find columns of text whose cells mostly look like another type, and say how to read them as that type."""

import html

import polars as pl

from tallystick.config.party import PartyFile
from tallystick.tables.delimited import DOUBTFUL
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.normalise import UNSEEN
from tallystick.tables.times import likely_formats, read_times

NUMBER_LIKE = (
    r"^([^\w]{0,4}|\p{L}{1,3}(\p{Sc}|\.)?[ \u00a0]|\p{L}{1,3}\p{Sc})"  # such as €, EUR and US$
    r"\d[\d.,'\u2019\s_/\u2044\u00b7\u22c5\u2027]*([eEdD][+-]?\d+|\s*[\u00d7*\u00b7x]\s*10(\^?[\u2212-]?\d+|[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+))?"
    r"\s*[^\d]{0,8}$|^0[xX][0-9a-fA-F]+$|^\d+\s?[xX\u00d7]\s?\d+$"
    r"|^-?\d+([.,]\d+)?\s*([\u00b0\u00b1'\u2032]|ft|h)\s*\d+([.,]\d+)?[^\d]{0,3}$"  # 52\u00b031'N, 5ft 11in, 5\u00b10.1
)
DATE_LIKE = (
    r"^\s*(\p{L}{2,10}\.?,? )?(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{2,4}[./-]\d{1,2}[./-]\d{1,4}"
    r"|(1[5-9]|2\d)\d{2}[./-](0?[1-9]|1[0-2])"
    r"|(0?[1-9]|1[0-2])[./-](1[5-9]|2\d)\d{2}"
    r"|\d{1,2}(st|nd|rd|th|er|[\u00ba\u00aa])?[ ./-]{0,2}(de |of |d')?\p{L}{3,14}\.?[ ,./-]*(de |del |of )?\d{2,4}"
    r"|\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?|\d+ days?|P[T\d][\w.]*"
    r"|\p{L}{3,14}\.? \d{1,2}(st|nd|rd|th)?,?( \d{4}|\d{4}| \d{1,2}:.*)"
    r"|(1[5-9]|2\d)\d{2}-[0-3]\d{2}|\d{8}T\d{4}(\d{2})?Z?|\d{4}-?[QWTS]\d{1,2}(-?\d)?"
    r"|[QTS]\d[ /-]?\d{2,4}"
    r"|(\p{L}{1,2} ?)?\d{1,4} ?[年년] ?\d{1,2} ?[月월]( ?\d{1,2} ?[日일])?)([Tt, ]+\d.*)?\s*$"
)
CLOCK_LIKE = r"^\s*\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?\s*$"
QUOTED = "^[\"'\u2018-\u201f\u00ab\u2039](.+)[\"'\u2018-\u201f\u00bb\u203a]$"  # in quotes, such as a word processor's
_MONTH = (
    r"(?i:jan|janv|ene|gen|feb|f\u00e9vr|fev|mar|mrz|m\u00e4r|m\u00e4rz|mars|mrt|apr|avr|abr|may|mai|mag|mei|jun|juin|giu|jul|juil|lug"
    r"|aug|ao\u00fbt|ago|sep|sept|set|oct|okt|ott|out|nov|dec|dez|d\u00e9c|dic)\.?"
)
MONTH_DATE = rf"^\s*(\d{{1,2}}\.?[-. /]{_MONTH}|{_MONTH}[-. /]\d{{1,4}})\s*$"  # 13-Aug and Aug-13, as a spreadsheet shows a date
ISO_DAY = r"^\s*\d{4}-\d{2}-\d{2}([T ]00:00(:00)?)?\s*$"
RANGE = r"^\s*\d{1,3}\s*[-\u2013/]\s*\d{1,3}\s*$"  # 8-13 and 1/3
CODE = r"^\s*\p{L}{1,6}[-_. ]?\d{1,3}\p{L}?\s*$"  # SEPT2 and MARCH1, which are genes
SEPARATED_CODE = r"^\s*\p{L}{1,6}[-. /]\d{1,4}\s*$"  # Box 2 and AB-12, beside which Set 2 and DEC-12 are codes, too
DASHES = "[\u2010-\u2015\u2212]"
SIGN_FIRST = r"^[^\p{L}\d]"  # such as <b>5</b>
PARTS = r"\d[^\d]*[^\d\p{L}.,][^\d]*\d"  # such as 75-80 and POINT(1 2)
GLUED = r"\p{L}\d|\d\p{L}"  # K12 and 3B, which are codes
FEWEST_PER_SHAPE = 4  # different cells for each shape, where they differ in digits alone
TRUE = frozenset(
    [
        *("true", "t", "yes", "y", "1", "on", "ja", "j", "oui", "o", "si", "s\u00ed", "sim", "s", "tak", "\u0434\u0430", "evet"),
        *("wahr", "vrai", "verdadero", "vero", "waar", "sant"),
    ]
)
FALSE = frozenset(
    [
        *("false", "f", "no", "n", "0", "off", "nein", "non", "nej", "nee", "n\u00e3o", "nie", "\u043d\u0435\u0442"),
        *("hay\u0131r", "falsch", "faux", "falso", "onwaar", "falskt"),
    ]
)
"""Spellings of true and false, in lower case."""
FOREIGN_RUN = "[\u00a1-\u00ff\u0152\u0153\u0160\u0161\u0178\u017d\u017e\u0192]{4,}"  # no Latin word has so many
DIGIT_DATES = {
    6: ("%Y%m", "%y%m%d", "%d%m%y"),
    7: ("%Y%j",),
    8: ("%Y%m%d", "%d%m%Y", "%m%d%Y"),
    12: ("%Y%m%d%H%M",),
    14: ("%Y%m%d%H%M%S",),
}
"""Dates of digits alone, by the number of their digits."""
YEARS, LAST_YEAR = (1900, 2100), 9999
FEWEST_NUMBERS = 20  # from this many different cells such a column may hold numbers
LOOKED_AT = 100_000  # greatest number of distinct cells that are checked
SAMPLED = 1000  # greatest number of cells that are checked for a wrong encoding


def text_warning(column: pl.Series) -> str | None:
    """Warn about a column of text most of whose distinct cells look like another type, and say how to correct it.

    Examples are numbers with a currency sign, a unit or spaces, such as € 9.50 and <0.01, and dates and times that are not ISO
    8601. Also warn about cells that differ only in spaces or case.
    """
    if column.dtype != pl.String:
        return None
    cells = column.drop_nulls().unique().head(LOOKED_AT)
    if (warning := spreadsheet_warning(cells) or encoding_warning(cells)) is not None:
        return warning
    if len(cells) >= FEWEST_NUMBERS and (warning := _type_warning(column, cells)) is not None:
        return warning
    if twins := len(cells) - plainly(cells).n_unique():
        return (
            f"column {column.name!r}: {twins} of its {len(cells)} distinct cells differ from another one only in spaces, case, "
            "quotes or the codes of a letter, but each is a category of its own; if that is wrong, give them the same spelling "
            "in the table"
        )
    words = set(plainly(cells).to_list()) if len(cells) < FEWEST_NUMBERS else set()
    if words <= TRUE | FALSE and words & TRUE and words & FALSE and len(words) > 2:
        return (
            f"column {column.name!r}: its cells spell true and false in {len(words)} ways, and each is a category of its own; "
            "spell them alike in the table"
        )
    return None


def _type_warning(column: pl.Series, cells: pl.Series) -> str | None:
    """Warn about a column of text, of which these are the different cells, if most look like another type."""
    plain = cells.str.normalize("NFKC").str.replace_all(DASHES, "-").str.replace("^'", "")
    if _most(plain, CLOCK_LIKE):
        return (
            f"column {column.name!r}: most of its distinct cells look like times of day or durations, but each becomes a "
            "category; write all as 08:05 or 08:05:30, or as a number of minutes, or list the column under features.categorical "
            "if categories are right"
        )
    if _most(plain, DATE_LIKE) or _most(plain, MONTH_DATE) or likely_formats(plain.head(FEWEST_NUMBERS)):
        return (
            f"column {column.name!r}: most of its distinct cells look like dates or times, but each becomes a category; "
            f"{dates_mend(column)}, or list the column under features.categorical if categories are right"
        )
    if _most(plain, NUMBER_LIKE):
        return (
            f"column {column.name!r}: most of its distinct cells look like numbers, but each becomes a category; convert it to "
            "numbers (name words for a missing cell under table.missing and the decimal sign under table.decimal, remove units), "
            "or list it under features.categorical if these are codes"
        )
    has_numbers = plain.filter((plain.str.contains(PARTS) | plain.str.contains(SIGN_FIRST)) & ~plain.str.contains(GLUED))
    shapes = has_numbers.str.replace_all(r"\d+", "9")
    if 2 * len(has_numbers) > len(cells) and (shapes == "9").sum() + FEWEST_PER_SHAPE * shapes.n_unique() <= len(cells):
        return (
            f"column {column.name!r}: most of its different cells differ in their numbers alone, and each is taken as a "
            "category; bring ranges, sizes, times and the like as numbers, or list it under features.categorical if these are "
            "codes"
        )
    return None


def plainly(text: pl.Series) -> pl.Series:
    """Normalise text to lower case and one code per letter, and remove special spaces, &amp; and surrounding quotes."""
    entities = text.filter(text.str.contains("&#?[0-9A-Za-z]+;")).unique()
    if len(entities):
        text = text.replace(entities, entities.map_elements(html.unescape, return_dtype=pl.String))
    text = text.str.replace(QUOTED, "$1").str.normalize("NFKC").str.replace_all(UNSEEN, "").str.to_lowercase()
    return text.str.replace_all(r"\s+", " ").str.strip_chars()


def encoding_warning(column: pl.Series) -> str | None:
    """Warn if cells of a column of text were once read with the wrong encoding."""
    if column.dtype != pl.String:
        return None
    cells = column.drop_nulls().unique().head(LOOKED_AT)
    if cells.str.contains("[\u0080-\u009f\ufffd]").any():
        shown = "replacement characters in place of letters"
    elif any(map(_is_read_twice, cells.filter(cells.str.contains("[\u00c2-\u00f4][\u0080-\u00bf\u0152-\u2122]")).head(SAMPLED))):
        shown = "text such as K\u00c3\u00b6ln for K\u00f6ln"
    elif _is_other_script(cells.filter(cells.str.contains("[^\\x00-\x7f]")).head(SAMPLED)):
        shown = "text such as \u00cc\u00ee\u00f1\u00ea\u00e2\u00e0 for \u041c\u043e\u0441\u043a\u0432\u0430"
    else:
        return None
    return (
        f"column {column.name!r}: some of its cells hold {shown}, as if a program had read a file with the wrong encoding; "
        "export the table again from a source in which they are right, and name an encoding other than UTF-8 under table.encoding"
    )


def _is_read_twice(cell: str) -> bool:
    """Tell whether this is UTF-8 that was read as Windows-1252. Other text, written as Windows-1252, is rarely valid UTF-8."""
    try:
        return cell.encode("cp1252").decode("utf-8") != cell
    except UnicodeError:
        return False


def _is_other_script(cells: pl.Series) -> bool:
    """Tell whether most of these cells, which have letters beyond ASCII, hold runs of them as a wrong encoding makes."""
    runs = [set(run) for run in cells.str.extract_all(FOREIGN_RUN).explode().drop_nulls().to_list()]
    return 2 * sum(len(run) > 2 for run in runs) > len(cells)


def spreadsheet_warning(column: pl.Series) -> str | None:
    """Warn if some cells of a column of text look like dates that a spreadsheet made from other text, such as 13-Aug from 8-13.

    Dates alone, or dates among words, do not count. Some cells must be ranges, or most others must be codes such as SEPT2.
    """
    if column.dtype != pl.String:
        return None
    cells = column.drop_nulls().unique().head(LOOKED_AT)
    is_day, is_month = cells.str.contains(ISO_DAY), cells.str.contains(MONTH_DATE)
    others = cells.filter(~is_day & ~is_month)
    has_ranges = bool(others.str.contains(RANGE).any()) and bool((is_day | is_month).any())
    if not has_ranges and len(others) and _most(others, SEPARATED_CODE):
        is_month &= ~cells.str.contains(SEPARATED_CODE)
    if not has_ranges and not (is_month.any() and len(others) and _most(others, CODE)):
        return None
    cells_of, made_of = (
        ("13-Aug or 2023-08-13", "ranges such as 8-13") if has_ranges else ("2-Sep or Mar-01", "codes such as SEPT2 or MARCH1")
    )
    return (
        f"column {column.name!r}: some of its cells look like dates, such as {cells_of}, that a spreadsheet made of {made_of}; "
        "export the column from a source that was never opened in a spreadsheet, or import it there as text"
    )


def marks_warning(frame: Frame, name: str, party: PartyFile) -> str | None:
    """Warn about cells of a column of text that may mean a missing cell, and say how to mark them. The reader of CSV files gives
    this warning itself.
    """
    read_from_csv = isinstance(frame, LazyTable) and name in frame.missing
    if frame.schema[name] != pl.String or read_from_csv or (party.table is not None and name in party.table.missing_in):
        return None
    cells = frame.get_column(name).drop_nulls().unique()
    marks = cells.filter(cells.str.strip_chars().is_in(["", *DOUBTFUL])).sort().to_list()
    if not marks or len(cells) == len(marks):
        return None
    listed = ", ".join(map(repr, marks))
    return (
        f"column {name!r}: cells {listed} stay values but may mean a missing cell; if they do, make them null, or for a file "
        f"write table.missing_in: {{{name}: [{listed}]}}; if they do not, list the column under features.categorical"
    )


def digits_warning(column: pl.Series) -> str | None:
    """Warn if all numbers of a column, or all cells that consist of digits, look like dates such as 20240131, and say how to read
    them as dates.
    """
    kind = column.dtype
    if not (kind.is_numeric() or kind == pl.String):
        return None
    cells = column.drop_nulls().unique().head(LOOKED_AT)
    if kind.is_float() or isinstance(kind, pl.Decimal):
        cells = cells.cast(pl.Float64)
        if not (cells.is_finite() & (cells == cells.round()) & (cells.abs() < 1e15)).all():
            return None
        cells = cells.cast(pl.Int64)
    text = cells.cast(pl.String).str.strip_chars()
    digits = set(text.str.len_chars().to_list())
    fewest = 2 if min(digits, default=0) >= 8 else FEWEST_NUMBERS
    if len(text) < fewest or len(digits) != 1 or not text.str.contains("^[0-9]+$").all():
        return None
    formats = []
    for words in DIGIT_DATES.get(digits.pop(), ()):
        times = read_times(text, words)
        usual = times.dt.year().is_between(*YEARS) | (times.dt.year() == LAST_YEAR)
        if not times.null_count() and usual.all() and (times.dt.year() != LAST_YEAR).any():
            formats.append(words)
    if not formats:
        return None
    cells_are, taken_as, listed = ("numbers", "number", "numeric") if kind.is_numeric() else ("cells", "category", "categorical")
    lines = [f'`dates: {{{column.name}: "{words}"}}`' for words in formats]
    return (
        f"column {column.name!r}: all its {cells_are} look like dates without separators, such as 20240131, but each becomes a "
        f"{taken_as}; to read them as dates, name their format by {' or by '.join(lines)} in the party file"
        f"{' (all cells fit each)' if len(lines) > 1 else ''}; if they are not dates, list the column under features.{listed}"
    )


def dates_mend(column: pl.Series) -> str:
    """Say what to write into the party file for a column of dates that are not ISO 8601: the format, if all cells fit one."""
    formats = likely_formats(column.head(LOOKED_AT))
    lines = [f'`dates: {{{column.name}: "{words}"}}`' for words in formats or ["%d.%m.%Y"]]
    if not formats:
        return f"write all in one format, and name it in the party file, such as by {lines[0]}"
    both = " (all cells fit both)" if len(lines) > 1 else ""
    century = "; years of two digits mean 1970 to 2069" if any("%y" in words for words in formats) else ""
    return f"name their format by {' or by '.join(lines)} in the party file{both}{century}"


def _most(cells: pl.Series, pattern: str) -> bool:
    return float(cells.str.contains(pattern).mean() or 0.0) > 0.5  # type: ignore[arg-type]
