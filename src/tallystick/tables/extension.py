"""Extend an earlier run's encoder for the rows of a new training: keep what it knows, and add what is new.

Shapes: N rows.
"""

from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from tallystick.config.party import EncodingConfig, PartyFile
from tallystick.errors import FeatureError
from tallystick.tables.categories import CategoricalColumn, count_values, kept_categories
from tallystick.tables.columns import Floats, numbers_of
from tallystick.tables.encoder import Encoder, NumericColumn, feature_columns, transformed
from tallystick.tables.later_doubts import times_doubts
from tallystick.tables.lazy_table import Frame
from tallystick.tables.sequences import SequenceColumn, fit_sequence
from tallystick.tables.table import require_column

_LEFT_OUT = "is left out, because the network of the run to start from has no input for it"
_AGAIN = "start from scratch, without --start-from"


def extended(before: Encoder, frame: Frame, party: PartyFile, rows: NDArray[np.int64], *, grows: bool = True) -> Encoder:
    """Extend an earlier run's encoder to the training rows ``rows`` of ``frame``.

    - A number is transformed and scaled as before. The range of numbers widens to the extremes of the new rows. A ranked column
      keeps its ranks, so its range stays.
    - A category keeps its code. New categories that are frequent enough for ``encoding`` get the following codes. Without
      ``grows`` they share the code of unseen ones.
    - New columns are left out with a note. So is the indicator of a missing number, if none was missing before. The network has
      no input for either.

    Raises FeatureError for a column that is gone or has another kind now, and the errors of ``Encoder.fit`` about cells.
    """
    frame = before.fitted(frame)
    now = feature_columns(frame, party)
    notes = []
    for kind, earlier, found in (
        ("numeric", [column.name for column in before.numeric], now.numeric),
        ("categorical", [column.name for column in before.categorical], now.categorical),
    ):
        if lost := [name for name in earlier if name not in found]:
            raise FeatureError(
                f"column {lost[0]!r} is a {kind} input of the run to start from, but not a {kind} feature now; restore it, "
                f"or {_AGAIN}"
            )
        notes += [f"column {name!r} {_LEFT_OUT}" for name in found if name not in earlier]
    for sequence in before.sequences:
        config = party.sequences.get(sequence.name)
        if config is None or (config.length, config.separator, config.target) != (
            sequence.length,
            sequence.separator,
            sequence.target,
        ):
            raise FeatureError(
                f"sequences.{sequence.name}: the run to start from read it in another way; restore its length, separator and "
                f"target, or {_AGAIN}"
            )
    earlier = [sequence.name for sequence in before.sequences]
    notes += [f"sequence {name!r} {_LEFT_OUT}" for name in party.sequences if name not in earlier]
    numeric = tuple(_widened(column, numbers_of(frame, column.name)[rows]) for column in before.numeric)
    notes += [
        f"column {column.name!r}: some numbers are missing now, but none were in the run that this one starts from; they are "
        "replaced by its mean"
        for column in numeric
        if not column.indicator and np.isnan(numbers_of(frame, column.name)[rows]).any()
    ]
    notes += [
        line for column in before.numeric for line in times_doubts(column, require_column(frame, column.name, use="feature"))
    ]
    categorical, sequences = before.categorical, before.sequences
    if grows:
        categorical = tuple(_with_new_categories(column, frame, rows, party.encoding) for column in before.categorical)
        sequences = tuple(_with_new_items(sequence, frame, party, rows) for sequence in before.sequences)
    # For each column of codes, its number of codes before and now
    counts = [
        (then.name, len(then.categories), len(now.categories)) for then, now in zip(before.categorical, categorical, strict=True)
    ]
    counts += [(then.name, len(then.items), len(now.items)) for then, now in zip(before.sequences, sequences, strict=True)]
    for name, before_count, count in counts:
        if count > before_count:
            added = count - before_count
            notes.append(f"column {name!r}: {added:,} new categories get codes, and {before_count:,} keep theirs")
    return msgspec.structs.replace(before, numeric=numeric, categorical=categorical, sequences=sequences, notes=tuple(notes))


def _widened(column: NumericColumn, values_N: Floats) -> NumericColumn:
    """Widen a column's extremes to include these numbers."""
    values = values_N[~np.isnan(values_N)]
    if not len(values):
        return column
    with np.errstate(over="ignore", invalid="ignore"):
        scaled = (transformed(values, column.transform, column.knots, column.scores) - column.mean) / column.deviation
    if not np.isfinite(scaled).all():
        raise FeatureError(f"numeric column {column.name!r}: its numbers are too large to standardise; {_AGAIN}")
    return msgspec.structs.replace(column, low=min(column.low, float(scaled.min())), high=max(column.high, float(scaled.max())))


def _with_new_categories(
    column: CategoricalColumn, frame: Frame, rows: NDArray[np.int64], encoding: EncodingConfig
) -> CategoricalColumn:
    counts = count_values([require_column(frame, column.name, use="feature").gather(rows)])
    categories, least = kept_categories(counts, encoding, cells=len(rows))
    grown = _grown(column.categories, categories, most=encoding.max_categories)
    missing = column.missing or counts.get_column("text").null_count() > 0
    if grown == column.categories:
        return msgspec.structs.replace(column, missing=missing)
    built_for = column.built_for or len(column.categories)
    return msgspec.structs.replace(
        column, categories=grown, min_count=min(column.min_count, least), built_for=built_for, missing=missing
    )


def _with_new_items(sequence: SequenceColumn, frame: Frame, party: PartyFile, rows: NDArray[np.int64]) -> SequenceColumn:
    sequence_now, _ = fit_sequence(frame, sequence.name, party.sequences[sequence.name], rows, party.encoding)
    grown = _grown(sequence.items, sequence_now.items if sequence_now is not None else (), most=party.encoding.max_categories)
    if grown == sequence.items:
        return sequence
    return msgspec.structs.replace(sequence, items=grown, built_for=sequence.built_for or len(sequence.items))


def _grown(known: tuple[str, ...], categories: Sequence[str], *, most: int) -> tuple[str, ...]:
    """Join the known categories and the new ones by falling frequency, at most ``most`` together."""
    there = set(known)
    return known + tuple(name for name in categories if name not in there)[: max(most - len(known), 0)]
