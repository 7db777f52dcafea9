"""Add up DP events: compute the epsilon that all releases of a data set cost together."""

import math
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

import msgspec

from tallystick.errors import ConfigError
from tallystick.privacy.events import ApproximateDP, Bounded, Entered, GaussianDP, NotPrivate, PureDP, Unit, UnsentGaussianDP

_MOST_LOSS = 500.0  # limit of an event's loss in a privacy loss distribution, which computes its exponential


def total_epsilon(events: Sequence[Entered], *, delta: float = 0.0, unit: Unit = "label") -> float:
    """Return the epsilon that all ``events`` together cost at ``delta``. It is infinite if there is no such bound.

    Pure events are added exactly, and so are Gaussian events of all examples, which are one Gaussian. Anything else uses the
    privacy loss distribution of dp-accounting (pessimistic: an upper bound), and the result is the smaller of that and the plain
    sum. ``unit="record"`` is infinite if any event protects labels or keys only. At delta 0 any event that is not pure makes it
    infinite.
    """
    unsent: Counter[tuple[float, Unit]] = Counter()
    for event in events:
        if isinstance(event, UnsentGaussianDP):
            unsent[event.noise_multiplier, event.unit] += event.releases
    bounded: list[Bounded] = []
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
                bounded.append(msgspec.structs.replace(event, releases=event.releases - never))
            continue
        bounded.append(event)
    if any(isinstance(event, NotPrivate) for event in events) or (
        unit == "record" and any(event.unit != "record" for event in bounded)
    ):
        return math.inf
    whole = [event for event in bounded if isinstance(event, GaussianDP) and event.sampling_rate == 1]
    if whole:  # at the same cost they are one release (Dong, Roth and Su 2019, corollary 3.3)
        multiplier = 1 / math.hypot(*(math.sqrt(event.releases) / event.noise_multiplier for event in whole))
        bounded = [event for event in bounded if event not in whole] + [
            GaussianDP(noise_multiplier=multiplier, unit=whole[0].unit)
        ]
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
    # The sum of their own epsilons. Gaussian events share equally the delta that approximate events leave over
    gaussians = [event for event in further if isinstance(event, GaussianDP)]
    added = math.fsum(event.epsilon for event in further if isinstance(event, ApproximateDP))
    if gaussians:
        share = (delta - spent_delta) / len(gaussians)
        added += math.fsum(_single_epsilon(event, share) for event in gaussians) if share > 0 else math.inf
    return min(pure + added, pure + _pld_epsilon(further, delta), _pld_epsilon(bounded, delta))


@lru_cache(maxsize=256)
def _single_epsilon(event: Bounded, delta: float) -> float:
    if isinstance(event, GaussianDP) and event.sampling_rate == event.releases == 1:
        from tallystick.privacy.gaussian import gaussian_epsilon  # it loads SciPy, which pure DP does not need

        return gaussian_epsilon(event.noise_multiplier, delta)
    return _pld_epsilon([event], delta)


def _pld_epsilon(events: Sequence[Bounded], delta: float) -> float:
    """Compose by privacy loss distributions.

    Return infinity if a loss is too large, so that the caller uses the plain sum.
    """
    if any(event.epsilon > _MOST_LOSS for event in events if not isinstance(event, GaussianDP)):
        return math.inf
    try:
        from dp_accounting import NeighboringRelation  # a second to import, and pure DP does not need it
        from dp_accounting.pld import common, privacy_loss_distribution
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"privacy.cap: {error.name}, which adds up releases, is missing; run: pip install dp-accounting"
        ) from None

    # A coarser grid for large losses keeps the convolutions short; every grid is pessimistic, so only tightness varies.
    rough = sum(
        event.epsilon if not isinstance(event, GaussianDP) else event.releases / event.noise_multiplier for event in events
    )
    step = min(max(1e-4, rough / 5e4), 0.05)
    composed = None
    for event, count in Counter(events).items():
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
