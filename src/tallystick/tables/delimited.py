"""Read delimited text, CSV and TSV. The form of the files is detected if it is certain; if not, an error asks for it.

The form is the separator, the encoding, the decimal sign (1,234 may be a thousand or a little more than one), and the words for
a missing cell.
"""

import codecs
import csv
import gzip
import io
import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, cast

import numpy as np
import polars as pl
import polars.selectors as cs

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.storage import scratch_folder
from tallystick.tables.arrow import every_column
from tallystick.tables.encodings import likely_encodings
from tallystick.tables.file_kinds import refuse_other_kind
from tallystick.tables.lazy_table import COPIED_BYTES, LazyTable, is_gzipped, room_for, store
from tallystick.tables.names import require_usable
from tallystick.tables.rows import refuse_rows_beyond
from tallystick.tables.text import Spelt, ascii_digits, rows_listed

NULL_WORDS = ("NA", "NaN", "nan", "null", "NULL")
"""Words for a missing cell in every column, unless the party file names other words."""
MARKS = (
    *NULL_WORDS, *("?", "??", "-", "--", "---", ".", "..", "*", "N/A", "n/a", "#N/A", "#NA", "n.a.", "N.A.", "na", "n.d."),
    *("None", "none", "NONE", "Null", "NAN", "Nan", "<NA>", "NaT", "nil", "#NULL!", "#DIV/0!", "#VALUE!", "#REF!", "#NAME?"),
    *("#NUM!", "\\N", "(null)", "<null>", "missing", "Missing", "unknown", "Unknown", "\u2013", "\u2014", "k.A."),
    *("ND", "N/D", "n/d", "N.D.", "s/d", "S/D", "#N/D", "#NV", "#DIV/0", "-nan", "...", "\u2026", "_", "#", "0000-00-00"),
    *("0000-00-00 00:00:00", "1900-01-00", "\u200b", "\ufeff"),
    *("\u043d/\u0434", "\u7121", "\u65e0", "\u306a\u3057", "\u4e0d\u660e", "\u672a\u77e5"),
)  # fmt: skip
"""Words for a missing cell in a column whose other cells are numbers, times, or true and false."""
DOUBTFUL = (
    *(*MARKS, "TBD", "tbd", "TBA", "UNKNOWN", "MISSING", "Not available", "not available", "n.v.", "n/v", "N/V", "k. A."),
    *("n. a.", "keine Angabe", "unbekannt", "Unbekannt", "desconocido", "Desconocido", "inconnu", "Inconnu", "sconosciuto"),
)  # fmt: skip
"""Words that may mean a missing cell in a column of words. They stay values there, unless the party file says otherwise."""
FEWEST_VALUES, MOST_WORDS, MOST_OF_WORDS = 20, 5, 0.5
"""In a column of at least this many different numbers or times, a few other words in less than half of the cells count as marks
of a missing cell, too, unless the party file names the words of this column.
"""
A_WORD = r"^[^0-9]{2,}$"  # "A" among numbers may be one of several codes
UNNAMED = re.compile(r"Unnamed: \d+(_level_\d+)?")  # pandas' name for a column without a name
SEPARATOR_LINE = re.compile(r'"?sep=(.)"?[\r\n]*')  # Excel's line before the header
SEPARATORS = (",", ";", "\t", "|")
UTF_8 = "utf-8-sig"  # with or without its mark
SAMPLE_LINES = 50
ENCODING_SAMPLE = 4096  # bytes of lines from which the encoding is judged
SAMPLE_CELLS = 1000
MOST_CHARACTERS = 1 << 22  # length of a header, or of one of the first lines
MOST_OF_A_CELL = (1 << 31) - 1  # characters: Polars has no limit, and Python's own is 131,072
csv.field_size_limit(max(MOST_OF_A_CELL, csv.field_size_limit()))

