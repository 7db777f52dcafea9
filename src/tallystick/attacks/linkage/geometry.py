"""Locate keys from the encodings that a helper sees. Shapes: T targets, D dimensions, H keys known to the helper."""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components, dijkstra

from tallystick.attacks.linkage.view import FiltersView, Located, OnProgress, RanksView, quietly
from tallystick.errors import ConfigError

BYTES_AT_ONCE = 4096
"""Bytes of each filter that one matrix product takes: 200 MiB for 1,500 filters."""


@dataclass(frozen=True, kw_only=True)
class RankGeometry:
    """Computes a key from its ranks: the middle of its window, in pivots, divided by pivots per unit.

    Pivots are uniform over the contract's range, and the helper has the contract. It reads the helper's view of ranks.
    """

    def __call__(
        self,
        view: RanksView,
        *,
        rng: np.random.Generator,  # noqa: ARG002 - nothing to draw
        progress: OnProgress = quietly,  # noqa: ARG002 - nothing that takes long
    ) -> Located:
        """Place every key."""
        middle_TD = view.ranks_ND2.sum(axis=2) / 2 / view.bits_D
        return Located(targets_T=np.arange(len(middle_TD)), place_TD=view.low_D + middle_TD * view.extent_D)


@dataclass(frozen=True, kw_only=True)
class FilterGeometry:
    """Adds up distances between overlapping filters along each dimension until all keys have a place.

    In one dimension, the distance of two filters is twice the number of pivots between their keys, as long as their windows
    overlap. Shortest paths give the other distances. A few known keys then give position, direction and scale. It reads the
    helper's view of shuffled filters.

    Args:
        keys: greatest number of keys to place, a random sample (all pairs are compared).
    """

    keys: int = 1500

    def __post_init__(self) -> None:
        if self.keys < 2:
            raise ConfigError(f"geometry attack: keys={self.keys}; expected at least 2")

    def __call__(self, view: FiltersView, *, rng: np.random.Generator, progress: OnProgress = quietly) -> Located:
        """Place sampled keys that are linked with at least two known ones in every dimension."""
        rest = np.setdiff1d(np.arange(len(view.filters[0])), view.known_T)
        sample_T = np.concatenate((view.known_T, rng.permutation(rest)[: self.keys]))
        known_count = len(view.known_T)
        place_TD = np.full((len(sample_T), len(view.filters)), np.nan)
        for dimension, packed_NW in enumerate(view.filters):
            progress(dimension, len(view.filters))
            # Place keys along one dimension, each connected part from one of its ends
            packed_TW = packed_NW[sample_T]
            common_TT = np.zeros((len(packed_TW), len(packed_TW)), dtype=np.float32)
            for start in range(0, packed_TW.shape[1], BYTES_AT_ONCE):  # a filter may have millions of bits
                bits_TP = np.unpackbits(packed_TW[:, start : start + BYTES_AT_ONCE], axis=1).astype(np.float32)
                common_TT += bits_TP @ bits_TP.T
            ones_T = np.diag(common_TT).copy()
            distance_TT = ones_T[:, None] + ones_T[None] - 2 * common_TT
            # Take steps below half a window: they exclude chance overlaps, and a chain of them spans the whole range.
            near_TT = common_TT > 0.5 * np.minimum(ones_T[:, None], ones_T[None])
            np.fill_diagonal(near_TT, False)
            first, second = np.nonzero(near_TT)
            graph = csr_array((distance_TT[first, second] + 1e-9, (first, second)), shape=near_TT.shape)
            parts, part_T = connected_components(graph, directed=False)
            line_T = np.zeros(len(packed_TW))
            for part in range(parts):
                inside = np.flatnonzero(part_T == part)
                away = dijkstra(graph, indices=inside[0])[inside]
                end = inside[int(np.argmax(away))]
                line_T[inside] = dijkstra(graph, indices=end)[inside]
            for part in range(part_T.max() + 1):
                landmarks = np.flatnonzero(part_T[:known_count] == part)
                if len(landmarks) < 2 or np.ptp(line_T[landmarks]) == 0:
                    continue
                slope, offset = np.polyfit(line_T[landmarks], view.known_TD[landmarks, dimension], 1)
                place_TD[part_T == part, dimension] = offset + slope * line_T[part_T == part]
        placed = np.arange(len(sample_T)) >= known_count
        placed &= np.isfinite(place_TD).all(axis=1)
        return Located(targets_T=sample_T[placed], place_TD=place_TD[placed])
