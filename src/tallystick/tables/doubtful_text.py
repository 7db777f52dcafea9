"""Find columns of text whose cells mostly look like another type, and say how to read them as that type."""

import html

import polars as pl

from tallystick.config.party import PartyFile
from tallystick.tables.delimited import DOUBTFUL
from tallystick.tables.doubtful_times import foreign_year
from tallystick.tables.encodings import true_encodings
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.normalise import UNSEEN
from tallystick.tables.times import likely_formats

NUMBER_LIKE = (
    r"^([^\w]{0,4}|\p{L}{1,3}(\p{Sc}|\.)?[ \u00a0]|\p{L}{1,3}\p{Sc})"  # such as €, EUR and US$
    r"\d[\d.,'\u2019\s_/\u2044\u00b7\u22c5\u2027]*([eEdD][+-]?\d+|\s*[\u00d7*\u00b7x]\s*10(\^?[\u2212-]?\d+|[\u207b\u2070\u00b9\u00b2\u00b3\u2074-\u2079]+))?"
    r"\s*[^\d]{0,8}$|^0[xX][0-9a-fA-F]+$|^\d+\s?[xX\u00d7]\s?\d+$"
    r"|^-?\d+([.,]\d+)?\s*([\u00b0\u00b1'\u2032]|ft|h)\s*\d+([.,]\d+)?[^\d]{0,3}$"  # 52\u00b031'N, 5ft 11in, 5\u00b10.1
)
DATE_LIKE = (
    r"^\s*(\p{L}{2,10}\.?,? )?(\d{1,2}[./-]\d{1,2}[./-]\d{2,4}|\d{2,4}[./-]\d{1,2}[./-]\d{1,4}"
    r"|(1[5-9]|2\d)\d{2}[./_ -](0?[1-9]|1[0-2])"
    r"|(0?[1-9]|1[0-2])[./_ -](1[5-9]|2\d)\d{2}"
    r"|\d{1,2}(st|nd|rd|th|er|[\u00ba\u00aa])?[ ./-]{0,2}(de |of |d')?\p{L}{3,14}\.?[ ,./-]*(de |del |of )?\d{2,4}"
    r"|\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?|\d+ days?|P[T\d][\w.]*"
    r"|\p{L}{3,14}\.? \d{1,2}(st|nd|rd|th)?,?( \d{4}|\d{4}| \d{1,2}:.*)"
    r"|(1[5-9]|2\d)\d{2}-[0-3]\d{2}|\d{8}T\d{4}(\d{2})?Z?|\d{4}-?[QWTS]\d{1,2}(-?\d)?"
    r"|(19|20)\d{2}[-: ]?[MQWHmqwh]\d{1,2}|[QTSqHh][1-4]([ /-]\d{2}|[ /-]?(19|20)\d{2})|[1-4][Qq][ /-]?(19|20)?\d{2}"
    r"|(\p{L}{1,2} ?)?\d{1,4} ?[年년] ?\d{1,2} ?[月월]( ?\d{1,2} ?[日일])?)([Tt, ]+\d.*)?\s*$"
)
CLOCK_LIKE = r"^\s*\d{1,3}:\d{2}(:\d{2}([.,]\d+)?)?( ?[aApP]\.?[mM]\.?)?\s*$"
QUOTED = "^[\"'\u2018-\u201f\u00ab\u2039](.+)[\"'\u2018-\u201f\u00bb\u203a]$"  # in quotes, such as a word processor's
_MONTH = (
    r"(?i:jan|janv|ene|gen|feb|f\u00e9vr|fev|mar|mrz|m\u00e4r|m\u00e4rz|mars|mrt|apr|avr|abr|may|mai|mag|mei|jun|juin|giu|jul|juil|lug"
    r"|aug|ao\u00fbt|ago|sep|sept|set|oct|okt|ott|out|nov|dec|dez|d\u00e9c|dic)\.?"
)
MONTH_DATE = rf"^\s*(\d{{1,2}}\.?[-. /]{_MONTH}|{_MONTH}[-. /]\d{{1,4}})\s*$"  # 13-Aug and Aug-13, as a spreadsheet shows a date
WHOLE_DATE = r"\d{4}|\d{2}\D\d{2}\D\d{2}"  # 1.2.3 is rather a version
FOUR_DIGITS = r"(?:^|\D)(\d{4})(?:\D|$)"
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
PLAIN_NUMBER = r"^[+-]?([1-9]\d*|0)([.,]\d+)?$"  # not 01, which is a code
MOST_WORDS, FEWEST_DIFFERENT, RARE_WORDS = 5, 3, 0.1
"""How many words beside how many different numbers are said, and in which share of the cells."""
FEWEST_NUMBERS = 20  # from this many different cells such a column may hold numbers
LOOKED_AT = 100_000  # greatest number of distinct cells that are checked
SAMPLED, MOST_READ = 1000, 4000  # greatest number of cells, and of their characters, that are checked for a wrong encoding


