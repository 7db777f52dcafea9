"""Find spellings that may keep a side's keys from matching the other side's, or those of the training.

A key with another spelling is another key, without an error. So this side gets a warning, with shapes and shares only.
"""

import re
from collections.abc import Mapping
from typing import Any

import polars as pl
import polars.selectors as cs

from tallystick.config.alignment import AlignmentConfig
from tallystick.reading import Step
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.normalise import UNSEEN, normalise
from tallystick.tables.table import require_column, require_named
from tallystick.tables.text import FRACTION, as_text, rows_listed

FEWEST_DIGITS, MOST_DIGITS = 4, 18  # least digits of keys that may have lost leading zeros; most digits that fit into 64 bits
SHAPES, SHAPE_WIDTH = 3, 40  # number of shapes of keys that a hint shows, and their length in characters
FEW = 0.5  # if the most common shapes cover a smaller share of the values, shapes are taken without lengths
ZERO = "^0[0-9]"  # a leading zero
MIXED = 0.2  # if no shape covers this share of the keys, these mix letters and digits at random
MOST_STRANGE = 0.02  # greatest share of values without a digit, if all others have one
COMPARED = 10_000  # number of values, spread over the table, whose shapes are compared with those of the training
MOST_SHAPES, LEAST_OF_A_SHAPE = 20, 10  # number of stored shapes, and values per shape, so that no shape is of one person
COVERED = 0.9  # share of the training's values that the stored shapes must cover to judge other tables
FEWEST_VALUES, FEWEST_ZEROS = 20, 10  # least values of a later table to judge it; least leading zeros that it should have


