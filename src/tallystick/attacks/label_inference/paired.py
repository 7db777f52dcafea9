"""Score rows by whitened energy over pairs of epochs: the part of a row's gradients that repeats from epoch to epoch.

Shapes: B rows of a step's batch, N rows seen twice or more, D cut width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.label_inference.observations import binary_only, matrices, whole_run
from tallystick.attacks.matrix import centred, two_means_cut
from tallystick.attacks.second_moments import whitening
from tallystick.attacks.view import Scores, View
from tallystick.errors import DataError

FEW_NEGATIVE = 0.02  # if a smaller share of sums is negative, the repeated part of rows exceeds fresh noise
MORE_THAN_HALF = 0.51  # if the greater sums are a greater share of rows, they belong to the frequent class


@dataclass(frozen=True, kw_only=True)
class PairedEnergy:
    """Sum, over pairs of epochs, the inner products of a row's gradients, whitened by the covariance of their epoch.

    In no paper. Noise that a defence draws anew at every step is independent between epochs, so its inner products have mean 0.
    The row's own part, (p - y) J, repeats, and its inner products add up. Noise that is shaped like the gradients hides them
    equally in every direction, and whitening gives all directions the same weight. p - y is longer for the rarer class (see
    ``NormAttack``), in whatever direction its gradients point. But noise that a defence draws once for each row of the other
    class reverses that. So if hardly any sum is negative, the sums are split into two groups, and the smaller one is the rarer
    class.

    The sum over pairs is half the difference between the square of the sum and the sum of the squares. For a whole training it
    was accumulated during training, whitened by the covariance of earlier steps (``SecondMoments``), without the first epoch. For
    single steps it is computed from the recorded epochs. The attacker knows no label, only which class is rarer. Binary targets
    only.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score rows that were seen in at least two epochs. In a view of one epoch there are none.

        Raises DataError for a gradient that is not finite.
        """
        binary_only(view, "paired energy", "completion or clusters")
        (step, *others) = view.steps
        if not others and step.pairs_B is not None:
            if bool(step.pairs_B.isinf().any()):
                raise DataError("paired energy: a gradient was NaN or infinite; training diverged or the record is damaged")
            (seen_B,) = torch.nonzero(~step.pairs_B.isnan(), as_tuple=True)
            rows_B = step.rows_B[seen_B]
            order_B = rows_B.argsort()
            return whole_run(view, rows_B[order_B], _turned(step.pairs_B[seen_B[order_B]].double()))
        if len(view.epochs) < 2:
            none = torch.empty(0, dtype=torch.int64)
            return whole_run(view, none, none.double())
        grads_BD = list(matrices(view, "cut_gradient"))
        sum_ND, square_N, count_N = torch.zeros(0), torch.zeros(view.rows).double(), torch.zeros(view.rows)
        for epoch in view.epochs:
            places = [place for place, step in enumerate(view.steps) if step.epoch == epoch]
            rows_B = torch.cat([view.steps[place].rows_B for place in places])
            # Centre each batch of the epoch and whiten it, except directions that hardly vary
            x_BD = torch.cat([centred(grads_BD[place]) for place in places])
            largest = float(x_BD.abs().max())
            if largest > 0:
                x_BD = x_BD / largest
                x_BD = x_BD @ whitening(x_BD.T @ x_BD) * len(x_BD) ** 0.5
            sum_ND = sum_ND if len(sum_ND) else torch.zeros(view.rows, x_BD.shape[1], dtype=torch.float64)
            sum_ND.index_add_(0, rows_B, x_BD)
            square_N.index_add_(0, rows_B, x_BD.square().sum(dim=1))
            count_N.index_add_(0, rows_B, torch.ones(len(rows_B)))
        rows = torch.nonzero(count_N > 1).squeeze(1)
        energy_N = sum_ND[rows].square().sum(dim=1) - square_N[rows]
        score_N = energy_N / (count_N[rows] * (count_N[rows] - 1))
        return whole_run(view, rows, _turned(score_N))


def _turned(pairs_N: Tensor) -> Tensor:
    """Negate the sums if needed, so that the rarer class has the greater ones.

    If hardly any sum is negative, their cube roots are split into two groups, and the smaller group is the rarer class. (Cube
    roots of squared lengths of normal rows are symmetric, Wilson and Hilferty 1931; two classes make them skewed.) If more sums
    are negative, fresh noise dominates, and the greater sums belong to the rarer class.
    """
    if int((pairs_N <= 0).sum()) > FEW_NEGATIVE * len(pairs_N):
        return pairs_N
    root_N = pairs_N.clamp(min=0) ** (1 / 3)
    cut = two_means_cut(root_N)
    return -pairs_N if cut is not None and int((root_N > cut).sum()) > MORE_THAN_HALF * len(root_N) else pairs_N
