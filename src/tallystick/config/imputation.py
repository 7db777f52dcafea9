"""Declare the contract's imputation on a union: names, help and valid combinations, from the imputers' table."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from tallystick.defenses.defense import Defense
from tallystick.imputation.imputer import Imputer, When
from tallystick.imputation.imputer_table import FEATURE_STRATEGIES, LABEL_STRATEGIES, SUFFIXES, label_strategy

if TYPE_CHECKING:
    LabelStrategy: TypeAlias = str
    FeatureStrategy: TypeAlias = str
else:
    LabelStrategy = Literal[tuple(LABEL_STRATEGIES)]
    FeatureStrategy = Literal[tuple(FEATURE_STRATEGIES)]

WHERE: Mapping[When, str] = {"training": "in training", "prediction": "at prediction", "fitted": "fitted on validation rows"}


def _help(strategies: Mapping[str, tuple[type[Imputer], Any]]) -> str:
    kinds = {imputer.name: imputer for imputer, _ in strategies.values()}
    meanings = {
        name: f"{imputer.gives}{f'; unsafe: {imputer.reader}' if imputer.reader else ''}" for name, imputer in kinds.items()
    }
    return ", ".join(f"{name} ({meanings[name]})" if name in meanings else name for name in strategies)


LABELS = f"what a label is that the label party lacks: {_help(LABEL_STRATEGIES)}"
FEATURES = f"what features are that the feature party lacks: {_help(FEATURE_STRATEGIES)}"


def imputation_problems(labels: str, features: str, *, validation: float) -> list[str]:
    """List the problems of two strategies together."""
    calibrations = {LABEL_STRATEGIES[labels][1], FEATURE_STRATEGIES[features][1]} - {"never"}
    both = f"union.labels = {labels}, union.features = {features}"
    problems = []
    if len(calibrations) > 1:
        *first, last = (f"{SUFFIXES[when]} ({where})" for when, where in WHERE.items())
        problems.append(f"{both}: they calibrate in different ways; choose one of {', '.join(first)} and {last} for both")
    if "fitted" in calibrations and validation == 0:
        problems.append(
            f"split.validation = 0: must be above 0 for {both}, which is fitted on validation rows; "
            f"or choose {SUFFIXES['training']}"
        )
    return problems


def defended_imputation_problems(labels: str, defenses: Sequence[type[Defense]]) -> list[str]:
    """List the defences with which a strategy for absent labels cannot be combined."""
    imputer = label_strategy(labels)[0]
    problems = []
    for number, defense in enumerate(defenses):
        where = f"defense.{number}.method = {defense.method}"
        if imputer.soft_targets and defense.needs_classes:  # it hides the class of a row's target
            alternatives = ", ".join(name for name in LABEL_STRATEGIES if not label_strategy(name)[0].soft_targets)
            problems.append(
                f"{where}: needs a class per row, but union.labels = {labels} gives targets between the classes; "
                f"choose one of {alternatives}"
            )
        if imputer.couples_rows and defense.own_target_only:  # its noise is scaled for one row's gradient
            alternatives = ", ".join(name for name in LABEL_STRATEGIES if not label_strategy(name)[0].couples_rows)
            problems.append(
                f"{where}, union.labels = {labels}: a label sets the targets of other rows, so a step would tell more of it than "
                f"the noise covers; choose one of {alternatives}, or a defence without a guarantee"
            )
    return problems