def key_doubts(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> tuple[str, ...]:
    """Warn about key columns that have fractions or exponents, which ids seldom have, or that seem to lack leading zeros."""
    lines = []
    for key in alignment.keys:
        column = require_column(frame, columns[key.name], use="key")
        if share := _lost_zeros(column):
            lines.append(
                f"key column {columns[key.name]!r}: {share:.1%} of the values have fewer digits than the others; if the other "
                "side has leading zeros, this side has lost them: export the column as text from a source that still has them"
            )
        if column.dtype == pl.String:
            strange = ~column.str.contains(r"\p{N}").fill_null(True) & (column.str.strip_chars() != "").fill_null(False)
            if 0 < strange.sum() <= MOST_STRANGE * column.count():
                known = column.drop_nulls()
                common = _most_common(_masked(known.gather_every(max(1, len(known) // COMPARED))), most=1)
                if common.get_column("share").sum() < MIXED:  # such as random letters and digits, some without a digit by chance
                    length = column.str.len_chars()
                    strange &= ~length.is_in(length.filter(~strange).drop_nulls().unique().implode()).fill_null(False)
            if 0 < strange.sum() <= MOST_STRANGE * column.count():
                lines.append(
                    f"key column {columns[key.name]!r}: no digit in {rows_listed(strange)} rows, and one in all others, as if "
                    "lines of totals, comments or the end of a report were taken for rows; remove these"
                )
        if column.dtype.is_float() or isinstance(column.dtype, pl.Decimal):
            odd = column.cast(pl.Float64)
            odd = odd.is_finite() & (odd != odd.round())
        elif column.dtype == pl.String:
            odd = column.str.contains(r"^\s*[+-]?[0-9]+(?:[.,][0-9]+)?[eE][+-]?[0-9]+\s*$")
            if column.str.contains(r"[\p{L}--[eE]]").any():  # such as hexadecimal numbers, of which 1234e567 is one
                odd &= column.str.contains("[.,+]")
        else:
            continue
        if odd.fill_null(False).any():
            lines.append(
                f"key column {columns[key.name]!r}: a fraction or an exponent in {rows_listed(odd)} rows, as if a program had "
                "read ids as numbers and rounded them; compare them with the source"
            )
    return tuple(lines)


def _lost_zeros(keys: pl.Series) -> float:
    """Return the share of keys of digits that are shorter than the longest, or 0 if nothing suggests lost leading zeros.

    This is only a hint, because a table does not show what it lacks. The sign of lost zeros is that most keys have the greatest
    length and about a tenth is shorter, as with codes of a fixed length that were read as numbers. Row numbers, which have no
    gaps, do not count. Nor do numbers that end well before one more digit is needed, because some codes of a fixed length begin
    with a nine.
    """
    text = as_text(keys).drop_nulls()
    if not len(text) or not text.str.contains("^[1-9][0-9]*$").all():
        return 0.0
    length = text.str.len_chars()
    longest = int(length.to_numpy().max())
    shorter = float((length < longest).sum()) / len(text)
    dense = False
    if longest <= MOST_DIGITS:
        numbers = text.cast(pl.Int64).to_numpy()
        dense = numbers.max() - numbers.min() + 1 < 2 * len(numbers)
    ends_early = not text.filter(length == longest).str.starts_with("9").any()
    return 0.0 if dense or ends_early or longest < FEWEST_DIGITS or shorter > 0.5 else shorter


def spelling_hints(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> list[str]:
    """Say, for this party only, what may keep its keys from matching those of another party, by shares and shapes."""
    # One line for each step that the contract lacks and that would change values, one line for leading zeros, and one for the
    # shape of most values, which people of both sides can compare.
    lines = []
    for key in alignment.keys:
        column = require_column(frame, columns[key.name], use="key")
        text = normalise(column, key.normalise).drop_nulls()
        if not len(text):
            continue
        key_name = f"key {key.name!r}"
        for step in _likely(text):
            changed = _share(normalise(text, [step]).fill_null("") != text)
            if step not in key.normalise and changed:
                lines.append(f"{key_name}: `{step}` would change {changed:.1%} of this side's values ({_SHAPES[step]})")
        if column.dtype.is_numeric():
            lines.append(f"{key_name}: is a column of numbers here, so leading zeros that the other side may have are lost")
            if not column.dtype.is_integer() and _share(text.str.contains(".", literal=True)):
                lines.append(f"{key_name}: numbers lose zeros at the end of a fraction, so 1.50 is 1.5; text 1.50 is another key")
        elif zeros := _share(text.str.contains(ZERO)):
            lines.append(f"{key_name}: {zeros:.1%} of this side's values begin with a zero, which a column of numbers loses")
        elif ends := _share(text.str.contains(FRACTION)):
            lines.append(
                f"{key_name}: {ends:.1%} of this side's values are fractions that end in a zero, such as 1.50, which is 1.5 in a "
                "column of numbers and stays 1.50 in a column of text"
            )
        # If values of many lengths share few shapes, write a run of digits or letters without its length, such as 9….
        shapes = _masked(text)
        if (common := _most_common(shapes)).get_column("share").sum() < FEW:
            common = _most_common(_of_any_length(shapes))
        shown_shapes = []
        for shape, share in common.iter_rows():
            # Write a long run with its length, such as 9{11}
            short = re.sub(r"([9Aa])\1{5,}", lambda run: f"{run[1]}{{{len(run[0])}}}", shape)
            short = short if len(short) <= SHAPE_WIDTH else f"{short[:SHAPE_WIDTH]}…"
            shown_shapes.append(f"`{short}` ({share:.1%})")
        looks = ", ".join(shown_shapes)
        lines.append(f"{key_name}: this side's values look like {looks}; compare that with the other side's")
    return lines


def spelling_of(frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig) -> dict[str, Any]:
    """Return the shapes of each key's values, and the share of values with a leading zero, for later comparison.

    Each shape has at least ten different values, because rows of one person have the same key. The share is None if fewer values
    have a leading zero.
    """
    spelling: dict[str, Any] = {}
    for key in alignment.keys:
        text = _compared(frame, columns[key.name], key.normalise)
        shapes, mixed = _of_any_length(_masked(text)), False
        common = _kept_shapes(shapes)
        if common.get_column("share").sum() < COVERED:  # such as hexadecimal numbers, which all differ in shape
            common, mixed = _kept_shapes(_of_any_mixture(shapes)), True
        names = common.get_column("shape").to_list() if common.get_column("share").sum() >= COVERED else []
        zeros = text.str.contains(ZERO)
        is_of_few = 0 < zeros.sum() < LEAST_OF_A_SHAPE
        spelling[key.name] = {"shapes": names, "mixed": mixed, "zeros": None if is_of_few else _share(zeros)}
    return spelling


def _kept_shapes(shapes: pl.Series) -> pl.DataFrame:
    return _most_common(shapes, most=MOST_SHAPES).filter(pl.col("share") * len(shapes) >= LEAST_OF_A_SHAPE)


def later_spelling(
    frame: Frame, *, columns: Mapping[str, str], alignment: AlignmentConfig, spelling: Mapping[str, Any]
) -> list[str]:
    """Warn about keys of a later table that are spelt differently from the training's, whose ``spelling_of`` was saved."""
    lines = []
    for key in alignment.keys:
        if key.name not in spelling:
            continue
        text = _compared(frame, columns[key.name], key.normalise)
        column, shapes, zeros = columns[key.name], spelling[key.name]["shapes"], spelling[key.name]["zeros"]
        here = _of_any_length(_masked(text))
        if spelling[key.name].get("mixed", False):
            here = _of_any_mixture(here)
        zeros_here = _share(text.str.contains(ZERO))
        other = ~here.is_in(pl.Series(shapes, dtype=pl.String).implode())
        if shapes and len(text) >= FEWEST_VALUES and (share := _share(other)) > FEW:
            lines.append(
                f"key column {column!r}: {share:.1%} of its values look like `{here.filter(other)[0][:SHAPE_WIDTH]}`, and the "
                f"training's like `{shapes[0][:SHAPE_WIDTH]}`; write them as in training, or they match no row"
            )
        elif zeros is None:  # too few to judge
            continue
        elif zeros * len(text) >= FEWEST_ZEROS and not zeros_here:
            lines.append(
                f"key column {column!r}: {zeros:.1%} of the training's values began with a zero, and here none does; if these "
                "zeros were lost, rows match no row or a wrong one: export the column as text from a source that still has them"
            )
        elif shapes and not zeros and zeros_here * len(text) >= FEWEST_ZEROS:
            lines.append(
                f"key column {column!r}: {zeros_here:.1%} of its values begin with a zero, and none of the training's did; if "
                "the training's were numbers, which have no leading zeros, these match no row: write them as in training"
            )
    return lines


def _compared(frame: Frame, column: str, steps: tuple[Step, ...]) -> pl.Series:
    """Return distinct normalised values from at most this many rows, spread over the table. Never hold the whole column."""
    require_named(frame, column, use="key")
    source = frame.source if isinstance(frame, LazyTable) and frame.rows is None else frame.select([column]).lazy()
    known = cs.by_name(column).as_expr().drop_nulls()
    count = int(source.select(known.len()).collect(engine="streaming").item())
    cells = source.select(known.gather_every(max(1, count // COMPARED))).collect(engine="streaming").to_series()
    return normalise(cells, steps).drop_nulls().unique(maintain_order=True)


def _masked(text: pl.Series) -> pl.Series:
    """Return the shapes of values: 9 for a digit, A and a for letters, ? for an invisible character."""
    unseen = rf"[[{UNSEEN}\p{{C}}\p{{Z}}]--[ ]]"
    for characters, mask in ((unseen, "?"), (r"\p{N}", "9"), (r"\p{Lu}", "A"), (r"[\p{L}\p{M}--A]", "a")):
        text = text.str.replace_all(characters, mask)
    return text


def _of_any_length(shapes: pl.Series) -> pl.Series:
    for mask in "9Aa":
        shapes = shapes.str.replace_all(f"{mask}{{2,}}", f"{mask}…")
    return shapes


def _of_any_mixture(shapes: pl.Series) -> pl.Series:
    """Return shapes in which digits between letters count as letters, too: lower case, upper case or both."""
    upper, lower = shapes.str.contains("A"), shapes.str.contains("a")
    for mask, rows in (("a…", lower & ~upper), ("A…", upper & ~lower), ("Aa…", upper & lower)):
        shapes = shapes.zip_with(~rows, shapes.str.replace_all("[9Aa…]+", mask))
    return shapes


def _most_common(shapes: pl.Series, *, most: int = SHAPES) -> pl.DataFrame:
    counts = shapes.alias("shape").value_counts(name="share", normalize=True)
    return counts.sort("share", "shape", descending=[True, False]).head(most)


_SHAPES: dict[Step, str] = {
    "trim": "spaces at the ends",
    "lower": "capital letters",
    "nfkc": "letters that have several codes",
    "email": "e-mail addresses with capitals, spaces or a domain such as xn--bcher-kva",
    "phone": "telephone numbers with spaces, signs or leading 00",
    "digits": "digits with spaces or signs between",
}


def _likely(text: pl.Series) -> list[Step]:
    """List the steps that fit what these values look like."""
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
