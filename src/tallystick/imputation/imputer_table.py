"""List the imputers by name. An imputer is a class in this folder and a row in this table.

A row's class says what it imputes, how it may be calibrated and what it cannot be combined with. A *strategy* is an imputer with
one way of calibrating it, given by a suffix to its name (FLORIST's ``-tr`` and ``-te``, and ``-fit``). config/imputation.py makes
the contract's keys from the strategies, benchmark/florist its runs, and docs/explanation/unions.md is checked against them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TypeVar

from tallystick.errors import ConfigError
from tallystick.imputation.feature_imputers import GaussianFeatures, RandomFeatures, SamplingFeatures
from tallystick.imputation.imputer import FeatureImputer, Imputer, LabelImputer, When
from tallystick.imputation.label_imputers import (
    MajorityLabels,
    MinorityLabels,
    NeighborLabels,
    RandomPositiveLabels,
    RandomPredictedLabels,
    SettledLabels,
)
from tallystick.imputation.spliced_features import SplicedFeatures

LABEL_IMPUTERS: Mapping[str, type[LabelImputer]] = MappingProxyType(
    {
        imputer.name: imputer
        for imputer in (
            *(MajorityLabels, MinorityLabels, RandomPositiveLabels, RandomPredictedLabels, NeighborLabels),
            SettledLabels,
        )
    }
)
FEATURE_IMPUTERS: Mapping[str, type[FeatureImputer]] = MappingProxyType(
    {imputer.name: imputer for imputer in (GaussianFeatures, RandomFeatures, SamplingFeatures, SplicedFeatures)}
)
SUFFIXES: Mapping[When, str] = MappingProxyType({"never": "", "training": "-tr", "prediction": "-te", "fitted": "-fit"})

ImputerType = TypeVar("ImputerType", bound=Imputer)


def _strategies(imputers: Mapping[str, type[ImputerType]]) -> Mapping[str, tuple[type[ImputerType], When]]:
    return MappingProxyType(
        {name + SUFFIXES[when]: (imputer, when) for name, imputer in imputers.items() for when in imputer.calibrated}
    )


LABEL_STRATEGIES: Mapping[str, tuple[type[LabelImputer], When]] = _strategies(LABEL_IMPUTERS)
FEATURE_STRATEGIES: Mapping[str, tuple[type[FeatureImputer], When]] = _strategies(FEATURE_IMPUTERS)


def label_strategy(name: str) -> tuple[LabelImputer, When]:
    """Look up a strategy for absent labels. Raises ConfigError for an unknown name."""
    return _made(name, LABEL_STRATEGIES, "labels")


def feature_strategy(name: str) -> tuple[FeatureImputer, When]:
    """Look up a strategy for absent features. Raises ConfigError for an unknown name."""
    return _made(name, FEATURE_STRATEGIES, "features")


def _made(name: str, table: Mapping[str, tuple[type[ImputerType], When]], what: str) -> tuple[ImputerType, When]:
    if name not in table:
        raise ConfigError(f"synthetic {what}: unknown strategy {name!r}; expected one of {', '.join(table)}")
    imputer, when = table[name]
    return imputer(), when