_LAKHS = "[1-9][0-9]?(,[0-9]{2})+,[0-9]{3}"
_EXPONENT = r"([eE][+-]?[0-9]+)?"
_INFINITE = "(?i:inf(inity)?)"  # a number that is refused, not a mark of a missing cell
NUMBERS = {
    # 1.234,5 and ,5
    ",": rf"^\s*[+-]?((([0-9]+|[1-9][0-9]{{0,2}}(\.[0-9]{{3}})+)(,[0-9]*)?|,[0-9]+){_EXPONENT}|{_INFINITE})\s*$",
    # 1,234.5 and .5, or as in India 12,34,567.5
    ".": rf"^\s*[+-]?((([0-9]+|[1-9][0-9]{{0,2}}(,[0-9]{{3}})+|{_LAKHS})(\.[0-9]*)?|\.[0-9]+){_EXPONENT}|{_INFINITE})\s*$",
}
WHOLE = r"^\s*[+-]?[0-9]{1,18}\s*$"
LONG = r"^\s*[+-]?[0-9]{1,38}\s*$"
BOOLEAN = r"^\s*(?i:true|false)\s*$"
CODE_LIKE = r"^\s*[+-]?[0-9]+[eE][0-9]+\s*$"  # 12E4: a number with an exponent, or a code
DIGITS_OF_CODE = r"^\s*(\+?0[0-9]{2,}|\+[0-9]{7,}|0[0-9]+[.,][0-9]+)\s*$"  # 01067, +4930123456, 01.10: a number, or a code
FORMULA = r'^\s*="([^"]*)"\s*$'
DOUBTS = {
    "first row": "the first row differs from all others in column {columns}, like a row of units or types below the header; "
    "remove it, or each of its cells becomes a category",
    "exponent": "cells such as 12E4 are read as numbers, here 120000, in column {columns}; if they are codes, list the column "
    "under features.categorical",
    "formula": 'cells such as ="01067" (text as Excel writes it) are read as the text in quotes in column {columns}',
    "code": "cells of digits with a leading zero or plus sign, such as 01067, 01.10 or +493012345, are read as numbers in column "
    "{columns}; if they are codes, list the column under features.categorical",
    "version": "cells such as 1.10 beside ones such as 1.1 are read as the same number in column {columns}; list a column of "
    "versions under features.categorical",
}
"""What is said about columns whose cells may not be what they are read as."""
THOUSANDS = r"^\s*[+-]?[1-9]\d{0,2}(\.\d{3})?\s*$"  # 410 or 8.505
DAY = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}$"
CLOCK = r"[0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,9})?)?"
MOMENT = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}([T ]{CLOCK})?$"  # in a column of moments, a day means its midnight
ZONED = rf"^[0-9]{{4}}-[0-9]{{2}}-[0-9]{{2}}[T ]{CLOCK}(Z|[+-][0-9]{{2}}(:?[0-9]{{2}})?)$"
WHOLE_NUMBERS, LONG_NUMBERS = "whole", "long"
READINGS = {
    **NUMBERS, WHOLE_NUMBERS: WHOLE, LONG_NUMBERS: LONG, "boolean": BOOLEAN,
    "day": DAY, "moment": MOMENT, "zoned": ZONED, "clock": f"^{CLOCK}$",
}  # fmt: skip
"""The kinds that a column can be read as, by a pattern that all of its known cells fit."""
PARTED = [
    rf"^(\s*-?[1-9][0-9]{{0,2}}){by}([0-9]{{3}})" + 5 * f"(?:{by}([0-9]{{3}}))?" + rf"((?:[.,][0-9]+)?{_EXPONENT}\s*)$"
    for by in ("['\u2019]", "[ \u00a0\u2007\u2009\u202f]")
]
WHOLE_AGAIN = "${1}${2}${3}${4}${5}${6}${7}${8}"
"""Thousands separated by apostrophes or spaces, and the number without them. +49 301 234 567 is a telephone's number."""
FOREIGN = r"[\p{Cf}\u066b\u066c\uff0b-\uff0e[\p{Nd}--[0-9]]]"
FOREIGN_SIGNS = {
    "\uff0b": "+",
    "\uff0c": ",",
    "\uff0d": "-",
    "\uff0e": ".",
    "\u066b": ".",
}  # Arabic's decimal sign
LISTED = 5  # greatest number of columns that a note lists
LOOKED_AT = 100_000  # lines in which codes are looked for
TYPE_NAME = re.compile(
    r"n?(var)?char2?(acter( varying)?)?( ?\(\d+\))?|string|str|text|object|category|categorical|factor|(big|small)?int(eger)?\d*"
    r"|long|float\d*|double( precision)?|real|number|numeric|decimal|bool(ean)?|date|datetime|timestamp",
    re.IGNORECASE,
)
TOO_LONG = re.compile(r"could not parse `(.*)` as dtype `(?:[if]64|i128)` at column .*\(column number (\d+)\)", re.DOTALL)
"""Polars' messages for a whole number beyond its integer types, which it had chosen by the look of the cells, and for digits of
other scripts.
"""


def read_delimited(
    paths: Sequence[Path], form: TableConfig, *, text: Collection[str], asks_for: Callable[[str], bool] = every_column
) -> LazyTable:
    """Read files of the same columns as one table, with the rows in the files' order.

    Polars reads what is certainly a number; all other columns come as text, whose cells show what else they are.

    Args:
        paths: at least one file, plain or gzipped.
        form: separator, encoding and decimal sign if the party file names them.
        text: columns to keep as they are written.
        asks_for: tells whether a column is asked for. Other columns stay text, and are null in a file that lacks them.

    Raises DataError, naming the file, for columns that are named twice or differ from file to file, for text in another encoding,
    and for numbers with commas that may be read in two ways.
    """
    for path in paths:
        refuse_other_kind(path)
    separator = form.separator or _separator(paths[0], form.encoding)
    _require_same_columns(paths, form.encoding, separator, asks_for)
    with scratch_folder() as folder:
        files = [_Plain.of(path, form, separator, folder / str(number)) for number, path in enumerate(paths)]
        idle = {name for file in files for name in file.names if not asks_for(name) and not file.has_no_name(name)} - set(text)
        # Columns with named marks are read as text, because a mark may look like a number
        marked = set(files[0].names if form.missing is not None else form.missing_in)
        as_read = set(text) | idle | marked & set(files[0].names)
        table, mixed = _read_all(files, separator, as_read, folder)
        _refuse_headers(table, files[0], paths[0])
        looks, signs = dict[str, _Look](), set[str]()
        for name in (name for name, kind in table.schema.items() if kind == pl.String):
            column = table.get_column(name)
            signs |= {sign for sign in "\n\0" if column.str.contains(sign, literal=True).any()}
            if name not in idle:
                looks[name] = _looked(column, form)
        notes = _line_notes(table, files, separator, signs)
        convertible = {name for name, look in looks.items() if name not in text and not look.has_formula}
        decimal, either_way = form.decimal, ""
        if decimal is None:
            idle_looks = (_looked(table.get_column(name), form) for name in idle if table.schema[name] == pl.String)
            cells = {name: looks[name] for name in convertible}
            decimal, either_way = _decimal(table, cells, idle_looks, set(text), files, separator, folder)
        if decimal == "," and (pointed := {name for name, kind in table.schema.items() if kind.is_float()} - as_read):
            # Polars took points between thousands for decimal signs
            table, _ = _read_all(files, separator, as_read | mixed | pointed, folder)
            looks |= {name: _looked(table.get_column(name), form) for name in pointed}
            convertible |= pointed
            if wrong := [name for name in sorted(pointed) if looks[name].readings and "," not in looks[name].readings]:
                raise DataError(
                    f'{paths[0]}: column {wrong[0]!r} has decimal points, but the decimal sign is ","; check table.decimal'
                )
        doubts = _doubtful_numbers(table, files, separator)
    typed = list[pl.Expr]()
    for name, kind in table.schema.items():
        if kind.is_float() and table.get_column(name).is_nan().any():
            typed.append(cs.by_name(name).as_expr().fill_nan(None))
    marks = _Marks()
    first_cells = table.source.select(cs.by_name(*looks)).head(1).collect() if looks else pl.DataFrame()
    types = {cell.name for cell in first_cells if len(cell) and TYPE_NAME.fullmatch((cell.item() or "").strip())}
    for name, look in looks.items():
        column = table.get_column(name)
        if name in convertible and (numbers_or_times := _typed(column, look, decimal or ".")) is not None:
            typed.append(numbers_or_times)
            marks.add(name, look, form, stays_text=False)
            if (decimal or ".") in look.readings:
                doubts["exponent"] += [name] * look.has_exponent
                for doubt in _spelling_doubts(_unmarked(column.head(LOOKED_AT).str.strip_chars(), look.marks)):
                    doubts[doubt].append(name)
            continue
        # A single type's name may be a value
        if name in convertible and ((len(types) > 1 and name in types) or _has_odd_first(column)):
            doubts["first row"].append(name)
        if look.has_formula:
            doubts["formula"].append(name)
        if look.words or look.has_formula:
            text_cells = cs.by_name(name).as_expr()
            typed.append(_without(text_cells.str.replace(FORMULA, "$1") if look.has_formula else text_cells, look.words))
        marks.add(name, look, form, stays_text=True)
    notes += [either_way] if either_way else []
    for doubt, note in DOUBTS.items():
        notes += [note.format(columns=", ".join(map(repr, sorted(doubts[doubt]))))] if doubts[doubt] else []
    read = LazyTable(
        table.source.with_columns(typed),
        held=table.held,
        decimal=decimal,
        missing=marks.missing,
        notes=(*notes, *marks.notes(form)),
    )
    return _without_counts(read, files[0], paths[0], asks_for)


