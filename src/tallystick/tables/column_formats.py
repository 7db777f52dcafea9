"""Define the form in which training read a feature column's cells, and convert cells of later tables to it, or refuse them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import polars as pl

from tallystick.errors import FeatureError
from tallystick.tables.text import as_text, refuse_beyond_years, rows_listed
from tallystick.tables.times import iso_moments

Form = Literal["number", "boolean", "text", "date", "moment", "zoned", "time", "duration"]

WORDS: Mapping[str, str] = {
    "number": "numbers",
    "boolean": "true and false",
    "text": "text",
    "date": "dates",
    "moment": "time stamps without a zone",
    "zoned": "time stamps with a zone",
    "time": "times of day",
    "duration": "durations",
}
TYPES: Mapping[Form, pl.DataType] = {
    "number": pl.Float64(),
    "boolean": pl.Boolean(),
    "text": pl.String(),
    "date": pl.Date(),
    "moment": pl.Datetime("us"),
    "zoned": pl.Datetime("us", "UTC"),
    "time": pl.Time(),
    "duration": pl.Duration("us"),
}
"""The type of each form, for cells that come without one."""
MOST_DIGITS = 38  # greatest number of digits of a whole number of any type


def form_of(kind: pl.DataType, *, use: Literal["numeric", "categorical"]) -> Form:
    """Return the form of a column of this type. Text that is listed as numeric is read as numbers."""
    if kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        return "number" if use == "numeric" else "text"
    if isinstance(kind, pl.Datetime):
        return "moment" if kind.time_zone is None else "zoned"
    other_forms: dict[pl.DataType, Form] = {pl.Boolean(): "boolean", pl.Date(): "date", pl.Time(): "time"}
    return other_forms.get(kind, "duration" if isinstance(kind, pl.Duration) else "number")


def has_form(kind: pl.DataType, form: Form) -> bool:
    """Tell whether a column of this type is already in this form."""
    return not kind.is_nested() and kind not in (pl.Binary, pl.Object) and form_of(kind, use="categorical") == form


def as_form(column: pl.Series, form: Form, *, categories: Sequence[str] = ()) -> pl.Series:
    """Convert a column to the form that it had in training.

    Args:
        column: cells of a later table.
        form: form in which training read them.
        categories: categories of a column of text. They show whether cells of another type are spelt as before.

    Raises FeatureError, naming the column, the trained and the present form, for cells that do not fit, and for times beyond
    the years 1 to 9999.
    """
    kind = column.dtype
    refuse_beyond_years(column)
    if has_form(kind, form) and kind != pl.Null:
        return column
    if column.null_count() == len(column):
        return pl.Series(column.name, [None] * len(column), dtype=TYPES[form])
    if kind.is_nested() or kind in (pl.Binary, pl.Object):
        raise _refusal(column, form, f"cells of type {kind}")
    if form == "text":
        # A postcode 01067 that now comes as the number 1067 would become an unseen category, and so would a number among
        # colours. So at least one category must be of this type, and all categories of this type must be spelt like this.
        form_here = form_of(column.dtype, use="categorical")
        known_values = pl.Series(categories, dtype=pl.String)
        read = (
            _FROM_TEXT[form_here](known_values)
            if form_here in _FROM_TEXT
            else known_values.clear().extend_constant(None, len(known_values))
        )
        spelt = as_text(read.filter(read.is_not_null()))
        if len(known_values) and not len(spelt):
            raise _refusal(column, "text", f"{WORDS[form_here]}, which no category of training is")
        if (spelt != known_values.filter(read.is_not_null())).any():
            raise _refusal(column, "text", f"{WORDS[form_here]}, which lose the spelling of the text (such as leading zeros)")
        return as_text(column)
    form_here = form_of(kind, use="categorical")
    if form_here == "text":
        text = column.cast(pl.String).str.strip_chars()
        text = text.set(text == "", None)
        converted = _FROM_TEXT[form](text) if form in _FROM_TEXT else None
        wrong = text.is_not_null() if converted is None else converted.is_null() & text.is_not_null()
        if converted is None or wrong.any():
            what = f"text that is not of this kind in {rows_listed(wrong)} of {len(column)} rows"
            hints: dict[Form, str] = {
                "number": " (see table.decimal, if it is the sign before a fraction)",
                "boolean": " (which are true and false, or 1 and 0)",
                "date": " (see dates, if they have another format)",
                "moment": " (see dates, if they have another format)",
            }
            raise _refusal(column, form, what, hint=hints.get(form, ""))
        return converted.alias(column.name)
    if (form_here, form) == ("boolean", "number"):
        return column.cast(pl.Int64)
    if (form_here, form) == ("number", "boolean"):
        known = column.fill_nan(None) if kind.is_float() else column
        if ((known == 0) | (known == 1)).all():
            return known.cast(pl.Boolean)
    if (form_here, form) == ("date", "moment"):
        return column.cast(TYPES["moment"])
    if (form_here, form) == ("moment", "date"):
        if (column.dt.truncate("1d") == column).all():
            return column.cast(pl.Date)
        raise _refusal(column, form, "time stamps with a time of day")
    raise _refusal(column, form, WORDS[form_here])


def _refusal(column: pl.Series, form: Form, text: str, *, hint: str = "") -> FeatureError:
    return FeatureError(
        f"column {column.name!r}: the model was trained on {WORDS[form]}, and this table has {text}{hint}; give the column "
        "the type it had in training, or train again"
    )


def _numbers(text: pl.Series) -> pl.Series:
    for kind, digits in ((pl.Int64, 18), (pl.Int128, MOST_DIGITS)):
        if text.drop_nulls().str.contains(rf"^[+-]?[0-9]{{1,{digits}}}$").all():
            return text.cast(kind)
    numbers = text.cast(pl.Float64, strict=False)
    return numbers.set(~numbers.is_finite().fill_null(True), None)


def _moments(text: pl.Series, *, zoned: bool) -> pl.Series:
    moments, is_zoned = iso_moments(text)
    return moments.set(is_zoned != zoned, None).cast(TYPES["zoned" if zoned else "moment"])


def _dates(text: pl.Series) -> pl.Series:
    moments = _moments(text, zoned=False)
    return moments.set((moments.dt.truncate("1d") != moments).fill_null(False), None).cast(pl.Date)


_FROM_TEXT: Mapping[Form, Callable[[pl.Series], pl.Series]] = {
    "number": _numbers,
    "boolean": lambda text: text.str.to_lowercase().replace_strict(
        {"true": True, "false": False}, default=None, return_dtype=pl.Boolean
    ),
    "date": _dates,
    "moment": lambda text: _moments(text, zoned=False),
    "zoned": lambda text: _moments(text, zoned=True),
    "time": lambda text: text.str.replace(r"^(\d{2}:\d{2})$", "$1:00").str.to_time("%H:%M:%S%.f", strict=False),
}
