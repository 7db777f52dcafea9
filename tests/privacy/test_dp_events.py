"""Compare events and composition with closed forms and an independent accountant."""

import math
from statistics import NormalDist

import mpmath
import msgspec
import pytest
from dp_accounting import GaussianDpEvent, NeighboringRelation, PoissonSampledDpEvent, SelfComposedDpEvent
from dp_accounting.rdp import RdpAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.errors import ConfigError
from tallystick.privacy.composition import total_epsilon
from tallystick.privacy.events import ApproximateDP, Event, GaussianDP, NotPrivate, PureDP, UnsentGaussianDP, check_epsilon
from tallystick.privacy.gaussian import gaussian_delta, gaussian_multiplier

epsilons = st.floats(1e-3, 20)


@given(st.lists(epsilons, max_size=20))
def test_pure_events_add_exactly(values):
    assert total_epsilon([PureDP(epsilon=value) for value in values]) == math.fsum(values)


def test_many_small_pure_events_cost_less_at_a_small_delta_and_never_more():
    events = [PureDP(epsilon=0.1)] * 100
    # Optimal composition of 100 x 0.1 at 1e-6 (Kairouz et al. 2015) lies between 4 and 5; adding up gives 10.
    assert 4 < total_epsilon(events, delta=1e-6) < 5
    assert total_epsilon([PureDP(epsilon=2.0)], delta=1e-6) == 2
    assert total_epsilon([PureDP(epsilon=2.0)] * 2, delta=1e-6) <= 4


@pytest.mark.parametrize("multiplier", [0.8, 3.0, 20.0])
def test_a_gaussian_release_costs_what_the_exact_formula_says(multiplier):
    delta = 1e-5
    epsilon = total_epsilon([GaussianDP(noise_multiplier=multiplier)], delta=delta)
    assert gaussian_delta(epsilon, multiplier) <= delta  # never under the truth
    assert gaussian_delta(epsilon * 0.995 - 1e-3, multiplier) > delta  # and tight


def test_gaussian_releases_compose_like_one_with_less_noise():
    several = total_epsilon([GaussianDP(noise_multiplier=6.0)] * 3 + [GaussianDP(noise_multiplier=6.0, releases=6)], delta=1e-6)
    assert several == pytest.approx(total_epsilon([GaussianDP(noise_multiplier=2.0)], delta=1e-6), rel=2e-3)


def test_subsampled_events_cost_no_more_than_an_independent_accountant_says():
    rate, steps, delta = 0.01, 500, 1e-6
    ours = total_epsilon([GaussianDP(noise_multiplier=1.0, sampling_rate=rate, releases=steps)], delta=delta)
    # Under replacement two sampled Gaussians are at -1/2 and +1/2: removing one and adding the other, each at a
    # distance of 1/2, bounds it from above as a group of two.
    accountant = RdpAccountant(neighboring_relation=NeighboringRelation.ADD_OR_REMOVE_ONE)
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(2.0)), steps))
    removed = accountant.get_epsilon(delta)
    assert removed < ours  # exchanging an example costs more than removing it
    accountant.compose(SelfComposedDpEvent(PoissonSampledDpEvent(rate, GaussianDpEvent(2.0)), steps))
    group = 2 * accountant.get_epsilon(delta / 4)
    assert ours < group


@settings(max_examples=5, deadline=None)
@given(st.lists(epsilons, min_size=1, max_size=3), st.floats(1.0, 20), st.integers(1, 3))
def test_mixed_events_never_cost_more_than_adding_up(values, multiplier, count):
    gaussians = [GaussianDP(noise_multiplier=multiplier)] * count
    pure = [PureDP(epsilon=value) for value in values]
    delta = 1e-6
    alone = total_epsilon(gaussians[:1], delta=delta / count)
    assert total_epsilon([*pure, *gaussians], delta=delta) <= (sum(values) + count * alone) * (1 + 1e-9)


def test_what_has_no_bound_is_infinite():
    assert total_epsilon([GaussianDP(noise_multiplier=5.0)]) == math.inf
    assert total_epsilon([PureDP(epsilon=1.0), NotPrivate()], delta=1e-6) == math.inf
    assert total_epsilon([ApproximateDP(epsilon=1.0, delta=1e-3)], delta=1e-6) == math.inf
    assert total_epsilon([ApproximateDP(epsilon=1.0, delta=1e-6)] * 2, delta=2e-6) == pytest.approx(2.0, rel=1e-3)
    assert total_epsilon([]) == 0


def test_records_are_protected_only_by_record_events():
    record, label = PureDP(epsilon=1.0, unit="record"), PureDP(epsilon=0.5)
    assert total_epsilon([record, label]) == 1.5
    assert total_epsilon([record], unit="record") == 1
    assert total_epsilon([record, label], unit="record") == math.inf


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf])
def test_an_epsilon_that_is_not_above_zero_is_refused(epsilon):
    with pytest.raises(ConfigError, match="epsilon is"):
        PureDP(epsilon=epsilon)
    with pytest.raises(ConfigError, match="epsilon is"):
        gaussian_multiplier(epsilon, 1e-6)


