"""Where is a row, of which only the set of its nearest known places is known? Shapes: N positions, M numbers, G grid points."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.spatial import cKDTree

from tallystick.attacks.linkage.view import Floats, LinkageView, Located
from tallystick.errors import ConfigError


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
        neighbors = min(view.numbers_NK.shape[1], len(own_MD))

        def nearest_sets(points_GD: Floats) -> csr_array:
            """Which keys are the nearest of each point (G, M)."""
            number_GK = np.asarray(tree.query(points_GD * weight_D, k=np.arange(1, neighbors + 1), p=order)[1])
            at = np.repeat(np.arange(len(points_GD)), neighbors)
            return csr_array((np.ones(at.size), (at, number_GK.ravel())), shape=(len(points_GD), len(own_MD)))

        low_D, high_D = own_MD.min(axis=0), own_MD.max(axis=0)
        margin_D = 0.1 * (high_D - low_D)
        points_GD = low_D - margin_D + rng.random((self.grid, own_MD.shape[1])) * (high_D - low_D + 2 * margin_D)
        sets_GM = nearest_sets(points_GD)
        places = np.empty((len(chosen), own_MD.shape[1]))
        for place, position in enumerate(chosen):
            wanted_M = np.zeros(len(own_MD))
            wanted_M[view.numbers_NK[position][view.numbers_NK[position] >= 0]] = 1
            middle_D, spread_D = _best(points_GD, sets_GM @ wanted_M)
            reach_D = 3 * spread_D + 3 * margin_D / np.sqrt(self.grid)
            near_GD = middle_D + reach_D * (2 * rng.random((self.grid // 10, own_MD.shape[1])) - 1)
            places[place], _ = _best(near_GD, nearest_sets(near_GD) @ wanted_M)
        return Located(targets_T=chosen, place_TD=places)


def _best(points_GD: Floats, overlap_G: Floats) -> tuple[Floats, Floats]:
    """Middle and spread of the points whose nearest keys are most like a position's."""
    best_GD = points_GD[overlap_G == overlap_G.max()]
    return best_GD.mean(axis=0), best_GD.std(axis=0)
