"""Scores of the rows whose presence at the other side the attacker does not know anyhow, and what an attack lacks for them.

Shapes: B rows of a step's batch, N rows of the union.
"""

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tallystick.attacks.view import Scores, View


@runtime_checkable
class Needs(Protocol):
    """An attack that needs more than rows of both kinds whose presence the attacker does not know."""

    def unmet(self, view: View) -> str:
        """Say what it needs that this view, of which it could measure nothing, did not give it."""
        ...


def other_epochs(view: View) -> str:
    """Say what attacks lack that compare a row's observations."""
    one = "only one epoch was recorded" if len(view.epochs) < 2 else "too few rows were recorded in more than one"
    return f"it compares epochs, and {one}"


def unknown_per_step(view: View, values: list[Tensor]) -> Scores:
    """Make Scores of one value per row and step, keeping the rows whose presence the attacker does not know anyhow."""
    unknown_N = view.known() == 0
    keep = [unknown_N[step.rows_B] for step in view.steps]
    return Scores(
        rows=tuple(step.rows_B[keep_B] for step, keep_B in zip(view.steps, keep, strict=True)),
        values=tuple(value_B[keep_B].double() for value_B, keep_B in zip(values, keep, strict=True)),
    )


def mean_over_run(view: View, sum_N: Tensor, count_N: Tensor) -> Scores:
    """Make Scores of one mean per row over the whole run, keeping rows that are unknown and were seen often enough."""
    rows = torch.nonzero((view.known() == 0) & (count_N > 0)).squeeze(1)
    return Scores(rows=(rows,), values=((sum_N[rows] / count_N[rows]).double(),))
