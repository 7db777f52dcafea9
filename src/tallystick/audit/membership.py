"""Audit a union run for membership: attack what a party sent as its peer could, and compare with the true members.

Shapes: B rows of a step's batch, N rows of the union.
"""

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from tallystick import results
from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
from tallystick.attacks.membership.cells import UniqueCells
from tallystick.attacks.membership.evaluate import evaluate_membership
from tallystick.attacks.view import Received, StepView

MEMBERSHIP_EPOCHS = 2  # number of first epochs to record, because attacks compare two messages about the same row
LATER_EPOCHS = 6  # number of later epochs, spread over training, because a label drawn from the model may change at any time
REBUILT = "the columns that were embedded, if they were rebuilt without error"
OUT_OF_REACH: Mapping[Received, Mapping[str, str]] = {
    "cut_embedding": {
        "one pass": "it compares embeddings of the whole union at one stage of the model, as in validation, evaluation or "
        "prediction, and only steps of training are recorded (bench florist measures it)",
    },
    "cut_gradient": {
        "agreement of own columns": "a feature party could compare labels with its own columns, and this side has only its "
        "embeddings; on click data, boosting of own columns found .010 to .014 more about settled labels",
    },
}
"""Attacks that need data which a run does not record."""


def audit_membership(
    steps: Sequence[StepView],
    own_N: Tensor,
    *,
    peer: str,
    received: Received,
    say: Callable[[str], None],
    sent: Callable[[Tensor], Tensor] | None = None,
) -> results.Audit:
    """Attack what this party sent, as its peer could, and compare with the true members, which only this party knows.

    ``sent`` gives the columns that this party embedded, by row, as a peer that rebuilt them would have them.

    The findings give a reason for what could not be measured: one epoch, no rows of both kinds, a training that diverged, no
    steps. Threat model: an honest-but-curious peer. No guarantee: no attack here found more, another may.
    """
    what = "cut gradients" if received == "cut_gradient" else "cut embeddings"
    question = f"Could {peer} tell from {what} which rows of the union this side has?"
    defense = "synthetic rows; no formal guarantee"
    if not steps:
        none = f"any attack, in {peer}'s seat: no step was recorded"
        return results.Audit(summary=f"{question} That was not measured.", defense=defense, not_measured=[none])
    say("attacking what this side sent, as the peer could")
    leaks = evaluate_membership(received, steps, own_N, sent=sent)
    attacks = []
    for name, metrics in leaks.found.items():
        of_columns = isinstance(MEMBERSHIP_ATTACKS[received][name], UniqueCells)
        chance = metrics.chance_symmetric_auc
        note = f"a guess would give {chance:.3f}" if chance > 0.505 else ""
        if of_columns:
            note = "needs every column of every row without error; it shows what an attacker could find who rebuilds them"
        attacks.append(
            results.AttackResult(
                name=name,
                view=f"{peer}, from {REBUILT if of_columns else what}",
                auc=metrics.symmetric_auc.mean,
                low=metrics.symmetric_auc.low,
                high=metrics.symmetric_auc.high,
                tpr_at_fpr_0=metrics.tpr_at_fpr.mean,
                upper_bound=of_columns,
                note=note,
            )
        )
    epochs = ", ".join(str(epoch + 1) for epoch in sorted({step.epoch for step in steps}))
    rows = sum(len(step.rows_B) for step in steps)
    measured = f"Measured on {rows:,} rows of epochs {epochs}: a floor, because another attack may find more."
    summary = f"{question} {measured if attacks else 'That was not measured.'}"
    reasons = {**leaks.not_measured, **OUT_OF_REACH[received]}
    return results.Audit(
        summary=summary,
        defense=defense,
        attacks=attacks,
        not_measured=[f"{names}, in {peer}'s seat: {reason}" for names, reason in reasons.items()],
    )
