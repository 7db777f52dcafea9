"""Statistics over seeds."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import t as student


def summarize_seeds(values: Sequence[float]) -> dict[str, float]:
    """Mean, standard deviation over seeds, and a Student 95 % interval of the mean (no interval from one seed)."""
    array = np.asarray(values, dtype=np.float64)
    mean, count = float(array.mean()), len(array)
    if count < 2:
        return {"mean": mean, "n": count}
    deviation = float(array.std(ddof=1))
    half = float(student.ppf(0.975, count - 1)) * deviation / count**0.5
    return {"mean": mean, "sd": deviation, "low": mean - half, "high": mean + half, "n": count}


def evenly(count: int, most: int) -> list[int]:
    """Give at most ``most`` of ``count`` indices, at least one, evenly spread."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, max(1, most)))})


def paired(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], figure: Callable[[dict[str, Any]], float]
) -> list[float]:
    """By how much a figure of ours is above theirs, seed by seed where both have one: the luck of rows and start cancels."""
    beside = {each["seed"]: figure(each) for each in theirs}
    return [figure(each) - beside[each["seed"]] for each in ours if each["seed"] in beside]


def change(
    ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]], figure: Callable[[dict[str, Any]], float]
) -> dict[str, float] | None:
    """Mean and interval over seeds of what ``paired`` gives; None where no seed is on both sides."""
    differences = paired(ours, theirs, figure)
    return summarize_seeds(differences) if differences else None
