"""Integer noise: its distribution in high precision, its ties, and the discrete Gaussian's guarantee compared with the claim."""

import math
from dataclasses import dataclass, field

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chi2

from tallystick.privacy import exact
from tallystick.privacy.exact import BITS, SMOOTHING, AliasTable, SequentialBits, terms_of
from tallystick.privacy.gaussian import gaussian_multiplier
from tallystick.privacy.grid import GridGaussian
from tallystick.privacy.keyed import KeyedBits


@dataclass
class Given:
    """Bits for one row that a test writes."""

    words_left: list = field(default_factory=list)

    def words(self, count):
        given_N, self.words_left = self.words_left[:count], self.words_left[count:]
        return np.array([given_N], dtype=np.uint64)

    def only(self, is_R):
        assert is_R.all()
        return self


def weights(deviation, reach):
    with mpmath.workprec(700):
        return [mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * mpmath.mpf(deviation) ** 2)) for z in range(-reach, reach + 1)]


@pytest.mark.parametrize("deviation", [2.5, 20.25])
def test_a_table_is_the_discrete_gaussian(deviation):
    """By 700-bit arithmetic, within 2^-480 in total variation, and out to 25 deviations."""
    masses, reach = exact._gaussian_table(deviation).masses(), math.ceil(30 * deviation)
    with mpmath.workprec(700):
        weights = {z: mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * mpmath.mpf(deviation) ** 2)) for z in range(-reach, reach + 1)}
        unit = mpmath.mpf(2) ** BITS / mpmath.fsum(weights.values())
        off = mpmath.fsum(abs(masses.get(z, 0) - unit * weight) for z, weight in weights.items())
        assert off / 2 < mpmath.mpf(2) ** (BITS - 480)
    assert sum(masses.values()) == 1 << BITS
    assert min(masses[far] for far in (math.floor(25 * deviation), -math.floor(25 * deviation))) > 0


@pytest.mark.parametrize("base", [2, 5])
def test_a_sum_of_narrow_ones_is_a_wide_one(base):
    """By adding up in 200 bits: each integer's chance is that of the wide one, up to a factor of 1 +- 2^-140."""
    with mpmath.workprec(200):
        low, high = mpmath.mpf(SMOOTHING * (base + 1)), mpmath.mpf(40)
        wide = mpmath.sqrt(low**2 + base**2 * high**2)
        ratios = []
        for z in (0, 1, 2, base, 37, 151):
            middle, spread = z * base * high**2 / wide**2, low * high / wide
            around = range(int(middle - 16 * spread) - 1, int(middle + 16 * spread) + 2)
            chance = mpmath.fsum(mpmath.exp(-((z - base * y) ** 2) / (2 * low**2) - y**2 / (2 * high**2)) for y in around)
            ratios.append(chance / mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * wide**2)))
        assert max(abs(ratio / ratios[0] - 1) for ratio in ratios) < mpmath.mpf(2) ** -140


def test_a_discrete_gaussian_around_any_point_weighs_the_same():
    """The basis of rounding a continuous one at random."""
    with mpmath.workprec(250):
        sums = [
            mpmath.fsum(mpmath.exp(-((z - mpmath.mpf(c) / 7) ** 2) / (2 * mpmath.mpf(SMOOTHING) ** 2)) for z in range(-45, 46))
            for c in range(7)
        ]
        worst = max(sums) / min(sums) - 1
        assert mpmath.mpf(2) ** -150 < worst < mpmath.mpf(2) ** -141


@given(st.floats(1.0, 1e12))
def test_terms_add_up_and_each_smooths_the_next(deviation):
    terms, factor, variance = terms_of(deviation), 1, 0.0
    for (base, narrow), _ in zip(terms, range(9), strict=False):
        variance += (factor * narrow) ** 2
        factor *= base
    assert math.sqrt(variance) == pytest.approx(deviation, rel=1e-12)
    assert all(narrow <= 300 for _, narrow in terms)
    rest = terms[-1][1]
    for base, narrow in reversed(terms[:-1]):
        whole = math.hypot(narrow, base * rest)
        assert narrow * rest / whole >= SMOOTHING
        rest = whole


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-15), (10.0, 1e-6), (30.0, 1e-12), (100.0, 1e-20)])
def test_a_discrete_release_keeps_what_is_claimed_and_half_the_noise_does_not(epsilon, delta):
    """Two integers as far apart as the sensitivity: the delta at epsilon, added up in 80 digits."""
    apart = max(1, math.floor(16 / gaussian_multiplier(epsilon, delta)))

    def spent(deviation):
        with mpmath.workdps(80):
            s = mpmath.mpf(deviation)
            first = int(s**2 * epsilon / apart - mpmath.mpf(apart) / 2)  # where the chances begin to differ by more than epsilon
            over = (
                mpmath.exp(-(mpmath.mpf(z) ** 2) / (2 * s**2)) - mpmath.exp(epsilon - mpmath.mpf(z + apart) ** 2 / (2 * s**2))
                for z in range(first - 2, first + int(15 * deviation))
            )
            return mpmath.fsum(each for each in over if each > 0) / (s * mpmath.sqrt(2 * mpmath.pi))

    deviation = math.hypot(gaussian_multiplier(epsilon, delta) * apart, SMOOTHING)
    assert spent(deviation) <= delta
    assert spent(deviation / 2) > 2 * delta


