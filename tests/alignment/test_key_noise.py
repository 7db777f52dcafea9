"""Noise on keys: its distribution and its guarantee; FedSim's delta is compared with a slow reference."""

import math

import numpy as np
import pytest
from lower_bounds import epsilon_lower_bound
from scipy.stats import gamma, kstest

from tallystick.alignment.improvement import estimated_improvement
from tallystick.alignment.key_noise import GRID, drawn_noise, key_event, key_guarantee, noisy_keys
from tallystick.alignment.outcome import Candidates
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.terms import SimilarityConfig
from tallystick.privacy.composition import total_epsilon
from tallystick.privacy.events import GaussianDP, PureDP
from tallystick.privacy.exact import SequentialBits
from tallystick.privacy.gaussian import gaussian_delta

STREAM = np.random.default_rng(7)
SECRET = b"sixteen bytes or more"
PLACES = [{"name": "x", "low": -50.0, "high": 50.0, "scale": 2.0}, {"name": "y", "low": -50.0, "high": 50.0}]


def terms_of(**noise):
    return SimilarityConfig.model_validate(
        {"dimensions": PLACES, "neighbors": 1, "noise": noise, "deviation": 0.3, "window": 1.0}
    )


def spread(rows, x=0.0, y=0.0):
    """Make keys around a place, each in a cell of its own, so that each has its own noise."""
    numbers_RD = np.full((rows, 2), [x, y])
    numbers_RD[:, 1] += np.arange(rows) * 1e-9
    return SimilarKeys(numbers_RD=numbers_RD)


@pytest.mark.parametrize("epsilon", [1.0, 3.0])
def test_planar_laplace_has_the_radius_and_the_angle_of_its_density(epsilon):
    """Two tests of 20,000 seeded draws, which fail by chance once in 10^4. They could not see the grid, which is far smaller."""
    terms = terms_of(keys="planar-laplace", epsilon=epsilon, radius=0.5)
    vectors_R2 = drawn_noise(terms, SequentialBits(STREAM.bytes, rows=20_000), rows=20_000) * GRID * 0.5
    assert kstest(np.linalg.norm(vectors_R2, axis=1), gamma(2, scale=0.5 / epsilon).cdf).pvalue > 1e-4
    assert kstest(np.arctan2(vectors_R2[:, 1], vectors_R2[:, 0]), "uniform", args=(-math.pi, 2 * math.pi)).pvalue > 1e-4


def test_two_places_at_the_radius_are_within_epsilon_and_twice_the_budget_is_not():
    """By 40,000 seeded draws on each side, of how much nearer one of them is. A bound holds with 1 - 1e-7."""
    apart = round(1 / GRID)

    def bound(epsilon):
        terms, rows = terms_of(keys="planar-laplace", epsilon=epsilon, radius=1.0), 40_000
        nearer = []
        for x in (apart, 0):
            at_R2 = drawn_noise(terms, SequentialBits(STREAM.bytes, rows=rows), rows=rows) + np.array([x, 0])
            nearer.append(np.hypot(*at_R2.T) - np.hypot(at_R2[:, 0] - apart, at_R2[:, 1]))
        return epsilon_lower_bound(*nearer)

    assert 0.6 < bound(1.0) <= 1.0 < bound(2.0)


@pytest.mark.parametrize("epsilon", [10.0, 40.0, 100.0])
def test_what_one_place_sends_its_neighbour_can_send(epsilon):
    """The chance of each output for a place at the radius is at least 2^-480, which can be drawn, so none is excluded."""
    terms = terms_of(keys="planar-laplace", epsilon=epsilon, radius=1.0)
    drawn_R2 = drawn_noise(terms, SequentialBits(STREAM.bytes, rows=5_000), rows=5_000)
    away_R = np.hypot(drawn_R2[:, 0] + round(1 / GRID) + math.sqrt(2), drawn_R2[:, 1])
    assert epsilon * GRID * away_R.max() / math.log(2) < 480
    assert len(np.unique(drawn_R2[:, 0] % 2)) == 2


def test_fifty_rows_at_one_place_tell_no_more_than_one():
    """With 300 m of noise the mean of fifty rows is as far away as one of them, over 400 places (within four errors; seeded)."""
    metres = 2.0 / 300.0  # epsilon over radius
    terms = terms_of(keys="planar-laplace", epsilon=1.0, radius=1 / metres)
    wide = tuple(each.model_copy(update={"low": -1e6, "high": 1e6}) for each in terms.dimensions)
    terms = terms.model_copy(update={"dimensions": wide})
    places_PD = np.stack((np.arange(400) * 10.0, np.zeros(400)), axis=1)
    keys = SimilarKeys(numbers_RD=np.repeat(places_PD, 50, axis=0))
    sent_RD = noisy_keys(keys, terms, secret=SECRET).scaled(terms) - keys.scaled(terms)
    mean_PD = sent_RD.reshape(400, 50, 2).mean(axis=1)
    assert np.linalg.norm(mean_PD, axis=1).mean() == pytest.approx(300, abs=4 * 300 / math.sqrt(2 * 400))
    assert len(np.unique(sent_RD, axis=0)) == 400


