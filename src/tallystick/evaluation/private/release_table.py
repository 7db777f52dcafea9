"""The mechanisms of a private AUC by name: a mechanism is a file here and a row in this table.

A row's class says what it protects and reveals, and whether a release may pick it by itself; everybody outside
this package takes it from here, and docs/reference/methods.md is made of it.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tallystick.errors import ConfigError
from tallystick.evaluation.private.aggregation import SecureSum
from tallystick.evaluation.private.histogram import LabelHistogram, RecordHistogram
from tallystick.evaluation.private.mechanism import CountingMechanism, Mechanism
from tallystick.evaluation.private.ranks import RandomisedResponse, TwoStatistics
from tallystick.evaluation.private.scores import NoisyScores
from tallystick.evaluation.private.thresholds import ThresholdCounts

COUNTING: Mapping[str, type[CountingMechanism]] = MappingProxyType(
    {
        mechanism.name: mechanism
        for mechanism in (TwoStatistics, LabelHistogram, RecordHistogram, ThresholdCounts, RandomisedResponse, SecureSum)
    }
)
"""Those that answer with counts: what can be released."""
MECHANISMS: Mapping[str, type[Mechanism]] = MappingProxyType({**COUNTING, NoisyScores.name: NoisyScores})
"""All of them."""


def counting(name: str, **settings: Any) -> CountingMechanism:
    """Make a mechanism that answers with counts. Raises ConfigError for an unknown name or settings out of range."""
    if name not in COUNTING:
        raise ConfigError(f"mechanism {name!r} is not known; expected one of {', '.join(COUNTING)}")
    return COUNTING[name](**settings)
