"""Noise on keys before anything is sent: it protects what lies where, and so the ranking of neighbours too.

Shapes: R rows, D dimensions.
"""

import math

import numpy as np
from scipy.special import lambertw

from tallystick.alignment.nearest import Floats
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.similarity import SimilarityConfig
from tallystick.data.similar_keys import SimilarKeys
from tallystick.errors import DataError
from tallystick.privacy.events import Bounded, GaussianDP, PureDP
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.noise import NoiseSource, SecureNoise

GRID = 2.0**-12
"""Noisy keys are rounded to this share of the radius, so that the last bits of a float tell nothing."""


def noisy_keys(keys: SimilarKeys, terms: SimilarityConfig, *, rng: SecureRandom, noise: NoiseSource | None = None) -> SimilarKeys:
    """Add the contract's noise to every key, once: whatever is done with the keys after it costs nothing more.

    planar-laplace: a place moves by a planar Laplace vector (Andres, Bordenabe, Chatzikokolakis and Palamidessi 2013, section 4).
    gaussian: discrete Gaussian noise of Balle and Wang's (2018) analytic calibration, on keys rounded to the grid.

    Threat model: anyone who sees anything of the linkage, whatever else it knows, but not the keys.
    Guarantee: planar-laplace: epsilon-geo-indistinguishability, two keys at most ``radius`` apart are alike to within
    exp(epsilon), and those r apart to within exp(epsilon r / radius); drawn by inversion in floating point from 52 random bits
    and rounded to a grid of radius / 4096, which adds to epsilon in the order of the grid's share. gaussian: (epsilon, delta)-DP
    for one key that moves by at most ``radius``, drawn exactly. Noisy keys outside the contract's range are moved to its edge.
    Not protected: that a row is there; what its features, labels, embeddings or gradients tell of its place.

    Args:
        keys: numbers only.
        terms: what the contract says of noise.
        rng: draws planar Laplace noise.
        noise: draws Gaussian noise; the operating system's by default.

    Raises DataError where rounding has no effect on the keys: their radius is far too small for their size.
    """
    kind = terms.noise.keys
    if kind == "none" or not len(keys):
        return keys
    check_radius(keys, terms)
    step = GRID * terms.noise.radius
    on_grid_RD = np.rint(keys.scaled(terms) / step)
    if kind == "planar-laplace":
        on_grid_RD += np.rint(planar_laplace(len(keys), terms.noise.epsilon / terms.noise.radius, rng) / step)
    else:
        on_grid_RD += (noise or SecureNoise()).discrete_gaussian(_multiplier(terms) * _sensitivity(terms), on_grid_RD.shape)
    scale_D = np.array([d.scale for d in terms.numbers])
    low_D, high_D = np.array([d.bounds for d in terms.numbers]).T
    return keys.with_numbers(np.clip(on_grid_RD * step * scale_D, low_D, high_D))


def check_radius(keys: SimilarKeys, terms: SimilarityConfig) -> None:
    """Raise DataError where keys get noise whose grid is too fine for them: rounding would have no effect."""
    step = GRID * terms.noise.radius
    if terms.noise.keys != "none" and np.abs(keys.scaled(terms)).max(initial=0) / step > 2**50:
        raise DataError(f"alignment.similarity.noise.radius = {terms.noise.radius:g}: is too small for keys of this size")


def key_event(terms: SimilarityConfig) -> Bounded | None:
    """What noisy keys cost: an event whose neighbours differ in one key, by at most the contract's radius; None without noise."""
    if terms.noise.keys == "planar-laplace":
        return PureDP(epsilon=terms.noise.epsilon, unit="key")
    if terms.noise.keys == "gaussian":
        return GaussianDP(noise_multiplier=_multiplier(terms), unit="key")
    return None


def key_guarantee(terms: SimilarityConfig) -> str:
    """Say in words what the noise on keys promises, or that there is none."""
    noise = terms.noise
    if noise.keys == "planar-laplace":
        return f"{noise.epsilon:g}-geo-indistinguishability of keys at most {_radius(terms)} apart (planar Laplace noise on keys)"
    if noise.keys == "gaussian":
        return (
            f"({noise.epsilon:g}, {noise.delta:g})-DP for one key that moves by at most {_radius(terms)} (Gaussian noise on keys)"
        )
    return "no formal guarantee"


def _radius(terms: SimilarityConfig) -> str:
    """The radius in each number's own unit, and in metres where the contract says how many one is: a degree is not the same
    distance eastwards as northwards."""
    ways = []
    for number in terms.numbers:
        reach = terms.noise.radius * number.scale
        metres = f" = {reach * number.metres:.3g} m" if number.metres is not None else ""
        ways.append(f"{reach:g}{f' {number.unit}' if number.unit else ''}{metres} along {number.name}")
    return f"{terms.noise.radius:g} after scale ({', '.join(ways)})"


def planar_laplace(rows: int, rate: float, rng: SecureRandom) -> Floats:
    """Draw planar Laplace vectors (R, 2): density rate^2 / (2 pi) exp(-rate |x|), by inverting that of the radius."""
    words = np.frombuffer(rng.bytes(16 * rows), dtype="<u8").reshape(rows, 2) >> np.uint64(12)
    uniform_R2 = (words.astype(np.float64) + 0.5) * 2.0**-52
    radius_R = -(np.real(lambertw((uniform_R2[:, 0] - 1) / math.e, k=-1)) + 1) / rate
    angle_R = 2 * math.pi * uniform_R2[:, 1]
    return np.stack((radius_R * np.cos(angle_R), radius_R * np.sin(angle_R)), axis=1)


def _multiplier(terms: SimilarityConfig) -> float:
    return gaussian_multiplier(terms.noise.epsilon, terms.noise.delta)


def _sensitivity(terms: SimilarityConfig) -> float:
    """How far a rounded key moves, in steps of the grid, when the key moves by the radius: each end is rounded by half a step."""
    return 1 / GRID + math.sqrt(len(terms.numbers))
