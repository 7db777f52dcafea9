"""Draw integer noise that carries a guarantee, in whole batches: every draw uses as many random bits as it needs.

Shapes: R rows, D coordinates of one, K columns of an alias table (a power of two).

Floating-point noise carries no guarantee: the numbers that it can reach depend on the value it is added to, so one output
excludes candidates (Mironov 2012), and its tail ends. Here the hidden value and the noise are integers, and what is sent depends
only on their sum. 64 bits decide a draw unless they tie with a threshold (a chance of 2^-50); then 512 bits decide.

Guarantee: a draw is within 2^-480 of its distribution in total variation. The resulting loss of a claim, (1 + e^epsilon) times as
much for each coordinate, is below 2^-300 in delta for every epsilon up to ``MOST_EPSILON``. Discrete Gaussian noise is, for each
coordinate, within a factor of 1 +- 2^-138 of a function of continuous noise (``DiscreteGaussian``). Together they add less than
2^-100 to the delta of a row of up to 2^30 coordinates. A delta under ``LEAST_DELTA`` is refused.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal, localcontext
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import ConfigError

Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

BITS = 512
"""Bits of the uniform number that decides a draw."""
EXTRA_WORDS = (BITS - 64) // 64
SMOOTHING = 2.25
"""Deviation, in steps, at which Gaussian noise hides the grid's position: up to 2 exp(-2 pi^2 2.25^2) < 2^-143."""
LEAST_DELTA, MOST_EPSILON = 1e-24, 100.0
_TAIL = 27  # deviations; everything beyond has a probability below 2^-520
_WIDEST = 256.0  # deviation of one table
_DIGITS = 220


class Bits(Protocol):
    """Uniform bits for R rows."""

    def words(self, count: int) -> Words:
        """Return each row's next words (R, count)."""
        ...

    def only(self, is_R: NDArray[np.bool_]) -> "Bits":
        """Return the following bits for some of the rows."""
        ...


class SequentialBits:
    """Bits of one stream for all rows, one row after the other.

    Args:
        random_bytes: returns this many uniform bytes.
        rows: R.
    """

    def __init__(self, random_bytes: Callable[[int], bytes | bytearray], *, rows: int) -> None:
        self._bytes = random_bytes
        self._rows = rows

    def words(self, count: int) -> Words:
        """Return each row's next words (R, count)."""
        words_RC = np.frombuffer(self._bytes(8 * self._rows * count), dtype="<u8", count=self._rows * count)
        return words_RC.reshape(self._rows, count).astype(np.uint64, copy=False)

    def only(self, is_R: NDArray[np.bool_]) -> "SequentialBits":
        """Return the following bits for some of the rows."""
        return SequentialBits(self._bytes, rows=int(is_R.sum()))


def check_exact_delta(name: str, delta: float) -> None:
    """Refuse a delta that the sampler's own error would affect. Raises ConfigError."""
    if not LEAST_DELTA <= delta < 1:
        raise ConfigError(
            f"{name}: delta is {delta!r}; it must be at least {LEAST_DELTA:g}, so that the error of sampling, 2^-100, is "
            "negligible, and below 1: well below one over the number of rows"
        )


@dataclass(frozen=True, kw_only=True)
class _Thresholds:
    """Numbers of up to 512 bits that are compared with uniform numbers: their first bits, and all the others.

    Args:
        first: the bits that are compared with 64-bit words.
        rest: the following 448 bits.
    """

    first: Words
    rest: tuple[int, ...]

    @classmethod
    def of(cls, whole: list[int]) -> "_Thresholds":
        below = (1 << (BITS - 64)) - 1
        first = np.array([each >> (BITS - 64) for each in whole], dtype=np.uint64)
        return cls(first=first, rest=tuple(each & below for each in whole))

    def above(self, words: Words, which: Any, bits: Bits) -> NDArray[np.bool_]:
        """Tell for each uniform number (R, D), which begins with these words, whether it is below its threshold."""
        first = self.first[which]
        is_below: NDArray[np.bool_] = words < first
        for row, place in np.argwhere(words == first):
            threshold = np.broadcast_to(which, words.shape)[row, place]
            is_below[row, place] = more_bits(bits, int(row)) < self.rest[int(threshold)]
        return is_below


def more_bits(bits: Bits, row: int) -> int:
    """Draw the 448 bits that decide a tie of one row."""
    return int.from_bytes(bits.words(EXTRA_WORDS)[row].tobytes(), "little")


