"""Locate a row by the set of its nearest known places. Shapes: N positions, M numbers, G grid points."""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from scipy.spatial import cKDTree

from tallystick.attacks.linkage.view import DistanceModel, FeaturePartyView, Floats, Integers, Located, OnProgress, quietly
from tallystick.errors import ConfigError

MOST_NEIGHBORS = 4_000_000
"""Greatest number of nearest keys for all points of a grid together: 32 MB."""
TIE = 1e-6
"""Greatest share of the window that a key's number adds to its distance."""
MOST_DIMENSIONS = 4
"""With more dimensions than this, the search ignores saturation, because it would need 2^D searches."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Finds the places whose K nearest own keys are those that a position is linked to, and takes their middle.

    Not in the paper. A set of K nearest keys belongs to a small cell of the map (an order-K Voronoi cell). Noise on similarities
    does not blur the cell, because it is added after the links are chosen. Where similarity saturates, a cell is open; its middle
    then says little, and the place is marked as only a bound. It reads the feature party's view.

    Args:
        positions: greatest number of positions to place, a random sample.
        grid: number of points of the first grid; a second grid of a tenth as many surrounds each place that the first one finds.
    """

    positions: int = 300
    grid: int = 40_000

    def __post_init__(self) -> None:
        if self.positions < 1 or self.grid < 100:
            raise ConfigError(f"cells attack: positions={self.positions}, grid={self.grid}; expected at least 1 and 100")

    def __call__(self, view: FeaturePartyView, *, rng: np.random.Generator, progress: OnProgress = quietly) -> Located:
        """Place sampled positions that have links."""
        own_MD, metric = view.own_MD, view.metric
        linked = np.flatnonzero((view.numbers_NK >= 0).any(axis=1))
        sample = np.sort(rng.permutation(linked)[: self.positions])
        neighbors = min(int((view.numbers_NK >= 0).sum(axis=1).max(initial=1)), len(own_MD))
        grid = min(self.grid, MOST_NEIGHBORS // neighbors)
        nearest_of = NearestKeys(own_MD, metric, neighbors)
        low_D, high_D = own_MD.min(axis=0), own_MD.max(axis=0)
        margin_D = 0.1 * (high_D - low_D)
        if metric.bits_per_unit_D is not None:
            margin_D = np.maximum(margin_D, 3 * metric.window)  # wider than saturation reaches, to detect open cells
        points_GD = low_D - margin_D + rng.random((grid, own_MD.shape[1])) * (high_D - low_D + 2 * margin_D)
        near_GK = nearest_of(points_GD)
        places = np.empty((len(sample), own_MD.shape[1]))
        bound_T = np.zeros(len(sample), dtype=bool)
        for place, position in enumerate(sample):
            progress(place, len(sample))
            numbers = view.numbers_NK[position][view.numbers_NK[position] >= 0]
            wanted_M = np.zeros(len(own_MD), dtype=bool)
            wanted_M[numbers] = True
            # There may be fewer linked keys than the contract's K. Then only so many of a point's nearest keys count.
            coarse_GD = _best(points_GD, wanted_M[near_GK[:, : len(numbers)]].sum(axis=1))
            reach_D = 3 * coarse_GD.std(axis=0) + 3 * margin_D / np.sqrt(grid)
            around_GD = coarse_GD.mean(axis=0) + reach_D * (2 * rng.random((grid // 10, own_MD.shape[1])) - 1)
            fine_GD = _best(around_GD, wanted_M[nearest_of(around_GD)[:, : len(numbers)]].sum(axis=1))
            places[place] = fine_GD.mean(axis=0)
            cell_GD = np.concatenate((coarse_GD, fine_GD))
            linked_KD = own_MD[numbers]
            if metric.bits_per_unit_D is None:
                bound_T[place] = False
            else:
                bound_T[place] = any(
                    bool((np.abs(cell_GD[:, d, None] - linked_KD[None, :, d]).min(axis=1) >= 2 * metric.window).any())
                    for d in range(cell_GD.shape[1])
                )
        return Located(targets_T=sample, place_TD=places, bound_T=bound_T)


class NearestKeys:
    """Finds the K keys nearest to each point by the helper's distance, which saturates.

    A saturated distance is a minimum over all sets of dimensions: the plain distance within the set plus a constant for the other
    dimensions. So each of the K nearest keys is also among the K nearest by the plain distance of one of these sets, and a tree
    per set finds it. Each tree has the key's number as one more, tiny dimension. Without that, thousands of keys that tie, such
    as readings of one place, would share a leaf.
    """

    def __init__(self, keys_MD: Floats, metric: DistanceModel, neighbors: int) -> None:
        weight_D = np.ones(keys_MD.shape[1]) if metric.bits_per_unit_D is None else metric.bits_per_unit_D
        self._keys_MD, self._metric, self._neighbors, self._weight_D = keys_MD, metric, neighbors, weight_D
        every = tuple(range(keys_MD.shape[1]))
        self._order = 2 if metric.bits_per_unit_D is None else 1
        saturates = metric.bits_per_unit_D is not None and len(every) <= MOST_DIMENSIONS
        some = [part for size in every[1:] for part in combinations(every, size)] if saturates else []
        self._reach = 2 * metric.window * float(weight_D.min()) if saturates else np.inf
        number_M = np.linspace(0, TIE * float(weight_D.min()) * (metric.window if saturates else 1.0), len(keys_MD))
        self._trees = [(part, cKDTree(np.column_stack(((keys_MD * weight_D)[:, part], number_M)))) for part in (every, *some)]

    def __call__(self, points_GD: Floats) -> Integers:
        """List the nearest keys of each point (G, K), the nearest first. Ties between saturated distances go by number."""
        distance_GK, near_GK = self._of_tree(0, points_GD)
        further_G = np.flatnonzero(distance_GK[:, -1] > self._reach)  # nearer keys have no saturated dimension
        block = max(1, MOST_NEIGHBORS // (self._neighbors * 2 ** len(self._weight_D)))
        for start in range(0, len(further_G), block):
            further_F = further_G[start : start + block]
            points_FD, near_FK = points_GD[further_F], near_GK[further_F]
            first_FK = np.broadcast_to(np.arange(self._neighbors), near_FK.shape)
            parts = [first_FK, near_FK, *(self._of_tree(which, points_FD)[1] for which in range(1, len(self._trees)))]
            number_FC = np.sort(np.concatenate(parts, axis=1), axis=1)
            distance_FC = self._metric.distance(points_FD[:, None], self._keys_MD[number_FC])
            distance_FC[:, 1:][number_FC[:, 1:] == number_FC[:, :-1]] = np.inf
            order_FC = np.argsort(distance_FC, axis=1, kind="stable")[:, : self._neighbors]
            near_GK[further_F] = np.asarray(np.take_along_axis(number_FC, order_FC, axis=1))
        return near_GK

    def _of_tree(self, which: int, points_GD: Floats) -> tuple[Floats, Integers]:
        part, tree = self._trees[which]
        query_GD = np.column_stack(((points_GD * self._weight_D)[:, part], np.zeros(len(points_GD))))
        nearest = tree.query(query_GD, k=np.arange(1, self._neighbors + 1), p=self._order)
        return np.asarray(nearest[0]), np.asarray(nearest[1])


def _best(points_GD: Floats, overlap_G: Integers) -> Floats:
    """Return the points whose nearest keys agree best with those of a position: its cell."""
    return np.asarray(points_GD[overlap_G == overlap_G.max()])
