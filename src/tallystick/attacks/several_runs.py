"""Pool several trainings on the same rows into one view, for an attacker who took part in all of them and kept all messages.

Shapes: B rows, D cut width.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from tallystick.attacks.view import StepView, View
from tallystick.errors import DataError


def pooled_runs(views: Sequence[View]) -> View:
    """Pool views of running sums (``RowSums.view``) of several trainings into one view of the rows that they share.

    Each training had weights of its own. So the mean gradients of a row are joined side by side, and so are its last embeddings.
    Figures that are one number per row are averaged. Another way of pooling may find more.

    Args:
        views: views of gradients with one step each and the same row numbers.

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
