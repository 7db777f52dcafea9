"""Several trainings on the same rows as one view: whoever took part in all of them kept what each of them sent.

Shapes: B rows, D cut width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tallystick.attacks.view import StepView, View
from tallystick.errors import DataError


def pooled_runs(views: Sequence[View]) -> View:
    """Pool views of running sums (``RowSums.view``) of several trainings into one: of the rows that all of them hold.

    A row's mean gradients stand side by side, as its last embeddings do, for each training had weights of its own; what is one
    number of a row is averaged. Nothing is claimed of what is best made of several runs: another way may find more.

    Args:
        views: of one step each, of gradients, their rows numbered alike.

    Raises DataError if no row is in all of them.
    """
    steps = []
    for view in views:
        for step in view.steps:
            order_B = step.rows_B.argsort()
            steps.append(step if bool((order_B.diff() == 1).all()) else step.only(order_B))
    assert len(steps) == len(views), "sums are one step"
    rows_B = steps[0].rows_B
    for step in steps[1:]:
        rows_B = rows_B[torch.isin(rows_B, step.rows_B)]
    if not len(rows_B):
        raise DataError("several runs: none of the recorded rows is in all of them")
    steps = [step.only(torch.isin(step.rows_B, rows_B)) for step in steps]

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(step, name) for step in steps], dim=1)

    def mean(name: str) -> Tensor | None:
        parts = [getattr(step, name) for step in steps]
        return None if any(part is None for part in parts) else torch.stack(parts).mean(dim=0, dtype=torch.float64)

    pooled = StepView(
        epoch=steps[0].epoch,
        rows_B=rows_B,
        own_B=steps[0].own_B,
        received_BD=joined("received_BD"),
        sent_BD=joined("sent_BD"),
        length_B=mean("length_B"),
        energy_BH=mean("energy_BH"),
        pairs_B=mean("pairs_B"),
        sightings_B=None if (mean_B := mean("sightings_B")) is None else (mean_B * len(steps)).round().long(),
    )
    return replace(views[0], steps=(pooled,))