_SIGNS_OF_MONEY = (
    r"RM|Rp\.?|Rs\.?|US|USD|EUR|GBP|CHF|JPY|CNY|INR|RMB|AUD|CAD|NZD|SEK|NOK|DKK|PLN|CZK|HUF|BRL|ZAR|kr\.?"
    r"|K\u010d|z\u0142|Ft|Fr\.?|S/\.?"
)
_MONEY = r"(\d{1,3}([,.' ]\d{3})+([.,]\d{1,2})?|\d+[.,]\d{2})"
MONEY = rf"^\s*-?(({_SIGNS_OF_MONEY})-?({_MONEY}|\d+)|\p{{L}}{{1,3}}\.?-?{_MONEY})\s*$"  # USD5, CHF12.50, R1,500; R10 is a code
BEFORE_NUMBER = r"^\s*-?([^\d-]+)"
ABOUT = (
    r"^\s*(?i:about|approx\.?|approximately|circa|over|under|above|below|almost|nearly|less than|more than|at least|at most|up to"
    r"|ungef\u00e4hr|etwa|\u00fcber|unter|bis|mehr als|weniger als|environ|plus de|moins de|m\u00e1s de|menos de)"
    r"\s+\d[\d.,' ]*\S{0,8}\s*$"
)


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
    if 1 < len(cells) < FEWEST_NUMBERS and cells.str.contains(WHOLE_DATE).all() and likely_formats(cells):
        return (
            f"column {column.name!r}: its cells look like dates or times, but each becomes a category; {dates_mend(column)}, or "
            "list the column under features.categorical if categories are right"
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
    # Different letters before numbers are codes, such as J45.90
    is_money = _most(plain, MONEY) and plain.str.extract(BEFORE_NUMBER).n_unique() == 1
    if _most(plain, NUMBER_LIKE) or is_money or _most(plain, ABOUT):
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
    elif others := true_encodings("\n".join(cells.filter(cells.str.contains("[^\\x00-\x7f]")).head(SAMPLED))[:MOST_READ]):
        shown = f"letters in unlikely places, which are likely text in {' or '.join(others)}"
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


def rare_words_warning(column: pl.Series, party: PartyFile) -> str | None:
    """Warn about a few words among numbers so few that they may be codes, for which the column becomes one of categories."""
    if column.dtype != pl.String or (party.table is not None and column.name in party.table.missing_in):
        return None
    counts = column.drop_nulls().str.strip_chars().value_counts()
    cells = counts.get_column(column.name)
    is_number = cells.str.contains(PLAIN_NUMBER)
    words = counts.filter(~is_number)
    if (
        not 0 < words.height <= MOST_WORDS
        or is_number.sum() < FEWEST_DIFFERENT
        or cells.filter(~is_number).str.contains(r"\d").any()
    ):
        return None
    rows, others = int(words.get_column("count").sum()), int(counts.filter(is_number).get_column("count").sum())
    if rows > RARE_WORDS * (rows + others):
        return None
    listed = ", ".join(map(repr, words.get_column(column.name).sort()))
    return (
        f"column {column.name!r}: all its cells are numbers but {listed} in {rows} row{'s' if rows > 1 else ''}, and each number "
        f"becomes a category; if these mean missing cells, name them by table.missing_in: {{{column.name}: [{listed}]}}; if "
        "categories are right, list the column under features.categorical"
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


def dates_mend(column: pl.Series) -> str:
    """Say what to write into the party file for a column of dates that are not ISO 8601: the format, if all cells fit one."""
    formats = likely_formats(column.head(LOOKED_AT))
    lines = [f'`dates: {{{column.name}: "{words}"}}`' for words in formats or ["%d.%m.%Y"]]
    years = column.head(LOOKED_AT).str.extract(FOUR_DIGITS).cast(pl.Int64)
    if not formats and (year := foreign_year(years.drop_nulls().unique())) is not None:
        return f"years such as {year[0]} look like those of another calendar, {year[1]}: convert them to the Gregorian calendar"
    if not formats:
        return f"write all in one format, and name it in the party file, such as by {lines[0]}"
    both = " (all cells fit both)" if len(lines) > 1 else ""
    century = "; years of two digits mean 1970 to 2069" if any("%y" in words for words in formats) else ""
    return f"name their format by {' or by '.join(lines)} in the party file{both}{century}"


def _most(cells: pl.Series, pattern: str) -> bool:
    return float(cells.str.contains(pattern).mean() or 0.0) > 0.5  # type: ignore[arg-type]
