"""Define DP events: the cost of one release, as data. ``composition`` adds several up.

An event states its neighbours: ``label`` (two data sets that differ in one example's label) or ``record`` (in one example's label
and features). A record event protects the label as well, so both count towards the label budget. A label event guarantees nothing
about a record. ``key`` (in one example's linking key, by no more than the contract's radius) is separate: such a release reveals
keys, not labels, and its events are summed separately, in a data set of keys.
"""

import math
from typing import Literal, TypeAlias

import msgspec

from tallystick.errors import ConfigError

Unit = Literal["label", "record", "key"]

LEAST_EPSILON, MOST_EPSILON = (
    1e-9,
    1e9,
)  # limits of a release; beyond them noise is too wide for float64's exact integers, or is 0


class PureDP(msgspec.Struct, frozen=True, kw_only=True, tag="pure", forbid_unknown_fields=True):
    """An epsilon-DP release (Laplace, geometric, randomised response)."""

    epsilon: float
    unit: Unit = "label"

    def __post_init__(self) -> None:
        _check_recorded(self.epsilon)


class ApproximateDP(msgspec.Struct, frozen=True, kw_only=True, tag="approximate", forbid_unknown_fields=True):
    """An (epsilon, delta)-DP release about which nothing more is known."""

    epsilon: float
    delta: float
    unit: Unit = "label"

    def __post_init__(self) -> None:
        _check_recorded(self.epsilon)
        check_delta(self.delta)


class GaussianDP(msgspec.Struct, frozen=True, kw_only=True, tag="gaussian", forbid_unknown_fields=True):
    """``releases`` Gaussian releases, each with noise of ``noise_multiplier`` times its L2 sensitivity.

    The sensitivity is how far the released vector moves when one example is replaced by its neighbour. With ``sampling_rate``
    below 1 each release reads a new Poisson sample of the examples (DP-SGD), and one example's term has a norm of at most half
    the sensitivity: for a clipping norm C and noise sigma the multiplier is sigma / (2 C).
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
    """Gaussian releases of this noise that an earlier event charged and that were never made. They are subtracted from the sum.

    How many releases are made may depend on earlier ones, as with early stopping. Gaussian releases compose fully adaptively
    (Smith and Thakurta 2022, "Fully adaptive composition for Gaussian differential privacy"), so a cap on their sum holds for the
    releases that were made.
    """

    noise_multiplier: float
    releases: int
    unit: Unit = "label"

    def __post_init__(self) -> None:
        if self.releases < 1:
            raise ConfigError(f"releases is {self.releases}; it must be at least 1")


class NotPrivate(msgspec.Struct, frozen=True, kw_only=True, tag="not-private", forbid_unknown_fields=True):
    """A release without a guarantee, such as an exact AUC: no epsilon bounds it, so a ledger lists it outside its sums."""

    unit: Unit = "label"


Bounded: TypeAlias = PureDP | ApproximateDP | GaussianDP
Event: TypeAlias = Bounded | NotPrivate
Entered: TypeAlias = Event | UnsentGaussianDP
"""Entries of a ledger: releases, and those of them that were never made."""


def check_epsilon(epsilon: float) -> None:
    """Refuse an epsilon that no release or cap can have: not a number, not above 0, or far out of range."""
    if not LEAST_EPSILON <= epsilon <= MOST_EPSILON:
        raise ConfigError(
            f"epsilon is {epsilon!r}; it must be a number from {LEAST_EPSILON:g} to {MOST_EPSILON:g} (1 is a usual choice)"
        )


def _check_recorded(epsilon: float) -> None:
    """Refuse an epsilon that is not a finite number above 0. A ledger's entries stay readable, however large they are."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ConfigError(f"epsilon is {epsilon!r}; it must be a finite number above 0 (1 is a usual choice)")


def check_delta(delta: float) -> None:
    """Refuse a delta outside (0, 1)."""
    if not 0 < delta < 1:
        raise ConfigError(f"delta is {delta!r}; it must lie in (0, 1), well below one over the number of examples")
