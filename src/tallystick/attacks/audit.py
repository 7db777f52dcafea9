"""The membership audit: every attack on one party's view, judged; what a report's membership section holds.

Shapes: B rows of a step's batch, U rows of the union.

A side can audit itself without learning anything new: what it sent is the other side's view, and which rows it has is the truth.
It does not know which rows the attacker has, so it marks all as the attacker's (``own_B`` true): rows that only it has count as
real rows, as they are.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.judge import Judge, Verdict
from tallystick.attacks.membership import FEATURE_PARTY_ATTACKS, LABEL_PARTY_ATTACKS
from tallystick.attacks.view import Attack, Received, StepView, View

ATTACKS: Mapping[Received, Mapping[str, Attack]] = {"cut_gradient": FEATURE_PARTY_ATTACKS, "cut_embedding": LABEL_PARTY_ATTACKS}


def audit_membership(
    received: Received,
    steps: Sequence[StepView],
    present_U: Tensor,
    *,
    planted: int = 200,
    attacks: Mapping[str, Attack] | None = None,
    seed: int = 0,
) -> dict[str, Verdict]:
    """Attack a view and judge.

    FLORIST, appendix C, and the stronger attacks of membership.py. No guarantee: no attack here found more, another may.

    Args:
        received: what the view's owner received: "cut_gradient" for the feature party, "cut_embedding" for the label party.
        steps: its view, step by step.
        present_U: bool, the truth: does the side that sent have row u itself?
        planted: rows of each kind that the attacker is told (it can plant dummy ids); at most a quarter of each kind.
        attacks: by name; by default all for that kind of view.
        seed: of the told rows, of attacks that draw, and of the bootstrap.

    Returns:
        a verdict per attack, leaving out attacks that had nothing to see (one epoch, or all rows of one kind).
    """
    rng = np.random.default_rng([seed, 2])
    seen = torch.nonzero(torch.bincount(torch.cat([step.rows_B for step in steps]))).squeeze(1)
    own_U = torch.zeros(len(present_U), dtype=torch.bool)
    for step in steps:
        own_U[step.rows_B[step.own_B]] = True
    told = []
    for kind_U in (present_U, ~present_U):
        candidates = seen[(kind_U & own_U)[seen]].numpy()
        told.append(torch.from_numpy(rng.choice(candidates, size=min(planted, len(candidates) // 4), replace=False)))
    view = View(received=received, steps=tuple(steps), known_present=told[0], known_absent=told[1])
    judge, found = Judge(), {}
    for name, attack in (ATTACKS[received] if attacks is None else attacks).items():
        scores = attack(view, generator=torch.Generator().manual_seed(seed))
        verdict = judge(scores, present_U, rng=np.random.default_rng(seed))
        if verdict is not None:
            found[name] = verdict
    return found


def as_figures(verdict: Verdict) -> dict[str, Any]:
    """Write a verdict as plain numbers, for JSON."""
    return {
        "auc": verdict.auc.mean,
        "auc_interval": [verdict.auc.low, verdict.auc.high],
        "chance": 0.5 + verdict.folding,
        "tpr_at_fpr_0": verdict.tpr_at_fpr.mean,
        "tpr_at_fpr_0_interval": [verdict.tpr_at_fpr.low, verdict.tpr_at_fpr.high],
    }
