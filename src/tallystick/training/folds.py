"""Train networks side by side, one for each fold of the rows: which row trains and judges which network.

Every training and validation row belongs to a fold. Member m learns from the rows of all other folds, and judges those of fold m,
so each row is judged by the one member that did not learn from it. Fold 0 contains the contract's validation rows. Each member
keeps the weights of its best step.

Shapes: N aligned positions, B batch, M members, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.training.objective import Objective


@dataclass(frozen=True, kw_only=True)
class Folds:
    """Folds of a training: their number, and the fold of each position.

    Positions that are neither for training nor for judging may have any value.
    """

    count: int
    fold_N: Tensor

    def to(self, device: torch.device) -> "Folds":
        """Move the folds to a device."""
        return Folds(count=self.count, fold_N=self.fold_N.to(device))

    def rows_of_each(self, index_N: Tensor) -> Tensor:
        """Count these positions in each fold."""
        return torch.bincount(self.fold_N[index_N], minlength=self.count)

    def objective(self, each: Objective) -> "FoldedObjective":
        """Build the loss of all networks side by side from that of one."""
        return FoldedObjective(each, self.fold_N, members=self.count)


class FoldedObjective:
    """The loss of networks side by side, each on the rows outside its own fold.

    The value is the mean of the members' losses; its gradient is their sum, so each learns as if it were alone at every learning
    rate. A member's loss and gradient are 0 if a batch only has rows of its own fold.

    Args:
        each: one network's loss.
        fold_N: the fold of each position; any value for a position outside training.
        members: M.
    """

    def __init__(self, each: Objective, fold_N: Tensor, *, members: int) -> None:
        self.each = each
        self._fold_N = fold_N
        self._members = members

    def taught(self, member: int, index_B: Tensor) -> Tensor:
        """Return those of these positions from which a member learns."""
        return index_B[self._fold_N.index_select(0, index_B) != member]

    def __call__(self, logits: Tensor, index_B: Tensor, cuts_BD: Sequence[Tensor] = ()) -> tuple[Tensor, Tensor]:
        """Compute the loss of logits (B, M) or (B, M, C), and the targets (B,).

        Logits of ensembles are (B, M, E) or (B, M, E, C).
        """
        fold_B = self._fold_N.index_select(0, index_B)
        total = logits.sum() * 0.0
        for member in range(self._members):
            taught_R = (fold_B != member).nonzero().squeeze(1)
            if len(taught_R):
                rows = logits[:, member].index_select(0, taught_R)
                total = total + self.each(rows, index_B.index_select(0, taught_R), cuts_BD)[0]
        targets_B = self.each(logits[:, 0], index_B, cuts_BD)[1]
        return total - (total - total / self._members).detach(), targets_B

    def validation_loss(self, logits: Tensor, index_N: Tensor) -> Tensor:
        """Compute the loss of logits (N, M) or (N, M, C). Each row counts by the member that did not learn from it."""
        fold_N = self._fold_N.index_select(0, index_N)
        judged = logits[torch.arange(len(logits), device=logits.device), fold_N]
        return self.each.validation_loss(judged, index_N)

    def validation_losses(self, logits: Tensor, index_N: Tensor) -> list[float]:
        """Compute each member's loss on the rows of its own fold, from the same logits."""
        fold_N = self._fold_N.index_select(0, index_N)
        judged = [(fold_N == member).nonzero().squeeze(1) for member in range(self._members)]
        return [
            self.each.validation_loss(logits[:, member].index_select(0, rows), index_N.index_select(0, rows)).item()
            for member, rows in enumerate(judged)
        ]

    def fitted(self) -> dict[str, float]:
        """Return the fitted values of one network's loss."""
        return self.each.fitted()


@dataclass(frozen=True, kw_only=True)
class ValidationLosses:
    """A validation's losses: the ``common`` one, which compares epochs, and that of ``each`` network on the rows that it judges,
    which decides on its weights.
    """

    common: float
    each: Sequence[float]


def validation_losses(objective: Objective, logits: Tensor, index_N: Tensor) -> ValidationLosses:
    """Compute the losses of logits from ``LabelModel.apart``. A single network's own loss is the common one."""
    common = objective.validation_loss(logits, index_N).item()
    each = objective.validation_losses(logits, index_N) if isinstance(objective, FoldedObjective) else [common]
    return ValidationLosses(common=common, each=each)


def untaught(labels_N: Tensor, fold_N: Tensor, *, classes: int, members: int) -> list[tuple[int, int]]:
    """List the members that see no row of a class although the class has rows: all of them are in the member's own fold.

    Args:
        labels_N: the class of each row.
        fold_N: its fold.
        classes: C.
        members: M.
    """
    counts = torch.zeros(members, classes, dtype=torch.int64)
    counts.index_put_((fold_N.cpu(), labels_N.cpu().long()), torch.ones(len(fold_N), dtype=torch.int64), accumulate=True)
    alone = (counts > 0) & (counts == counts.sum(dim=0))
    return [(int(member), int(code)) for member, code in alone.nonzero().tolist()]
