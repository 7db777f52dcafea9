"""Convert labels and sample weights to tensors. Errors name rows by number, never by content.

- ``binary``: exactly two values. The larger one is the positive class, whose probability is the score: 1 of 0 and 1, "yes" of
  "no" and "yes", but "nein" of "ja" and "nein". ``check`` names it.
- ``multiclass``: exactly ``target.classes`` values, sorted: numbers by value, text by code point.
- ``multilabel``: several columns of two values each, of which the larger is positive. Each has a score of its own.
- ``regression``: standardised by the training rows. Results are in the label's own unit.
- ``count``: whole numbers from 0 on, divided by the training rows' mean. Results are expected counts, at most 10^12.
- ``survival``: the time of an event, or minus the time without an event so far; 0 is an error. It is coded as a logarithm, scaled
  by the log-logistic distribution that fits the training rows best. Results are the times by which half of such rows have had
  their event, at most 10^12 times that distribution's median.
- ``quantile``: minus the training rows' median, divided by their mean distance from it. Results, in the label's own unit and one
  for each of ``target.levels``, are sorted within a row, so they never cross. Sorting never increases the loss (Chernozhukov,
  Fernández-Val and Galichon 2010).
- A missing or infinite label is an error, and so is a label that is constant on the training rows.
- Weights must be finite, not negative, and not all zero. Training and all metrics use them, and the report says so.

Shapes: N rows, L levels, K labels of a row.
"""

import math
import sys
from typing import Any

import msgspec
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.config.sections import TargetConfig
from tallystick.errors import DataError, LabelError
from tallystick.metrics import NUMBERS, TargetType
from tallystick.metrics.survival import MOST_LOG, log_logistic
from tallystick.msgspec_threads import prepared
from tallystick.tables.categories import cells_at_a_time
from tallystick.tables.text import as_number, as_text, rows_listed

MOST_COUNTED = 10**12
SURVIVAL_SHIFT = 16.0
"""Added to the logarithm of a time, so that the result is above 0 and a sign can say whether there was an event."""
_NO_NUMBERS = "clean it, or agree on a target of classes: type: binary or multiclass under target in the contract"
_LEAST_DEVIATION = math.sqrt(sys.float_info.min)
"""With smaller deviations a square loses digits."""
_USUAL_WEIGHT = 32
"""Weights between 2^-32 and 2^32 stay unchanged."""


def classes_of(column: pl.Series) -> tuple[str, ...]:
    """Return the distinct labels as text, sorted (numbers by value, text by code point). Of two classes the last is positive."""
    return tuple(as_text(column.drop_nulls().unique().sort()).unique(maintain_order=True).to_list())


