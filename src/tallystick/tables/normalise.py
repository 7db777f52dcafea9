"""Spell key columns the same way on every side: the contract's steps, in their order.

Every step except ``lower`` and ``upper`` drops invisible characters: zero-width characters, byte-order marks, soft hyphens,
variation selectors, and control characters other than white space. Decimal digits of every script (Nd) become ASCII digits. A
domain that mail carries as ``xn--bcher-kva.de`` is spelt ``bücher.de``.
"""

from collections.abc import Callable, Sequence

import polars as pl

from tallystick.reading import Step
from tallystick.tables.text import WHOLE_NUMBER, as_text, ascii_digits, has_foreign_digits

UNSEEN = r"[\p{Cf}\p{Default_Ignorable_Code_Point}[\p{Cc}--\s]]"
TRUNK_ZERO = r"[(\[]\s*0\s*[)\]]"  # the (0) of +49 (0)30
EXTENSION = r"([0-9][^0-9a-z]*)(?:ext|extn|extension|x|#)[\s.:=]*([0-9]{1,7})[^0-9a-z]*$"
PARAMETERS = "(?s);.*$"  # parameters of a tel: URL
PUNYCODE = "xn--"  # prefix of a domain label that encodes letters beyond ASCII (RFC 5890)
IDEOGRAPHIC_STOP = "\u3002"  # separates labels like a point (RFC 3490)


def normalise(column: pl.Series, steps: Sequence[Step]) -> pl.Series:
    """Spell a key column as text and apply the contract's steps in order. An empty result is null."""
    text = as_text(column)
    for step in steps:
        text = _STEPS[step](text)
    # Once more, because a step may have uncovered a trailing .0 (" 1.0" after trim).
    text = as_text(text)
    empty = text == ""
    return text.set(empty, None) if empty.any() else text


def join(parts: Sequence[pl.Series]) -> pl.Series:
    """Join key columns so that no two different rows of parts give the same key. A null part makes the key null.

    A single column is its own key. Of several columns, each is written with its length in bytes: ("ab", "c") is "2:ab1:c".
    """
    if len(parts) == 1:
        return parts[0].alias("key")
    frame = pl.DataFrame([part.alias(str(index)) for index, part in enumerate(parts)])
    prefixed = [pl.concat_str(pl.col(name).str.len_bytes().cast(pl.String), pl.lit(":"), pl.col(name)) for name in frame.columns]
    return frame.select(pl.concat_str(prefixed).alias("key")).get_column("key")


def _shown(text: pl.Series) -> pl.Series:
    """Drop characters that cannot be seen."""
    return text.str.replace_all(UNSEEN, "") if text.str.contains(UNSEEN).any() else text


def _nfkc(text: pl.Series) -> pl.Series:
    return _shown(text).str.normalize("NFKC")


def _email(text: pl.Series) -> pl.Series:
    small = _nfkc(_nfkc(text).str.to_lowercase())
    # With a Turkish locale, programs change the I of an address to a dotless i, and its i to a dotted I
    small = small.str.replace_all("i\u0307", "i", literal=True).str.replace_all("\u0131", "i", literal=True).str.strip_chars()
    may_be = [small.str.contains(mark, literal=True) for mark in (PUNYCODE, IDEOGRAPHIC_STOP)]
    if not any(each.any() for each in may_be):
        return small
    encoded = small.filter((may_be[0] | may_be[1]) & small.str.contains("@", literal=True)).unique()
    return small.replace(encoded, encoded.map_elements(_in_letters, return_dtype=pl.String)) if len(encoded) else small


def _in_letters(address: str) -> str:
    """Spell an address's domain in the letters that it encodes. A label that encodes none stays unchanged.

    Python's ``idna`` codec is not used, because it treats straße.de and strasse.de as one domain; since 2010 they are two.
    """
    mailbox, _, domain = address.rpartition("@")
    labels = domain.replace(IDEOGRAPHIC_STOP, ".").split(".")
    return f"{mailbox}@{'.'.join(map(_label_in_letters, labels))}"


def _label_in_letters(label: str) -> str:
    if not label.startswith(PUNYCODE):
        return label
    try:
        letters = label.removeprefix(PUNYCODE).encode("ascii").decode("punycode")
        letters.encode()  # raises an error for a surrogate, which is not a letter
    except UnicodeError:
        return label
    plain = pl.Series([letters])
    (plain_letters,), (spelt,) = _shown(plain), _nfkc(_nfkc(plain).str.to_lowercase())
    is_valid = spelt == plain_letters and not spelt.isascii() and not set(f"@.{IDEOGRAPHIC_STOP}").intersection(spelt)
    return spelt if is_valid and spelt == spelt.strip() else label


def _plain_digits(text: pl.Series) -> pl.Series:
    """Write digits in ASCII, and a whole number without its .0, because that would add a digit."""
    plain = _nfkc(text)
    plain = (ascii_digits(plain) if has_foreign_digits(plain) else plain).str.strip_chars()
    return plain.str.replace(WHOLE_NUMBER, "$1")


def _phone(text: pl.Series) -> pl.Series:
    plain = _plain_digits(text).str.to_lowercase()
    number = plain.str.replace(EXTENSION, "$1").str.replace(PARAMETERS, "")
    marked = number.str.replace_all(TRUNK_ZERO, "").str.replace_all(r"[^0-9+]", "")
    digits = marked.str.replace_all(r"[^0-9]", "")
    international = (marked.str.starts_with("+") & (digits != "")) | digits.str.contains("^00[0-9]")
    number = digits.str.replace("^(?:00)+([0-9])", "$1")
    number = ("+" + number).zip_with(international.fill_null(False), digits)
    extension = plain.str.extract(EXTENSION, 2)
    return number.zip_with(extension.is_null(), number + "x" + extension)


_STEPS: dict[Step, Callable[[pl.Series], pl.Series]] = {
    "trim": lambda text: _shown(text).str.strip_chars(),
    "lower": lambda text: text.str.to_lowercase(),
    "upper": lambda text: text.str.to_uppercase(),
    "nfkc": _nfkc,
    "email": _email,
    "phone": _phone,
    "digits": lambda text: _plain_digits(text).str.replace_all(r"[^0-9]", ""),
}
