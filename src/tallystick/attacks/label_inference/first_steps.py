"""Infer numbers from the first steps of a regression: before a model has learned anything, its error is the target itself.

Shapes: B rows of a step's batch, K rows of the first steps, N rows seen, D cut width, F inputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.attacks.kernels import kernel_ridge
from tallystick.attacks.label_inference.linear import standardised
from tallystick.attacks.label_inference.observations import matrices, observations
from tallystick.attacks.matrix import rescaled, top_direction
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError, DataError

MOST_PSEUDO = 1024  # greatest number of rows to fit a curve to; the time for eigenvectors grows with its cube
BANDWIDTHS = (0.5, 1.0, 2.0, 4.0, 8.0)
LEAST_STEPS = 3  # each further step changes the model, and with it the order of the rows


@dataclass(frozen=True, kw_only=True)
class FirstSteps:
    """Rank targets by the direction of the first gradients, and predict all other rows by a curve that is fitted to these.

    After Xie et al. (arXiv 2301.07284), of which only the abstract could be read. Squared error sends back 2 (p - y) J. In an
    untrained model p is about the same for all rows, and J has about the same direction. So the first principal direction of a
    step's gradients gives y up to sign, offset and scale. This yields targets for the rows of the first three steps. Kernel ridge
    regression (``kernel_ridge``) predicts all other rows from them. Its inputs are embeddings, and the attacker's own columns if
    the view has them; or gradients of later epochs: a row's mean gradient depends on p - y, and the direction of its gradients
    on p.

    The attacker knows no target. Gradients do not show the sign: the longer tail is taken as the high end, and if the tails are
    equal, the evaluator decides. The evaluator also supplies offset and scale. It reads cut gradients, and embeddings if ``of``
    is "embedding". Numbers only.

    Args:
        of: "first" scores the rows of the first steps, "embedding" or "gradient" all others.
        steps: number of first steps to use, at least 1.
    """

    of: Literal["first", "embedding", "gradient"] = "first"
    steps: int = LEAST_STEPS

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ConfigError(f"first steps: steps={self.steps}; expected at least 1")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score rows as one group. It draws nothing at random.

        Raises ConfigError for classes, DataError if gradients are missing or not all finite, or later epochs are needed and
        were not recorded.
        """
        if view.classes:
            raise ConfigError(f"first steps: the target has {view.classes} classes, and numbers are ranked; use direction")
        # Take the first steps' rows with pseudo-targets of the same scale in every step; the longer tail is high
        first = replace(view.epoch(view.epochs[0]), known_labels=None, clean_hints=None)
        steps = first.steps[: self.steps]
        targets = []
        for along_B, _ in _turned(replace(first, steps=steps)):
            centred_B = along_B - along_B.mean()
            deviation = centred_B.square().mean().sqrt()
            targets.append(centred_B / deviation if deviation > 0 else centred_B)
        target_K = torch.cat(targets)
        tail = float(target_K.pow(3).mean())
        rows_K = torch.cat([step.rows_B for step in steps])
        target_K = -target_K if tail < 0 else target_K
        if self.of == "first":
            return Scores(rows=(rows_K,), values=(target_K,))
        rows_N, x_NF = embeddings(view) if self.of == "embedding" else later_gradients(view)
        place = torch.full((view.rows,), -1)
        place[rows_N] = torch.arange(len(rows_N))
        known_K = place[rows_K] >= 0
        x_KF, target_K = x_NF[place[rows_K[known_K]]][:MOST_PSEUDO], target_K[known_K][:MOST_PSEUDO]
        other_N = torch.ones(len(rows_N), dtype=torch.bool)
        other_N[place[rows_K[known_K]]] = False
        if not (len(target_K) and bool(other_N.any())):
            raise DataError("first steps: there are no other rows than those of the first steps, or none of these was seen again")
        centred_K1 = (target_K - target_K.mean())[:, None]
        guess_N = kernel_ridge(x_KF, centred_K1, x_NF[other_N], bandwidths=BANDWIDTHS)[0]
        return Scores(rows=(rows_N[other_N],), values=(guess_N,))


def _turned(view: View) -> Iterator[tuple[Tensor, Tensor]]:
    """Return each step's projections on its gradients' first principal direction, with one sign for all, and the gradients."""
    before_D: Tensor | None = None
    for grad_BD in matrices(view, "cut_gradient"):
        towards_D = top_direction(grad_BD)
        if before_D is not None and float(towards_D @ before_D) < 0:
            towards_D = -towards_D
        before_D = towards_D
        yield grad_BD @ towards_D, grad_BD


def embeddings(view: View) -> tuple[Tensor, Tensor]:
    """Return the rows seen, in order, and the last embedding of each, with own columns if the view has them."""
    rows_N, last_ND = observations(view, "cut_embedding")
    parts = [last_ND] if view.own_NA is None else [last_ND, view.own_NA[rows_N].float()]
    return rows_N, standardised(torch.cat(parts, dim=1))


def later_gradients(view: View) -> tuple[Tensor, Tensor]:
    """Return each row's mean gradient in later epochs, and the mean of its gradients' directions, with one sign for all.

    The first epoch is left out. Its gradients show the targets only for rows of the first steps, and not for other rows.
    """
    later = [step for step in view.steps if step.epoch > view.epochs[0]]
    if not later:
        raise DataError("first steps: it reads the gradients of later epochs, and only one epoch was recorded")
    view = replace(view, steps=tuple(later), known_labels=None, clean_hints=None)
    width = later[0].received_BD.shape[1]
    sum_NF, count_N = torch.zeros(view.rows, 2 * width, dtype=torch.float64), torch.zeros(view.rows)
    for step, (along_B, grad_BD) in zip(later, _turned(view), strict=True):
        directed_BD = normalize(grad_BD, dim=1) * along_B.sign()[:, None]
        sum_NF[step.rows_B] += torch.cat([rescaled(grad_BD), directed_BD], dim=1)
        count_N[step.rows_B] += 1
    rows_N = torch.nonzero(count_N).squeeze(1)
    return rows_N, standardised(sum_NF[rows_N] / count_N[rows_N, None])
