"""Test whether new rows have the distribution of the training rows: population stability index, and a statistical test.

Shapes: N rows, K bins.
"""

from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, ks_2samp

from tallystick.results.monitoring import Drift, DriftState
from tallystick.run_folder.profile import CategoricalProfile, NumericProfile
from tallystick.tables.text import as_text

BINS = 10  # number of a numeric column's bins, at the deciles of the training rows
LEVEL = 0.001  # chance that any of the compared columns is called shifted if none is
SOME, MUCH = 0.1, 0.25  # population stability: the usual bounds
LEAST_EXPECTED = 5  # rows that a category needs for the chi-square test to hold; rarer ones are pooled


def population_stability(before_K: Sequence[float], now_K: Sequence[float]) -> float:
    """Compute the index of two lists of counts over the same bins: the sum of (p - q) log(p / q).

    Half a row is added to every bin, so that an empty bin does not make it infinite. If nothing changed it is about (K - 1) (1 /
    n + 1 / m) for n and m rows.
    """
    counts = (np.asarray(before_K, dtype=np.float64), np.asarray(now_K, dtype=np.float64))
    p_K, q_K = ((count_K + 0.5) / (count_K.sum() + 0.5 * len(count_K)) for count_K in counts)
    return float(((q_K - p_K) * np.log(q_K / p_K)).sum())


def numeric_drift(before: NumericProfile, values_N: NDArray[np.float64]) -> Drift:
    """Measure a numeric column, binned at the deciles of training, with a separate bin for missing cells.

    Two tests are made: Kolmogorov and Smirnov's test of the numbers, and a test of the missing share. The smaller chance counts,
    times two. If there are more training rows than points in the profile, the points are evenly spaced quantiles, which vary less
    than rows do: the test then tends to call nothing shifted.
    """
    points, values = np.array(before.points), values_N[~np.isnan(values_N)]
    missing = len(values_N) - len(values)
    edges = np.unique(np.quantile(points, np.arange(1, BINS) / BINS)) if len(points) else np.empty(0)
    scale = (before.rows - before.missing) / max(len(points), 1)
    before_K = [*np.bincount(np.searchsorted(edges, points), minlength=len(edges) + 1) * scale, before.missing]
    now_K = [*np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1), missing]
    chances = [_chance([before.rows - before.missing, before.missing], [len(values), missing])]
    if len(points) and len(values):
        chances.append(float(ks_2samp(points, values, method="asymp").pvalue))
    return Drift(
        name=before.name,
        kind="numeric",
        rows=len(values_N),
        stability=population_stability(before_K, now_K),
        chance=min(1.0, len(chances) * min(chances)),
        missing_before=before.missing / max(before.rows, 1),
        missing_now=missing / max(len(values_N), 1),
    )


def categorical_drift(before: CategoricalProfile, column: pl.Series) -> Drift:
    """Measure a categorical column by its values, with rare, other and missing cells, in a chi-square test of homogeneity."""
    counts = dict(pl.DataFrame({"text": as_text(column)}).group_by("text").len().iter_rows())
    missing = counts.pop(None, 0)
    names = [name for name, _ in before.counts]
    rest = sum(count for name, count in counts.items() if name not in set(names))
    before_K = [*(count for _, count in before.counts), before.others, before.missing]
    now_K = [*(counts.get(name, 0) for name in names), rest, missing]
    rows = sum(before_K)
    return Drift(
        name=before.name,
        kind="categorical",
        rows=len(column),
        stability=population_stability(*_pooled(before_K, now_K)),
        chance=_chance(before_K, now_K),
        missing_before=before.missing / max(rows, 1),
        missing_now=missing / max(len(column), 1),
    )


def judged(drifts: Sequence[Drift], *, level: float = LEVEL) -> list[Drift]:
    """Judge each drift, with Holm's (1979) correction for the number of columns.

    If nothing changed and rows are independent, the chance that any column is called shifted is at most ``level``.
    """
    order = sorted(range(len(drifts)), key=lambda place: drifts[place].chance)
    states: dict[int, DriftState] = {}
    still = True
    for done, place in enumerate(order):
        still = still and drifts[place].chance * (len(drifts) - done) < level
        stability = drifts[place].stability
        states[place] = "same" if not still else "much" if stability >= MUCH else "some" if stability >= SOME else "little"
    return [drifts[place].with_state(states[place]) for place in range(len(drifts))]


def _pooled(before_K: Sequence[float], now_K: Sequence[float]) -> tuple[list[float], list[float]]:
    """Pool all bins of too few expected rows into one."""
    before, now = np.asarray(before_K, dtype=np.float64), np.asarray(now_K, dtype=np.float64)
    together = before + now
    least = min(before.sum(), now.sum()) / max(together.sum(), 1)
    rare = together * least < LEAST_EXPECTED
    return (
        [*before[~rare].tolist(), float(before[rare].sum())],
        [*now[~rare].tolist(), float(now[rare].sum())],
    )


def _chance(before_K: Sequence[float], now_K: Sequence[float]) -> float:
    """Compute the chance that rows of one distribution give counts as different as these."""
    table = np.array(_pooled(before_K, now_K))
    table = table[:, table.sum(axis=0) > 0]
    if table.shape[1] < 2 or (table.sum(axis=1) == 0).any():
        return 1.0
    return float(chi2_contingency(table, correction=False).pvalue)
