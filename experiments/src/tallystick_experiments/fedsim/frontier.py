"""What noise costs and what it hides, on one linkage of places: the product's linkage, trained on and attacked.

Shapes: N rows of the label party, K candidates.
"""

from dataclasses import replace

import numpy as np

from tallystick.alignment.randomness import SecureRandom
from tallystick_experiments.catalogue.pairs import Pair
from tallystick_experiments.fedsim.located import link, located, noise_settings, place_terms
from tallystick_experiments.fedsim.runs import LinkedPair, SplitKind, linked_pair, split_rows

WINDOW = 0.01
"""Degrees that FEDERAL's filters reach to either side of a place: the paper's for hdb."""


def link_places(pair: Pair, noise: str, *, neighbors: int, seed: int, kind: SplitKind = "varied") -> LinkedPair:
    """Split a set whose keys are longitude and latitude, link it as a job does, and locate its keys as attackers would.

    Args:
        pair: the set.
        noise: one of ``located.noise_settings``.
        neighbors: K.
        seed: of the split, the secret and the noise: a job draws the last two from the operating system.
        kind: of split.
    """
    own_ND, their_MD = pair.own_key_NP, pair.their_key_MP
    terms = place_terms(own_ND, their_MD, neighbors=neighbors, noise=noise_settings()[noise], window=WINDOW)
    linked = link(own_ND, their_MD, terms, rng=SecureRandom(source=np.random.default_rng([seed, 9]).bytes))
    split = split_rows(len(own_ND), seed=seed, kind=kind)
    attacks = located(own_ND, their_MD, linked, terms, seed=seed)
    return replace(
        linked_pair(pair, split, linked.own_rows[linked.numbers_NK], linked.similarity_NK),
        located={attack: error.median for attack, error in attacks.items()},
    )
