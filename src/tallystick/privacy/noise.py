"""Draw integer-valued noise for releases from a cryptographic generator, and the same distributions for simulations.

A mechanism takes a ``NoiseSource``. ``SecureNoise`` is for releases. It uses OpenDP's exact samplers for discrete Laplace and
discrete Gaussian noise, and the operating system's generator for coin flips and for the shares of ``polya_share``.
``SimulatedNoise`` draws the same distributions fast and repeatably from a numpy generator, for benchmarks, tests and predictions.
It must never protect a release.
"""

import math
import secrets
from bisect import bisect_right
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError

Ints = NDArray[np.int64]
Shape = tuple[int, ...]

UNIFORM_BITS = 160
"""Bits of the uniform number for one share. A table's distribution is within about 2^-140 of the exact one in total variation."""
MAX_TABLE = 2_000_000
WIDEST_SHARE = MAX_TABLE / (UNIFORM_BITS * math.log(2))
"""Largest scale of noise that can be drawn in shares: about 18,000."""


class NoiseSource(Protocol):
    """Source of a mechanism's randomness."""

    def discrete_laplace(self, scale: float, shape: Shape) -> Ints:
        """Draw integers with P(k) proportional to exp(-|k| / scale)."""
        ...

    def discrete_gaussian(self, scale: float, shape: Shape) -> Ints:
        """Draw integers with P(k) proportional to exp(-k^2 / (2 scale^2))."""
        ...

    def polya_share(self, scale: float, shape: Shape, *, shares: int) -> Ints:
        """Draw one of ``shares`` independent terms whose sum is discrete Laplace of ``scale``."""
        ...

    def binomial(self, counts: Ints, probability: float | NDArray[np.float64]) -> Ints:
        """Count how many of ``counts`` coins show heads, each with ``probability`` (broadcast against counts)."""
        ...

    def laplace(self, scale: float, shape: Shape) -> NDArray[np.float64]:
        """Draw floating-point Laplace noise. As computed it is not DP (Mironov 2012); use it only to reproduce
        published tables.
        """
        ...


def discrete_laplace_variance(scale: float) -> float:
    """Return the variance of discrete Laplace noise, 2a/(1-a)^2 with a = exp(-1/scale)."""
    return 2 * math.exp(-1 / scale) / math.expm1(-1 / scale) ** 2


class SecureNoise:
    """Noise for releases, from the operating system's generator. It takes no seed on purpose."""

    def discrete_laplace(self, scale: float, shape: Shape) -> Ints:
        """Draw with OpenDP (Canonne, Kamath and Steinke 2020): exact, in integer arithmetic."""
        return _opendp_noise("laplace", scale, shape)

    def discrete_gaussian(self, scale: float, shape: Shape) -> Ints:
        """Draw with OpenDP (Canonne, Kamath and Steinke 2020): exact, in integer arithmetic."""
        return _opendp_noise("gaussian", scale, shape)

    def polya_share(self, scale: float, shape: Shape, *, shares: int) -> Ints:
        """Draw X - Y with X, Y Polya(1/shares, exp(-1/scale)), the discrete counterpart of a difference of two Gamma shares.

        A geometric variable is negative binomial with r = 1, and the sum of ``shares`` negative binomials with r = 1/shares and
        one common probability is again negative binomial with r = 1. So the sum of all shares is a difference of two geometric
        variables: discrete Laplace (Goryczka and Xiong 2017, section 4). It is drawn by inverting a table in 160-bit integers.
        """
        table = polya_table(scale, shares)
        count = math.prod(shape)
        draws = [bisect_right(table, secrets.randbits(UNIFORM_BITS)) for _ in range(2 * count)]
        return (np.array(draws[:count], dtype=np.int64) - np.array(draws[count:], dtype=np.int64)).reshape(shape)

    def binomial(self, counts: Ints, probability: float | NDArray[np.float64]) -> Ints:
        """Flip every coin separately: 53 random bits against the probability, which is rounded to a multiple of 2^-53."""
        flat = counts.reshape(-1)
        owner = np.repeat(np.arange(len(flat)), flat)
        level = np.rint(np.broadcast_to(probability, counts.shape).reshape(-1) * 2.0**53).astype(np.uint64)
        words = np.frombuffer(secrets.token_bytes(8 * len(owner)), dtype=np.uint64) >> np.uint64(11)
        heads = np.bincount(owner[words < level[owner]], minlength=len(flat))
        return heads.astype(np.int64).reshape(counts.shape)

    def laplace(self, scale: float, shape: Shape) -> NDArray[np.float64]:
        """Draw in floating point from the operating system's generator."""
        words = np.frombuffer(secrets.token_bytes(8 * math.prod(shape)), dtype=np.uint64) >> np.uint64(11)
        centred = (words.astype(np.float64) + 0.5) * 2.0**-53 - 0.5
        noise: NDArray[np.float64] = (-scale * np.sign(centred) * np.log1p(-2 * np.abs(centred))).reshape(shape)
        return noise