def _require_same_columns(paths: Sequence[Path], encoding: str | None, separator: str, asks_for: Callable[[str], bool]) -> None:
    """Raise DataError, naming the file, for a header with unusable names, or with other names than the first file's."""
    first: list[str] | None = None
    for path in paths:
        header, _ = _with_names(_header(path, encoding, separator))
        require_usable(header, source=str(path))
        first = first or header
        if odd := sorted(name for name in set(header) ^ set(first) if asks_for(name)):
            other = ", ".join(map(repr, odd))
            raise DataError(
                f"{path}: has other columns than {paths[0]}: {other} in only one of them; the files of one table must agree"
            )


def _line_notes(table: LazyTable, files: Sequence["_Plain"], separator: str, signs: Collection[str]) -> list[str]:
    """Describe lines that lack cells, and files whose named encoding may be wrong.

    ``signs`` says whether cells have line breaks or NUL characters. Raises DataError for NUL bytes, and for quotes that break
    the format: then a cell has line breaks.
    """
    for file in files if "\0" in signs else ():
        with file.text.open("rb") as raw:
            _refuse_nul(any(b"\0" in piece for piece in iter(partial(raw.read, COPIED_BYTES), b"")), file.path)
    for file in files if "\n" in signs else ():
        _check_quotes(file.text, separator, file.path)
    short = [
        f"{file.path}: {line} instead of {len(file.names)}, and so may others; their last columns count as missing, "
        "because Excel leaves out empty cells; but a file that was not written to the end looks the same"
        for file in files
        if table.get_column(file.names[-1]).null_count()  # otherwise no line is short
        and (line := file.line_of(separator, lambda cells: cells < len(file.names))) is not None  # noqa: B023
    ]
    return short + [file.doubt for file in files if file.doubt]


def _doubtful_numbers(table: LazyTable, files: Sequence["_Plain"], separator: str) -> defaultdict[str, list[str]]:
    """Find the columns that Polars read as numbers, and whose cells may be codes by the way they are written."""
    doubts = defaultdict[str, list[str]](list)
    floats = {name for name, kind in table.schema.items() if kind.is_float()}
    if whole := {name for name in floats if _is_whole(table.get_column(name))}:
        # Look through all lines, because a single cell such as 12E4 makes whole numbers floating point
        has_code = [file.scan(separator, file.names).select(cs.by_name(*whole).str.contains(CODE_LIKE).any()) for file in files]
        any_file = pl.concat(has_code).collect(engine="streaming")
        doubts["exponent"] = [name for name in any_file.columns if any_file.get_column(name).any()]
    short = {name for name in floats - whole if _have_few_digits(table.get_column(name), least=0)}
    if written := short | {name for name, kind in table.schema.items() if kind.is_integer()}:
        head = files[0].scan(separator, files[0].names).head(LOOKED_AT).select(cs.by_name(*written))
        for cells in head.collect():
            for doubt in _spelling_doubts(cells.str.strip_chars().drop_nulls()):
                doubts[doubt].append(cells.name)
    return doubts


def _spelling_doubts(cells: pl.Series) -> list[str]:
    """List what numbers may be by the way they are written: codes, or versions such as 1.10, which is not 1.1."""
    longer = cells.filter(cells.str.contains(r"^[0-9]+\.[1-9]+0$")).unique()
    is_version = len(longer) > 0 and bool(longer.str.strip_suffix("0").is_in(cells.implode()).any())
    is_code = bool(cells.str.contains(DIGITS_OF_CODE).any())
    return ["code"] * is_code + ["version"] * is_version


@dataclass(frozen=True, kw_only=True)
class _Look:
    """The types that a text column can be read as, and its words that mark a missing cell."""

    readings: frozenset[str]
    marks: tuple[str, ...]  # if it is not read as text
    words: tuple[str, ...]  # if it stays text
    doubtful: tuple[str, ...]  # if it stays text: these stay categories, but may mean a missing cell
    foreign: bool = False  # some cells have digits or signs beyond ASCII
    has_formula: bool = False  # some cells are text as Excel writes it
    has_exponent: bool = False
    has_comma: bool = False
    has_point: bool = False


