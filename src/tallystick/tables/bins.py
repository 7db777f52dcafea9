"""Choose bins of a number for its piecewise-linear encoding, without labels and with regard to ties. Shapes: N values, T bins."""

import numpy as np
from numpy.typing import NDArray

MAX_BINS = 128


def bin_edges(values_N: NDArray[np.floating], *, bins: int = MAX_BINS) -> tuple[float, ...]:
    """Choose the edges of at most ``bins`` bins, ascending and distinct. Frequent values are edges; other bins share the rest.

    Gorishniy, Rubachev and Babenko (2022), "On embeddings for numerical features in tabular deep learning", section 3.2.1, take
    quantiles. Here a value with as many rows as a bin should have is an edge, and the other edges are quantiles of the remaining
    rows. If there are at most T + 1 distinct values, each is an edge.

    Args:
        values_N: finite numbers of the training rows.
        bins: T, at least 1.

    Return no edges for fewer than two distinct values.
    """
    values, counts = np.unique(values_N, return_counts=True)
    if len(values) < 2:
        return ()
    if len(values) <= bins + 1:
        return tuple(values.tolist())
    heavy = np.zeros(len(values), dtype=bool)
    heavy[[0, -1]] = True  # the ends are edges
    while True:
        light, free_bins = ~heavy, bins + 1 - int(heavy.sum())
        share = counts[light].sum() / (free_bins + 1)
        more = light & (counts >= share)
        if not more.any():
            break
        heaviest = np.flatnonzero(more)[np.argsort(-counts[more], kind="stable")[:free_bins]]
        heavy[heaviest] = True
        if int(heavy.sum()) > bins:
            return tuple(values[heavy].tolist())
    ranks = np.cumsum(counts[light])
    targets = np.arange(1, free_bins + 1) * ranks[-1] / (free_bins + 1)
    picked = np.unique(np.searchsorted(ranks, targets))
    return tuple(np.sort(np.concatenate([values[heavy], values[light][picked]])).tolist())