class LabelCoder(msgspec.Struct, frozen=True, kw_only=True):
    """Codes a label column as a tensor. It is saved with the model."""

    type: TargetType
    classes: tuple[str, ...] = ()  # class c is classes[c]; for binary, classes[1] is the positive one
    mean: float = 0.0  # regression, quantile: label = mean + deviation * encoded; count: label = mean * encoded
    deviation: float = 1.0  # survival: time = mean * exp(deviation * (|encoded| - SURVIVAL_SHIFT)), with the sign of encoded
    levels: tuple[float, ...] = ()  # levels of a quantile target
    labels: dict[str, tuple[str, ...]] = {}  # for a multilabel target, each label's two classes; the second is positive

    @classmethod
    def fit(
        cls, column: pl.Series, target: TargetConfig, training_rows: NDArray[np.int64], *, hidden: bool = False
    ) -> "LabelCoder":
        """Fit on a whole label column. Mean and deviation come from the training rows alone.

        If labels are ``hidden``, no error depends on which rows are training rows, because other parties see whether the run
        goes on.

        Classes are sorted (numbers by value, text by code point), so 0 and 1, false and true, or "no" and "yes" need no mapping.
        ``column`` is a struct with a field for each label of a multilabel target. Raises DataError for null or NaN labels,
        infinite ones in regression, invalid counts, a constant label, or another number of classes than the target has.
        """
        if target.type == "multilabel":
            fields = {name: column.struct.field(name) for name in target.labels}
            classes = {name: _fitted_classes(each, target.type, 2, training_rows, hidden=hidden) for name, each in fields.items()}
            return cls(type=target.type, labels=classes)
        _refuse_missing(column)
        if target.type == "survival":
            times_R = _times(column).to_numpy()
            judged_J = times_R if hidden else times_R[training_rows]
            if not (judged_J > 0).any():
                where = "" if hidden else " on the training rows"
                raise LabelError(
                    f"label column {column.name!r} has no event{where}: all numbers are below 0, which means that no event has "
                    "happened yet; there is nothing to learn"
                )
            middle, scale = log_logistic(times_R[training_rows])
            return cls(type="survival", mean=middle, deviation=scale)
        if target.is_number:
            labels_R = (_counts(column) if target.type == "count" else _finite(column)).to_numpy()
            training_T = labels_R[training_rows]
            mean, deviation = _scale(training_T)
            # If the squares of all numbers can be added up without overflow, so can those of any choice of rows. So checking the
            # whole column is enough.
            judged_J = labels_R if hidden else training_T
            if not np.isfinite(_scale(judged_J)).all():
                raise LabelError(f"label column {column.name!r}: its numbers are too large to standardise; rescale it")
            if _is_constant(judged_J):
                where = "" if hidden else " on the training rows"
                raise LabelError(f"label column {column.name!r} is constant{where}; there is nothing to learn")
            if _scale(judged_J)[1] < _LEAST_DEVIATION:
                raise LabelError(f"label column {column.name!r}: its numbers differ by too little to standardise; rescale it")
            if target.type == "count":
                return cls(type="count", mean=mean or 1.0)  # hidden labels may all be 0 in training
            is_flat = _is_constant(training_T) or deviation < _LEAST_DEVIATION  # only hidden labels may be
            if target.type == "quantile":
                # A few extreme labels change neither of these by much, nor the loss
                middle = float(np.median(training_T))
                apart = 1.0 if is_flat else float(np.abs(training_T - middle).mean())
                return cls(type="quantile", mean=middle, deviation=apart, levels=target.levels)
            return cls(type="regression", mean=mean, deviation=1.0 if is_flat else deviation)
        return cls(type=target.type, classes=_fitted_classes(column, target.type, target.classes, training_rows, hidden=hidden))

    def encode(self, column: pl.Series) -> Tensor:
        """Encode labels: float32 0/1 for binary, int64 class numbers for multiclass, standardised float32 for numbers. Several
        labels are one int64.

        Raises DataError for missing labels and for values that were not there at fitting.
        """
        if self.type == "multilabel":
            patterns = torch.zeros(len(column), dtype=torch.int64)
            for bit, (name, classes) in enumerate(self.labels.items()):
                patterns |= _class_numbers(column.struct.field(name), classes) << bit
            return patterns
        _refuse_missing(column)
        if self.type in ("regression", "quantile"):
            values = torch.from_numpy(_finite(column).to_numpy().copy())
            return ((values - self.mean) / self.deviation).to(torch.float32)
        if self.type == "survival":
            times_R = _times(column).to_numpy()
            log_R = np.log(np.abs(times_R) / self.mean) / self.deviation
            far = SURVIVAL_SHIFT - 1
            return torch.from_numpy(np.sign(times_R) * (SURVIVAL_SHIFT + np.clip(log_R, -far, far))).to(torch.float32)
        if self.type == "count":
            return (torch.from_numpy(_counts(column).to_numpy().copy()) / self.mean).to(torch.float32)
        numbers = _class_numbers(column, self.classes)
        return numbers.to(torch.float32) if self.type == "binary" else numbers

    def each_label(self, labels_N: Tensor) -> list[tuple[tuple[str, ...], Tensor]]:
        """Return for each label its classes and the rows' class numbers."""
        if self.type != "multilabel":
            return [(self.classes, labels_N)]
        return [(classes, (labels_N >> bit) & 1) for bit, classes in enumerate(self.labels.values())]

    @property
    def score_names(self) -> list[str]:
        """Return the names of the score columns: one, or one per class, label or level."""
        if self.type == "quantile":
            return [f"score_{level:g}" for level in self.levels]
        if self.type == "multilabel":
            return [f"score_{name}" for name in self.labels]
        return [f"score_{name}" for name in self.classes] if self.type == "multiclass" else ["score"]

    @property
    def is_number(self) -> bool:
        """Tell whether labels are numbers and not classes."""
        return self.type in NUMBERS

    def in_units(self, labels: NDArray[Any]) -> NDArray[Any]:
        """Convert encoded numbers to the label's own unit. Classes stay unchanged."""
        if self.type == "count":
            return np.rint(labels.astype(np.float64) * self.mean)
        if self.type == "survival":
            encoded = labels.astype(np.float64)
            times_N = self._time(np.abs(encoded) - SURVIVAL_SHIFT)
            times_N[encoded < 0] *= -1
            return times_N
        in_own_unit = self.type in ("regression", "quantile")
        return labels.astype(np.float64) * self.deviation + self.mean if in_own_unit else labels

    def predictions(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Convert a model's outputs to predictions in the label's own unit, (N,) or (N, L). For classes they stay logits."""
        if self.type == "quantile":
            outputs = np.sort(outputs.reshape(len(outputs), len(self.levels)), axis=1)
        if self.type == "count":
            return self.mean * np.exp(np.minimum(outputs.astype(np.float64), self.most_output))
        if self.type == "survival":
            return self._time(outputs.astype(np.float64))
        return self.in_units(outputs)

    def _time(self, outputs: NDArray[Any]) -> NDArray[Any]:
        """Convert outputs, which are relative to the median, to times."""
        times: NDArray[Any] = self.mean * np.exp(np.clip(self.deviation * outputs, -MOST_LOG, MOST_LOG))
        return times

    @property
    def most_output(self) -> float:
        """Return the output for the largest count that a label may have. Larger outputs are read as this one."""
        return math.log(MOST_COUNTED / self.mean)

    def to_json(self) -> str:
        """Write as JSON."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "LabelCoder":
        """Read back what to_json wrote. Raises DataError if it is something else."""
        try:
            return msgspec.json.decode(text, type=prepared(cls))
        except msgspec.DecodeError as error:
            raise DataError(f"a saved label coder is not readable: {error}") from None


def _fitted_classes(
    column: pl.Series, kind: str, expected: int, training_rows: NDArray[np.int64], *, hidden: bool
) -> tuple[str, ...]:
    """Return the classes of a label column. Raises LabelError for another number of them, or only one on the training rows."""
    _refuse_missing(column)
    _refuse_infinite(column)
    classes = classes_of(column)
    if len(classes) != expected:
        alike = len({name.strip().lower() for name in classes}) < len(classes)
        raise LabelError(
            f"label column {column.name!r} has {len(classes)} distinct value{'s' if len(classes) != 1 else ''}"
            f"{', some of which differ in spaces or case alone' if alike else ''}; "
            f"target.type = {kind} needs exactly {expected}"
        )
    if not hidden and as_text(column.gather(training_rows).unique()).n_unique() < 2:
        raise LabelError(f"label column {column.name!r} is constant on the training rows; there is nothing to learn")
    return classes


def _class_numbers(column: pl.Series, classes: tuple[str, ...]) -> Tensor:
    """Return each label's class, int64. Raises LabelError for a missing label, and for one that did not occur at fitting."""
    _refuse_missing(column)
    numbers, first = torch.empty(len(column), dtype=torch.int64), 0
    for piece in cells_at_a_time(column):
        codes = _codes(piece, classes)
        if codes.null_count():
            unknown = _codes(column, classes).is_null()
            raise LabelError(f"label column {column.name!r}: values never seen before in {rows_listed(unknown)} rows")
        numbers[first : first + len(piece)].numpy()[:] = codes.to_numpy()
        first += len(piece)
    return numbers


def _codes(column: pl.Series, classes: tuple[str, ...]) -> pl.Series:
    """Return each label's class, null for a label that did not occur at fitting."""
    return as_text(column).replace_strict(classes, list(range(len(classes))), default=None, return_dtype=pl.Int64)


def encode_weights(column: pl.Series) -> Tensor:
    """Return sample weights as float32 (N,). Raises DataError unless all are finite, none negative, and some positive."""
    if column.dtype.is_temporal():
        raise LabelError(f"weight column {column.name!r} has type {column.dtype}; a weight is a number")
    weights = as_number(column, advice="clean it; a weight is a number")
    wrong = weights.is_null() | ~weights.is_finite().fill_null(False) | (weights < 0).fill_null(False)
    if wrong.any():
        raise LabelError(f"weight column {column.name!r}: missing, negative or infinite in {rows_listed(wrong)} rows")
    if not (weights > 0).any():
        raise LabelError(f"weight column {column.name!r}: every weight is 0; at least one must be above")
    # Only ratios matter. Scaling by a power of two does not change their bits, and keeps sums of extreme weights within float32.
    _, exponent = math.frexp(float(weights.max()))  # type: ignore[arg-type]
    shift = -exponent if abs(exponent) > _USUAL_WEIGHT else 0
    return torch.from_numpy(np.ldexp(weights.to_numpy(), shift)).to(torch.float32)


def _refuse_missing(column: pl.Series) -> None:
    missing = column.is_null()
    if column.dtype.is_float():
        missing = missing | column.is_nan().fill_null(False)
    if missing.any():
        raise LabelError(
            f"label column {column.name!r}: missing (null or NaN) in {rows_listed(missing)} rows; leave them out of the table"
        )


def _finite(column: pl.Series) -> pl.Series:
    numbers = as_number(column, advice=_NO_NUMBERS)
    _refuse_infinite(numbers)
    return numbers


def _refuse_infinite(column: pl.Series) -> None:
    if column.dtype.is_float() and (infinite := column.is_infinite()).any():
        raise LabelError(f"label column {column.name!r}: infinite in {rows_listed(infinite)} rows")


def _counts(column: pl.Series) -> pl.Series:
    """Return counts as float64. Raises LabelError for numbers that are negative, broken or too large to be counted exactly."""
    numbers = _finite(column)
    wrong = (numbers < 0) | (numbers != numbers.round()) | (numbers > MOST_COUNTED)
    if wrong.any():
        raise LabelError(
            f"label column {column.name!r}: not a count in {rows_listed(wrong)} rows; target.type = count needs whole numbers "
            f"from 0 to {MOST_COUNTED:,}; use regression for other numbers"
        )
    return numbers.cast(pl.Float64)


def _scale(labels: NDArray[Any]) -> tuple[float, float]:
    with np.errstate(over="ignore", invalid="ignore"):
        return float(labels.mean()), float(labels.std())


def _is_constant(labels: NDArray[Any]) -> bool:
    """Tell whether numbers differ by no more than the last bits of the largest one."""
    return len(labels) == 0 or float(np.ptp(labels)) <= 8 * float(np.finfo(np.float64).eps) * float(np.abs(labels).max())


def _times(column: pl.Series) -> pl.Series:
    """Return times of events, or minus times without one, as float64. Raises LabelError for a time of 0."""
    numbers = _finite(column).cast(pl.Float64)
    if (is_zero := numbers == 0).any():
        raise LabelError(
            f"label column {column.name!r}: is 0 in {rows_listed(is_zero)} rows; target.type = survival needs a time above 0, or "
            "minus the time over which nothing happened; leave these rows out, or add half of the smallest step to all times"
        )
    return numbers