@pytest.mark.parametrize("epsilon", [1e-310, 1e-160, 1e-12, 1e10, 1e300])
def test_an_epsilon_out_of_proportion_is_refused_for_a_release_and_stays_readable_in_a_ledger(epsilon):
    with pytest.raises(ConfigError, match="it must be a number from 1e-09 to 1e\\+09"):
        check_epsilon(epsilon)
    event = PureDP(epsilon=epsilon)
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_epsilons_whose_exponential_overflows_add_up_plainly():
    assert total_epsilon([PureDP(epsilon=800.0)] * 2, delta=1e-6) == 1600
    assert total_epsilon([PureDP(epsilon=800.0), ApproximateDP(epsilon=900.0, delta=1e-7)], delta=1e-6) == 1700
    gaussian = GaussianDP(noise_multiplier=5.0)
    alone = total_epsilon([gaussian], delta=1e-6)
    assert total_epsilon([PureDP(epsilon=800.0), gaussian], delta=1e-6) == pytest.approx(800 + alone, rel=1e-9)
    assert total_epsilon([PureDP(epsilon=499.0)] * 4, delta=1e-6) <= 4 * 499


@pytest.mark.parametrize(
    "fields", [{"noise_multiplier": 0}, {"noise_multiplier": 1, "releases": 0}, {"noise_multiplier": 1, "sampling_rate": 0}]
)
def test_gaussian_events_that_make_no_sense_are_refused(fields):
    with pytest.raises(ConfigError):
        GaussianDP(**fields)


@pytest.mark.parametrize(
    "event",
    [
        PureDP(epsilon=0.5, unit="record"),
        ApproximateDP(epsilon=1.0, delta=1e-6),
        GaussianDP(noise_multiplier=2.0, releases=7, sampling_rate=0.1),
        NotPrivate(),
    ],
)
def test_events_survive_the_trip_through_json(event):
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-6), (1.0, 1e-5), (8.0, 1e-2)])
def test_gaussian_calibration_inverts_the_exact_delta(epsilon, delta):
    multiplier = gaussian_multiplier(epsilon, delta)
    assert gaussian_delta(epsilon, multiplier) == pytest.approx(delta, rel=1e-6)
    normal, half, shift = NormalDist(), 1 / (2 * multiplier), epsilon * multiplier
    assert normal.cdf(half - shift) - math.exp(epsilon) * normal.cdf(-half - shift) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 4.0, 20.0, 100.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-9, 1e-15])
def test_gaussian_calibration_far_out_in_the_tail(epsilon, delta):
    """Compared with 60 digits: never under the truth, nor noise for a much smaller delta than asked for."""
    with mpmath.workdps(60):
        multiplier = mpmath.mpf(gaussian_multiplier(epsilon, delta))
        half, shift = 1 / (2 * multiplier), epsilon * multiplier
        exact = mpmath.ncdf(half - shift) - mpmath.exp(epsilon) * mpmath.ncdf(-half - shift)
    assert 0.98 * delta < exact <= delta


@given(
    st.lists(st.tuples(st.sampled_from([0.7, 2.0, 9.0]), st.integers(1, 5), st.integers(0, 5)), min_size=1, max_size=6),
    st.floats(1e-9, 0.1),
)
def test_releases_that_were_never_made_cost_nothing(noises, delta):
    """Compared with the sum of the releases that were made, in any order."""
    charged = [GaussianDP(noise_multiplier=noise, releases=count, unit="record") for noise, count, _ in noises]
    unsent = [
        UnsentGaussianDP(noise_multiplier=noise, releases=never, unit="record")
        for noise, count, kept in noises
        if (never := max(count - kept, 0))
    ]
    made = [GaussianDP(noise_multiplier=noise, releases=min(count, kept), unit="record") for noise, count, kept in noises if kept]
    for events in (charged + unsent, unsent + charged):
        assert total_epsilon(events, delta=delta, unit="record") == pytest.approx(total_epsilon(made, delta=delta), rel=1e-9)


@given(st.lists(st.tuples(st.floats(0.3, 50), st.integers(1, 40)), min_size=1, max_size=5), st.floats(1e-9, 0.1))
def test_gaussian_releases_alone_cost_what_the_exact_formula_says(noises, delta):
    """Independent Gaussian outputs reveal as much as one whose squared signal-to-noise is the sum of theirs."""
    epsilon = total_epsilon([GaussianDP(noise_multiplier=noise, releases=count) for noise, count in noises], delta=delta)
    one = sum(count / noise**2 for noise, count in noises) ** -0.5
    assert gaussian_delta(epsilon, one) <= delta * (1 + 1e-9)
    assert epsilon < 1e-9 or gaussian_delta(epsilon * (1 - 1e-6), one) > delta * (1 - 1e-9)
