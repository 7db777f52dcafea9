"""Delimited text, CSV and TSV: what the files leave open is detected where it is certain, and asked for where it is not.

Open are the separator, the encoding, and whether 1,234 is a thousand or a little more than one.
"""

import codecs
import csv
import gzip
import io
import itertools
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal, TextIO, cast

import polars as pl
import polars.selectors as cs

from tallystick.config.table import TableConfig
from tallystick.data.lazy import COPIED_BYTES, LazyTable, room_for, store
from tallystick.data.rows import refuse_rows_beyond
from tallystick.errors import DataError
from tallystick.storage import scratch_folder

NULL_WORDS = ["", "NA", "NaN", "nan", "null", "NULL"]
SEPARATORS = (",", ";", "\t", "|")
UTF_8 = "utf-8-sig"  # with or without its mark
SAMPLE_LINES = 50
SAMPLE_CELLS = 1000
MOST_CHARACTERS = 1 << 22  # of a header, or of one of the lines that are looked at first

_EXPONENT = r"([eE][+-]?\d+)?"
NUMBERS = {
    ",": rf"^\s*[+-]?(\d+|\d{{1,3}}(\.\d{{3}})+)(,\d+)?{_EXPONENT}\s*$",  # 1.234,5
    ".": rf"^\s*[+-]?(\d+|\d{{1,3}}(,\d{{3}})+)(\.\d+)?{_EXPONENT}\s*$",  # 1,234.5
}
DAY = r"^\d{4}-\d{2}-\d{2}$"
MOMENT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"
TOO_LONG = re.compile(r"could not parse .* as dtype `i(?:64|128)` at column .*\(column number (\d+)\)", re.DOTALL)
"""What Polars says of a whole number beyond its integer types, which it had chosen by the look of the cells."""


def read_delimited(paths: Sequence[Path], form: TableConfig, *, text: Collection[str]) -> LazyTable:
    """Read files of the same columns as one table, with the rows in the files' order.

    Args:
        paths: at least one file, plain or gzipped.
        form: separator, encoding and decimal sign where the party file names them.
        text: columns that are kept as they are written.

    Raises DataError, naming the file, for columns that are named twice or differ from file to file, for text in another encoding,
    and for numbers with commas that may be read in two ways.
    """
    separator = form.separator or _separator(paths[0], form.encoding)
    for path in paths:
        _check_header(path, form.encoding, separator, first=paths[0])
    with scratch_folder() as folder:
        plain = [_Plain.of(path, form, folder / str(number)) for number, path in enumerate(paths)]
        as_read = set(text)
        table, mixed = _read_all(plain, separator, as_read, folder)
        told = form.decimal or _decimal(table, text, paths[0])
        decimal = told or "."
        if decimal == "," and (pointed := {name for name, kind in table.schema.items() if kind.is_float()} - as_read):
            table, _ = _read_all(plain, separator, as_read | mixed | pointed, folder)
            _refuse_points(table, pointed, paths[0])
    words = [name for name, kind in table.schema.items() if kind == pl.String and name not in text]
    typed = [found for name in words if (found := _typed(table.get_column(name), decimal)) is not None]
    return LazyTable(table.source.with_columns(typed), held=table.held, decimal=told)


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """A file's text as Polars reads it a piece at a time: in UTF-8 and not packed."""

    path: Path
    text: Path  # itself, or a temporary copy
    codec: str

    @classmethod
    def of(cls, path: Path, form: TableConfig, copy: Path) -> "_Plain":
        codec = _codec(path, form.encoding)
        if codec == UTF_8 and path.suffix.lower() != ".gz":
            return cls(path=path, text=path, codec=codec)
        with room_for(copy), copy.open("w", encoding="utf-8", newline="") as file, _open(path, form.encoding) as words:
            lines = 0
            while piece := words.read(COPIED_BYTES):
                lines += piece.count("\n")
                refuse_rows_beyond(lines - 1, form, source=path, has="unpacks into at least")
                file.write(piece)
        return cls(path=path, text=copy, codec=codec)

    def scan(self, separator: str, text: Collection[str], long: Collection[str] = ()) -> pl.LazyFrame:
        return pl.scan_csv(
            self.text,
            separator=separator,
            infer_schema_length=None,
            null_values=NULL_WORDS,
            schema_overrides=dict.fromkeys(long, pl.Float64) | dict.fromkeys(text, pl.String),
            glob=False,
        )

    def read(self, separator: str, text: Collection[str], folder: Path | None, long: tuple[str, ...] = ()) -> LazyTable:
        """Read it; whole numbers with more digits than any integer type holds (columns ``long``) become floating point."""
        scanned = self.scan(separator, text, long)
        try:
            return store(scanned, folder)
        except pl.exceptions.PolarsError as error:
            if (found := TOO_LONG.search(str(error))) is not None:
                column = scanned.collect_schema().names()[int(found[1]) - 1]
                return self.read(separator, text, folder, (*long, column))
            if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
                raise _other_encoding(self.path, self.codec) from None
            raise


