"""Make Scores of those rows whose presence at the other side the attacker does not know yet, and say why an attack cannot.

Shapes: B rows of a step's batch, N rows of the union.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tallystick.attacks.view import Scores, View


@runtime_checkable
class Needs(Protocol):
    """An attack that needs more than unknown rows of both kinds."""

    def unmet(self, view: View) -> str:
        """Say what the attack needs and this view lacks. Called only if the attack scored nothing."""
        ...


def other_epochs(view: View) -> str:
    """Say why an attack that compares a row's observations in several epochs could not."""
    one = "only one epoch was recorded" if len(view.epochs) < 2 else "too few rows were recorded in more than one"
    return f"it compares epochs, and {one}"


def unknown_per_step(view: View, values: list[Tensor]) -> Scores:
    """Make Scores of one value per row and step. Rows whose presence the attacker knows already are left out."""
    unknown_N = view.known() == 0
    keep = [unknown_N[step.rows_B] for step in view.steps]
    return Scores(
        rows=tuple(step.rows_B[keep_B] for step, keep_B in zip(view.steps, keep, strict=True)),
        values=tuple(value_B[keep_B].double() for value_B, keep_B in zip(values, keep, strict=True)),
    )


def mean_over_run(view: View, sum_N: Tensor, count_N: Tensor) -> Scores:
    """Make Scores of one mean per row over the whole run. Rows that are known or have no count are left out."""
    rows = torch.nonzero((view.known() == 0) & (count_N > 0)).squeeze(1)
    return Scores(rows=(rows,), values=((sum_N[rows] / count_N[rows]).double(),))
