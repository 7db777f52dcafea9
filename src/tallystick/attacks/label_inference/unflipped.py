"""Randomised response undone: the label that was put in place of the true one is read, and what rows like it have is un-flipped.

Shapes: B rows of a step's batch, N rows seen, D cut width, F inputs.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.attacks.label_inference.linear import fit_linear
from tallystick.attacks.label_inference.observations import binary_only, matrices, observations, whole_run
from tallystick.attacks.matrix import rescaled, top_direction
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError, DataError

FOLDS = 5
LEAST_CHANCE = 0.02  # un-flipped chances below this, and above 1 - this, are the model's error


@dataclass(frozen=True, kw_only=True)
class UnflippedAttack:
    """Read the replaced labels off the gradients, fit a model to them, un-flip what it predicts, and add the row's own evidence.

    In no paper; the correction is randomised response's own (Warner 1965). Labels that are replaced once with a known chance f
    leak as labels without a defence do: the side of a gradient on its batch's main direction, the fewer being positive, over all
    epochs. What rows alike have in common is not replaced alike: a logistic head on the embeddings (and the attacker's
    own columns, where the view has them) and on which way a row's gradients point, whatever their length, predicts the replaced
    label with chance p, and so the true one with q = (p - f) / (1 - 2 f). The row's own replaced label adds log((1 - f) / f), the
    epsilon, one way or the other: the two together are its posterior log odds. Each row is predicted by the heads of other folds.

    The guarantee stands: epsilon bounds what a row's own label adds, and not what rows like it tell. Knows no label, only f,
    which the contract says (``View.flip``), and which class is rarer. Reads cut gradients and embeddings. Binary targets only.

    Args:
        penalty: on squared weights of the head, greater than 0.
    """

    penalty: float = 0.3

    def __post_init__(self) -> None:
        if not self.penalty > 0:
            raise ConfigError(f"un-flipped attack: penalty={self.penalty}; expected a number greater than 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows that were seen by their log odds; ``generator`` draws the folds."""
        binary_only(view, "un-flipped attack", "completion or clusters")
        if view.flip is None or not 0 < view.flip < 0.5:
            raise DataError("un-flipped attack: the view does not say with what chance labels were replaced (View.flip)")
        rows, side_N, towards_ND = _sides(view)
        parts = [rescaled(towards_ND), rescaled(observations(view, "cut_embedding")[1])]
        if view.own_NA is not None:
            parts.append(rescaled(view.own_NA[rows]))
        replaced_N = (side_N > 0).long()
        chance_N = _predicted(torch.cat(parts, dim=1), replaced_N, self.penalty, generator)
        true_N = ((chance_N - view.flip) / (1 - 2 * view.flip)).clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)
        epsilon = log((1 - view.flip) / view.flip)
        return whole_run(view, rows, true_N.logit() + epsilon * (2 * replaced_N - 1))


def _sides(view: View) -> tuple[Tensor, Tensor, Tensor]:
    """The rows seen, in order; of each on which side its gradients lie, the fewer above 0, and which way, all turned up."""
    side_N, count_N, towards_ND = torch.zeros(view.rows).double(), torch.zeros(view.rows), torch.zeros(0)
    for step, grad_BD in zip(view.steps, matrices(view, "cut_gradient"), strict=True):
        unit_BD = normalize(grad_BD, dim=1, eps=torch.finfo(torch.float64).tiny)
        along_B = unit_BD @ top_direction(unit_BD)
        if int((along_B > 0).sum()) * 2 > len(along_B):
            along_B = -along_B
        towards_ND = towards_ND if len(towards_ND) else torch.zeros(view.rows, grad_BD.shape[1], dtype=torch.float64)
        towards_ND.index_add_(0, step.rows_B, unit_BD * along_B.sign()[:, None])
        side_N.index_add_(0, step.rows_B, along_B)
        count_N[step.rows_B] += 1
    rows = torch.nonzero(count_N).squeeze(1)
    return rows, side_N[rows], towards_ND[rows] / count_N[rows, None]


def _predicted(x_NF: Tensor, replaced_N: Tensor, penalty: float, generator: torch.Generator) -> Tensor:
    """Each row's chance of a replaced label of 1, by a head that other folds' rows fitted."""
    fold_N = torch.randint(FOLDS, (len(x_NF),), generator=generator)
    chance_N = torch.zeros(len(x_NF), dtype=torch.float64)
    for fold in range(FOLDS):
        here_N = fold_N == fold
        head = fit_linear(x_NF[~here_N], replaced_N[~here_N], 2, penalty=penalty)
        chance_N[here_N] = head(x_NF[here_N]).sigmoid()
    return chance_N
