"""Delimited text, CSV and TSV: what the files leave open is detected where it is certain, and asked for where it is not.

Open are the separator, the encoding, and whether 1,234 is a thousand or a little more than one.
"""

import codecs
import csv
import gzip
import io
import itertools
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import polars as pl

from tallystick.config.party import TableConfig
from tallystick.errors import DataError

NULL_WORDS = ["", "NA", "NaN", "nan", "null", "NULL"]
SEPARATORS = (",", ";", "\t", "|")
UTF_8 = "utf-8-sig"  # with or without its mark
SAMPLE_LINES = 50
SAMPLE_CELLS = 1000

_EXPONENT = r"([eE][+-]?\d+)?"
NUMBERS = {
    ",": rf"^\s*[+-]?(\d+|\d{{1,3}}(\.\d{{3}})+)(,\d+)?{_EXPONENT}\s*$",  # 1.234,5
    ".": rf"^\s*[+-]?(\d+|\d{{1,3}}(,\d{{3}})+)(\.\d+)?{_EXPONENT}\s*$",  # 1,234.5
}
DAY = r"^\d{4}-\d{2}-\d{2}$"
MOMENT = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d{1,9})?)?"
ZONE = r"(Z|[+-]\d{2}(:?\d{2})?)$"


def read_delimited(paths: Sequence[Path], form: TableConfig, *, text: Collection[str]) -> pl.DataFrame:
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
    as_read = set(text)
    frames = _read_all(paths, form.encoding, separator, as_read)
    # A column that is text in one file is text in all: a number made text again would have lost its spelling.
    if mixed := _mixed(frames) - as_read:
        frames = _read_all(paths, form.encoding, separator, as_read | mixed)
    frame = _joined(frames)
    decimal = form.decimal or _decimal(frame, text, paths[0])
    if decimal == "," and (pointed := {name for name, kind in frame.schema.items() if kind.is_float()} - as_read):
        again = _read_all(paths, form.encoding, separator, as_read | mixed | pointed)
        frame = _joined(again)
        _refuse_points(frame, pointed, paths[0])
    typed = [
        _typed(frame.get_column(name), decimal) for name, kind in frame.schema.items() if kind == pl.String and name not in text
    ]
    return frame.with_columns(typed)


def _read_all(paths: Sequence[Path], encoding: str | None, separator: str, text: Collection[str]) -> list[pl.DataFrame]:
    return [_read(path, encoding, separator, text) for path in paths]


def _mixed(frames: Sequence[pl.DataFrame]) -> set[str]:
    """Columns that hold text in one file and something else in another."""
    kinds: dict[str, set[bool]] = {}
    for frame in frames:
        for column in frame.iter_columns():
            if column.null_count() < len(column):
                kinds.setdefault(column.name, set()).add(column.dtype == pl.String)
    return {name for name, found in kinds.items() if len(found) == 2}


def _joined(frames: Sequence[pl.DataFrame]) -> pl.DataFrame:
    """One below the other, in the first's columns; a column without a value, which is read as text, takes the others' type."""
    if len(frames) == 1:
        return frames[0]
    empty = [[column.name for column in frame.iter_columns() if column.null_count() == len(column)] for frame in frames]
    parts = [frame.with_columns(pl.col(names).cast(pl.Null)) for frame, names in zip(frames, empty, strict=True)]
    return pl.concat([part.select(frames[0].columns) for part in parts], how="vertical_relaxed")


def _read(path: Path, encoding: str | None, separator: str, text: Collection[str]) -> pl.DataFrame:
    codec = _codec(path, encoding)
    source: Path | bytes = path
    if codec != UTF_8:
        with _open(path, encoding) as stream:
            source = stream.read().encode()
    try:
        return pl.read_csv(
            source,
            separator=separator,
            infer_schema_length=None,
            null_values=NULL_WORDS,
            schema_overrides=dict.fromkeys(text, pl.String),
            glob=False,
        )
    except pl.exceptions.PolarsError as error:
        if "utf-8" in str(error).lower() or "utf8" in str(error).lower():
            raise _other_encoding(path, codec) from None
        raise


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
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise DataError(f"{path}: column {', '.join(map(repr, twice))} stands in the header more than once; rename or remove one")
    if path != first and set(names) != (known := set(_header(first, encoding, separator))):
        other = ", ".join(map(repr, sorted(set(names) ^ known)))
        raise DataError(f"{path}: has other columns than {first}: {other} in only one of them; the files of one table must agree")


