"""Attack by FedSim's greedy guess from one similarity. Shapes: M numbers, D dimensions."""

from dataclasses import dataclass

import numpy as np

from tallystick.attacks.linkage.view import LabelPartyView, Located, OnProgress, links_of, quietly


@dataclass(frozen=True, kw_only=True)
class Greedy:
    """Guesses the likeliest distance from each number's highest similarity, then a place at that distance at random.

    FedSim, section 5.2: the attack that tau bounds, for one pair. (The paper's guess from several pairs has to satisfy all
    likeliest distances at once, which noise makes impossible.) It reads the label party's view. Because it is weak, tau looks
    like protection; ``Trilateration`` shows that it is not.
    """

    def __call__(
        self,
        view: LabelPartyView,
        *,
        rng: np.random.Generator,
        progress: OnProgress = quietly,  # noqa: ARG002 - nothing that takes long
    ) -> Located:
        """Place every number that has a link."""
        position_L, number_L, place_L = links_of(view)
        similarity_L = view.similarity_NK[position_L, place_L].astype(np.float64)
        best_L = np.lexsort((-similarity_L, number_L))
        numbers_M, first_M = np.unique(number_L[best_L], return_index=True)
        chosen_M = best_L[first_M]
        distance_M = np.maximum(view.metric.distance_of(similarity_L[chosen_M], shrink=True), 0.0)
        way_MD = rng.normal(size=(len(numbers_M), view.own_ND.shape[1]))
        # The distance of a step of length 1 in this direction, without saturation; distances are linear along a ray.
        small = 1e-3 * view.metric.window if view.metric.bits_per_unit_D is not None else 1.0
        unit_MD = way_MD / np.linalg.norm(way_MD, axis=1, keepdims=True)
        per_unit_M = view.metric.distance(np.zeros_like(unit_MD), small * unit_MD) / small
        own_MD = view.own_ND[position_L[chosen_M]]
        return Located(targets_T=numbers_M, place_TD=own_MD + unit_MD * (distance_M / per_unit_M)[:, None])
