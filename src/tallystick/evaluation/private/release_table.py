"""List the mechanisms of a private AUC by name: a mechanism is a file here and a row in this table.

A row's class says what it protects and reveals, and whether a release may choose it by itself. All code outside this package uses
this table, and docs/reference/methods.md is made from it.
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
"""Mechanisms that answer with counts. These can be released."""
MECHANISMS: Mapping[str, type[Mechanism]] = MappingProxyType({**COUNTING, NoisyScores.name: NoisyScores})
"""All mechanisms."""


def counting(name: str, **settings: Any) -> CountingMechanism:
    """Make a mechanism that answers with counts. Raises ConfigError for an unknown name or settings out of range."""
    if name not in COUNTING:
        raise ConfigError(f"mechanism {name!r} is not known; expected one of {', '.join(COUNTING)}")
    return COUNTING[name](**settings)
