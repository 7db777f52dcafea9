"""A cuckoo table of three regions: every id stands in one of three bins, one of each region, and no two in one bin.

Shapes: N ids.
"""

import math

import numpy as np

from tallystick.alignment.oprf.codes import REGIONS, Places

BINS_PER_ID = 1.27
"""As in Pinkas, Schneider, Tkachenko and Yanai 2019 for three hashes: a load of .787, where tables exist up to .917."""
SPARE_BINS = 3.0
"""Further bins of a region, times the square root of the ids: a small set strays further from its mean."""
FAILURE_BITS = 41
_ROUNDS = 300


class NoPlace(ValueError):
    """There is no table: some ids have fewer bins together than they are."""


def bins_per_region(ids: int) -> int:
    """Return how many bins each region has.

    There is no table where some ids have fewer bins together than they are. The likeliest such sets are four ids that share all
    three bins: there are ids^4 / 24 fours, and each shares them with a chance of bins^-9. That, and a sum over all sets of up to
    24 ids, is kept to 2^-40 (a test adds it up). That larger sets do not matter below a load of .917 is known in the limit
    (Fountoulakis and Panagiotou 2012), and for a given number of ids by trial only. So a table has no fewer bins than public code
    gives it, which was fitted to other trials: (40 + 256 + log2 ids) / 240 for each id. Where there is no table, the next key is
    tried, and that is all the feature party learns.
    """
    fours = float(ids) ** 4 / 24 * 2.0**FAILURE_BITS
    enough = (40 + 256 + math.log2(ids)) / 240 * ids / REGIONS
    own = BINS_PER_ID * ids / REGIONS + SPARE_BINS * math.sqrt(ids)
    return max(math.ceil(own), math.ceil(enough), math.ceil(math.pow(fours, 1 / 9)))


def place(bins_3N: Places, *, per_region: int, generator: np.random.Generator) -> Places:
    """Return the table (3 * per_region,): the id in each bin, -1 in an empty one.

    Ids are put in all at once; of several in a bin one stays, and the others, with the one they drove out, try another region
    of theirs. What is left after 300 rounds is settled by a maximum matching, which finds a table if there is one.

    Raises NoPlace if there is none.
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