def test_a_tie_of_64_bits_is_decided_by_the_others():
    third = (1 << BITS) // 3
    table = AliasTable.of([third, (1 << BITS) - third], low=5)
    (column,) = np.flatnonzero([low < 1 << (BITS - 1) for low in (third, (1 << BITS) - third)])
    whole = (int(table.thresholds.first[column]) << (BITS - 64)) + table.thresholds.rest[column]
    word = ((whole >> (BITS - 64)) << table.width) + int(column)
    below = whole & ((1 << (BITS - 64)) - 1)
    for more, own in ((below - 1, True), (below, False)):
        tail = [(more >> (64 * place)) & (2**64 - 1) for place in range(7)]
        assert table.pick(np.array([[word]], dtype=np.uint64), Given(tail))[0, 0] == (
            5 + column if own else table.other_K[column]
        )
    assert table.masses() == {5: third, 6: (1 << BITS) - third}


def test_digits_of_a_geometric_number_have_their_chances():
    coins = exact._digit_coins(5793.6)
    with mpmath.workprec(700):
        for digit, (first, rest) in enumerate(zip(coins.first.tolist(), coins.rest, strict=True)):
            chance = 1 / (1 + mpmath.exp(mpmath.mpf(2) ** digit / mpmath.mpf(5793.6)))
            assert abs(((first << (BITS - 64)) + rest) - chance * mpmath.mpf(2) ** BITS) < 2
    drawn = exact.draw_geometric(2.5, SequentialBits(np.random.default_rng(4).bytes, rows=50_000), columns=2).ravel()
    expected = -np.expm1(-1 / 2.5) * np.exp(-np.arange(12) / 2.5) * len(drawn)
    counts = np.bincount(drawn, minlength=12)[:12]
    assert ((counts - expected) ** 2 / expected).sum() < chi2(12).ppf(1 - 1e-6)  # seeded


def test_planar_laplace_has_the_chance_of_every_point():
    """80,000 seeded draws over the points near the middle, compared with exp(-rate |k|) over its sum; fails with a
    chance of 1e-6.
    """
    rate, rows, near = 0.9, 80_000, 4
    drawn = exact.draw_planar_laplace(rate, SequentialBits(np.random.default_rng(5).bytes, rows=rows), rows=rows)
    side = np.arange(-60, 61)
    mass = np.exp(-rate * np.hypot(*np.meshgrid(side, side)))
    middle = slice(60 - near, 61 + near)
    expected = (mass / mass.sum())[middle, middle].ravel() * rows
    is_near = (np.abs(drawn) <= near).all(axis=1)
    place = (drawn[is_near, 0] + near) * (2 * near + 1) + drawn[is_near, 1] + near
    counts = np.bincount(place, minlength=len(expected))
    assert ((counts - expected) ** 2 / expected).sum() < chi2(len(expected)).ppf(1 - 1e-6)


@pytest.mark.parametrize("point", [(3, 0), (1000, 7), (-2, 900)])
def test_a_coin_too_close_for_floats_is_decided_exactly(point):
    rate = 0.01
    with mpmath.workprec(600):
        x, y = (mpmath.mpf(abs(each)) for each in point)
        chance = mpmath.exp(-mpmath.mpf(rate) * (mpmath.sqrt(x * x + y * y) - (x + y) / mpmath.sqrt(2)))
        whole = int(chance * mpmath.mpf(2) ** BITS)
    for uniform, heads in ((whole - (1 << 300), True), (whole + (1 << 300), False)):
        tail = [(uniform >> (64 * place)) & (2**64 - 1) for place in range(7)]
        word = np.array([uniform >> (BITS - 64)], dtype=np.uint64)
        assert exact._accepted(np.array([point]), rate, word, Given(tail)).tolist() == [heads]


@given(st.integers(1, 40), st.floats(1e-6, 1e6), st.floats(0.05, 1e4), st.integers(0, 2**32))
def test_rounded_vectors_are_within_the_sensitivity_that_noise_is_made_for(width, radius, multiplier, seed):
    grid = GridGaussian(radius=radius, multiplier=multiplier, width=width)
    drawn = np.random.default_rng(seed)
    values_RD = drawn.normal(size=(6, width)) * radius * 10.0 ** drawn.integers(-3, 4, size=(6, 1))
    values_RD[1] = -values_RD[0]
    on_grid_RD = grid.on_grid(values_RD)
    apart = np.linalg.norm((on_grid_RD[:, None] - on_grid_RD[None]).astype(np.float64), axis=2).max()
    assert multiplier * apart <= grid.deviation
    assert math.log2(grid.step) == round(math.log2(grid.step))
    assert multiplier * 2 * radius / grid.step <= grid.deviation <= multiplier * 2 * radius / grid.step * (1 + 1 / 200)


def test_keyed_bits_are_those_of_the_thing_that_is_hidden():
    hidden = [b"one", b"two", b"one", b"three"]
    first = KeyedBits(bytes(32), purpose=b"a", hidden=hidden)
    whole = first.words(9)
    assert (whole[0] == whole[2]).all()
    assert len({row.tobytes() for row in whole}) == 3
    alone = KeyedBits(bytes(32), purpose=b"a", hidden=[b"three"])
    assert (alone.words(9) == whole[3]).all()
    later = first.only(np.array([False, True, False, True])).words(5)
    assert (alone.words(5) == later[1]).all()
    assert not set(later[1].tolist()) & set(whole[3].tolist())
    others = (KeyedBits(bytes(32), purpose=b"b", hidden=hidden), KeyedBits(b"another secret16", purpose=b"a", hidden=hidden))
    assert not any((other.words(9) == whole).any() for other in others)
