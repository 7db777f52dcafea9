"""Every membership attack on one party's view, evaluated: what a report's membership section holds.

Shapes: B rows of a step's batch, U rows of the union, N rows that some step shows.

A side can attack itself without learning anything new: what it sent is the other side's view, and which rows it has is the truth.
It does not know which rows the attacker has, so it marks all as the attacker's (``own_B`` true): rows that only it has count as
real rows, as they are.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.membership.table import MEMBERSHIP_ATTACKS
from tallystick.attacks.metrics import AttackEvaluator, AttackMetrics
from tallystick.attacks.view import Attack, Received, StepView, View, renumbered

EVALUATOR = AttackEvaluator(fpr=0.0, either_end=True)


def evaluate_membership(
    received: Received,
    steps: Sequence[StepView],
    present_U: Tensor,
    *,
    planted: int = 200,
    attacks: Mapping[str, Attack] | None = None,
    seed: int = 0,
) -> dict[str, AttackMetrics]:
    """Attack a view and measure how well that tells members.

    FLORIST, appendix C, and the stronger attacks beside them. No guarantee: no attack here found more, another may.

    Args:
        received: what the view's owner received: "cut_gradient" for the feature party, "cut_embedding" for the label party.
        steps: its view, step by step.
        present_U: bool, the truth: does the side that sent have row u itself?
        planted: rows of each kind that the attacker is told (it can plant dummy ids); at most a quarter of each kind.
        attacks: by name; by default all for that kind of view.
        seed: of the told rows, of attacks that draw, and of the bootstrap.

    Returns:
        metrics per attack, leaving out attacks that had nothing to see (one epoch, or all rows of one kind).
    """
    rng = np.random.default_rng([seed, 2])
    steps, numbers_N = renumbered(steps)
    present_N = present_U[numbers_N]
    own_N = torch.zeros_like(present_N)
    for step in steps:
        own_N[step.rows_B[step.own_B]] = True
    told = []
    for kind_N in (present_N, ~present_N):
        candidates = torch.nonzero(kind_N & own_N).squeeze(1).numpy()
        told.append(torch.from_numpy(rng.choice(candidates, size=min(planted, len(candidates) // 4), replace=False)))
    view = View(received=received, steps=steps, known_present=told[0], known_absent=told[1])
    found = {}
    for name, attack in (MEMBERSHIP_ATTACKS[received] if attacks is None else attacks).items():
        scores = attack(view, generator=torch.Generator().manual_seed(seed))
        metrics = EVALUATOR(scores, present_N, rng=np.random.default_rng(seed))
        if metrics is not None:
            found[name] = metrics
    return found