@dataclass(frozen=True, kw_only=True)
class AliasTable:
    """A distribution over integers as an alias table: a uniform column, and one of two values in it (Walker 1977).

    Args:
        low: the least value, that of column 0.
        width: how many bits of a word select the column.
        thresholds: for each column, the number below which it gives its own value.
        other_K: the value that it gives otherwise.
    """

    low: int
    width: int
    thresholds: _Thresholds
    other_K: Ints

    @classmethod
    def of(cls, weights: list[int], *, low: int) -> "AliasTable":
        """Make the table from integer weights that sum to 2^BITS, without any error (Vose 1991)."""
        assert sum(weights) == 1 << BITS, "weights are a distribution"
        width = max(1, (len(weights) - 1).bit_length())
        height = 1 << (BITS - width)
        padded = weights + [0] * ((1 << width) - len(weights))
        whole, other_K = [height] * len(padded), np.arange(low, low + len(padded), dtype=np.int64)
        short = [column for column, weight in enumerate(padded) if weight < height]
        tall = [column for column, weight in enumerate(padded) if weight > height]
        while short:
            column, giver = short.pop(), tall[-1]
            whole[column], other_K[column] = padded[column], low + giver
            padded[giver] -= height - padded[column]
            if padded[giver] <= height:
                tall.pop()
                if padded[giver] < height:
                    short.append(giver)
        return cls(low=low, width=width, thresholds=_Thresholds.of(whole), other_K=other_K)

    def pick(self, words: Words, bits: Bits) -> Ints:
        """Return a value for each word (R, D)."""
        column = (words & np.uint64((1 << self.width) - 1)).astype(np.int64)
        own = self.thresholds.above(words >> np.uint64(self.width), column, bits)
        return np.where(own, column + self.low, self.other_K[column])

    def masses(self) -> dict[int, int]:
        """Return each value's exact chance, times 2^BITS."""
        height, mass_of = 1 << (BITS - self.width), dict[int, int]()
        for column, (first, rest) in enumerate(zip(self.thresholds.first.tolist(), self.thresholds.rest, strict=True)):
            own = (first << (BITS - 64)) + rest
            mass_of[column + self.low] = mass_of.get(column + self.low, 0) + own
            other = int(self.other_K[column])
            mass_of[other] = mass_of.get(other, 0) + height - own
        return {value: mass for value, mass in mass_of.items() if mass}


@dataclass(frozen=True, kw_only=True)
class DiscreteGaussian:
    """Integers z with a chance proportional to exp(-z^2 / (2 s^2)). They reveal no more than continuous noise of s^2 - 2.25^2.

    Two facts prove it, each by completing the square and up to a factor of 1 +- 2^-142. Continuous noise of deviation r, rounded
    at random by a discrete Gaussian of deviation 2.25 around it, is a discrete Gaussian of s^2 = r^2 + 2.25^2 (Peikert 2010,
    theorem 3.1). So a discrete release could be made from a continuous one, and guarantees of that hold for it, for any epsilon,
    in any number of coordinates and in every composition. And x + b y, with x and y discrete Gaussians of deviations s' and s'',
    is one of s^2 = s'^2 + b^2 s''^2 if s' s'' / s >= 2.25 (Micciancio and Walter 2017). So a wide one is drawn as a sum of narrow
    ones, each from an alias table.

    Args:
        parts: factor b and table of each term.
    """

    parts: tuple[tuple[int, AliasTable], ...]

    @classmethod
    def hiding(cls, deviation: float) -> "DiscreteGaussian":
        """Make the distribution whose release reveals no more than continuous noise of this deviation, in steps of the grid.

        The deviation is above 1.
        """
        # Rounding in the square root and in later steps must not make the noise smaller than requested.
        return _gaussian(math.hypot(deviation, SMOOTHING) * (1 + 1e-13))

    def draw(self, bits: Bits, *, columns: int) -> Ints:
        """Draw noise (R, D)."""
        words = bits.words(columns * len(self.parts))
        parts_drawn = [table.pick(words[:, i * columns : (i + 1) * columns], bits) for i, (_, table) in enumerate(self.parts)]
        total: Ints = np.zeros_like(parts_drawn[0])
        for (factor, _), each in zip(self.parts, parts_drawn, strict=True):
            total += factor * each
        return total


@lru_cache(maxsize=32)
def _gaussian(deviation: float) -> DiscreteGaussian:
    parts, factor = [], 1
    for base, narrow in terms_of(deviation):
        parts.append((factor, _gaussian_table(narrow)))
        factor *= base
    return DiscreteGaussian(parts=tuple(parts))


def terms_of(deviation: float) -> list[tuple[int, float]]:
    """Split a deviation s into those of narrow terms, each with the factor b of all later terms.

    s' = 2.25 (b + 1) makes s' s'' / s at least 2.25, because 2 b + 1 is no less than (s' / s'')^2.
    """
    terms = []
    while deviation > _WIDEST:
        base = min(math.ceil(deviation / (_WIDEST / 2)), 128)
        narrow = SMOOTHING * (base + 1)
        terms.append((base, narrow))
        deviation = math.sqrt(deviation**2 - narrow**2) / base * (1 + 1e-15)
    return [*terms, (1, deviation)]