def _looked(column: pl.Series, form: TableConfig) -> _Look:
    marks_of_column = form.missing_in.get(column.name, form.missing)
    stripped = column.str.strip_chars()
    words = _among(stripped, NULL_WORDS if marks_of_column is None else marks_of_column)
    marks = (*(marks_of_column or ()), *MARKS)
    doubtful = tuple(sorted(set(_among(stripped, DOUBTFUL)) - set(words))) if marks_of_column is None else ()
    sample = _unmarked(stripped.head(SAMPLE_CELLS), marks)
    readings = _readings(sample) or _readings(sample.filter(~sample.str.contains(A_WORD)))
    has_formula = bool(column.str.contains('="', literal=True).any()) and bool(column.str.contains(FORMULA).any())
    if has_formula or (not readings and (len(column) <= SAMPLE_CELLS or len(sample))):
        return _Look(readings=frozenset(), marks=(), words=words, doubtful=doubtful, has_formula=has_formula)
    cells = _unmarked(stripped, marks)
    others: tuple[str, ...] = ()
    if "boolean" not in readings and column.name not in form.missing_in:
        # A few words among many different values with digits can only mark missing cells
        is_word = cells.str.contains(A_WORD) & ~cells.str.contains(rf"^[+-]?{_INFINITE}$")
        found_words = cells.filter(is_word).unique().to_list()
        many_values = cells.filter(~is_word).n_unique() >= FEWEST_VALUES
        if len(found_words) <= MOST_WORDS and many_values and is_word.mean() < MOST_OF_WORDS:  # type: ignore[operator]
            others = tuple(sorted(found_words))
    cells = _unmarked(cells, others)
    foreign = _is_foreign(cells)
    cells = _plain_text(cells, foreign=foreign)
    fitting = frozenset(name for name in (readings or READINGS) if _matches(cells, READINGS[name]))
    return _Look(
        readings=fitting,
        marks=_among(stripped, (*marks, *others)) if fitting else (),
        words=words,
        doubtful=doubtful,
        foreign=foreign,
        has_comma=bool(fitting) and bool(cells.str.contains(",", literal=True).any()),
        has_point=bool(fitting) and bool(cells.str.contains(".", literal=True).any()),
        has_exponent=bool(fitting) and bool(cells.str.contains(CODE_LIKE).any()),
    )


def _has_odd_first(column: pl.Series) -> bool:
    """Tell whether only the first cell prevents a column of text from being read as another type."""
    cells = column.head(SAMPLE_CELLS)
    if not any(re.search("[0-9]|true|false", cell, re.IGNORECASE) for cell in cells[1:3].drop_nulls()):
        return False
    stripped = cells.str.strip_chars()
    known = _unmarked(stripped[1:], MARKS)
    first = _unmarked(stripped[:1], MARKS)
    return len(first) == 1 and len(known) >= FEWEST_VALUES and bool(_readings(known)) and not _readings(first)


def _readings(cells: pl.Series) -> list[str]:
    plain = _plain_text(cells, foreign=_is_foreign(cells))
    return [name for name, pattern in READINGS.items() if _matches(plain, pattern)]


def _among(cells: pl.Series, words: Sequence[str]) -> tuple[str, ...]:
    """Return the words that occur among the cells."""
    return tuple(sorted(set(cells.filter(cells.is_in(pl.Series(words, dtype=pl.String).implode())).unique().to_list())))


def _unmarked(cells: pl.Series, marks: Sequence[str]) -> pl.Series:
    values = cells.drop_nulls()
    return values.filter(~values.is_in(pl.Series([*marks, ""], dtype=pl.String).implode()))


