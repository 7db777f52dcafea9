"""Add noise to keys before anything is sent. It protects where keys lie, and so also the ranking of neighbours.

Shapes: R rows, D dimensions.
"""

import math

import numpy as np

from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import DataError
from tallystick.privacy.events import Bounded, GaussianDP, PureDP
from tallystick.privacy.exact import Bits, DiscreteGaussian, Ints, draw_planar_laplace
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.keyed import KeyedBits

GRID = 2.0**-12
"""Keys are rounded to this share of the radius before integer noise is added, so that the last bits of a float reveal nothing."""


def noisy_keys(keys: SimilarKeys, terms: SimilarityConfig, *, secret: bytes) -> SimilarKeys:
    """Add the contract's noise to every key, once. Any later use of the noisy keys costs no more privacy.

    planar-laplace: planar Laplace noise (Andres, Bordenabe, Chatzikokolakis and Palamidessi 2013, section 4), on the grid itself.
    gaussian: discrete Gaussian noise of Balle and Wang's (2018) analytic calibration. The noise is computed from the secret and
    from the key on the grid. So a key has the same noisy key in all its rows, tables and runs, and no one can average the noise
    away.

    Threat model: anyone who sees anything of the linkage and knows anything except the keys.
    Guarantee: planar-laplace: epsilon-geo-indistinguishability. Two keys at most ``radius`` apart are alike to within
    exp(epsilon), and two keys r apart to within exp(epsilon (r / radius + 1 / 2893)), where 1 / 2893 accounts for the rounding.
    gaussian: (epsilon, delta)-DP for one key that moves by at most ``radius``. Both are drawn in integers (``privacy/exact.py``).
    Noisy keys outside the contract's range are moved to its edge. A key is protected together with all rows that have it.
    Not protected: which rows have the same key, to within the grid (equal stays equal), also across tables; that a row exists;
    what its features, labels, embeddings or gradients reveal about its place. The radius is measured after ``scale``: with
    degrees it is an ellipse on the ground, narrower eastwards, unless ``scale`` makes both axes alike.

    Args:
        keys: numbers only.
        terms: the contract's terms, with those of noise.
        secret: this party's, the same for all its runs; a party that has it can remove the noise.

    Raises DataError if rounding has no effect on the keys: their radius is far too small for their size.
    """
    if terms.noise.keys == "none" or not len(keys):
        return keys
    check_radius(keys, terms)
    step = GRID * terms.noise.radius
    on_grid_RD = np.rint(keys.scaled(terms) / step).astype(np.int64)
    scale_D = np.array([d.scale for d in terms.numbers])
    noise = terms.noise
    settings = (noise.epsilon, noise.delta, noise.radius, *scale_D.tolist())
    purpose = f"{noise.keys} {' '.join(value.hex() for value in settings)}".encode()
    hidden_RD = on_grid_RD.astype("<i8", order="C")
    on_grid_RD += drawn_noise(terms, KeyedBits(secret, purpose=purpose, hidden=(row.data for row in hidden_RD)), rows=len(keys))
    low_D, high_D = np.array([d.bounds for d in terms.numbers]).T
    return keys.with_numbers(np.clip(on_grid_RD * step * scale_D, low_D, high_D))


def drawn_noise(terms: SimilarityConfig, bits: Bits, *, rows: int) -> Ints:
    """Draw the noise of keys on the grid (R, D), in grid steps. It covers the distance that a key moves after rounding."""
    if terms.noise.keys == "planar-laplace":
        return draw_planar_laplace(math.nextafter(terms.noise.epsilon / _sensitivity(terms), 0), bits, rows=rows)
    return DiscreteGaussian.hiding(_multiplier(terms) * _sensitivity(terms)).draw(bits, columns=len(terms.numbers))


def check_radius(keys: SimilarKeys, terms: SimilarityConfig) -> None:
    """Raise DataError if keys get noise on a grid that is too fine for them, so that rounding would have no effect."""
    step = GRID * terms.noise.radius
    if terms.noise.keys != "none" and np.abs(keys.scaled(terms)).max(initial=0) / step > 2**40:
        raise DataError(f"alignment.similarity.noise.radius = {terms.noise.radius:g}: is too small for keys of this size")


def key_event(terms: SimilarityConfig) -> Bounded | None:
    """Return the privacy cost of noisy keys, or None without noise. Neighbours differ in one key, by at most the contract's
    radius.
    """
    if terms.noise.keys == "planar-laplace":
        return PureDP(epsilon=terms.noise.epsilon, unit="key")
    if terms.noise.keys == "gaussian":
        return GaussianDP(noise_multiplier=_multiplier(terms), unit="key")
    return None


def key_guarantee(terms: SimilarityConfig) -> str:
    """Say in words what the noise on keys guarantees, or that there is no guarantee."""
    noise = terms.noise
    if noise.keys == "planar-laplace":
        return (
            f"{noise.epsilon:g}-geo-indistinguishability of keys at most {_radius(terms)} apart (planar Laplace noise on keys, "
            "one draw for each: equal keys stay equal)"
        )
    if noise.keys == "gaussian":
        return (
            f"({noise.epsilon:g}, {noise.delta:g})-DP for one key that moves by at most {_radius(terms)} (Gaussian noise on "
            "keys, one draw for each: equal keys stay equal)"
        )
    return "no formal guarantee"


def _radius(terms: SimilarityConfig) -> str:
    """Say the radius in each number's own unit, and in metres if the contract gives their ratio, because a degree east is not a
    degree north.
    """
    ways = []
    for number in terms.numbers:
        reach = terms.noise.radius * number.scale
        metres = f" = {reach * number.metres:.3g} m" if number.metres is not None else ""
        ways.append(f"{reach:g}{f' {number.unit}' if number.unit else ''}{metres} along {number.name}")
    return f"{terms.noise.radius:g} after scale ({', '.join(ways)})"


def _multiplier(terms: SimilarityConfig) -> float:
    return gaussian_multiplier(terms.noise.epsilon, terms.noise.delta)


def _sensitivity(terms: SimilarityConfig) -> float:
    """Return how far a rounded key moves, in grid steps, if the key moves by the radius. Rounding adds half a step at each end.

    A thousandth more covers the division before rounding, in float64.
    """
    return 1 / GRID + 1.001 * math.sqrt(len(terms.numbers))
