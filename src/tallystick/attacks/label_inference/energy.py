"""Compare energy by direction. Noise in all directions of one class is visible where the other class has little variance.

Shapes: B rows of a step's batch, N rows of the run, H halves of the directions.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from tallystick.attacks.label_inference.observations import binary_only, matrices, whole_run
from tallystick.attacks.matrix import two_means_cut
from tallystick.attacks.second_moments import HALVES, SecondMoments, StepRows
from tallystick.attacks.view import Scores, View
from tallystick.errors import DataError


@dataclass(frozen=True, kw_only=True)
class EnergyAttack:
    """Score a row by its gradients' energy in the half of the directions in which gradients vary least, or most, over all epochs.

    In no paper. Marvell (Li et al. 2022) models each class as isotropic and adds noise to one class in all directions, while real
    gradients lie in few directions. So in directions where the data vary little, only that class has energy. The mean gradient
    does not show this, and neither does its length, which the directions of high variance determine. The score averages, over
    all epochs, minus the logarithm of the energy, minus its batch's mean (``SecondMoments``). The attacker knows which class is
    rarer: scores are split into two groups, and the smaller one is the rarer class. It reads cut gradients. Binary targets only.

    Args:
        half: which half of the directions: "low" or "high" variance.
    """

    half: Literal["low", "high"] = "low"

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score all rows that were seen. It draws nothing at random. Raises DataError for a gradient that is not finite."""
        binary_only(view, "energy attack", "completion or clusters")
        (step, *others) = view.steps
        if not others and step.energy_BH is not None:
            order_B = step.rows_B.argsort()
            rows, energy_NH = step.rows_B[order_B], step.energy_BH[order_B].double()
        else:
            moments = SecondMoments()
            sum_NH, count_N = torch.zeros(view.rows, len(HALVES), dtype=torch.float64), torch.zeros(view.rows)
            for each, matrix_BD in zip(view.steps, matrices(view, "cut_gradient"), strict=True):
                energy_BH, _ = moments(StepRows.of(matrix_BD.float()[None]))
                sum_NH.index_add_(0, each.rows_B, energy_BH.double())
                count_N[each.rows_B] += 1
            rows = torch.nonzero(count_N).squeeze(1)
            energy_NH = sum_NH[rows] / count_N[rows, None]
        score_N = energy_NH[:, HALVES.index(self.half)]
        if not bool(torch.isfinite(score_N).all()):
            raise DataError("energy attack: a gradient was NaN or infinite; training diverged or the record is damaged")
        cut = two_means_cut(score_N)
        if cut is not None and int((score_N > cut).sum()) * 2 > len(score_N):
            score_N = -score_N
        return whole_run(view, rows, score_N)
