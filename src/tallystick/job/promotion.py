"""Whether a new run is to take the place of the one in use, by the contract's rule: what a scheduler asks."""

from dataclasses import asdict, dataclass
from typing import Any

import yaml

from tallystick.config.contract import parse_contract
from tallystick.errors import ConfigError
from tallystick.metrics import METRICS
from tallystick.results import Result


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What the rule says, and by which figures.

    Args:
        promote: whether the new run is to be promoted.
        metric: what was compared.
        before, after: its values; of the old run and of the new one.
        gain: by how much the new run is better, in the metric's own units.
        reasons: a sentence each.
    """

    promote: bool
    metric: str
    before: float
    after: float
    gain: float
    reasons: list[str]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        return asdict(self)


def decide_promotion(old: Result, new: Result) -> Decision:
    """Compare two runs by the rule of the new one's contract.

    Each run is measured on its own test rows: where these differ, so may the figures for that reason alone, and a sentence says
    so. Raises ConfigError where a result has no such figure, as a feature party's has none.
    """
    contract = parse_contract(yaml.safe_load(new.contract.yaml), source="the new run's contract")
    rule, metrics = contract.promotion, METRICS[contract.target.type]
    name = rule.metric_of(contract.target.type)
    before, after = _value(old, name, "old"), _value(new, name, "new")
    gain = after - before if metrics[name].higher_is_better else before - after
    better = gain >= rule.least_gain
    reasons = [
        f"{metrics[name].title}: {before:.6g} before, {after:.6g} now, a gain of {gain:.6g}; promotion.least_gain = "
        f"{rule.least_gain:g} {'is reached' if better else 'is not reached'}"
    ]
    calibrated = True
    if rule.calibration_slack is not None:
        worse = _value(new, "ace", "new") - _value(old, "ace", "old")
        calibrated = worse <= rule.calibration_slack
        reasons.append(
            f"{metrics['ace'].title}: larger by {worse:.6g}; promotion.calibration_slack = {rule.calibration_slack:g} "
            f"{'is kept' if calibrated else 'is passed'}"
        )
    if _rows(old) != _rows(new):
        reasons.append("the runs were measured on other test rows: a difference may come from the rows alone")
    return Decision(promote=better and calibrated, metric=name, before=before, after=after, gain=gain, reasons=reasons)


def _value(result: Result, name: str, which: str) -> float:
    shared = result.sections.shared
    found = result.joint or (shared.metrics if shared is not None else {})
    value = found[name]["value"] if name in found else None
    if value is None:
        raise ConfigError(
            f"the {which} run {result.run_id} has no {name} of the joint model here, so nothing can be decided; decide "
            "at the label party, on runs that were evaluated"
        )
    return value


def _rows(result: Result) -> tuple[Any, Any] | None:
    return (result.evaluation["rows"], result.evaluation["label_mean"]) if result.evaluation is not None else None
