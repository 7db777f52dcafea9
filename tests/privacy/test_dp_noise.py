"""Discrete noise: exact probabilities, shares that add up to the whole, and refused scales.

A test by a p-value fails with the chance ALPHA although the sampler is right. Every other test of draws states its own.
"""

import math

import numpy as np
import pytest
from scipy import stats

from tallystick.errors import ConfigError
from tallystick.privacy.noise import UNIFORM_BITS, SecureNoise, SimulatedNoise, discrete_laplace_variance, polya_table

DRAWS = 20_000
pytestmark = pytest.mark.unseeded
ALPHA = 1e-6


def discrete_laplace_pmf(k, scale):
    a = math.exp(-1 / scale)
    return (1 - a) / (1 + a) * a ** np.abs(k)


def assert_discrete_laplace(draws, scale):
    edge = math.ceil(2 * scale)
    inner = np.arange(-edge, edge + 1)
    expected = discrete_laplace_pmf(inner, scale)
    tail = (1 - expected.sum()) / 2
    observed = [np.sum(draws < -edge), *(np.sum(draws == k) for k in inner), np.sum(draws > edge)]
    result = stats.chisquare(observed, np.concatenate([[tail], expected, [tail]]) * len(draws))
    assert result.pvalue > ALPHA


@pytest.mark.parametrize("scale", [0.7, 3.3])
def test_released_noise_is_discrete_laplace(scale):
    assert_discrete_laplace(SecureNoise().discrete_laplace(scale, (DRAWS,)), scale)


@pytest.mark.parametrize("scale", [0.7, 3.3])
@pytest.mark.parametrize("shares", [2, 7])
def test_shares_add_up_to_discrete_laplace(scale, shares):
    source = SecureNoise()
    assert_discrete_laplace(sum(source.polya_share(scale, (DRAWS,), shares=shares) for _ in range(shares)), scale)


def test_a_share_missing_is_not_the_whole():
    """Two thirds of the noise pass with a chance below 1e-50: chi-squared is 1,560 with a deviation of 80, and 47 passes."""
    source = SecureNoise()
    draws = sum(source.polya_share(2.0, (DRAWS,), shares=3) for _ in range(2))
    with pytest.raises(AssertionError):
        assert_discrete_laplace(draws, 2.0)


@pytest.mark.parametrize(("scale", "shares"), [(0.5, 3), (20.0, 1), (300.0, 10)])
def test_the_table_is_the_negative_binomial_of_scipy(scale, shares):
    table = polya_table(scale, shares)
    k = np.arange(0, len(table), max(1, len(table) // 200))
    ours = np.array([table[index] for index in k], dtype=float) / 2.0**UNIFORM_BITS
    np.testing.assert_allclose(ours, stats.nbinom.cdf(k, 1 / shares, -math.expm1(-1 / scale)), rtol=1e-9)
    assert 0 < 2**UNIFORM_BITS - table[-1] < 2**20  # all but 2^-140 of the mass
    assert list(table) == sorted(table)


@pytest.mark.parametrize("clients", [1, 10])
def test_simulated_noise_is_the_sum_over_the_clients(clients):
    source = SimulatedNoise(np.random.default_rng(1), clients=clients)
    drawn = source.discrete_laplace(3.3, (DRAWS,))
    one_by_one = sum(SimulatedNoise(np.random.default_rng(k)).discrete_laplace(3.3, (DRAWS,)) for k in range(2, 2 + clients))
    assert stats.ks_2samp(drawn, one_by_one).pvalue > ALPHA
    assert_discrete_laplace(source.polya_share(3.3, (DRAWS,), shares=clients), 3.3)


def test_gaussian_noise_has_its_scale_in_both_sources():
    for source in (SecureNoise(), SimulatedNoise(np.random.default_rng(0))):
        draws = source.discrete_gaussian(9.0, (DRAWS,))
        assert draws.dtype == np.int64
        assert draws.std() == pytest.approx(9.0, rel=0.03)  # 6 standard errors: a chance of 2e-9


def test_binomial_counts_coins_cell_by_cell():
    counts = np.array([[0, 10, 1000], [5, 0, 1]])
    probability = np.array([0.5, 0.9, 0.25])
    for source in (SecureNoise(), SimulatedNoise(np.random.default_rng(0))):
        total = sum(source.binomial(counts, probability) for _ in range(500))
        mean, sd = 500 * counts * probability, np.sqrt(500 * counts * probability * (1 - probability))
        assert np.all(np.abs(total - mean) <= 6 * sd)  # a chance of some 1e-8 for all cells
    assert SecureNoise().binomial(np.array([7]), 1.0).tolist() == [7]
    assert SecureNoise().binomial(np.array([7]), 0.0).tolist() == [0]


def test_laplace_noise_of_both_sources_is_laplace():
    for source in (SecureNoise(), SimulatedNoise(np.random.default_rng(0))):
        assert stats.kstest(source.laplace(2.0, (DRAWS,)), stats.laplace(scale=2.0).cdf).pvalue > ALPHA


def test_variance_formula():
    k = np.arange(-2000, 2001)
    for scale in (0.2, 1.0, 30.0):
        assert discrete_laplace_variance(scale) == pytest.approx((discrete_laplace_pmf(k, scale) * k**2).sum(), rel=1e-9)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf])
def test_a_scale_that_is_not_above_zero_is_refused(scale):
    with pytest.raises(ConfigError, match="scale"):
        SecureNoise().discrete_laplace(scale, (1,))


def test_shares_too_wide_for_a_table_are_refused():
    with pytest.raises(ConfigError, match="too wide"):
        SecureNoise().polya_share(1e6, (1,), shares=2)