@lru_cache(maxsize=64)
def _gaussian_table(deviation: float) -> AliasTable:
    """Build the alias table of a discrete Gaussian, from weights in 640-bit fixed point."""
    unit = 1 << (BITS + 128)
    with localcontext() as context:
        context.prec = _DIGITS
        ratio = int((-1 / (2 * Decimal(deviation) ** 2)).exp() * unit)
    # exp(-(k+1)^2 c) = exp(-k^2 c) exp(-(2k+1) c)
    half, step, squared = [unit], ratio, ratio * ratio // unit
    for _ in range(math.ceil(_TAIL * deviation)):
        half.append(half[-1] * step // unit)
        step = step * squared // unit
    weights = [*half[:0:-1], *half]
    total = sum(weights)
    whole = [(weight << BITS) // total for weight in weights]
    whole[len(half) - 1] += (1 << BITS) - sum(whole)  # at 0, add what rounding down left: less than 2^-495
    return AliasTable.of(whole, low=1 - len(half))


def draw_geometric(scale: float, bits: Bits, *, columns: int) -> Ints:
    """Draw integers k >= 0 with a chance proportional to exp(-k / scale) (R, D). Their binary digits are independent."""
    coins = _digit_coins(scale)
    digits = len(coins.rest)
    words = bits.words(columns * digits)
    is_one = coins.above(words, np.tile(np.arange(digits), columns)[None, :], bits)
    weighed = is_one.reshape(len(words), columns, digits) * (np.int64(1) << np.arange(digits, dtype=np.int64))
    total_R: Ints = weighed.sum(axis=2)
    return total_R


@lru_cache(maxsize=16)
def _digit_coins(scale: float) -> _Thresholds:
    """Return the chance of a one at each binary digit: 1 / (1 + exp(2^i / scale))."""
    with localcontext() as context:
        context.prec = _DIGITS
        unit, power, whole = Decimal(2) ** BITS, Decimal(1), list[int]()
        while not whole or whole[-1]:
            whole.append(int(unit / (1 + (power / Decimal(scale)).exp())))
            power *= 2
    return _Thresholds.of(whole)


def draw_planar_laplace(rate: float, bits: Bits, *, rows: int) -> Ints:
    """Draw points k of the grid Z^2 with a chance proportional to exp(-rate |k|) (R, 2).

    This is the planar Laplace noise of Andres, Bordenabe, Chatzikokolakis and Palamidessi (2013), on the grid itself. Its
    normalising sum is the same for every centre, so two centres d steps apart are alike to within exp(rate d). It is drawn by
    rejection: of pairs of discrete Laplace numbers, each of scale sqrt(2) / rate, a share of .79 is accepted.
    """
    drawn_R2, waiting = np.zeros((rows, 2), dtype=np.int64), np.arange(rows)
    while len(waiting):
        signed = draw_geometric(math.sqrt(2) / rate, bits, columns=4)
        signs_R2 = signed[:, :2] - signed[:, 2:]
        accepts_R = _accepted(signs_R2, rate, bits.words(1)[:, 0], bits)
        drawn_R2[waiting[accepts_R]] = signs_R2[accepts_R]
        waiting, bits = waiting[~accepts_R], bits.only(~accepts_R)
    return drawn_R2


def _accepted(tried_R2: Ints, rate: float, words_R: Words, bits: Bits) -> NDArray[np.bool_]:
    """Flip a coin for each point k that shows heads with chance exp(-rate (|k|_2 - |k|_1 / sqrt(2)))."""
    size_R2 = np.abs(tried_R2.astype(np.float64))
    chance_R = np.exp(-rate * (np.hypot(size_R2[:, 0], size_R2[:, 1]) - size_R2.sum(axis=1) / math.sqrt(2)))
    low_R, margin = words_R.astype(np.float64) * 2.0**-64, 2.0**-40  # far more than the error of float64
    accepted_R: NDArray[np.bool_] = (low_R + 2.0**-63) * (1 + margin) < chance_R
    for row in np.flatnonzero(~accepted_R & (low_R * (1 - margin) - 2.0**-63 <= chance_R)):
        with localcontext() as context:
            context.prec = _DIGITS
            x, y = (Decimal(abs(int(value))) for value in tried_R2[row])
            exact = (-Decimal(rate) * ((x * x + y * y).sqrt() - (x + y) / Decimal(2).sqrt())).exp()
            uniform = Decimal((int(words_R[row]) << (BITS - 64)) + more_bits(bits, int(row))) / Decimal(2) ** BITS
        accepted_R[row] = uniform < exact
    return accepted_R