def _header(path: Path, encoding: str | None, separator: str) -> list[str]:
    with _open(path, encoding) as stream:
        try:
            names = next(csv.reader(stream, delimiter=separator), [])
        except csv.Error as error:
            raise DataError(f"{path}: its header cannot be read: {error}") from None
    if not names:
        raise DataError(f"{path}: is empty")
    return names


def _separator(path: Path, encoding: str | None) -> str:
    """The separator that cuts the first lines into equally many cells; the one that the file's ending promises comes first."""
    usual = "\t" if ".tsv" in path.name.lower() else ","
    with _open(path, encoding) as stream:
        lines = list(itertools.islice(stream, SAMPLE_LINES))
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


def _decimal(frame: pl.DataFrame, text: Collection[str], path: Path) -> str:
    """Which sign stands before a fraction, by the columns that can be read in one way only.

    Raises DataError where there is none, or where they contradict each other.
    """
    words = [column for column in frame.iter_columns() if column.dtype == pl.String and column.name not in text]
    comma = {column.name for column in words if _matches(column, NUMBERS[","])}
    point = {column.name for column in words if _matches(column, NUMBERS["."])}
    certain_comma, either = comma - point, comma & point
    with_point = [name for name, kind in frame.schema.items() if kind.is_float() and not (frame.get_column(name) % 1 == 0).all()]
    certain_point = [*(point - comma), *with_point]
    certain_point = [name for name in certain_point if not _thousands(frame.get_column(name))]
    if certain_comma and certain_point:
        problem = f"{min(certain_comma)!r} has decimal commas and column {min(certain_point)!r} decimal points"
    elif either and not certain_comma and not certain_point:
        problem = f"{min(either)!r} has commas that may be decimal signs or part thousands"
    else:
        return "," if certain_comma else "."
    raise DataError(f'{path}: column {problem}; say which under table in the party file: `decimal: ","` or `decimal: "."`')


def _thousands(column: pl.Series) -> bool:
    """Whether numbers read with a point, such as 1.250, may be whole ones: all lie in 1 to 999 and have three digits at most."""
    if not column.dtype.is_float():
        return False
    known = column.drop_nulls().abs()
    return bool(known.is_between(1, 1000, closed="left").all() and ((known * 1000).round() / 1000 == known).all())


def _refuse_points(frame: pl.DataFrame, names: Collection[str], path: Path) -> None:
    for name in sorted(names):
        column = frame.get_column(name)
        if column.null_count() < len(column) and not _matches(column, NUMBERS[","]):
            raise DataError(f'{path}: column {name!r} has decimal points, but the decimal sign is ","; check table.decimal')


def _typed(column: pl.Series, decimal: str) -> pl.Series:
    """Numbers with a decimal comma or parted thousands as numbers, ISO dates as dates, moments as moments; else as it is."""
    if _matches(column, NUMBERS[decimal]):
        plain = column.str.strip_chars().str.replace_all("." if decimal == "," else ",", "", literal=True)
        return plain.str.replace(",", ".", literal=True).cast(pl.Float64)
    found = None
    if _matches(column, DAY):
        found = column.str.to_date("%Y-%m-%d", strict=False)
    elif _matches(column, MOMENT + "$"):
        found = _moments(column).str.to_datetime("%Y-%m-%dT%H:%M:%S%.f", time_unit="us", strict=False)
    elif _matches(column, MOMENT + ZONE):
        zoned = _moments(column).str.replace("Z$", "+0000").str.replace(r"([+-]\d{2}):?(\d{2})?$", "$1$2")
        zoned = zoned.str.replace(r"([+-]\d{2})$", "${1}00")
        found = zoned.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", time_zone="UTC", strict=False)
    # 2023-02-30 is no date: such a column stays text.
    return column if found is None or found.null_count() > column.null_count() else found


def _moments(column: pl.Series) -> pl.Series:
    """With a T in the middle and with seconds."""
    return column.str.replace(" ", "T", literal=True).str.replace(r"^(.{13}:\d{2})($|[Z+-])", "${1}:00$2")
