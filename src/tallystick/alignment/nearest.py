"""Find the K most similar rows of another table for every row of one table. Results are exact, including ties.

Ties are broken by distance, then by number, which is the position of a row in the other table.

Shapes: N rows of one table, M of the other, D dimensions, K neighbours, Q distinct rows of the first table, G distinct points of
the other, P pairs, L entries of a flat list of candidates, B rows of a block.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Integers = np.ndarray[Any, np.dtype[np.int64]]
PairDistance = Callable[[Integers, Integers], Floats]
CandidatePairs = tuple[Integers, Integers]

PAD = -1
MAX_TREE_DIMENSIONS = 4
"""With more dimensions, every pair is compared: ranks need 2^D searches, and a tree's boxes separate points less and less."""
BLOCK_PAIRS = 1 << 22
"""Pairs that are compared at the same time: 32 MiB of distances."""
SPARE = 8
"""How many extra neighbours a tree is asked for, so that ties at the K-th place show."""
SLACK = 1e-9
"""A tree rounds in its own way, so candidates within this share of the K-th distance are compared again, by one formula."""


@dataclass(frozen=True, kw_only=True)
class Neighbors:
    """The most similar rows, the most similar first. If there are too few, -1 and infinity fill the rest."""

    numbers_NK: Integers
    distance_NK: Floats

    @classmethod
    def none(cls, rows: int, neighbors: int) -> "Neighbors":
        """Return a candidate list that contains only padding."""
        return cls(numbers_NK=np.full((rows, neighbors), PAD, dtype=np.int64), distance_NK=np.full((rows, neighbors), np.inf))

    def keep_best(self, rows_L: Integers, numbers_L: Integers, distance_L: Floats) -> None:
        """Replace the neighbours of these rows by the best of a list, which may contain a pair more than once."""
        order_L = np.argsort(rows_L, kind="stable")
        rows_B, first_B, count_B = np.unique(rows_L[order_L], return_index=True, return_counts=True)
        widths = np.unique(1 << np.ceil(np.log2(count_B)).astype(np.int64))
        for wide in widths:  # sort rows with a similar number of candidates together, as a matrix
            some_B = np.flatnonzero((count_B <= wide) & (count_B > wide // 2))
            at_BL = first_B[some_B][:, None] + np.arange(wide)
            there_BL = np.arange(wide) < count_B[some_B][:, None]
            at_BL = order_L[np.where(there_BL, at_BL, 0)]
            number_BL = np.where(there_BL, numbers_L[at_BL], PAD)
            distance_BL = np.where(there_BL, distance_L[at_BL], np.inf)
            some_rows_B = rows_B[some_B]
            order_BL = np.lexsort((number_BL, distance_BL))
            number_BL = np.take_along_axis(number_BL, order_BL, axis=1)
            distance_BL = np.take_along_axis(distance_BL, order_BL, axis=1)
            new_BL = number_BL != PAD
            new_BL[:, 1:] &= number_BL[:, 1:] != number_BL[:, :-1]
            place_BL = np.cumsum(new_BL, axis=1) - 1
            at_L, from_L = np.nonzero(new_BL & (place_BL < self.numbers_NK.shape[1]))
            place_L = place_BL[at_L, from_L]
            self.numbers_NK[some_rows_B[at_L], place_L] = number_BL[at_L, from_L]
            self.distance_NK[some_rows_B[at_L], place_L] = distance_BL[at_L, from_L]

    def gather(self, rows_N: Integers) -> "Neighbors":
        """Select the neighbours of these rows."""
        return Neighbors(numbers_NK=self.numbers_NK[rows_N], distance_NK=self.distance_NK[rows_N])


def euclidean(first_PD: Floats, second_PD: Floats) -> Floats:
    """Return the Euclidean distances of pairs."""
    total_P = np.zeros(np.broadcast_shapes(first_PD.shape, second_PD.shape)[:-1])
    for dimension in range(first_PD.shape[-1]):
        total_P += np.square(first_PD[..., dimension] - second_PD[..., dimension])
    return np.sqrt(total_P)


def rank_distance(first_PD2: Integers, second_PD2: Integers, *, weights_D: Floats) -> Floats:
    """Return the Hamming distances of pairs' FEDERAL filters, from the ranks of their windows' ends, weighted by dimension.

    Let u and v be the ranks of x - t and x + t among the pivots, and c = v - u. The filters of two values differ in |du| + |dv|
    bits if their windows overlap, and in c + c' bits if not. The smaller of the two is right in both cases.
    """
    total_P = np.zeros(np.broadcast_shapes(first_PD2.shape, second_PD2.shape)[:-2])
    for dimension, weight in enumerate(weights_D):
        first_P2, second_P2 = first_PD2[..., dimension, :], second_PD2[..., dimension, :]
        apart_P = np.abs(first_P2 - second_P2).sum(axis=-1)
        bits_P = (first_P2[..., 1] - first_P2[..., 0]) + (second_P2[..., 1] - second_P2[..., 0])
        total_P += weight * np.minimum(apart_P, bits_P)
    return total_P


def nearest(keys_ND: Floats, others_MD: Floats, *, neighbors: int, workers: int = -1) -> Neighbors:
    """Return the K rows of the other table whose keys are nearest in Euclidean distance.

    Args:
        keys_ND: keys, one per row, with every dimension already scaled by its importance.
        others_MD: keys of the other table.
        neighbors: K; if it is more than M, the rest is padding.
        workers: threads of the search; -1 uses all cores.

    Raises ValueError for keys that are not finite numbers, or have unequal dimensions.
    """
    _check(keys_ND, others_MD, neighbors)
    distinct_QD, row_N = np.unique(keys_ND, axis=0, return_inverse=True)

    def distance(first_P: Integers, second_P: Integers) -> Floats:
        return euclidean(distinct_QD[first_P], others_MD[second_P])

    if keys_ND.shape[1] > MAX_TREE_DIMENSIONS:
        neighbors_of_distinct = nearest_of_all(
            len(distinct_QD), len(others_MD), neighbors=neighbors, block=_every_pair(distance, len(others_MD))
        )
    else:
        neighbors_of_distinct = Neighbors.none(len(distinct_QD), neighbors)
        for rows_L, numbers_L in _by_tree(distinct_QD, others_MD, neighbors, order=2, workers=workers):
            neighbors_of_distinct.keep_best(rows_L, numbers_L, distance(rows_L, numbers_L))
    return neighbors_of_distinct.gather(row_N.ravel())


def nearest_by_ranks(
    ranks_ND2: Integers, others_MD2: Integers, *, neighbors: int, weights_D: Floats | None = None, workers: int = -1
) -> Neighbors:
    """Return the K rows of the other table whose FEDERAL filters are nearest in (weighted) Hamming distance, from ranks alone.

    Ranks are monotone in the value, so |du| + |dv| = |ds| with s = u + v. A distance is the least, over all subsets S of the
    dimensions, of ``sum over S of |ds| + sum over the others of (c + c')``. Each of these is an L1 distance, which a tree
    searches exactly if the part outside S is one more coordinate. A row that is among the K nearest is among them for one of the
    subsets. Rows whose K-th distance is below anything that a saturated dimension adds only need the full set.

    Args:
        ranks_ND2: (u, v) per row and dimension, see ``alignment/federal.py``.
        others_MD2: the same for the other table.
        neighbors: K; if it is more than M, the rest is padding.
        weights_D: weight of a differing bit of each dimension, above 0; 1 by default.
        workers: threads of the search; -1 uses all cores.
    """
    dimensions = ranks_ND2.shape[1]
    weights_D = np.ones(dimensions) if weights_D is None else weights_D
    if not (weights_D > 0).all():
        raise ValueError(f"weights must be above 0, got {weights_D.tolist()}")
    _check(ranks_ND2.reshape(len(ranks_ND2), -1), others_MD2.reshape(len(others_MD2), -1), neighbors)
    distinct_QD2, row_N = np.unique(ranks_ND2, axis=0, return_inverse=True)
    (sums_DQ, bits_DQ), (sums_DM, bits_DM) = _sums_and_bits(distinct_QD2), _sums_and_bits(others_MD2)

    def distance(first_P: Integers, second_P: Integers) -> Floats:
        total_P = np.zeros(len(first_P))  # the values of rank_distance, from half the numbers
        for weight, sums_Q, sums_M, bits_Q, bits_M in zip(weights_D, sums_DQ, sums_DM, bits_DQ, bits_DM, strict=True):
            total_P += weight * np.minimum(np.abs(sums_Q[first_P] - sums_M[second_P]), bits_Q[first_P] + bits_M[second_P])
        return total_P

    if dimensions > MAX_TREE_DIMENSIONS:
        block = _every_pair(distance, len(others_MD2))
        return nearest_of_all(len(distinct_QD2), len(others_MD2), neighbors=neighbors, block=block).gather(row_N.ravel())
    sums_QD, bits_QD, sums_MD, bits_MD = ((weights_D[:, None] * x).T for x in (sums_DQ, bits_DQ, sums_DM, bits_DM))
    neighbors_of_distinct = Neighbors.none(len(distinct_QD2), neighbors)
    for rows_L, numbers_L in _by_tree(sums_QD, sums_MD, neighbors, order=1, workers=workers):
        neighbors_of_distinct.keep_best(rows_L, numbers_L, distance(rows_L, numbers_L))
    saturated_Q = (bits_QD + bits_MD.min(axis=0)).min(axis=1)
    settled_Q = neighbors_of_distinct.distance_NK[:, -1] * (1 + SLACK) < saturated_Q
    if neighbors < len(others_MD2):
        _search_saturated(
            neighbors_of_distinct, np.flatnonzero(~settled_Q), sums_QD, (sums_MD, bits_MD), distance=distance, workers=workers
        )
    return neighbors_of_distinct.gather(row_N.ravel())


def nearest_of_all(rows: int, others: int, *, neighbors: int, block: Callable[[slice], Floats]) -> Neighbors:
    """Return the K nearest rows. ``block`` gives the distances of some rows to all others, (B, M); infinity excludes a pair."""
    best = Neighbors.none(rows, neighbors)
    height = max(BLOCK_PAIRS // others, 1)
    for start in range(0, rows, height):
        distance_BM = block(slice(start, min(start + height, rows)))
        candidate_BM = np.isfinite(distance_BM)
        if neighbors < others:
            candidate_BM &= distance_BM <= np.partition(distance_BM, neighbors - 1, axis=1)[:, neighbors - 1 : neighbors]
        rows_L, numbers_L = np.nonzero(candidate_BM)
        if len(rows_L):
            best.keep_best(rows_L + start, numbers_L, distance_BM[rows_L, numbers_L])
    return best


def _check(keys_ND: np.ndarray[Any, Any], others_MD: np.ndarray[Any, Any], neighbors: int) -> None:
    if keys_ND.shape[1] != others_MD.shape[1]:
        raise ValueError(f"keys have {keys_ND.shape[1]} and {others_MD.shape[1]} dimensions; both tables need the same")
    if not len(keys_ND) or not len(others_MD):
        raise ValueError(f"keys of {len(keys_ND)} and {len(others_MD)} rows; both tables need some")
    if not np.isfinite(keys_ND).all() or not np.isfinite(others_MD).all():
        raise ValueError("keys must be finite numbers; leave rows without a key out")
    if neighbors < 1:
        raise ValueError(f"neighbors = {neighbors}: must be at least 1")


def _sums_and_bits(ranks_ND2: Integers) -> tuple[Floats, Floats]:
    """Return u + v and v - u by dimension, (D, N). They are exact as floats."""
    ends_DN2 = np.moveaxis(ranks_ND2, 1, 0).astype(np.float64)
    return ends_DN2[..., 0] + ends_DN2[..., 1], ends_DN2[..., 1] - ends_DN2[..., 0]


def _search_saturated(
    nearest: Neighbors,
    unsettled: Integers,
    sums_QD: Floats,
    other: tuple[Floats, Floats],
    *,
    distance: PairDistance,
    workers: int,
) -> None:
    """Find the neighbours of rows that a saturated dimension may affect: the best of the searches over all subsets."""
    sums_MD, bits_MD = other
    dimensions, neighbors = sums_QD.shape[1], nearest.numbers_NK.shape[1]
    subsets = [subset for size in range(dimensions) for subset in combinations(range(dimensions), size)]
    height = max(BLOCK_PAIRS // (neighbors * (len(subsets) + 1)), 1)
    for start in range(0, len(unsettled), height):
        rows = unsettled[start : start + height]
        candidates = [(np.repeat(rows, neighbors), nearest.numbers_NK[rows].ravel(), nearest.distance_NK[rows].ravel())]
        for subset in subsets:
            inside = list(subset)
            outside_M = np.delete(bits_MD, inside, axis=1).sum(axis=1)
            points_MS = np.column_stack((sums_MD[:, inside], outside_M))
            points_QS = np.column_stack((sums_QD[rows][:, inside], np.full(len(rows), outside_M.min())))
            for at_L, numbers_L in _by_tree(points_QS, points_MS, neighbors, order=1, workers=workers):
                rows_L = rows[at_L]
                distance_L = distance(rows_L, numbers_L)
                nearer_L = distance_L <= nearest.distance_NK[rows_L, -1]
                candidates.append((rows_L[nearer_L], numbers_L[nearer_L], distance_L[nearer_L]))
        rows_L, numbers_L, distance_L = (np.concatenate(column) for column in zip(*candidates, strict=True))
        nearest.keep_best(rows_L, numbers_L, distance_L)


def _every_pair(distance: PairDistance, others: int) -> Callable[[slice], Floats]:
    def block(rows: slice) -> Floats:
        index_B = np.arange(rows.start, rows.stop)
        pairs = np.repeat(index_B, others), np.tile(np.arange(others), len(index_B))
        return distance(*pairs).reshape(len(index_B), others)

    return block


def _by_tree(points_QD: Floats, points_MD: Floats, neighbors: int, *, order: int, workers: int) -> Iterator[CandidatePairs]:
    """Yield (row, number) of all candidates for the K nearest in the L_order norm, block by block, including all ties.

    Equal points of the other table are in the tree once; the K rows with the lowest numbers among them are candidates.
    """
    groups_GD, group_M, count_G = np.unique(points_MD, axis=0, return_inverse=True, return_counts=True)
    members_M = np.argsort(group_M.ravel(), kind="stable")
    first_G = np.cumsum(count_G) - count_G
    from scipy.spatial import cKDTree

    tree, all_groups = cKDTree(groups_GD), len(groups_GD)
    height = max(BLOCK_PAIRS // (4 * (neighbors + SPARE)), 1)
    for start in range(0, len(points_QD), height):
        waiting, groups = np.arange(start, min(start + height, len(points_QD))), min(neighbors + SPARE, all_groups)
        while len(waiting):
            distance_BG, group_BG = tree.query(points_QD[waiting], k=np.arange(1, groups + 1), p=order, workers=workers)
            reached_B = np.minimum((np.cumsum(count_G[group_BG], axis=1) < neighbors).sum(axis=1), groups - 1)
            bound_B1 = distance_BG[np.arange(len(waiting)), reached_B][:, None] * (1 + SLACK)
            whole_B = (distance_BG[:, -1:] > bound_B1).ravel() | (groups == all_groups)
            at_L, place_L = np.nonzero((distance_BG <= bound_B1) & whole_B[:, None])
            group_L = group_BG[at_L, place_L]
            take_L = np.minimum(count_G[group_L], neighbors)
            offset = np.arange(take_L.sum()) - np.repeat(np.cumsum(take_L) - take_L, take_L)
            yield np.repeat(waiting[at_L], take_L), members_M[np.repeat(first_G[group_L], take_L) + offset]
            waiting, groups = waiting[~whole_B], min(2 * groups, all_groups)
