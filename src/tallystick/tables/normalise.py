"""Spell key columns the same way on every side: the contract's steps, in their order.

Format characters (Unicode's Cf: zero-width characters, byte order marks, soft hyphens) cannot be seen, so every step drops them,
but for ``lower`` and ``upper``. Decimal digits of every script (Nd) are the digits that they mean.
"""

from collections.abc import Sequence

import polars as pl

from tallystick.reading import Step
from tallystick.tables.text import as_text, ascii_digits, has_foreign_digits


def normalise(column: pl.Series, steps: Sequence[Step]) -> pl.Series:
    """Spell a key column as text and apply the contract's steps in order. What ends up empty is null."""
    text = as_text(column)
    for step in steps:
        text = _STEPS[step](text)
    # Once more, because a step may have uncovered a trailing .0 (" 1.0" after trim).
    text = as_text(text)
    empty = text == ""
    return text.set(empty, None) if empty.any() else text


def join(parts: Sequence[pl.Series]) -> pl.Series:
    """Join key columns so that no two different rows of parts give the same key. A null part makes the key null.

    One column is its own key; of several, each is written with its length in bytes: ("ab", "c") is "2:ab1:c".
    """
    if len(parts) == 1:
        return parts[0].alias("key")
    frame = pl.DataFrame([part.alias(str(index)) for index, part in enumerate(parts)])
    prefixed = [pl.concat_str(pl.col(name).str.len_bytes().cast(pl.String), pl.lit(":"), pl.col(name)) for name in frame.columns]
    return frame.select(pl.concat_str(prefixed).alias("key")).get_column("key")


def _shown(text: pl.Series) -> pl.Series:
    """Drop characters that cannot be seen."""
    return text.str.replace_all(r"\p{Cf}", "") if text.str.contains(r"\p{Cf}").any() else text


def _plain_digits(text: pl.Series) -> pl.Series:
    return ascii_digits(text) if has_foreign_digits(text) else text


def _nfkc(text: pl.Series) -> pl.Series:
    return _shown(text).str.normalize("NFKC")


def _phone(text: pl.Series) -> pl.Series:
    marked = _plain_digits(_nfkc(text)).str.replace_all("(0)", "", literal=True).str.replace_all(r"[^0-9+]", "")
    international = marked.str.starts_with("+").fill_null(False)
    digits = _digits(marked)
    plus = digits.str.replace(r"^", "+").set(digits == "", "")
    return plus.zip_with(international, digits.str.replace(r"^00([0-9])", "+$1"))


def _digits(text: pl.Series) -> pl.Series:
    return _plain_digits(_nfkc(text)).str.replace_all(r"[^0-9]", "")


_STEPS = {
    "trim": lambda text: _shown(text).str.strip_chars(),
    "lower": lambda text: text.str.to_lowercase(),
    "upper": lambda text: text.str.to_uppercase(),
    "nfkc": _nfkc,
    "email": lambda text: _nfkc(_nfkc(text).str.to_lowercase()).str.strip_chars(),
    "phone": _phone,
    "digits": _digits,
}
