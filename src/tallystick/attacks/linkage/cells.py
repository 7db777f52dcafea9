"""Where is a row, of which only the set of its nearest known places is known? Shapes: N positions, M numbers, G grid points."""

from dataclasses import dataclass

import numpy as np
from scipy.spatial import cKDTree

from tallystick.attacks.linkage.view import Floats, Integers, LinkageView, Located
from tallystick.errors import ConfigError

MOST_NEIGHBORS = 4_000_000
"""Nearest keys of all points of a grid together: 32 MB of numbers."""


@dataclass(frozen=True, kw_only=True)
class Cells:
    """Looks for the places whose K nearest own keys are those that a position is linked to, and takes their middle.

    Not in the paper. A set of K nearest keys leaves a small cell of the map (an order-K Voronoi cell). Noise on similarities does
    not blur it, as it is added after the links are chosen. For the feature party's view.

    Args:
        positions: how many to place at most, a random sample.
        grid: points of the first grid; a second one, of a tenth of it, lies around each place that the first one finds.
    """

    positions: int = 300
    grid: int = 40_000

    def __post_init__(self) -> None:
        if self.positions < 1 or self.grid < 100:
            raise ConfigError(f"cells attack: positions={self.positions}, grid={self.grid}; expected at least 1 and 100")

    def __call__(self, view: LinkageView, *, rng: np.random.Generator) -> Located:
        """Place sampled positions that have links."""
        assert view.own_ND is not None, "the feature party has keys"
        assert view.numbers_NK is not None, "the feature party has links"
        own_MD, metric = view.own_ND, view.metric
        linked = np.flatnonzero((view.numbers_NK >= 0).any(axis=1))
        chosen = np.sort(rng.permutation(linked)[: self.positions])
        order = 2 if metric.bits_per_unit_D is None else 1
        weight_D = np.ones(own_MD.shape[1]) if metric.bits_per_unit_D is None else metric.bits_per_unit_D
        tree = cKDTree(own_MD * weight_D)
        neighbors = min(int((view.numbers_NK >= 0).sum(axis=1).max(initial=1)), len(own_MD))
        grid = min(self.grid, MOST_NEIGHBORS // neighbors)

        def nearest_of(points_GD: Floats) -> Integers:
            """Numbers of the nearest keys of each point (G, K), the nearest first."""
            return np.asarray(tree.query(points_GD * weight_D, k=np.arange(1, neighbors + 1), p=order)[1])

        low_D, high_D = own_MD.min(axis=0), own_MD.max(axis=0)
        margin_D = 0.1 * (high_D - low_D)
        points_GD = low_D - margin_D + rng.random((grid, own_MD.shape[1])) * (high_D - low_D + 2 * margin_D)
        near_GK = nearest_of(points_GD)
        places = np.empty((len(chosen), own_MD.shape[1]))
        for place, position in enumerate(chosen):
            numbers = view.numbers_NK[position][view.numbers_NK[position] >= 0]
            wanted_M = np.zeros(len(own_MD), dtype=bool)
            wanted_M[numbers] = True
            # So many keys are linked, which may be fewer than the contract's K: only so many of a point's nearest count.
            middle_D, spread_D = _best(points_GD, wanted_M[near_GK[:, : len(numbers)]].sum(axis=1))
            reach_D = 3 * spread_D + 3 * margin_D / np.sqrt(grid)
            around_GD = middle_D + reach_D * (2 * rng.random((grid // 10, own_MD.shape[1])) - 1)
            overlap_G = wanted_M[nearest_of(around_GD)[:, : len(numbers)]].sum(axis=1)
            places[place], _ = _best(around_GD, overlap_G)
        return Located(targets_T=chosen, place_TD=places)


def _best(points_GD: Floats, overlap_G: Integers) -> tuple[Floats, Floats]:
    """Middle and spread of the points whose nearest keys are most like a position's."""
    best_GD = points_GD[overlap_G == overlap_G.max()]
    return best_GD.mean(axis=0), best_GD.std(axis=0)
