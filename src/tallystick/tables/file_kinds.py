"""Recognise files of another kind by their first bytes, and say what to do with them."""

import gzip
import re
from pathlib import Path

from tallystick.errors import DataError
from tallystick.tables.lazy_table import is_gzipped

HEAD_BYTES = 512
_SHEET, _UNPACK, _EXPORT = "save its sheet as CSV", "unpack it, or pack it by gzip", "write it as Parquet or CSV"
KINDS: tuple[tuple[bytes, str, str], ...] = (
    (rb"PK\x03\x04", "a workbook or another packed file and not text", f"{_SHEET}, or unpack it"),
    (rb"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "an old workbook (.xls)", _SHEET),
    (rb"PAR1", "a Parquet file", "give it a name that ends in .parquet"),
    (rb"ARROW1|\xff\xff\xff\xff.{3}\x00", "an Arrow file", _EXPORT),
    (rb"ORC[\x00-\x1f]", "an ORC file", _EXPORT),
    (rb"Obj\x01", "an Avro file", _EXPORT),
    (rb"SQLite format 3\x00", "an SQLite database", "read it by table.query, and table.database: sqlite:FILE"),
    (rb"%PDF-", "a PDF", "ask for its table as CSV"),
    (rb"\xfd7zXZ\x00|BZh[1-9]1AY&SY|\x28\xb5\x2f\xfd|7z\xbc\xaf\x27\x1c|Rar!\x1a", "compressed, but not by gzip", _UNPACK),
    (rb"\x93NUMPY|\x89HDF|\x80[\x02-\x05]|\$FL[23]@", "data of another program", _EXPORT),
    (rb"<stata_dta>|.{12}\xc2\xea\x81\x60|RD[XA][23]\n", "data of another program", _EXPORT),
    (rb"(\xef\xbb\xbf)?\s*(?i:<!doctype|<html|<\?xml|<table)", "a web page or XML", "ask for its table as CSV"),
    (rb"\{\\rtf", "a text document (RTF)", "save it as plain text"),
    (rb"version https://git-lfs\.github\.com/spec/", "a pointer of Git LFS", "fetch the file itself by `git lfs pull`"),
    (rb'(\xef\xbb\xbf)?\s*(\[\s*[\[{]|\{\s*")', "JSON", "read it by table.query, such as SELECT * FROM 'rows.json'"),
)  # fmt: skip
"""Patterns of first bytes, the kind of file that begins with them, and advice."""


def refuse_other_kind(path: Path, *, parquet: bool = False) -> None:
    """Raise DataError, naming the kind, for a file that is not delimited text, or, with ``parquet``, not a Parquet file."""
    with gzip.open(path) if is_gzipped(path) else path.open("rb") as file:
        try:
            head = file.read(HEAD_BYTES)
        except (OSError, EOFError):
            return  # its reader reports this
    for begins, what, mend in KINDS:
        is_it = re.match(begins, head, flags=re.DOTALL) is not None
        if is_it and not (parquet and what == "a Parquet file" and not is_gzipped(path)):
            packed = "packed, and holds " if is_gzipped(path) else ""
            raise DataError(f"{path}: is {packed}{what}; {mend}")
