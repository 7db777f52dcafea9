"""Keys: the ids by which rows are matched, spelt the same way by every party.

Shapes: N rows of the table, U rows with a key of their own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.contract import AlignmentConfig
from tallystick.config.reading import Step
from tallystick.data.lazy import Frame
from tallystick.data.similar_keys import SimilarKeys, read_similar_keys
from tallystick.data.table import require_column
from tallystick.data.text import as_text, rows_listed
from tallystick.errors import IdError


@dataclass(frozen=True, kw_only=True)
class KeyReport:
    """How many rows have a usable key."""

    rows: int
    null_rows: int  # a key column is null, or empty after normalising
    duplicated_keys: int  # keys that stand in more than one row
    duplicate_rows: int  # rows left out because another row has their key
    used: int  # rows that take part

    def to_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return asdict(self)

    def notes(self) -> list[str]:
        """Say in words which rows do not take part."""
        lines = []
        if self.null_rows:
            lines.append(f"{self.null_rows} of {self.rows} rows have no key")
        if self.duplicated_keys:
            lines.append(f"{self.duplicated_keys} keys stand in more than one row; {self.duplicate_rows} rows are left out")
        return lines


@dataclass(frozen=True, kw_only=True)
class Keys:
    """Unique ids, in the table's order, and the row that each stands in; what rows are linked by, where that is similarity.

    Similar keys name no row: then an id is the row's number in the table, and tells the others nothing.
    """

    ids: list[bytes]  # U
    rows_U: NDArray[np.int64]
    report: KeyReport
    similar: SimilarKeys | None = None


def fingerprint(keys: Keys) -> str:
    """A digest of a table's ids in their order: a kept alignment is of use only for the same table."""
    digest = hashlib.blake2b(digest_size=16)
    for uid in keys.ids:
        digest.update(len(uid).to_bytes(4, "big") + uid)
    if keys.similar is not None:
        digest.update(keys.similar.digest())
    return digest.hexdigest()