def _without(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    return pl.when(~text.str.strip_chars().is_in(list(words))).then(text)


def _plain_text(cells: Spelt, *, foreign: bool) -> Spelt:
    """Return the cells with ASCII minus signs, without apostrophes or spaces between thousands.

    If some cells have ``foreign`` characters, digits and signs are converted to ASCII, and invisible characters are dropped.
    """
    if foreign:
        cells = ascii_digits(cells.str.replace_all(r"\p{Cf}|\u066c", "")).str.replace_many(FOREIGN_SIGNS)
    plain = cells.str.replace("^[\u2212\u2013]", "-")
    for parted in PARTED:
        plain = plain.str.replace(parted, WHOLE_AGAIN)
    return plain


def _is_foreign(cells: pl.Series) -> bool:
    return bool(cells.str.contains(FOREIGN).any())


@dataclass(kw_only=True)
class _Marks:
    """Words of each column that mark a missing cell, or may mark one."""

    of_numbers: dict[str, tuple[str, ...]] = field(default_factory=dict)  # marks that are known
    own: dict[str, tuple[str, ...]] = field(default_factory=dict)  # other words beside numbers, which mark missing cells, too
    of_text: dict[str, tuple[str, ...]] = field(default_factory=dict)
    doubtful: dict[str, tuple[str, ...]] = field(default_factory=dict)  # words that stay categories
    missing: dict[str, tuple[str, ...]] = field(default_factory=dict)  # words that later tables have, too

    def add(self, name: str, look: _Look, form: TableConfig, *, stays_text: bool) -> None:
        """Add the words of a column."""
        named = form.missing_in.get(name, form.missing)
        if stays_text:
            self.missing[name] = NULL_WORDS if named is None else named
            self.of_text |= {name: look.words} if look.words else {}
            self.doubtful |= {name: look.doubtful} if look.doubtful else {}
            return
        if own := tuple(sorted(set(look.marks) - set(MARKS) - set(named or ()))):
            self.own[name] = self.missing[name] = own
        if known := tuple(mark for mark in look.marks if mark not in own):
            self.of_numbers[name] = known

    def notes(self, form: TableConfig) -> list[str]:
        """Say which words counted as missing cells, and which may mean them."""
        notes = []
        if self.of_numbers:
            notes.append(
                f"cells that count as missing: {_listed(self.of_numbers)} (table.missing names more such words; list a column of "
                "codes under features.categorical)"
            )
        if self.own:
            notes.append(
                "words that count as missing cells, because all other cells of the column are numbers or times: "
                f"{_listed(self.own)}; if they are values, keep them by table.missing_in: {{{next(iter(self.own))}: []}}, or "
                "list the column under features.categorical; if they are not, name them under table.missing"
            )
        if self.of_text and form.missing is None:
            first = next(iter(self.of_text))
            notes.append(
                f"text cells that count as missing: {_listed(self.of_text)}; if one of them is a value, list the words for a "
                f"missing cell of its column, such as table.missing_in: {{{first}: []}}"
            )
        if self.doubtful:
            first, marks = next(iter(self.doubtful.items()))
            listed = ", ".join(map(repr, marks))
            notes.append(
                f"text cells that stay values but may mean a missing cell: {_listed(self.doubtful)}; if they do, write "
                f"table.missing_in: {{{first}: [{listed}]}}; if they do not, write table.missing_in: {{{first}: []}}"
            )
        return notes


def _listed(columns: dict[str, tuple[str, ...]]) -> str:
    few = [f"{', '.join(map(repr, words))} in column {name!r}" for name, words in itertools.islice(columns.items(), LISTED)]
    return "; ".join(few) + (f"; and in {len(columns) - LISTED} more columns" if len(columns) > LISTED else "")


def _without_counts(table: LazyTable, plain: "_Plain", path: Path, asks_for: Callable[[str], bool]) -> LazyTable:
    """Leave out unnamed columns that are empty or only count rows.

    Raises DataError for other columns without a name that are asked for.
    """
    left_out = {}
    for name in table.columns:
        if not plain.has_no_name(name):
            continue
        cells = table.get_column(name)
        if cells.null_count() == len(cells):
            left_out[name] = "is empty"
        elif _counts(cells):
            left_out[name] = "only counts rows"
        elif name in plain.unnamed and asks_for(name):
            raise DataError(
                f"{path}: {name} has values but no name in the header; give it a name, or remove it (in pandas: "
                "to_csv(..., index=False); in R: row.names = FALSE)"
            )
    if not left_out:
        return table
    notes = tuple(
        f"{name if name in plain.unnamed else f'column {name!r}'} {why} and was left out" for name, why in left_out.items()
    )
    source = table.source.drop(*(cs.by_name(name) for name in left_out))
    return replace(table, source=source, block=type(table.block)(), notes=(*table.notes, *notes))


def _counts(cells: pl.Series) -> bool:
    """Tell whether cells are row numbers: whole, each once, and in order or without a gap."""
    if not cells.dtype.is_integer() or cells.null_count() or cells.n_unique() < len(cells):
        return False
    return bool(cells.is_sorted()) or int(cells.max()) - int(cells.min()) + 1 == len(cells)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """A file's text in the form that Polars reads in pieces: UTF-8, not compressed."""

    path: Path
    text: Path  # itself, or a temporary copy
    codec: str
    names: list[str]  # names of the columns
    unnamed: frozenset[str]  # generated names of columns without a name
    doubt: str = ""  # about its encoding

    @classmethod
    def of(cls, path: Path, form: TableConfig, separator: str, copy: Path) -> "_Plain":
        codec, header = _codec(path, form.encoding), _header(path, form.encoding, separator)
        names, unnamed = _with_names(header)
        plain = partial(cls, path=path, codec=codec, names=names, unnamed=frozenset(unnamed))
        with _open(path, form.encoding) as words:
            is_plain = _separator_line(words) is None
            head = words.read(COPIED_BYTES)
            breaks_by_return = "\r" in head and "\n" not in head
        first = re.match(r"([^\r\n]*)\r(?!\n)", head)
        if first is not None and not breaks_by_return and first[1].count('"') % 2 == 0:
            raise DataError(
                f"{path}: some lines end in a carriage return and others in a line feed; write the file again with one kind "
                "of line ending"
            )
        doubt = ""
        if "utf" not in codec and not head.isascii():
            with suppress(UnicodeError):
                codecs.getincrementaldecoder("utf-8")().decode(head.encode(codec))
                doubt = (
                    f"{path}: its text is valid UTF-8, but table.encoding is {form.encoding}; remove that key if Ã¼ should be ü"
                )
        if codec == UTF_8 and is_plain and not is_gzipped(path) and not breaks_by_return:
            with path.open("rb") as file:
                file.seek(-1, os.SEEK_END)
                _refuse_nul(file.read(1) == b"\0", path)
            return plain(text=path)
        with room_for(copy), copy.open("w", encoding="utf-8", newline="") as file, _open(path, form.encoding) as words:
            _separator_line(words)
            lines = 0
            while piece := words.read(COPIED_BYTES):
                piece = piece.replace("\r", "\n") if breaks_by_return else piece
                lines += piece.count("\n")
                refuse_rows_beyond(lines - 1, form, source=path, has="unpacks into at least")
                _refuse_nul("\0" in piece, path)
                file.write(piece)
        return plain(text=copy, doubt=doubt)

    def has_no_name(self, column: str) -> bool:
        return column in self.unnamed or UNNAMED.fullmatch(column) is not None

    def scan(self, separator: str, text: Collection[str], long: Collection[str] = ()) -> pl.LazyFrame:
        return pl.scan_csv(
            self.text,
            separator=separator,
            infer_schema_length=0 if set(self.names) <= set(text) else None,  # counting rows takes as long as reading
            null_values=[""],
            schema_overrides=dict.fromkeys(long, pl.Float64) | dict.fromkeys(text, pl.String),
            glob=False,
            new_columns=self.names,  # Polars leaves doubled quotes in a name
        )

    def read(self, separator: str, text: Collection[str], folder: Path | None, long: tuple[str, ...] = ()) -> LazyTable:
        """Read the file. Whole numbers in columns ``long``, which exceed every integer type, become floating point."""
        scanned = self.scan(separator, text, long)
        try:
            return store(scanned, folder)
        except pl.exceptions.PolarsError as error:
            if (match := TOO_LONG.search(str(error))) is not None:
                column = scanned.collect_schema().names()[int(match[2]) - 1]
                is_foreign = not match[1].isascii()  # digits of another script
                if is_foreign and column not in text:
                    return self.read(separator, {*text, column}, folder, long)
                if not is_foreign and column not in long:
                    return self.read(separator, text, folder, (*long, column))
            _check_quotes(self.text, separator, self.path)
            if (line := self.line_of(separator, lambda cells: cells > len(self.names))) is not None:
                raise DataError(f"{self.path}: {line}, and the header {len(self.names)}; {self._too_long(separator)}") from None
            if "malformed" in str(error):
                raise DataError(
                    f'{self.path}: a cell without quotes around it contains a quote; write such a cell as "a ""b"" c"'
                ) from None
            if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
                raise _other_encoding(self.path, self.codec) from None
            raise

    def line_of(self, separator: str, is_such: Callable[[int], bool]) -> str | None:
        """Describe the first line whose number of cells is wrong. An empty line is a row without cells."""
        with self.text.open(encoding="utf-8", errors="replace", newline="") as lines:
            reader = csv.reader(lines, delimiter=separator)
            for cells in reader:
                if cells and is_such(len(cells)):
                    return f"line {reader.line_num} has {len(cells)} cell{'s' if len(cells) != 1 else ''}"
        return None

    def _too_long(self, separator: str) -> str:
        """Say what to do about lines with more cells than the header has names. The first lines show the reason."""
        with self.text.open(encoding="utf-8", errors="replace", newline="") as stream:
            lines = list(itertools.islice(_lines(stream, self.path), SAMPLE_LINES))
        if any(re.search(rf"""(^|{re.escape(separator)})(\s+"|')""", line) for line in lines):
            return f"put a cell that contains {separator!r} in double quotes, as its first and last character"
        widths = [len(row) for row in csv.reader(lines[1:], delimiter=separator) if row]
        if len(widths) > 2 and 2 * sum(width > len(self.names) for width in widths) > len(widths):
            return _no_header(separator)
        return f"put a cell that contains {separator!r} in double quotes, or remove what is after the last column"


def _no_header(separator: str) -> str:
    return (
        f"most lines have more cells between {separator!r} than the first one, which is read as the header; remove what is "
        "above the header, give each column a name, or name the separator under table.separator"
    )


def _check_quotes(text: Path, separator: str, path: Path) -> None:
    """Raise DataError, naming the line, if quotes break the format, for example after a backslash.

    Otherwise Polars would read all lines up to the next quote as one cell.
    """
    with text.open(encoding="utf-8", errors="replace", newline="") as lines:
        reader = csv.reader(lines, delimiter=separator, strict=True)
        try:
            for _ in reader:
                pass
        except csv.Error as error:
            raise DataError(
                f"{path}: line {reader.line_num}: its quotes cannot be read ({error}); a quote in a quoted cell is written twice"
            ) from None


def _refuse_nul(is_there: bool, path: Path) -> None:
    if is_there:
        with _binary(path) as stream:
            codec = "utf-16-be" if stream.read(1) == b"\0" else "utf-16-le"
        raise DataError(
            f"{path}: contains NUL bytes. If its writing was interrupted, write it again. If it is UTF-16 without a byte-order "
            f"mark, name the encoding under table in the party file: `encoding: {codec}`"
        )


def _refuse_headers(table: LazyTable, plain: "_Plain", path: Path) -> None:
    """Raise DataError if rows hold the names of all columns, as when files of a table were joined."""
    named = [name for name in table.columns if name not in plain.unnamed]
    spelt = {
        lead + each
        for name in named
        for each in (name, *_plainly([name]), name.upper(), name.title())
        for lead in ("", " ", "\ufeff")
    }
    text = next((name for name in named if table.schema[name] == pl.String), None)
    if text is not None and table.get_column(text).is_in(pl.Series(list(spelt)).implode()).any():
        is_header = pl.all_horizontal([cs.by_name(name).cast(pl.String).is_in(list(spelt)) for name in named])
        rows = table.source.select(is_header).collect().to_series().fill_null(False)
        # Files that were joined may have their columns in other orders; of fewer than three columns a row may hold such words
        names, is_known = _plainly(named), sorted if len(named) > 2 else list
        repeated = [
            is_known(_plainly(row)) == is_known(names) for row in table.source.filter(rows).select(named).collect().rows()
        ]
        if any(repeated):
            raise DataError(
                f"{path}: its header occurs again in {rows_listed(rows)} rows, as if files had been joined; remove these rows, "
                "or name a folder with the single files"
            )


def _plainly(names: Sequence[object]) -> list[str]:
    """Write names without the space around them, in lower case."""
    return [str(name).strip(" \t\ufeff").lower() for name in names]


def _with_names(header: Sequence[str]) -> tuple[list[str], set[str]]:
    """Name columns without a name by their place, and return the names, and those that are made up."""
    names = [name if name.strip() else f"column {place}" for place, name in enumerate(header, 1)]
    return names, {made for made, name in zip(names, header, strict=True) if made != name}


def _read_all(files: Sequence[_Plain], separator: str, text: set[str], folder: Path) -> tuple[LazyTable, set[str]]:
    """Read all files as one table. Also return the columns that became text because they are text in one of the files.

    A column that is text in one file is read as text in all, because a number that is converted back to text has lost its
    spelling.
    """
    if len(files) == 1:
        return files[0].read(separator, text, None), set()
    tables = [file.read(separator, text, folder) for file in files]
    kinds: dict[str, set[bool]] = {}
    for table in tables:
        for name, kind in table.schema.items():
            if table.get_column(name).null_count() < table.height:
                kinds.setdefault(name, set()).add(kind == pl.String)
    if mixed := {name for name, kind_of_column in kinds.items() if len(kind_of_column) == 2} - text:
        tables = [file.read(separator, text | mixed, folder) for file in files]
    # Stack the files. The columns are those of the first file, then those that it lacks. A column without a value is read as
    # text, and takes the type that it has in the other files.
    names = dict.fromkeys(name for table in tables for name in table.columns)
    parts = []
    for table in tables:
        empty = [name for name in table.columns if table.get_column(name).null_count() == table.height]
        part = table.source.with_columns([cs.by_name(name).cast(pl.Null) for name in empty])
        parts.append(part.select([cs.by_name(name) if name in table.columns else pl.lit(None).alias(name) for name in names]))
    return store(pl.concat(parts, how="vertical_relaxed")), mixed


def _codec(path: Path, encoding: str | None) -> str:
    """Return the codec: the one in the party file, or UTF-8, or UTF-16 if there is a byte-order mark."""
    if encoding is not None:
        name = codecs.lookup(encoding).name
        return UTF_8 if name == "utf-8" else name
    with _binary(path) as stream:
        mark = stream.read(2)
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else UTF_8


def _binary(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if is_gzipped(path) else path.open("rb")


@contextmanager
def _open(path: Path, encoding: str | None) -> Iterator[TextIO]:
    """Open a file as text. Raises DataError with what to write into the party file if the encoding is another one."""
    codec = _codec(path, encoding)
    try:
        with _binary(path) as raw, io.TextIOWrapper(raw, encoding=codec, newline="") as stream:
            yield stream
    except UnicodeError:
        raise _other_encoding(path, codec) from None


def _separator_line(stream: TextIO) -> str | None:
    """If the file begins with Excel's line that names the separator, read it and return the separator."""
    match = SEPARATOR_LINE.fullmatch(stream.readline(10))
    if match is None:
        stream.seek(0)
    return match[1] if match is not None else None


def _other_encoding(path: Path, codec: str) -> DataError:
    """Say that a file is in another encoding, and propose those that its letters fit."""
    name, sample, wrong = "utf-8" if codec == UTF_8 else codec, bytearray(), list[int]()
    with _binary(path) as lines:
        others = 0
        for number, line in enumerate(iter(partial(lines.readline, MOST_CHARACTERS), b""), 1):
            if line.isascii():
                continue
            try:
                line.decode(codec)
                others += 1
            except UnicodeError:
                sample += line
                wrong.append(number)
            if len(sample) >= ENCODING_SAMPLE:
                break
    if codec == UTF_8 and others > len(wrong):
        return DataError(
            f"{path}: is not text in {name} from line {wrong[0]} on, but other lines are, as if files of two encodings had been "
            f"joined; write them all in {name}"
        )
    fitting = likely_encodings(bytes(sample[:ENCODING_SAMPLE]))
    advice = f"`encoding: {fitting[0]}` fits its letters" if fitting else "ask for it where the file was written"
    if len(fitting) > 1:
        advice = (
            f"its letters fit {', '.join(f'`encoding: {each}`' for each in fitting)}; look at some names in what `check` shows"
        )
    return DataError(f"{path}: is not text in {name}; name its encoding under table in the party file: {advice}")


def _header(path: Path, encoding: str | None, separator: str) -> list[str]:
    with _open(path, encoding) as stream:
        _separator_line(stream)
        try:
            names = next(csv.reader(_lines(stream, path), delimiter=separator), [])
            is_blank = not names and bool(stream.read(COPIED_BYTES).strip())
        except csv.Error as error:
            raise DataError(f"{path}: its header cannot be read: {error}") from None
    if is_blank:
        raise DataError(f"{path}: begins with an empty line; remove what is above the header")
    if not names:
        raise DataError(f"{path}: is empty")
    _refuse_nul(any("\0" in name for name in names), path)
    return names


def _lines(stream: TextIO, path: Path) -> Iterator[str]:
    """Yield the first lines. Raises DataError for a line that is too long, because a few compressed kilobytes may contain a
    line that fills the memory.
    """
    while line := stream.readline(MOST_CHARACTERS):
        if len(line) == MOST_CHARACTERS and not line.endswith(("\n", "\r")):
            raise DataError(
                f"{path}: has a line of more than {MOST_CHARACTERS:,} characters; it is not a table with one row per line"
            )
        yield line


def _separator(path: Path, encoding: str | None) -> str:
    """Find the separator that splits the header into names, and most of the first lines into as many cells.

    A line that lacks its last cells does not count against it. If several separators fit equally many lines, prefer the one
    with more columns, then the one of the file's ending. Raises DataError if no separator splits the header, but one splits the
    lines below.
    """
    usual = "\t" if ".tsv" in path.name.lower() else ","
    with _open(path, encoding) as stream:
        if (stated := _separator_line(stream)) is not None:
            return stated
        lines = list(itertools.islice(_lines(stream, path), SAMPLE_LINES))
    fitting: dict[str, tuple[float, int]] = {}  # share of the lines that fit, and how many names there are
    below_alone: str | None = None
    for separator in (usual, *SEPARATORS):
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator, strict=False) if row]
        except csv.Error:
            continue
        below = Counter(len(row) for row in rows[1:-1] or rows[1:])  # the last row may end inside quotes
        names = len(rows[0]) if rows else 0
        if names > 1:
            fitting[separator] = (below[names] / max(below.total(), 1), names)
        elif names == 1 and below.total() > 1 and below.most_common(1)[0][0] > 1 and 2 * below[1] < below.total():
            below_alone = separator
    if not fitting and below_alone is not None:
        raise DataError(f"{path}: {_no_header(below_alone)}")
    return max(fitting, key=lambda separator: fitting[separator], default=usual)