def _read_all(files: Sequence[_Plain], separator: str, text: set[str], folder: Path) -> tuple[LazyTable, set[str]]:
    """Read all files as one table; gives the columns too that became text because they are text in one of the files.

    A column that is text in one file is text in all: a number made text again would have lost its spelling.
    """
    if len(files) == 1:
        return files[0].read(separator, text, None), set()
    tables = [file.read(separator, text, folder) for file in files]
    if mixed := _mixed(tables) - text:
        tables = [file.read(separator, text | mixed, folder) for file in files]
    return store(_joined(tables)), mixed


def _mixed(tables: Sequence[LazyTable]) -> set[str]:
    """Columns that hold text in one file and something else in another."""
    kinds: dict[str, set[bool]] = {}
    for table in tables:
        for name, kind in table.schema.items():
            if table.get_column(name).null_count() < table.height:
                kinds.setdefault(name, set()).add(kind == pl.String)
    return {name for name, found in kinds.items() if len(found) == 2}


def _joined(tables: Sequence[LazyTable]) -> pl.LazyFrame:
    """One below the other, in the first's columns; a column without a value, which is read as text, takes the others' type."""
    parts = []
    for table in tables:
        empty = [name for name in table.columns if table.get_column(name).null_count() == table.height]
        part = table.source.with_columns([cs.by_name(name).cast(pl.Null) for name in empty])
        parts.append(part.select([cs.by_name(name) for name in tables[0].columns]))
    return pl.concat(parts, how="vertical_relaxed")


def _codec(path: Path, encoding: str | None) -> str:
    """The codec's name: the one that is asked for, or UTF-8, or UTF-16 where a byte-order mark says so."""
    if encoding is not None:
        name = codecs.lookup(encoding).name
        return UTF_8 if name == "utf-8" else name
    with _binary(path) as stream:
        mark = stream.read(2)
    return "utf-16" if mark in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE) else UTF_8


def _binary(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path)) if path.suffix.lower() == ".gz" else path.open("rb")


@contextmanager
def _open(path: Path, encoding: str | None) -> Iterator[TextIO]:
    """Read a file as text; raises DataError, with what to write into the party file, where it is in another encoding."""
    codec = _codec(path, encoding)
    try:
        with _binary(path) as raw, io.TextIOWrapper(raw, encoding=codec, newline="") as stream:
            yield stream
    except UnicodeError:
        raise _other_encoding(path, codec) from None


def _other_encoding(path: Path, codec: str) -> DataError:
    name = "utf-8" if codec == UTF_8 else codec
    return DataError(
        f"{path}: is not {name} text; name its encoding under table in the party file, such as `encoding: windows-1252`"
    )


def _check_header(path: Path, encoding: str | None, separator: str, *, first: Path) -> None:
    """Refuse a name that stands twice, and other columns than the first file's."""
    names = _header(path, encoding, separator)
    if twice := sorted(name for name, times in Counter(names).items() if times > 1):
        raise DataError(f"{path}: column {', '.join(map(repr, twice))} stands in the header more than once; rename or remove one")
    if path != first and set(names) != (known := set(_header(first, encoding, separator))):
        other = ", ".join(map(repr, sorted(set(names) ^ known)))
        raise DataError(f"{path}: has other columns than {first}: {other} in only one of them; the files of one table must agree")


def _header(path: Path, encoding: str | None, separator: str) -> list[str]:
    with _open(path, encoding) as stream:
        try:
            names = next(csv.reader(_lines(stream, path), delimiter=separator), [])
        except csv.Error as error:
            raise DataError(f"{path}: its header cannot be read: {error}") from None
    if not names:
        raise DataError(f"{path}: is empty")
    return names


def _lines(stream: TextIO, path: Path) -> Iterator[str]:
    """The first lines, as long as lines of a table are: a few packed kilobytes may hold one that fills the memory."""
    while line := stream.readline(MOST_CHARACTERS):
        if len(line) == MOST_CHARACTERS and not line.endswith(("\n", "\r")):
            raise DataError(f"{path}: has a line of more than {MOST_CHARACTERS:,} characters; it is no table with a row a line")
        yield line


