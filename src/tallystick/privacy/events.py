"""DP events: what one release cost, as data, and how several add up.

An event states its neighbours: ``label`` (two data sets that differ in one example's label) or ``record`` (in one
example's label and features). A record event protects the label as well, so both count towards the label budget;
a label event promises nothing about a record. ``key`` (in one example's linking key, by no more than the contract's radius)
stands apart: such a release tells of keys, not of labels, and its events are summed by themselves, in a data set of keys.
"""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec

from tallystick.errors import ConfigError

Unit = Literal["label", "record", "key"]

LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9  # of what is to be released; beyond, noise leaves float64's exact integers, or is none
_MOST_LOSS = 500.0  # of one event in a privacy loss distribution, which takes its exponential


class PureDP(msgspec.Struct, frozen=True, kw_only=True, tag="pure", forbid_unknown_fields=True):
    """An epsilon-DP release (Laplace, geometric, randomised response)."""

    epsilon: float
    unit: Unit = "label"

    def __post_init__(self) -> None:
        _check_recorded(self.epsilon)


class ApproximateDP(msgspec.Struct, frozen=True, kw_only=True, tag="approximate", forbid_unknown_fields=True):
    """An (epsilon, delta)-DP release of which no more is known."""

    epsilon: float
    delta: float
    unit: Unit = "label"

    def __post_init__(self) -> None:
        _check_recorded(self.epsilon)
        check_delta(self.delta)


class GaussianDP(msgspec.Struct, frozen=True, kw_only=True, tag="gaussian", forbid_unknown_fields=True):
    """``releases`` Gaussian releases, each with noise of ``noise_multiplier`` times its L2 sensitivity.

    The sensitivity is how far the released vector moves when one example is exchanged for its neighbour. With ``sampling_rate``
    below 1 each release reads a fresh Poisson sample of the examples (DP-SGD), and one example's term has a norm of at most
    half the sensitivity: for a clipping norm C and noise sigma the multiplier is sigma / (2 C).
    """

    noise_multiplier: float
    releases: int = 1
    sampling_rate: float = 1.0
    unit: Unit = "label"

    def __post_init__(self) -> None:
        if not (math.isfinite(self.noise_multiplier) and self.noise_multiplier > 0):
            raise ConfigError(f"noise_multiplier is {self.noise_multiplier!r}; it must be a finite number above 0")
        if self.releases < 1:
            raise ConfigError(f"releases is {self.releases}; it must be at least 1")
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"sampling_rate is {self.sampling_rate!r}; it must lie in (0, 1]")


class UnsentGaussianDP(msgspec.Struct, frozen=True, kw_only=True, tag="unsent-gaussian", forbid_unknown_fields=True):
    """So many Gaussian releases of this noise that an earlier event charged for and that were never made: they leave the sum.

    How many are made may hang on what was released before, as with early stopping: Gaussian releases compose fully adaptively
    (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"), so a cap on their sum holds for
    whatever was made.
    """

    noise_multiplier: float
    releases: int
    unit: Unit = "label"

    def __post_init__(self) -> None:
        if self.releases < 1:
            raise ConfigError(f"releases is {self.releases}; it must be at least 1")


class NotPrivate(msgspec.Struct, frozen=True, kw_only=True, tag="not-private", forbid_unknown_fields=True):
    """A release without a guarantee, such as an exact AUC: no epsilon bounds it, so a ledger keeps it beside its sums."""

    unit: Unit = "label"


Bounded: TypeAlias = PureDP | ApproximateDP | GaussianDP
Event: TypeAlias = Bounded | NotPrivate
Entered: TypeAlias = Event | UnsentGaussianDP
"""What a ledger holds: releases, and what of these was never made."""


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that no release or cap can have: not a number, not above 0, or out of all proportion."""
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise ConfigError(
            f"epsilon is {epsilon!r}; it must be a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g} (1 is a usual choice)"
        )


def _check_recorded(epsilon: float) -> None:
    """Refuse an epsilon that is not a finite number above 0; a ledger's entries stay readable whatever their size."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon is {epsilon!r}; it must be a finite number above 0 (1 is a usual choice)")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta!r}; it must lie in (0, 1), well below one over the number of examples")


def total_epsilon(events: Sequence[Entered], *, delta: float = 0.0, unit: Unit = "label") -> float:
    """Give the epsilon that all ``events`` together cost at ``delta``; infinity where there is no such bound.

    Pure events add exactly, and Gaussian ones of all examples, which are one Gaussian. Anything else goes through the privacy
    loss distribution of dp-accounting (pessimistic: an upper bound), and the smaller of that and plain adding up is the answer.
    ``unit="record"`` is infinite as soon as one event protects labels or keys only. At delta 0 any event that is not pure makes
    it infinite.
    """
    bounded = _made(events)
    if any(isinstance(event, NotPrivate) for event in events) or (
        unit == "record" and any(event.unit != "record" for event in bounded)
    ):
        return math.inf
    bounded = _merged(bounded)
    pure = math.fsum(event.epsilon for event in bounded if isinstance(event, PureDP))
    further = [event for event in bounded if not isinstance(event, PureDP)]
    if not further:
        if delta == 0:
            return pure
        # At a delta above 0 many small pure events cost less than their sum.
        return min(pure, _pld_epsilon(bounded, delta)) if len(bounded) > 1 else pure
    if delta == 0:
        return math.inf
    if len(bounded) == 1 and isinstance(bounded[0], GaussianDP):
        return _single_epsilon(bounded[0], delta)
    spent_delta = math.fsum(event.delta for event in further if isinstance(event, ApproximateDP))
    if spent_delta > delta:
        return math.inf
    return min(pure + _added_up(further, delta, spent_delta), pure + _pld_epsilon(further, delta), _pld_epsilon(bounded, delta))


