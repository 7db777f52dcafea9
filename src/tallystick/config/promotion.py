"""Decide when a new run replaces the one in use: the contract's rule, which `compare --decide` follows."""

from typing import Annotated

from pydantic import Field

from tallystick.metrics import METRICS, TargetType
from tallystick.reading import Model, Text, WholeShare, shown

Epsilon = Annotated[float, Field(strict=True, ge=1e-6, le=100)]


class PromotionConfig(Model):
    """The rule by which `tallystick compare OLD NEW --decide` says whether NEW is to be promoted."""

    metric: Text | None = Field(
        default=None,
        description="what is compared; null is the first metric of the target: "
        + "; ".join(f"{target} {', '.join(metrics)}" for target, metrics in METRICS.items()),
    )
    least_gain: float = Field(
        default=0.0, strict=True, ge=-1e9, le=1e9, description="by how much the new run has to be better; below 0 it may be worse"
    )
    calibration_slack: WholeShare | None = Field(
        default=None,
        description="by how much the new run's adaptive calibration error may be larger; null does not ask (no regression)",
    )
    epsilon: Epsilon | None = Field(
        default=None,
        description="label-DP budget of one decision: the answer is turned with probability 1 / (1 + e^epsilon), and the label "
        "party's ledger is charged; null decides exactly, which is entered as not private, and is refused where "
        "training.gradients is none or shared",
    )

    def metric_of(self, target: TargetType) -> str:
        """Return the metric's name."""
        return self.metric or next(iter(METRICS[target]))


def promotion_problems(rule: PromotionConfig, target: TargetType) -> list[str]:
    """List what of the rule is impossible for a contract with this target."""
    problems = []
    if rule.metric is not None and rule.metric not in METRICS[target]:
        allowed = ", ".join(METRICS[target])
        problems.append(f"promotion.metric = {shown(rule.metric)}: is not a metric of {target} targets; allowed: {allowed}")
    if rule.calibration_slack is not None and "ace" not in METRICS[target]:
        problems.append(f"promotion.calibration_slack: {target} targets have no calibration error; leave it out")
    return problems