def _matches(column: pl.Series, pattern: str) -> bool:
    """Tell whether there is at least one value and all values match. A few cells are checked first, which is faster."""
    values = column.drop_nulls()
    return len(values) > 0 and bool(values.head(SAMPLE_CELLS).str.contains(pattern).all() and values.str.contains(pattern).all())


def _decimal(
    table: LazyTable,
    cells: Mapping[str, _Look],
    idle_cells: Iterable[_Look],
    text: set[str],
    files: Sequence[_Plain],
    separator: str,
    folder: Path,
) -> tuple[Literal[",", "."] | None, str]:
    """Find the decimal sign from columns that can be read in one way only. Return None if no column decides.

    Unused columns (``idle_cells``) are checked if no other column decides, and never cause an error. If no column decides and all
    numbers of a column look like 801.200, also return a note about it, otherwise an empty text.

    Raises DataError if columns contradict each other, or if a column with a sign can be read in two ways.
    """
    path = files[0].path
    comma = {name for name, look in cells.items() if "," in look.readings and look.has_comma | look.has_point}
    point = {name for name, look in cells.items() if "." in look.readings and look.has_comma | look.has_point}
    thousands = {name for name in comma & point if not cells[name].has_comma}
    comma, point = comma - thousands, point - thousands
    for name, kind in table.schema.items():
        if kind.is_float():
            column = table.get_column(name)
            # Numbers with a point, such as 1.250, may be whole if all are from 1 to 999 with at most three decimals
            if _have_few_digits(column.abs(), least=1):
                thousands.add(name)
            if not _is_whole(column):
                point.add(name)
    certain_comma, either, certain_point = comma - point, comma & point, point - comma - thousands
    if certain_comma and certain_point:
        problem = f"{min(certain_comma)!r} has decimal commas and column {min(certain_point)!r} decimal points"
    elif either and not certain_comma and not certain_point:
        if (told := _told_by(idle_cells)) is not None:
            return told, ""
        problem = f"{min(either)!r} has commas that may be decimal signs or thousands separators"
    elif certain_comma or certain_point:
        return ("," if certain_comma else "."), ""
    else:
        # Find the columns in which some numbers have three digits after a point and others have no point. If some number has
        # another count of digits after the point, the point is the decimal sign.
        mixing, all_pointed, is_point = set[str](), set[str](), False
        table_of_text = _read_all(files, separator, text | thousands, folder)[0] if thousands else table
        for name in thousands:
            words = _unmarked(table_of_text.get_column(name).str.strip_chars(), MARKS)
            pointed = words.str.contains(".", literal=True)
            is_point |= not _matches(words, THOUSANDS)
            if pointed.any():
                (all_pointed if pointed.all() else mixing).add(name)
        if is_point:
            return ".", ""
        if (told := _told_by(idle_cells)) is not None:
            return told, ""
        if not mixing:
            columns = ", ".join(map(repr, sorted(all_pointed)))
            doubt = (
                f"all numbers of column {columns} have three digits after a point, so the point may be a decimal sign or a "
                "thousands separator: 801.200 is read as 801.2; write under table in the party file "
                '`decimal: "."`, or `decimal: ","` for 801200'
            )
            return None, (doubt if all_pointed else "")
        problem = f"{min(mixing)!r} has numbers such as 8.505 and such as 410, so the points may be thousands separators"
    raise DataError(f'{path}: column {problem}; say which under table in the party file: `decimal: ","` or `decimal: "."`')