def read_keys(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> Keys:
    """Normalise a table's keys and settle its nulls and duplicates as the contract says.

    Args:
        frame: N rows.
        columns: contract's key name to own column.
        alignment: the key columns in order with their steps, and the rules for nulls and duplicates.

    Raises DataError for an absent column, and IdError for more rows than ``max_rows``, for keys that are all null, for duplicates
    that leave nothing, and for any null or duplicate where the rule is ``error``. Rows are named by number, never by content.
    """
    if alignment.max_rows is not None and frame.height > alignment.max_rows:
        raise IdError(f"the table has {frame.height} rows, over alignment.max_rows = {alignment.max_rows} of the contract")
    if alignment.similarity is not None:
        similar, rows_U = read_similar_keys(frame, columns=columns, terms=alignment.similarity, nulls=alignment.nulls)
        report = KeyReport(
            rows=frame.height, null_rows=frame.height - len(rows_U), duplicated_keys=0, duplicate_rows=0, used=len(rows_U)
        )
        return Keys(ids=[b"row %d" % row for row in rows_U], rows_U=rows_U, report=report, similar=similar)
    parts = [normalise(require_column(frame, columns[key.name], use="key"), key.normalise) for key in alignment.keys]
    key = join(parts)
    names = ", ".join(columns[key.name] for key in alignment.keys)
    null_rows = key.null_count()
    if null_rows == frame.height:
        raise IdError(f"key ({names}): all {frame.height} rows are null or empty; check the column and the normalise steps")
    if null_rows and alignment.nulls == "error":
        raise IdError(
            f"key ({names}): null or empty in {rows_listed(key.is_null())} rows; the contract's alignment.nulls is error"
        )
    table = pl.DataFrame({"key": key, "row": pl.int_range(frame.height, eager=True)}).drop_nulls("key")
    counts = table.group_by("key").len().filter(pl.col("len") > 1)
    if counts.height and alignment.duplicates == "error":
        raise IdError(
            f"key ({names}): {counts.height} keys stand in more than one row: "
            f"{rows_listed(key.is_duplicated() & key.is_not_null())} rows; the contract's alignment.duplicates is error"
        )
    kept = table.unique("key", keep="first" if alignment.duplicates == "first" else "none", maintain_order=True)
    if not kept.height:
        raise IdError(
            f"key ({names}): every key stands in more than one row, and alignment.duplicates = drop leaves out all of them; "
            "use a key that names a row, or duplicates: first"
        )
    report = KeyReport(
        rows=frame.height,
        null_rows=null_rows,
        duplicated_keys=counts.height,
        duplicate_rows=table.height - kept.height,
        used=kept.height,
    )
    ids: list[bytes] = kept.get_column("key").cast(pl.Binary).to_list()
    return Keys(ids=ids, rows_U=kept.get_column("row").cast(pl.Int64).to_numpy(), report=report)


def spelling_hints(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> list[str]:
    """Say what may keep a side's keys from matching those of another, which spells them in its own way.

    One line for each key and each step that the contract does not take and that would change some of the values, and one for
    zeros in front, which another side's table may have lost, or this one's. Shares only; no value is shown.
    """
    lines = []
    for key in alignment.keys:
        column = require_column(frame, columns[key.name], use="key")
        text = normalise(column, key.normalise).drop_nulls()
        if not len(text):
            continue
        named = f"key {key.name!r}"
        for step in _likely(text):
            changed = _share(normalise(text, [step]).fill_null("") != text)
            if step not in key.normalise and changed:
                lines.append(f"{named}: `{step}` would change {changed:.1%} of this side's values ({_SHAPES[step]})")
        if column.dtype.is_numeric():
            lines.append(f"{named}: it is a column of numbers here, so zeros in front that the other side may have are gone")
        elif zeros := _share(text.str.contains(r"^0[0-9]")):
            lines.append(f"{named}: {zeros:.1%} of this side's values begin with a zero, which a column of numbers loses")
    return lines


_SHAPES: dict[Step, str] = {
    "trim": "spaces at the ends",
    "lower": "capital letters",
    "nfkc": "letters that have several codes",
    "email": "e-mail addresses with capitals or spaces",
    "phone": "telephone numbers with spaces, signs or 00 in front",
    "digits": "digits with spaces or signs between",
}


def _likely(text: pl.Series) -> list[Step]:
    """Which steps fit what these values look like."""
    if _share(text.str.contains(r"^[^@]+@[^@]+$")) > 0.5:
        return ["email"]
    digits = text.str.count_matches("[0-9]")
    mostly_digits = (digits >= 6) & (digits * 2 > text.str.len_chars()) & ~text.str.contains(r"\p{L}")
    if _share(mostly_digits) > 0.5:
        international = _share(text.str.contains(r"^\s*(\+|00)|\(0\)")) > 0.05
        return ["trim", "phone" if international else "digits"]
    return ["trim", "lower", "nfkc"]


def _share(mask: pl.Series) -> float:
    return int(mask.sum()) / max(len(mask), 1)


def normalise(column: pl.Series, steps: Sequence[Step]) -> pl.Series:
    """Spell a key column as text and apply the contract's steps in order; what ends up empty is null."""
    text = as_text(column)
    for step in steps:
        text = _STEPS[step](text)
    # Once more, because a step may have uncovered a trailing .0 (" 1.0" after trim).
    text = as_text(text)
    return text.set(text == "", None)


def join(parts: Sequence[pl.Series]) -> pl.Series:
    """Join key columns so that no two different rows of parts give the same key; a null part makes the key null.

    One column is its own key; of several, each is written with its length in bytes: ("ab", "c") is "2:ab1:c".
    """
    if len(parts) == 1:
        return parts[0].alias("key")
    frame = pl.DataFrame([part.alias(str(index)) for index, part in enumerate(parts)])
    prefixed = [pl.concat_str(pl.col(name).str.len_bytes().cast(pl.String), pl.lit(":"), pl.col(name)) for name in frame.columns]
    return frame.select(pl.concat_str(prefixed).alias("key")).get_column("key")


def _nfkc(text: pl.Series) -> pl.Series:
    return text.str.normalize("NFKC")


def _email(text: pl.Series) -> pl.Series:
    return _nfkc(_nfkc(text).str.to_lowercase()).str.strip_chars()


def _phone(text: pl.Series) -> pl.Series:
    marked = _nfkc(text).str.replace_all("(0)", "", literal=True).str.replace_all(r"[^0-9+]", "")
    international = marked.str.starts_with("+").fill_null(False)
    digits = _digits(marked)
    plus = digits.str.replace(r"^", "+").set(digits == "", "")
    return plus.zip_with(international, digits.str.replace(r"^00([0-9])", "+$1"))


def _digits(text: pl.Series) -> pl.Series:
    return _nfkc(text).str.replace_all(r"[^0-9]", "")


_STEPS = {
    "trim": lambda text: text.str.strip_chars(),
    "lower": lambda text: text.str.to_lowercase(),
    "upper": lambda text: text.str.to_uppercase(),
    "nfkc": _nfkc,
    "email": _email,
    "phone": _phone,
    "digits": _digits,
}