class SimulatedNoise:
    """The same distributions from a seeded numpy generator, summed over ``clients`` if each of them adds noise. They must NOT be
    used for releases.

    The sum of K discrete Laplace variables is a difference of two negative binomials with r = K, so a thousand clients cost as
    much as one.
    """

    def __init__(self, rng: np.random.Generator, *, clients: float = 1) -> None:
        self._rng = rng
        self._clients = clients

    def discrete_laplace(self, scale: float, shape: Shape) -> Ints:
        """Draw the sum of the clients' noise."""
        return self._polya(scale, shape, r=float(self._clients))

    def discrete_gaussian(self, scale: float, shape: Shape) -> Ints:
        """Draw a rounded normal. For a scale of 4 and more its variance differs from the discrete Gaussian's by the rounding's
        1/12.
        """
        return np.rint(self._rng.normal(0.0, scale * math.sqrt(self._clients), shape)).astype(np.int64)

    def polya_share(self, scale: float, shape: Shape, *, shares: int) -> Ints:
        """Draw the sum of the clients' shares."""
        return self._polya(scale, shape, r=self._clients / shares)

    def _polya(self, scale: float, shape: Shape, *, r: float) -> Ints:
        success = -math.expm1(-1 / scale)
        return self._rng.negative_binomial(r, success, shape) - self._rng.negative_binomial(r, success, shape)

    def binomial(self, counts: Ints, probability: float | NDArray[np.float64]) -> Ints:
        """Count heads. Coins belong to rows, so the number of clients does not matter."""
        return self._rng.binomial(counts, probability).astype(np.int64)

    def laplace(self, scale: float, shape: Shape) -> NDArray[np.float64]:
        """Draw floating-point Laplace noise. A score belongs to one client, so nothing is summed."""
        first, second = (self._rng.standard_exponential(shape, dtype=np.float32) for _ in range(2))
        return (scale * (first - second)).astype(np.float64)


@lru_cache(maxsize=32)
def polya_table(scale: float, shares: int) -> tuple[int, ...]:
    """Return the cumulative probabilities of Polya(1/shares, exp(-1/scale)) as UNIFORM_BITS-bit integers, in 60-digit arithmetic.

    Raises ConfigError if the scale is over WIDEST_SHARE.
    """
    if scale > WIDEST_SHARE:
        raise ConfigError(f"noise of scale {scale:.0f} is too wide for shares: at most {WIDEST_SHARE:.0f}; take a larger epsilon")
    with localcontext() as context:
        context.prec = 60
        ratio = (-1 / Decimal(scale)).exp()
        unit = Decimal(2) ** UNIFORM_BITS
        mass = (1 - ratio) ** (Decimal(1) / shares) * unit
        total, entries, k = mass, [int(mass)], 0
        while mass >= 1:
            # pmf(k+1) / pmf(k) = ratio (k + r) / (k + 1), with r = 1/shares
            mass = mass * ratio * (k * shares + 1) / (shares * (k + 1))
            total += mass
            entries.append(int(total))
            k += 1
    return tuple(entries)


def _opendp_noise(kind: str, scale: float, shape: Shape) -> Ints:
    if not (math.isfinite(scale) and scale > 0):
        raise ConfigError(f"noise scale is {scale!r}; it must be a finite number above 0")
    noise = _opendp_measurement(kind, scale)([0] * math.prod(shape))
    return np.array(noise, dtype=np.int64).reshape(shape)


@lru_cache(maxsize=64)
def _opendp_measurement(kind: str, scale: float) -> Any:
    import opendp.domains as domains  # only few commands draw noise
    import opendp.measurements as measurements
    import opendp.metrics as metrics
    from opendp.mod import enable_features

    enable_features("contrib")
    vectors = domains.vector_domain(domains.atom_domain(T="i64"))
    if kind == "laplace":
        return measurements.make_laplace(vectors, metrics.l1_distance(T="i64"), scale=scale)
    return measurements.make_gaussian(vectors, metrics.l2_distance(T="f64"), scale=scale)
