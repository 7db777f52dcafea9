"""Several trainings on the same rows as one view: whoever took part in all of them kept what each of them sent.

Shapes: B rows, D cut width, L looks, E = L D.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tallystick.attacks.view import StepView, View
from tallystick.errors import DataError


def pooled_runs(views: Sequence[View]) -> View:
    """Views of running sums (``RowSums.view``) of several trainings as one: of the rows that all of them hold.

    A row's mean gradients stand side by side, as its last embeddings do, for each training had weights of its own; what is one
    number of a row is averaged. Nothing is claimed of what is best made of several runs: another way may find more.

    Args:
        views: of one step each, of gradients, their rows numbered alike.

    Raises DataError where no row is in all of them.
    """
    steps = [_in_order(step) for view in views for step in view.steps]
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


def _in_order(step: StepView) -> StepView:
    order_B = step.rows_B.argsort()
    return step if bool((order_B.diff() == 1).all()) else step.only(order_B)


@dataclass(frozen=True, kw_only=True)
class SentEmbeddings:
    """What a label party was sent of the same rows, in one training or in several.

    Args:
        last_BD: each row's last embedding.
        mean_BD: its mean one.
        looks_BE: those of several epochs, side by side.
        looks_at_BL: the step of each of these epochs that the row was embedded in.
    """

    last_BD: Tensor
    mean_BD: Tensor
    looks_BE: Tensor
    looks_at_BL: Tensor

    def rows(self, kept_K: Tensor) -> "SentEmbeddings":
        """Those of some rows."""
        return SentEmbeddings(
            last_BD=self.last_BD[kept_K],
            mean_BD=self.mean_BD[kept_K],
            looks_BE=self.looks_BE[kept_K],
            looks_at_BL=self.looks_at_BL[kept_K],
        )

    def beside(self, other: "SentEmbeddings") -> "SentEmbeddings":
        """Both trainings' embeddings: further columns; looks at the same steps are one wider look, others are further looks.

        Of further looks the narrower cut's are filled up with zeros.
        """
        if torch.equal(self.looks_at_BL, other.looks_at_BL):
            parts = [view.looks_BE.reshape(*view.looks_at_BL.shape, -1) for view in (self, other)]
            looks_BE, looks_at_BL = torch.cat(parts, dim=2).flatten(1), self.looks_at_BL
        else:
            width = max(view.looks_BE.shape[1] // view.looks_at_BL.shape[1] for view in (self, other))
            looks_BE = torch.cat([self._looks(width), other._looks(width)], dim=1)
            looks_at_BL = torch.cat([self.looks_at_BL, other.looks_at_BL], dim=1)
        return SentEmbeddings(
            last_BD=torch.cat([self.last_BD, other.last_BD], dim=1),
            mean_BD=torch.cat([self.mean_BD, other.mean_BD], dim=1),
            looks_BE=looks_BE,
            looks_at_BL=looks_at_BL,
        )

    def _looks(self, width: int) -> Tensor:
        looks_BLD = self.looks_BE.reshape(*self.looks_at_BL.shape, -1)
        return pad(looks_BLD, (0, width - looks_BLD.shape[2])).flatten(1)
