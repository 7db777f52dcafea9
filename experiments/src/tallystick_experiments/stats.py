"""Compute statistics over seeds from the rows of a sweep."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import t as student

Row = dict[str, Any]
Figure = str | Callable[[Row], float | None]
"""A figure of a row: a field by its name, or a function; None if a run has none."""


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Hold a value with its interval, if it has one."""

    value: float
    low: float | None = None
    high: float | None = None


def spread(values: Iterable[float]) -> Spread:
    """Compute the mean and its Student's 95 % interval (no interval from one value)."""
    array = np.asarray(list(values), dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return Spread(value=mean)
    half = float(student.ppf(0.975, count - 1)) * float(array.std(ddof=1)) / count**0.5
    return Spread(value=mean, low=mean - half, high=mean + half)


def read(row: Row, figure: Figure) -> float | None:
    """Return a figure of a row, or None if it has none."""
    value: float | None = row.get(figure) if isinstance(figure, str) else figure(row)
    return value


def over_seeds(rows: Iterable[Row], figure: Figure) -> Spread | None:
    """Compute the mean and interval of a figure, or None if no row has it."""
    values = [value for row in rows if (value := read(row, figure)) is not None]
    return spread(values) if values else None


def paired(ours: Iterable[Row], theirs: Iterable[Row], figure: Figure) -> list[float]:
    """Compute by how much a figure of ours is above theirs, for each seed with both.

    The luck of rows and start cancels.
    """
    beside = {row["seed"]: read(row, figure) for row in theirs}
    both = [(read(row, figure), beside.get(row["seed"])) for row in ours]
    return [mine - other for mine, other in both if mine is not None and other is not None]


def change(ours: Iterable[Row], theirs: Iterable[Row], figure: Figure) -> Spread | None:
    """Compute the mean and interval over seeds of ``paired``, or None if no seed is on both sides."""
    differences = paired(ours, theirs, figure)
    return spread(differences) if differences else None


def groups(rows: Iterable[Row], *fields: str) -> dict[Any, list[Row]]:
    """Group rows by their value of a field, or by the values of several, in the order in which these first appear."""
    by_fields: dict[Any, list[Row]] = {}
    for row in rows:
        place = tuple(row[field] for field in fields)
        by_fields.setdefault(place if len(fields) > 1 else place[0], []).append(row)
    return by_fields


def melted(rows: Iterable[Row], field: str, *, name: str) -> list[Row]:
    """Make a row of each figure in a mapping field of a row. ``name`` is the field of the figure's name, "value" of its value."""
    return [{**row, name: each, "value": figure} for row in rows for each, figure in row[field].items()]


def distinct(rows: Iterable[Row], field: str) -> list[Any]:
    """Return the values of a field, each once, in the order of the rows."""
    return list(dict.fromkeys(row[field] for row in rows))


def at(*steps: str | int) -> Callable[[Row], Any]:
    """Return a reader of a value deep in a row, by names and by places in lists. It is None if a step leads nowhere."""

    def value_in(row: Row) -> Any:
        value: Any = row
        for step in steps:
            is_there = isinstance(value, Sequence if isinstance(step, int) else Mapping)
            value = None if not is_there else value[step] if isinstance(step, int) else value.get(step)
        return value

    return value_in


def evenly(count: int, most: int) -> list[int]:
    """Return at most ``most`` of ``count`` indices, at least one, evenly spread."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, max(1, most)))})
