"""Locate a row by its noisy distances to many known places. Shapes: P pairs of a number, D dimensions."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import least_squares

from tallystick.attacks.linkage.view import LabelPartyView, Located, OnProgress, links_of, quietly
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Trilateration:
    """Fits a place to all noisy distances of a number at once, by least squares. Noise averages out over the pairs.

    Not in the paper, whose theorem 2 bounds one exact guess. It reads the label party's view.

    Args:
        numbers: greatest number of keys to place, a random sample.
        pairs: greatest number of pairs to use for a key, a random sample.
    """

    numbers: int = 300
    pairs: int = 2000

    def __post_init__(self) -> None:
        if self.numbers < 1 or self.pairs < 3:
            raise ConfigError(f"trilateration attack: numbers={self.numbers}, pairs={self.pairs}; expected at least 1 and 3")

    def __call__(self, view: LabelPartyView, *, rng: np.random.Generator, progress: OnProgress = quietly) -> Located:
        """Place sampled numbers that have more pairs than dimensions."""
        own_ND, metric = view.own_ND, view.metric
        position_L, number_L, place_L = links_of(view)
        similarity_L = view.similarity_NK[position_L, place_L].astype(np.float64)
        numbers, first, count = np.unique(number_L, return_index=True, return_counts=True)
        enough = np.flatnonzero(count > own_ND.shape[1])
        sample = rng.permutation(enough)[: self.numbers]
        places = []
        for done, number in enumerate(sample):
            progress(done, len(sample))
            pair_P = first[number] + rng.permutation(count[number])[: self.pairs]
            key_PD = own_ND[position_L[pair_P]]
            distance_P = metric.distance_of(similarity_L[pair_P], shrink=False)
            nearest = key_PD[np.argsort(distance_P)[: max(len(pair_P) // 10, 3)]]
            starts = (nearest.mean(axis=0), nearest[0])
            width = np.maximum(key_PD.std(axis=0), 1e-12)
            scale = max(float(distance_P.std()), 1e-12)
            fits = [
                least_squares(
                    lambda place, k=key_PD, d=distance_P, s=scale: (metric.distance(k, place) - d) / s, start, x_scale=width
                )
                for start in starts
            ]
            places.append(min(fits, key=lambda fit: float(fit.cost)).x)
        placed = np.array(places) if places else np.empty((0, own_ND.shape[1]))
        return Located(targets_T=numbers[sample], place_TD=placed)
