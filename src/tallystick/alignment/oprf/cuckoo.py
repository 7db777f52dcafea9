"""Build a cuckoo table of three regions: every id is in one of its three bins, one per region, and no bin holds two ids.

Shapes: N ids.
"""

import math

import numpy as np

from tallystick.alignment.oprf.codes import REGIONS, Places

BINS_PER_ID = 1.27
"""As in Pinkas, Schneider, Tkachenko and Yanai 2019 for three hashes: a load of .787; tables exist up to a load of .917."""
SPARE_BINS = 3.0
"""Additional bins of a region, times the square root of the ids, because a small set deviates further from its mean."""
FAILURE_BITS = 41
_ROUNDS = 300


class NoPlace(ValueError):
    """Raised if there is no table: a set of ids has fewer bins than ids."""


def bins_per_region(ids: int) -> int:
    """Return how many bins each region has.

    There is no table if a set of ids has fewer bins than ids. The most likely such sets are four ids that share all three bins:
    there are ids^4 / 24 fours, and each shares them with a chance of bins^-9. This chance, and a sum over all sets of up to 24
    ids, is kept below 2^-40 (a test computes the sum). A limit theorem says that larger sets do not matter below a load of
    .917 (Fountoulakis and Panagiotou 2012); for a given number of ids only trials show it. So a table never has fewer bins than
    the authors' program gives it, which was fitted to other trials: (40 + 256 + log2 ids) / 240 for each id. If there is no
    table, the next key is tried, and the feature party learns only that.
    """
    fours = float(ids) ** 4 / 24 * 2.0**FAILURE_BITS
    enough = (40 + 256 + math.log2(ids)) / 240 * ids / REGIONS
    own = BINS_PER_ID * ids / REGIONS + SPARE_BINS * math.sqrt(ids)
    return max(math.ceil(own), math.ceil(enough), math.ceil(math.pow(fours, 1 / 9)))


def place(bins_3N: Places, *, per_region: int, generator: np.random.Generator) -> Places:
    """Return the table (3 * per_region,): the id in each bin, -1 in an empty one.

    Insert all ids at once. If several ids want a bin, one stays; the others, and the id that was there before, try another of
    their regions. Ids that are left after 300 rounds get their bins by a maximum matching, which finds a table if there is one.

    Raises NoPlace if there is no table.
    """
    table = np.full(REGIONS * per_region, -1, dtype=np.int32)
    region_N = np.zeros(bins_3N.shape[1], dtype=np.int8)
    waiting = np.arange(bins_3N.shape[1], dtype=np.int32)
    for _ in range(_ROUNDS):
        if not len(waiting):
            return table
        regions = region_N[waiting]
        slots = bins_3N[regions, waiting] + regions * np.int32(per_region)
        driven_out = table[slots]
        table[slots] = waiting
        stays = table[slots] == waiting
        out = driven_out[stays]
        waiting = np.concatenate((waiting[~stays], out[out >= 0]))
        region_N[waiting] = (region_N[waiting] + generator.integers(1, REGIONS, len(waiting), dtype=np.int8)) % REGIONS
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    ids, bins = bins_3N.shape[1], REGIONS * per_region
    slots_3N = bins_3N + np.arange(REGIONS, dtype=np.int32)[:, None] * np.int32(per_region)
    graph = csr_array(
        (np.ones(slots_3N.size, dtype=np.int8), slots_3N.T.reshape(-1), np.arange(0, slots_3N.size + 1, REGIONS)),
        shape=(ids, bins),
    )
    slot_N = maximum_bipartite_matching(graph, perm_type="column")
    if (slot_N < 0).any():
        raise NoPlace(f"{int((slot_N < 0).sum())} of {ids} ids have no bin")
    table = np.full(bins, -1, dtype=np.int32)
    table[slot_N] = np.arange(ids, dtype=np.int32)
    return table
