"""Compare the direction of a row's cut gradient, in one epoch and over several.

Shapes: B rows of a step's batch, D cut width, N rows of the union.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from tallystick.attacks.matrix import top_direction
from tallystick.attacks.membership.observations import mean_over_run, other_epochs, unknown_per_step
from tallystick.attacks.view import Scores, View


@dataclass(frozen=True, kw_only=True)
class GradientDirection:
    """Score a row by the direction of its cut gradient. A row whose direction belongs to a label that is never imputed is real.

    Not in the paper. It makes no mistake on such rows: with majority labels every positive-looking gradient belongs to a shared
    row (TPR = rate of positives at FPR 0), with minority labels every negative-looking one. It reads the feature party's view.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch separately. It draws nothing at random."""
        return unknown_per_step(view, [oriented_cosine(step.received_BD) for step in view.steps])


@dataclass(frozen=True, kw_only=True)
class DirectionFlips:
    """Score a row by whether its gradient changes sides between epochs. A real label never changes; one that is drawn anew does.

    Not in the paper, whose attacks look at one batch at a time. Aimed at random-pred and random-pos labels that are drawn anew.
    In a run of one epoch it scores no rows.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score each row by |mean sign of its cosine| over the run. It draws nothing at random."""
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            sum_N[step.rows_B] += torch.sign(oriented_cosine(step.received_BD))
            count_N[step.rows_B] += 1
        return mean_over_run(view, sum_N.abs(), torch.where(count_N > 1, count_N, 0.0))

    def unmet(self, view: View) -> str:
        """Say that it needs several epochs."""
        return other_epochs(view)


def oriented_cosine(grad_BD: Tensor) -> Tensor:
    """Return the cosine of each gradient with the batch's main direction, oriented so that the rarer side of 0 is positive.

    A cut gradient is (p - y) times the top model's slope at that row. The slopes are similar, so the sign of the cosine separates
    the labels. The residuals of a fitted model add up to 0, so the rarer label has the longer gradients.
    """
    cosine_B = cosine_similarity(grad_BD.double(), top_direction(grad_BD)[None, :], dim=1)
    return cosine_B if (cosine_B > 0).double().mean() <= 0.5 else -cosine_B
