"""DP events: what one release cost, as data. ``composition`` adds several up.

An event states its neighbours: ``label`` (two data sets that differ in one example's label) or ``record`` (in one
example's label and features). A record event protects the label as well, so both count towards the label budget;
a label event promises nothing about a record. ``key`` (in one example's linking key, by no more than the contract's radius)
stands apart: such a release tells of keys, not of labels, and its events are summed by themselves, in a data set of keys.
"""

import math
from typing import Literal, TypeAlias

import msgspec

from tallystick.errors import ConfigError

Unit = Literal["label", "record", "key"]

LEAST_EPSILON, MOST_EPSILON = 1e-9, 1e9  # of what is to be released; beyond, noise leaves float64's exact integers, or is none


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

    How many are made may depend on what was released before, as with early stopping: Gaussian releases compose fully adaptively
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
    """Refuse an epsilon that is not a finite number above 0. A ledger's entries stay readable whatever their size."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon is {epsilon!r}; it must be a finite number above 0 (1 is a usual choice)")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta!r}; it must lie in (0, 1), well below one over the number of examples")
