"""Say how much of joining's gain a student keeps: in figures, in a line and on its card."""

from collections.abc import Mapping
from typing import Any, TypedDict

from tallystick.config.contract import Contract
from tallystick.evaluation.measure import Comparison
from tallystick.export.half import Exported
from tallystick.metrics import METRICS, TargetType

HEADLINES: dict[TargetType, str] = {
    "binary": "auc",
    "multiclass": "auc",
    "regression": "rmse",
    "count": "deviance",
    "survival": "concordance",
    "quantile": "pinball",
}


class Kept(TypedDict):
    """One metric on the test rows that have a joint score.

    ``kept`` is the student's share of joining's gain; None if the joint model is not clearly better than own columns.
    """

    own: float | None
    student: float | None
    joint: float | None
    gain: float | None
    gain_low: float | None
    gain_high: float | None
    joint_gain: float | None
    kept: float | None


def gain_kept(name: str, target: TargetType, joint: Comparison, alone: Comparison) -> Kept:
    """Return own columns, student and joint model by one metric. Both comparisons are with own columns on the same rows."""
    own, joint_gains, gains = joint["local_baseline"], joint["difference"], alone["difference"]
    assert own is not None, "own columns are the baseline of both"
    assert joint_gains is not None, "own columns are the baseline of both"
    assert gains is not None, "own columns are the baseline of both"
    joint_gain, gain = joint_gains[name], gains[name]
    sign = 1 if METRICS[target][name].higher_is_better else -1
    bound = joint_gain["low"] if sign > 0 else joint_gain["high"]
    share = None
    if gain["value"] is not None and joint_gain["value"] is not None and bound is not None and sign * bound > 0:
        share = gain["value"] / joint_gain["value"] + 0.0  # write 0, not -0, if there is no gain
    return Kept(
        own=own[name]["value"],
        student=alone["joint"][name]["value"],
        joint=joint["joint"][name]["value"],
        gain=gain["value"],
        gain_low=gain["low"],
        gain_high=gain["high"],
        joint_gain=joint_gain["value"],
        kept=share,
    )


def kept_line(figures: Mapping[str, Any]) -> str:
    """Say in a line how much of joining's gain the student keeps."""
    name = figures["headline"]
    value: Kept = figures["metrics"][name]
    own, student, joint = (
        f"{each:.4f}" if each is not None else "none" for each in (value["own"], value["student"], value["joint"])
    )
    line = f"{name} on {figures['rows']['test']:,} test rows: own columns {own}, student {student}, joint {joint}"
    if value["kept"] is None:
        return f"{line}; joining brings no clear gain there that a student could keep"
    assert value["gain"] is not None
    within = f" [{value['gain_low']:+.4f}, {value['gain_high']:+.4f}]" if value["gain_low"] is not None else ""
    return f"{line}; the student gains {value['gain']:+.4f}{within}, {value['kept']:.0%} of what joining gains"


def student_card(contract: Contract, exported: Exported, facts: Mapping[str, Any]) -> str:
    """Write the card of a student."""
    rows = "\n".join(
        f"| {name} | {' | '.join('none' if value[of] is None else f'{value[of]:.4f}' for of in ('own', 'student', 'joint'))} |"
        for name, value in facts["metrics"].items()
    )
    lesson = (
        "On validation rows, labels alone did best: it is the network of own columns, trained without scores."
        if facts["share"] == 0
        else f"Of each target {facts['share']:g} is the joint model's score of run {facts['run']}, and the rest the label."
    )
    parts = (
        f"# {contract.name}: a student of {exported.origin.party}",
        f"A network of the columns of {exported.origin.party} that scores alone. {lesson}",
        "`model.onnx` takes columns as `encoder.json` encodes them, in the order of `inputs.json`. `tallystick score-alone` "
        f"takes a table. Output: {exported.meaning['output']}.",
        "## How good it is",
        kept_line(facts) + ".",
        f"| metric | own columns | student | joint model |\n|---|---|---|---|\n{rows}",
        "## What it must not be used for",
        "- Not to be given away without thought: its weights tell of the rows and labels that trained it, and, by the scores, of "
        "the columns of the other parties. What these agreed to is in the contract between the parties.\n"
        "- Do not mix its scores with the joint model's: it is a separate model, and its scores have another calibration.",
    )
    return "\n\n".join(parts) + "\n"
