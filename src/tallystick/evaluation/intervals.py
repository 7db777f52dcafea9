"""Compute bootstrap intervals: how far a metric would move if other rows had been drawn.

It is Efron's nonparametric bootstrap over rows: a resample draws N of the N rows with replacement, that is, gives each row a
multinomial count, which multiplies its weight. Statistics take weights (metrics/statistics.py), so nothing is sorted or copied
again. Several statistics, and two models on the same rows, are evaluated on the same resamples (paired).

Rows of one key, such as a customer's orders, are more similar than rows of two keys. If they are treated as independent, the
interval is too narrow. Then keys are drawn instead, each with all its rows (the cluster bootstrap; Davison and Hinkley 1997,
section 3.8).

The interval is the percentile interval moved by the bootstrap's own estimate of bias, so that it lies around the value. This
makes no difference to AUC or a mean. A calibration error would otherwise lie outside its own interval, because resampling adds
noise to every bin and so makes all its resamples too large.

The level holds for about a hundred rows of the rarer class and more. Of 150 95 % intervals of an AUC, 142 contained the true
value at 1,000 rows with 100 positives, but only 123 at 200 rows with 20, and 122 at 40 with 8 (where 12 were [1, 1]). With fewer
rows consider them too narrow.

Shapes: N rows, M statistics, R resamples, K keys.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import DataError
from tallystick.metrics import Floats, Statistic

MIN_USABLE = 0.5  # share of resamples that must have a value; below it the percentiles would come from a selected few


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A two-sided interval at ``level``.

    At 0.95 about 95 of 100 such intervals contain the true value if the rarer class has a hundred rows, and fewer do with fewer
    rows.
    """

    low: float
    high: float
    level: float


def resampling_of(keys_N: NDArray[np.int64] | None) -> str:
    """Say how intervals are computed."""
    repeated = _repeated(keys_N)
    unit = "rows" if repeated is None else f"{int(repeated.max()) + 1:,} keys, each with all its rows"
    return f"bootstrap over {unit} (multinomial counts), percentiles centred on the value"


def bootstrap(
    statistics: Sequence[Statistic],
    weights_N: Floats,
    *,
    keys_N: NDArray[np.int64] | None = None,
    resamples: int,
    generator: np.random.Generator,
) -> Floats:
    """Evaluate every statistic on the same ``resamples`` resamples: (R, M), NaN where one has no value.

    Rows are drawn, or with ``keys_N`` (each row's key, any numbers) the keys, each with all its rows.
    """
    if resamples < 0:
        raise DataError(f"resamples is {resamples}; give 0 for no intervals, or some hundred")
    repeated_N = _repeated(keys_N)
    units = len(weights_N) if repeated_N is None else int(repeated_N.max()) + 1
    replicates_RM = np.empty((resamples, len(statistics)))
    for replicates_M in replicates_RM:
        counts_N = np.bincount(generator.integers(0, units, size=units, dtype=np.int64), minlength=units)
        if repeated_N is not None:
            counts_N = counts_N[repeated_N]
        resampled_N = counts_N * weights_N
        replicates_M[:] = [statistic(resampled_N) for statistic in statistics]
    return replicates_RM


def _repeated(keys_N: NDArray[np.int64] | None) -> NDArray[np.int64] | None:
    """Return the keys numbered from 0, or None if no two rows share a key."""
    if keys_N is None:
        return None
    keys_K, number_N = np.unique(keys_N, return_inverse=True)
    return number_N if len(keys_K) < len(keys_N) else None


def percentile_interval(
    replicates_R: Floats, value: float, *, level: float = 0.95, low: float = -np.inf, high: float = np.inf
) -> Interval | None:
    """Return the interval of ``value`` from its resamples, kept within [low, high], or None if too few resamples have a value."""
    if not 0 < level < 1:
        raise DataError(f"level is {level}; it must lie between 0 and 1, such as 0.95")
    usable_R = replicates_R[np.isfinite(replicates_R)]
    if len(usable_R) == 0 or len(usable_R) < MIN_USABLE * len(replicates_R):
        return None
    tail = (1.0 - level) / 2.0
    bounds = np.quantile(usable_R, [tail, 1.0 - tail]) - (usable_R.mean() - value)
    return Interval(low=float(max(bounds[0], low)), high=float(min(bounds[1], high)), level=level)