def _separator(path: Path, encoding: str | None) -> str:
    """The separator that cuts the first lines into equally many cells; the one that the file's ending promises comes first."""
    usual = "\t" if ".tsv" in path.name.lower() else ","
    with _open(path, encoding) as stream:
        lines = list(itertools.islice(_lines(stream, path), SAMPLE_LINES))
    widths = {}
    for separator in (usual, *SEPARATORS):
        try:
            rows = [row for row in csv.reader(lines, delimiter=separator, strict=False) if row]
        except csv.Error:
            continue
        # The last row may be cut off inside quotes.
        if rows and {len(row) for row in (rows[:-1] or rows)} == {len(rows[0])}:
            widths[separator] = len(rows[0])
    if widths.get(usual, 0) > 1:
        return usual
    found = max(widths, key=lambda separator: widths[separator], default=usual)
    return found if widths.get(found, 0) > 1 else usual


def _matches(column: pl.Series, pattern: str) -> bool:
    """Whether every cell that is not null matches, and there is one; a few cells are looked at first."""
    known = column.drop_nulls()
    return len(known) > 0 and bool(known.head(SAMPLE_CELLS).str.contains(pattern).all() and known.str.contains(pattern).all())


def _decimal(table: LazyTable, text: Collection[str], path: Path) -> Literal[",", "."] | None:
    """Say which sign stands before a fraction, by the columns that can be read in one way only; None where none tells.

    Raises DataError where there is none, or where they contradict each other.
    """
    comma, point, thousands = set(), set(), set()
    for name, kind in table.schema.items():
        if kind == pl.String and name not in text:
            column = table.get_column(name)
            comma |= {name} if _matches(column, NUMBERS[","]) else set()
            point |= {name} if _matches(column, NUMBERS["."]) else set()
        elif kind.is_float():
            column = table.get_column(name)
            thousands |= {name} if _thousands(column) else set()
            point |= {name} if not (column % 1 == 0).all() else set()
    certain_comma, either, certain_point = comma - point, comma & point, point - comma - thousands
    if certain_comma and certain_point:
        problem = f"{min(certain_comma)!r} has decimal commas and column {min(certain_point)!r} decimal points"
    elif either and not certain_comma and not certain_point:
        problem = f"{min(either)!r} has commas that may be decimal signs or part thousands"
    else:
        return "," if certain_comma else "." if certain_point else None
    raise DataError(f'{path}: column {problem}; say which under table in the party file: `decimal: ","` or `decimal: "."`')


def _thousands(column: pl.Series) -> bool:
    """Whether numbers read with a point, such as 1.250, may be whole ones: all lie in 1 to 999 and have three digits at most."""
    known = column.drop_nulls().abs()
    return bool(known.is_between(1, 1000, closed="left").all() and ((known * 1000).round() / 1000 == known).all())


def _refuse_points(table: LazyTable, names: Collection[str], path: Path) -> None:
    for name in sorted(names):
        column = table.get_column(name)
        if column.null_count() < len(column) and not _matches(column, NUMBERS[","]):
            raise DataError(f'{path}: column {name!r} has decimal points, but the decimal sign is ","; check table.decimal')


def _typed(column: pl.Series, decimal: str) -> pl.Expr | None:
    """Numbers with a decimal comma or parted thousands as numbers, ISO dates as dates, moments as moments; None for others."""
    text = cs.by_name(column.name).as_expr()
    if _matches(column, NUMBERS[decimal]):
        plain = text.str.strip_chars().str.replace_all("." if decimal == "," else ",", "", literal=True)
        return plain.str.replace(",", ".", literal=True).cast(pl.Float64)
    found = None
    if _matches(column, DAY):
        found = text.str.to_date("%Y-%m-%d", strict=False)
    elif _matches(column, MOMENT + "$"):
        found = _moments(text).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    elif _matches(column, MOMENT + ZONE):
        zoned = _moments(text).str.replace("Z$", "+0000").str.replace(r"([+-]\d{2}):?(\d{2})?$", "$1$2")
        zoned = zoned.str.replace(r"([+-]\d{2})$", "${1}00")
        found = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", time_zone="UTC", strict=False)
    # 2023-02-30 is no date: such a column stays text.
    if found is None or column.to_frame().select(found).to_series().null_count() > column.null_count():
        return None
    return found


def _moments(text: pl.Expr) -> pl.Expr:
    """With a T in the middle and with seconds."""
    return text.str.replace(" ", "T", literal=True).str.replace(r"^(.{13}:\d{2})($|[Z+-])", "${1}:00$2")
