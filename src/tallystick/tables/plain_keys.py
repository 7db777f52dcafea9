"""The keys of a few rows without a table, which takes a tenth of a millisecond: what ``normalise`` and ``join`` give for them."""

import re
from collections.abc import Callable, Sequence

from tallystick.reading import Step
from tallystick.tables.text import WHOLE_NUMBER

Spelling = str | int

_WHITE = "\t\n\x0b\x0c\r "  # of Unicode's white space what is ASCII; str.strip() by itself takes four more
_WHOLE_NUMBER = re.compile(WHOLE_NUMBER.removeprefix("^").removesuffix("$"))
_LEAST, _MOST = -(1 << 63), (1 << 63) - 1


def plain_key(cells: Sequence[Spelling], steps: Sequence[Sequence[Step]]) -> bytes | None:
    """Return one row's key, or None where only a table tells it: text beyond ASCII, other whole numbers than a table's, no text.

    Args:
        cells: of the key's columns; text of a column of text, whole numbers of a column of numbers.
        steps: the contract's for each column.
    """
    parts = []
    for cell, its_steps in zip(cells, steps, strict=True):
        if type(cell) is str and cell.isascii():
            text = _plain(cell)
        elif type(cell) is int and _LEAST <= cell <= _MOST:
            text = str(cell)
        else:
            return None
        for step in its_steps:
            text = _STEPS[step](text)
        text = _plain(text)
        if not text:
            return None
        parts.append(text)
    key = parts[0] if len(parts) == 1 else "".join(f"{len(part)}:{part}" for part in parts)
    return key.encode()


def _plain(text: str) -> str:
    """Spell a key as ``as_text`` spells text."""
    whole = _WHOLE_NUMBER.fullmatch(text) if ".0" in text else None
    text = whole[1] if whole is not None else text
    return "0" if text == "-0" else text


def _phone(text: str) -> str:
    marked = re.sub(r"[^0-9+]", "", text.replace("(0)", ""))
    digits = _digits(marked)
    if marked.startswith("+"):
        return f"+{digits}" if digits else ""
    return re.sub(r"\A00(?=[0-9])", "+", digits)


def _digits(text: str) -> str:
    return re.sub(r"[^0-9]", "", text)


_STEPS: dict[Step, Callable[[str], str]] = {
    "trim": lambda text: text.strip(_WHITE),
    "lower": str.lower,
    "upper": str.upper,
    "nfkc": lambda text: text,
    "email": lambda text: text.lower().strip(_WHITE),
    "phone": _phone,
    "digits": _digits,
}