def _told_by(idle_cells: Iterable[_Look]) -> Literal[",", "."] | None:
    """Return the decimal sign that some columns show, or None if no column shows one or columns contradict each other."""
    signs = {
        frozenset(look.readings & {",", "."}) for look in idle_cells if look.has_comma or look.has_point
    }  # a column of text has none
    commas, points = frozenset({","}) in signs, frozenset({"."}) in signs
    return None if commas == points else "," if commas else "."


def _have_few_digits(column: pl.Series, *, least: int) -> bool:
    """Tell whether all numbers are from ``least`` to 999, with up to three digits behind the point."""
    values = column.drop_nulls()
    if not values.is_between(least, 1000, closed="left").all():
        return False
    values_N = values.to_numpy()  # Polars' own division by 1000 is a multiplication, which is not exact
    return bool((np.round(values_N * 1000) / 1000 == values_N).all())


def _is_whole(column: pl.Series) -> bool:
    return bool((column.drop_nulls() % 1 == 0).all())


def _typed(column: pl.Series, look: _Look, decimal: str) -> pl.Expr | None:
    """Convert cells to numbers, dates, moments or booleans, or return None for other cells."""
    text = _without(cs.by_name(column.name).as_expr(), (*look.marks, "")).str.strip_chars()
    if decimal in look.readings:
        plain = _plain_text(text, foreign=look.foreign).str.replace_all("." if decimal == "," else ",", "", literal=True)
        long_kind = pl.Int128 if LONG_NUMBERS in look.readings else pl.Float64
        kind = pl.Int64 if WHOLE_NUMBERS in look.readings else long_kind
        return plain.str.replace(",", ".", literal=True).cast(kind)
    text = _plain_text(text, foreign=True) if look.foreign else text
    reading = None
    if "boolean" in look.readings:
        reading = text.str.to_lowercase() == "true"
    elif "clock" in look.readings:
        reading = text.str.replace(r"^(.{5})$", "$1:00").str.to_time("%H:%M:%S%.f", strict=False)
    elif "day" in look.readings:
        reading = text.str.to_date("%Y-%m-%d", strict=False)
    elif "moment" in look.readings:
        reading = _moments(text).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    elif "zoned" in look.readings:
        zoned = _moments(text).str.replace("Z$", "+0000").str.replace(r"([+-]\d{2}):?(\d{2})?$", "$1$2")
        zoned = zoned.str.replace(r"([+-]\d{2})$", "${1}00")
        reading = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", time_zone="UTC", strict=False)
    # 2023-02-30 is not a date, so such a column stays text.
    if reading is None or column.to_frame().select(reading.is_null() & text.is_not_null()).to_series().any():
        return None
    return reading


def _moments(text: pl.Expr) -> pl.Expr:
    """Write times with a T in the middle, a time of day and seconds."""
    return (
        text.str.replace(" ", "T", literal=True)
        .str.replace(r"^(.{10})$", "${1}T00:00")
        .str.replace(r"^(.{13}:\d{2})($|[Z+-])", "${1}:00$2")
    )
