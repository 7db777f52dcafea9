"""Evaluate every membership attack on one party's view, for a report's membership section.

Shapes: B rows of a step's batch, U rows of the union, N rows that occur in a step.

A side can attack itself without learning anything new: its own messages are the other side's view, and its own row list is the
truth. It does not know which rows the attacker has, so it marks all as the attacker's (``own_B`` true). Rows that only this side
has then count as real rows, which they are.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
from tallystick.attacks.membership.observations import Needs
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics, Bootstrap
from tallystick.attacks.view import Attack, Received, StepView, View, renumbered
from tallystick.errors import DataError

EVALUATOR = AttackEvaluator(fpr=0.0, either_end=True)


@dataclass(frozen=True, kw_only=True)
class MembershipLeaks:
    """Findings of the attacks on one view.

    Args:
        found: metrics of each attack that had something to see.
        not_measured: the reasons for the others, each with the names of the attacks that share it.
    """

    found: Mapping[str, AttackMetrics]
    not_measured: Mapping[str, str]


def evaluate_membership(
    received: Received,
    steps: Sequence[StepView],
    present_U: Tensor,
    *,
    planted: int = 200,
    attacks: Mapping[str, Attack] | None = None,
    own_UA: Tensor | None = None,
    sent: Callable[[Tensor], Tensor] | None = None,
    seed: int = 0,
) -> MembershipLeaks:
    """Attack a view and measure how well that tells members.

    FLORIST, appendix C, and stronger attacks in addition. No guarantee: no attack here found more, another may.

    Args:
        received: what the view's owner received: "cut_gradient" for the feature party, "cut_embedding" for the label party.
        steps: its view, step by step; steps with a value that is not finite are left out, and the result says so.
        present_U: bool, the truth: whether the sending side has row u itself.
        planted: rows of each kind that the attacker knows (it can plant dummy ids); at most a quarter of each kind.
        attacks: by name; by default all for that kind of view.
        own_UA: the columns of the view's owner, as numbers, if they are available.
        sent: returns the columns of rows (R,) that the other side embedded, as numbers (R, C); needed to measure an attacker who
            rebuilt them.
        seed: seed of the known rows, of attacks that draw, and of the bootstrap.

    Returns:
        metrics per attack, and why other attacks could not be measured (one epoch, or all rows of one kind).
    """
    attacks = MEMBERSHIP_ATTACKS[received] if attacks is None else attacks
    finite = [step for step in steps if bool(step.received_BD.float().square().isfinite().all())]
    unmeasured: dict[str, str] = {}
    if len(finite) < len(steps):
        lost = f"{len(steps) - len(finite)} of {len(steps)} recorded steps"
        unmeasured[lost] = "they hold NaN, infinite or huge values, as if training had diverged, and no attack read them"
    if not finite:
        return MembershipLeaks(found={}, not_measured=unmeasured | {", ".join(attacks): "no step is left that could be attacked"})
    # Number the rows anew, and choose those that the attacker knows
    rng = np.random.default_rng([seed, 2])
    numbered_steps, numbers_N = renumbered(finite)
    present_N = present_U[numbers_N]
    own_N = torch.zeros_like(present_N)
    for step in numbered_steps:
        own_N[step.rows_B[step.own_B]] = True
    planted_rows = []
    for kind_N in (present_N, ~present_N):
        candidates = torch.nonzero(kind_N & own_N).squeeze(1).numpy()
        planted_rows.append(torch.from_numpy(rng.choice(candidates, size=min(planted, len(candidates) // 4), replace=False)))
    told_present, told_absent = planted_rows
    view = View(received=received, steps=tuple(numbered_steps), known_present=told_present, known_absent=told_absent)
    view = view if own_UA is None else replace(view, own_NA=own_UA[numbers_N])
    view = view if sent is None else replace(view, sent_NC=sent(numbers_N))
    leaks, reasons, bootstrap = {}, {}, Bootstrap(seed)
    for name, attack in attacks.items():
        scores = attack(view, generator=torch.Generator().manual_seed(seed))
        try:
            metrics = EVALUATOR(scores, present_N, bootstrap=bootstrap)
        except DataError as error:  # a score that is not finite
            reasons[name] = str(error)
            continue
        if metrics is not None:
            leaks[name] = metrics
        else:
            if bool((present_N == present_N[0]).all()):
                reasons[name] = (
                    f"the sending side has {'all' if present_N[0] else 'none'} of the recorded rows: there are no two kinds of "
                    "rows to distinguish"
                )
            else:
                unknown_N = view.known() == 0
                if not (present_N & unknown_N).any() or not (~present_N & unknown_N).any():
                    reasons[name] = "too few rows of one kind are left that the attacker does not know already"
                elif isinstance(attack, Needs):
                    reasons[name] = attack.unmet(view)
                else:
                    reasons[name] = "no group of the rows that it scores holds rows of both kinds"
    for reason in dict.fromkeys(reasons.values()):
        unmeasured[", ".join(name for name, its in reasons.items() if its == reason)] = reason
    return MembershipLeaks(found=leaks, not_measured=unmeasured)