def _made(events: Sequence[Entered]) -> list[Bounded]:
    """Return the bounded events without the releases that were charged for and never made."""
    unsent: Counter[tuple[float, Unit]] = Counter()
    for event in events:
        if isinstance(event, UnsentGaussianDP):
            unsent[event.noise_multiplier, event.unit] += event.releases
    done_events: list[Bounded] = []
    for event in events:
        if isinstance(event, UnsentGaussianDP | NotPrivate):
            continue
        if (
            isinstance(event, GaussianDP)
            and event.sampling_rate == 1
            and (noise := (event.noise_multiplier, event.unit)) in unsent
        ):
            never = min(unsent[noise], event.releases)
            unsent[noise] -= never
            if never < event.releases:
                done_events.append(msgspec.structs.replace(event, releases=event.releases - never))
            continue
        done_events.append(event)
    return done_events


def _merged(events: Sequence[Bounded]) -> list[Bounded]:
    """Merge events at the same cost: Gaussian releases of all examples are one (Dong, Roth and Su 2019, corollary 3.3)."""
    whole = [event for event in events if isinstance(event, GaussianDP) and event.sampling_rate == 1]
    if not whole:
        return list(events)
    multiplier = 1 / math.hypot(*(math.sqrt(event.releases) / event.noise_multiplier for event in whole))
    return [event for event in events if event not in whole] + [GaussianDP(noise_multiplier=multiplier, unit=whole[0].unit)]


def _added_up(events: Sequence[Bounded], delta: float, spent_delta: float) -> float:
    """Sum the events' own epsilons, the delta that approximate events leave over shared equally among the Gaussian ones."""
    gaussians = [event for event in events if isinstance(event, GaussianDP)]
    added = math.fsum(event.epsilon for event in events if isinstance(event, ApproximateDP))
    if gaussians and spent_delta >= delta:
        return math.inf
    return added + math.fsum(_single_epsilon(event, (delta - spent_delta) / len(gaussians)) for event in gaussians)


@lru_cache(maxsize=256)
def _single_epsilon(event: Bounded, delta: float) -> float:
    if isinstance(event, GaussianDP) and event.sampling_rate == event.releases == 1:
        from tallystick.privacy.gaussian import gaussian_epsilon  # SciPy, which pure DP does without

        return gaussian_epsilon(event.noise_multiplier, delta)
    return _pld_epsilon([event], delta)


def _pld_epsilon(events: Sequence[Bounded], delta: float) -> float:
    """Compose by privacy loss distributions; infinity, which leaves the plain sum to the caller, where a loss is too large."""
    if any(event.epsilon > _MOST_LOSS for event in events if not isinstance(event, GaussianDP)):
        return math.inf
    from dp_accounting import NeighboringRelation  # a second to import, and pure DP does without
    from dp_accounting.pld import common, privacy_loss_distribution

    # A coarser grid for large losses keeps the convolutions short; every grid is pessimistic, so only tightness varies.
    rough = sum(
        event.epsilon if not isinstance(event, GaussianDP) else event.releases / event.noise_multiplier for event in events
    )
    step = min(max(1e-4, rough / 5e4), 0.05)
    composed = None
    for event, count in _counted(events):
        if isinstance(event, GaussianDP):
            pld = privacy_loss_distribution.from_gaussian_mechanism(
                event.noise_multiplier,
                sensitivity=0.5,  # dp-accounting counts from the absent example to either neighbour
                value_discretization_interval=step,
                sampling_prob=event.sampling_rate,
                neighboring_relation=NeighboringRelation.REPLACE_ONE,
            )
            count *= event.releases
        else:
            parameters = common.DifferentialPrivacyParameters(
                event.epsilon, event.delta if isinstance(event, ApproximateDP) else 0.0
            )
            pld = privacy_loss_distribution.from_privacy_parameters(parameters, value_discretization_interval=step)
        pld = pld.self_compose(count) if count > 1 else pld
        composed = pld if composed is None else composed.compose(pld)
    assert composed is not None, "called with events only"
    return float(composed.get_epsilon_for_delta(delta))


def _counted(events: Sequence[Bounded]) -> list[tuple[Bounded, int]]:
    counts: dict[Bounded, int] = {}
    for event in events:
        counts[event] = counts.get(event, 0) + 1
    return list(counts.items())
