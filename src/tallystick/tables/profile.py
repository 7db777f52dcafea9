"""Profile a table, for `tallystick check`, which shows a party its own rows before anything is sent.

A profile holds statistics of private rows. It stays on the party's machine.
"""

from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import polars as pl

from tallystick.config.alignment import IntersectionConfig, KeyColumn
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import ConfigError
from tallystick.tables.doubtful_text import (
    dates_mend,
    encoding_warning,
    marks_warning,
    rare_words_warning,
    spreadsheet_warning,
    text_warning,
)
from tallystick.tables.doubtful_times import digits_warning, either_way, times_warnings
from tallystick.tables.encoder import feature_columns
from tallystick.tables.keys import KeyReport, keys_of
from tallystick.tables.lazy_table import Frame, LazyTable
from tallystick.tables.stand_ins import stand_in_warning
from tallystick.tables.table import label_column
from tallystick.tables.target import classes_of
from tallystick.tables.target_leakage import telling
from tallystick.tables.text import as_text, beyond_years, rows_listed
from tallystick.tables.times import FIRST_YEAR

MOSTLY_MISSING = 0.9
DAY_FIRST = r"^\s*\d{1,2}[./]\d{1,2}[./](\d{2}|\d{4})\s*$"
SUM = (
    r"^\s*((grand |sub|sub-|sous-)?totals?|total g[e\u00e9]n[e\u00e9]ral|totaal|totale|totalt|sum|summe|summen|zwischensumme"
    r"|gesamt|gesamtsumme|gesamtergebnis|teilergebnis|insgesamt|somme|suma|soma|razem|celkem|toplam|yhteens\u00e4|\u00f6sszesen"
    r"|\u0438\u0442\u043e\u0433\u043e|\u0432\u0441\u0435\u0433\u043e|[\u5408\u5c0f\u603b\u7e3d]\s*[\u8ba1\u8a08]|\ud569\uacc4)"
    r"\s*:?\s*$"
)
"""A word in place of a key, in rows of spreadsheets that sum up others."""
SHOWN_CLASSES = 20
LATE_YEAR, MANY_YEARS = 2030, 40
"""Text for dates whose years had two digits: a birth in 1940 is read as one in 2040."""
SAMPLES, SAMPLED, WIDEST = 3, 1000, 20  # cells of a column that are shown, first cells to choose from, characters per cell