def test_a_key_has_one_noise_in_every_table_and_another_under_other_terms_or_another_secret():
    keys, terms = spread(50), terms_of(keys="planar-laplace", epsilon=1.0, radius=1e-6)
    sent_RD = noisy_keys(keys, terms, secret=SECRET).numbers_RD
    later = SimilarKeys(numbers_RD=keys.numbers_RD[[7, 3, 7, 44]])
    assert (noisy_keys(later, terms, secret=SECRET).numbers_RD == sent_RD[[7, 3, 7, 44]]).all()
    for other, secret in ((terms, bytes(32)), (terms_of(keys="planar-laplace", epsilon=2.0, radius=1e-6), SECRET)):
        assert not (noisy_keys(keys, other, secret=secret).numbers_RD == sent_RD).all(axis=1).any()


def test_gaussian_noise_on_keys_is_calibrated_for_a_rounded_key():
    terms = terms_of(keys="gaussian", epsilon=1.0, delta=1e-5, radius=0.5)
    event = key_event(terms)
    assert isinstance(event, GaussianDP)
    assert gaussian_delta(1.0, event.noise_multiplier) <= 1e-5
    assert gaussian_delta(1.0, event.noise_multiplier / 2) > 1e-5
    drawn = drawn_noise(terms, SequentialBits(STREAM.bytes, rows=50_000), rows=50_000) * GRID * 0.5
    expected = event.noise_multiplier * 0.5
    # 100,000 draws: the deviation is within 1 % (four standard errors), and no less than the radius requires.
    assert drawn.std() == pytest.approx(expected, rel=0.01)


def test_noise_stays_in_range_and_events_of_keys_stand_apart():
    terms = terms_of(keys="planar-laplace", epsilon=0.01, radius=1.0)
    noisy = noisy_keys(spread(500, 49.0, 49.0), terms, secret=SECRET)
    assert np.abs(noisy.numbers_RD).max() == 50.0
    event = key_event(terms)
    assert event == PureDP(epsilon=0.01, unit="key")
    assert total_epsilon([event], unit="record") == math.inf
    assert "geo-indistinguishability" in key_guarantee(terms)
    degrees = [
        {"name": "lon", "unit": "degree", "low": 103.0, "high": 104.0, "scale": 2.0, "metres": 55_800.0},
        {"name": "lat", "unit": "degree", "low": 1.0, "high": 1.5, "metres": 110_574.0},
    ]
    places = SimilarityConfig.model_validate(
        {"dimensions": degrees, "neighbors": 1, "noise": {"keys": "planar-laplace", "radius": 0.001}}
    )
    assert "0.001 after scale (0.002 degree = 112 m along lon, 0.001 degree = 111 m along lat)" in key_guarantee(places)
    plain = terms_of()
    assert key_event(plain) is None
    assert key_guarantee(plain) == "no formal guarantee"
    keys = SimilarKeys(numbers_RD=np.ones((3, 2)))
    assert noisy_keys(keys, plain, secret=SECRET) is keys


def test_delta_is_that_of_a_loop_over_records_and_links():
    rng = np.random.default_rng(3)
    numbers_NK = rng.permuted(np.tile(np.arange(30), (20, 1)), axis=1)[:, :6].astype(np.int64)
    similarity_NK = -np.sort(-rng.normal(size=(20, 6)), axis=1).astype(np.float32)
    numbers_NK[3, 4:], similarity_NK[3, 4:] = -1, 0.0
    numbers_NK[5], similarity_NK[5] = -1, 0.0
    similarity_NK[7] = 0.25
    average, first, linked = 0.0, 0.0, 0
    for numbers_K, similarity_K in zip(numbers_NK, similarity_NK.astype(float), strict=True):
        s = similarity_K[numbers_K >= 0]
        if not len(s):
            continue
        linked += 1
        s = (s - s.min()) / (s.max() - s.min()) if s.max() > s.min() else np.ones(len(s))
        average += (1 - s).sum()
        first += (1 - s[0]) + s[1:].sum()
    found = estimated_improvement(Candidates(numbers_NK=numbers_NK, rows=30, similarity_NK=similarity_NK))
    assert found == pytest.approx({"AvgSim": average / linked, "Top1Sim": first / linked})
    with pytest.raises(ValueError, match="no similarities"):
        estimated_improvement(Candidates(numbers_NK=numbers_NK, rows=30))
