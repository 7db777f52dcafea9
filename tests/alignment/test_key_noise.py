"""Noise on keys: its distribution, its promise, and the delta of FedSim beside a slow reference."""

import math

import numpy as np
import pytest
from scipy.stats import gamma, kstest

from tallystick.alignment.improvement import estimated_improvement
from tallystick.alignment.key_noise import key_event, key_guarantee, noisy_keys, planar_laplace
from tallystick.alignment.outcome import Candidates
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.similarity import SimilarityConfig
from tallystick.data.similar_keys import SimilarKeys
from tallystick.privacy.events import GaussianDP, PureDP, total_epsilon
from tallystick.privacy.gaussian import gaussian_delta
from tallystick.privacy.noise import SimulatedNoise

STREAM = np.random.default_rng(7)
RNG = SecureRandom(source=STREAM.bytes)
PLACES = [{"name": "x", "low": -50.0, "high": 50.0, "scale": 2.0}, {"name": "y", "low": -50.0, "high": 50.0}]


def terms_of(**noise):
    return SimilarityConfig.model_validate(
        {"dimensions": PLACES, "neighbors": 1, "noise": noise, "deviation": 0.3, "window": 1.0}
    )


def test_planar_laplace_has_its_density():
    vectors_R2 = planar_laplace(20_000, 3.0, RNG)
    # The radius is Gamma(2, 1/rate), the angle uniform; two tests on a fixed stream that fail by chance once in 10^4 draws.
    assert kstest(np.linalg.norm(vectors_R2, axis=1), gamma(2, scale=1 / 3).cdf).pvalue > 1e-4
    assert kstest(np.arctan2(vectors_R2[:, 1], vectors_R2[:, 0]), "uniform", args=(-math.pi, 2 * math.pi)).pvalue > 1e-4


def test_planar_laplace_keeps_geo_indistinguishability_and_half_the_noise_would_not():
    """Two places at the radius: no part of the map is exp(epsilon) times likelier from one; with half the noise some is."""

    def worst(rate):
        # A half plane beyond one of them, by the exact density ratio on a ray: exp(rate * distance).
        here, there = np.array([0.0, 0.0]), np.array([1.0, 0.0])
        at = np.stack((np.linspace(-3, 4, 300), np.zeros(300)), axis=1)
        ratio = -rate * np.linalg.norm(at - here, axis=1) + rate * np.linalg.norm(at - there, axis=1)
        return np.abs(ratio).max()

    assert worst(1.0) <= 1.0 + 1e-12
    assert worst(2.0) > 1.9
    keys = SimilarKeys(numbers_RD=np.zeros((40_000, 2)))
    noisy = noisy_keys(keys, terms_of(keys="planar-laplace", epsilon=1.0, radius=1.0), rng=RNG).scaled(terms_of())
    # The mean radius of Gamma(2, 1) is 2, with a standard error of sqrt(2 / 40000): five of these.
    assert np.linalg.norm(noisy, axis=1).mean() == pytest.approx(2.0, abs=5 * math.sqrt(2 / 40_000))


def test_gaussian_noise_on_keys_is_calibrated_for_a_rounded_key():
    terms = terms_of(keys="gaussian", epsilon=1.0, delta=1e-5, radius=0.5)
    event = key_event(terms)
    assert isinstance(event, GaussianDP)
    assert gaussian_delta(1.0, event.noise_multiplier) <= 1e-5
    assert gaussian_delta(1.0, event.noise_multiplier / 2) > 1e-5
    keys = SimilarKeys(numbers_RD=np.zeros((50_000, 2)))
    noise = SimulatedNoise(np.random.default_rng(1))
    drawn = noisy_keys(keys, terms, rng=RNG, noise=noise).scaled(terms)
    expected = event.noise_multiplier * 0.5
    # 100,000 draws: the deviation is within 1 % (four standard errors), and no less than the radius asks for.
    assert drawn.std() == pytest.approx(expected, rel=0.01)


def test_noise_stays_in_range_and_events_of_keys_stand_apart():
    terms = terms_of(keys="planar-laplace", epsilon=0.01, radius=1.0)
    noisy = noisy_keys(SimilarKeys(numbers_RD=np.full((500, 2), 49.0)), terms, rng=RNG)
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
    assert noisy_keys(keys, plain, rng=RNG) is keys


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