@dataclass(frozen=True, kw_only=True)
class ColumnProfile:
    """One column at a glance. Minimum and maximum are for numbers and times."""

    name: str
    type: str
    use: str  # key, label, weight, time, numeric, categorical, sequence or unused
    missing_share: float
    distinct: int
    minimum: str | None
    maximum: str | None
    samples: tuple[str, ...] = ()  # different cells as they are read


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A table at a glance."""

    rows: int
    keys: KeyReport
    columns: tuple[ColumnProfile, ...]
    label_balance: dict[str, float] | None  # class -> share; None for a feature party or a label with many values
    positive_class: str | None  # for a binary label, the class whose probability is the score
    positive_classes: dict[str, str]  # the same of each of several labels
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)


def profile(frame: Frame, party: PartyFile, contract: Contract | None = None) -> Profile:
    """Profile a party's table as the job reads it: keys, types, missing values, label balance, and warnings.

    Without a contract, keys are compared as they are written. Raises ConfigError for a party file without keys, DataError for
    absent columns and unusable keys.
    """
    if not party.keys:
        raise ConfigError(f"keys: the party file of {party.party} names no key column; say which one each key of the contract is")
    keys = keys_of(frame, party, contract.alignment if contract else keys_as_written(party))
    features = feature_columns(frame, party)
    use_of = dict.fromkeys(features.numeric, "numeric") | dict.fromkeys(features.categorical, "categorical")
    use_of |= dict.fromkeys(party.sequences, "sequence")
    own = {party.weight: "weight", party.time: "time"}
    use_of |= dict.fromkeys(party.labels, "label")
    uses = use_of | dict.fromkeys(party.keys.values(), "key") | {name: use for name, use in own.items() if name is not None}
    columns = tuple(_column(frame.get_column(name), uses.get(name, "unused")) for name in frame.columns)
    label = label_column(frame, party) if party.labels else None
    label_balance, positive_class = None, None
    positive_classes: dict[str, str] = {}
    if label is not None and len(party.labels) == 1:
        text = as_text(label).drop_nulls()
        if 0 < text.n_unique() <= SHOWN_CLASSES:
            counts = text.value_counts(sort=True, normalize=True, name="share")
            shares = zip(counts.get_column(label.name).to_list(), counts.get_column("share").to_list(), strict=True)
            label_balance = dict(sorted(shares))
        if contract is not None and contract.target.type == "binary" and len(classes := classes_of(label)) == 2:
            positive_class = classes[1]
    elif label is not None:
        for name in party.labels:
            classes = classes_of(label.struct.field(name))
            positive_classes |= {name: classes[1]} if len(classes) == 2 else {}
    warnings = keys.report.notes() + list(frame.notes if isinstance(frame, LazyTable) else ())
    for column in columns:
        if column.use == "key":
            cells = frame.get_column(column.name)
            warnings += [
                f"key {warning}" for warning in (spreadsheet_warning(cells), encoding_warning(cells)) if warning is not None
            ]
            if cells.dtype == pl.String and (sums := cells.str.to_lowercase().str.contains(SUM)).any():
                warnings.append(
                    f"key column {column.name!r}: a word such as Total in {rows_listed(sums)} rows; remove sums of other rows"
                )
        if column.use not in ("numeric", "categorical", "time"):
            continue
        values = frame.get_column(column.name)
        digits = digits_warning(values) if party.features is None or column.use == "time" else None
        if digits is not None:
            warnings.append(digits)
        if column.name in party.dates and (doubt := either_way(values, party.dates[column.name])) is not None:
            warnings.append(doubt)
        warnings += times_warnings(values)
        if column.use == "time":
            continue
        if column.missing_share >= MOSTLY_MISSING:
            warnings.append(f"column {column.name!r} is missing in {column.missing_share:.0%} of rows")
        if column.distinct <= 1 and column.missing_share in (0, 1):
            warnings.append(f"column {column.name!r} is constant; it will be left out")
        if values.dtype.is_float() and (infinite := int(values.is_infinite().sum())):
            warnings.append(f"column {column.name!r} has {infinite} infinite numbers; make them null or clip them")
        if (said := stand_in_warning(values)) is not None:
            warnings.append(said)
        if beyond := int(beyond_years(values).sum()):
            times = "times" if beyond > 1 else "time"
            warnings.append(
                f"column {column.name!r} has {beyond} {times} beyond the years 1 to 9999, such as a database's infinity; make "
                "them null or clip them"
            )
        # Days such as 31.12.2020 or 31/12/20 are not ISO dates, so they stay text
        is_day_first = values.dtype == pl.String and values.null_count() < len(values) and values.str.contains(DAY_FIRST).all()
        is_looked_at = column.use == "categorical" and party.features is None and digits is None
        if is_looked_at and (doubt := text_warning(values)) is not None:
            warnings.append(doubt)
        elif column.use == "categorical" and is_day_first:
            warnings.append(
                f"column {column.name!r} holds dates such as 31.12.2020, but each becomes a category; to read them as dates, "
                f"{dates_mend(values)}"
            )
        elif column.use == "categorical":
            doubt = rare_words_warning(values, party) if is_looked_at else encoding_warning(values)
            warnings += [doubt] if doubt is not None else []
        if column.use == "categorical" and party.features is None:
            warnings += [warning] if (warning := marks_warning(frame, column.name, party)) is not None else []
        if "%y" in party.dates.get(column.name, "") and _may_be_off_a_century(values):
            warnings.append(
                f"column {column.name!r}: its years of two digits mean 1970 to 2069, so its dates run from {column.minimum} to "
                f"{column.maximum}; if some are of another century, write years of four digits"
            )
        if values.dtype in (pl.Date, pl.Datetime) and (early := int((values.dt.year() < FIRST_YEAR).sum())):
            warnings.append(
                f"column {column.name!r} has {early} time{'s' if early > 1 else ''} before the year {FIRST_YEAR}; if their years "
                "have two digits, write them with four; if they mean a missing cell, make them null"
            )
        if column.use == "categorical" and frame.height > 1 and column.distinct == frame.height:
            warnings.append(f"column {column.name!r} has a different category in every row; it identifies rows and cannot help")
        if label is not None and (how := telling(values, label)) is not None:
            warnings.append(f"column {column.name!r} {how}; is it known before the label is? (leakage)")
    if label is not None and label.dtype.is_float() and (infinite := int(label.is_infinite().sum())):
        warnings.append(f"label column {label.name!r} has {infinite} infinite numbers")
    return Profile(
        rows=frame.height,
        keys=keys.report,
        columns=columns,
        label_balance=label_balance,
        positive_class=positive_class,
        positive_classes=positive_classes,
        warnings=tuple(warnings),
    )


def _may_be_off_a_century(days: pl.Series) -> bool:
    """Tell whether dates from 1970 to 2069, whose years had two digits, look as if some were of another century."""
    first, last = (int(day.year) if isinstance(day, date) else 0 for day in (days.min(), days.max()))
    return last >= LATE_YEAR or last - first >= MANY_YEARS


def keys_as_written(party: PartyFile) -> IntersectionConfig:
    """Return the rules for comparing keys if there is no contract."""
    return IntersectionConfig(keys=tuple(KeyColumn(name=name) for name in party.keys))


def _column(column: pl.Series, use: str) -> ColumnProfile:
    missing = column.null_count() + (int(column.is_nan().sum()) if column.dtype.is_float() else 0)
    ordered = column.dtype.is_numeric() or column.dtype.is_temporal()
    if (beyond := beyond_years(column)).any():
        column = column.set(beyond, None)
    lowest, highest = (column.min(), column.max()) if ordered else (None, None)
    return ColumnProfile(
        name=column.name,
        type=str(column.dtype),
        use=use,
        missing_share=missing / max(len(column), 1),
        distinct=column.drop_nulls().n_unique() if not column.dtype.is_nested() else 0,
        minimum=_shown(lowest),
        maximum=_shown(highest),
        samples=samples_of(column),
    )


def samples_of(column: pl.Series) -> tuple[str, ...]:
    """Return the first few different cells, as they are read: in quotes if they would not be clear without."""
    cells = column.head(SAMPLED).drop_nulls()
    few = dict.fromkeys(
        str(_shown(cell)) for cell in (cells if cells.dtype.is_nested() else cells.unique(maintain_order=True)).to_list()
    )
    short = (text if len(text) <= WIDEST else f"{text[:WIDEST]}..." for text in list(few)[:SAMPLES])
    return tuple(text if text.isprintable() and text == text.strip() else repr(text) for text in short)


def _shown(value: object) -> str | None:
    """Round to six digits of a fraction, enough for a glance. The whole part is never rounded."""
    if isinstance(value, float) and abs(value) < 1e6:
        value = float(f"{value:.6g}")
    return None if value is None else str(value)
