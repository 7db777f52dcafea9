"""Define the view: all that one party received in a run. An attacker in that party's place has this.

Shapes: B rows of a step's batch, D cut width, N scored rows, C classes, H hint rows of a step.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from tallystick.errors import DataError

Received = Literal["cut_gradient", "cut_embedding"]
Start = Callable[[Tensor], Tensor]
"""A label party's model before training. It takes a feature party's cut embeddings (B, D) to logits (B, O); all other input is 0.
"""


@dataclass(frozen=True, kw_only=True)
class StepView:
    """View that one party had of one training step.

    Args:
        epoch: which pass over the rows, from 0.
        rows_B: int64, the batch's rows as the contract numbers them (positions in the union or the intersection).
        own_B: bool, whether this party has the row itself.
        received_BD: float32, what this party received: cut gradients (feature party) or cut embeddings (label party).
        targets_B: float32, the targets that a label party used in this step; None for a feature party.
        sent_BD: float32, the cut embeddings that a feature party sent in this step; None if not recorded.

    The following are set only where the step sums up a whole training (``RowSums``):
        length_B: mean length of each row's gradients, in deviations from its batches' mean lengths.
        energy_BH: mean energies of each row, from ``SecondMoments``.
        pairs_B: mean inner product of a row's whitened gradients over pairs of epochs; NaN where there was no pair, infinite
            where a gradient was not finite.
        mean_BD: mean of a row's cut embeddings.
        looks_BE: a row's cut embeddings of several epochs, side by side.
        looks_at_BL: for each of these epochs, the step in which the row was embedded.
        sightings_B: how often the row was seen.
    """

    epoch: int
    rows_B: Tensor
    own_B: Tensor
    received_BD: Tensor
    targets_B: Tensor | None = None
    sent_BD: Tensor | None = None
    length_B: Tensor | None = None
    energy_BH: Tensor | None = None
    pairs_B: Tensor | None = None
    mean_BD: Tensor | None = None
    looks_BE: Tensor | None = None
    looks_at_BL: Tensor | None = None
    sightings_B: Tensor | None = None
    observed: dict[Hashable, tuple[Tensor, Tensor]] = field(default_factory=dict, init=False, repr=False, compare=False)
    """Results that several attacks need from this step. The first attack that computes one keeps it here for the others."""

    def only(self, kept_B: Tensor) -> "StepView":
        """Return the step with only these rows."""

        def some(tensor: Tensor | None) -> Tensor | None:
            return None if tensor is None else tensor[kept_B]

        return StepView(
            epoch=self.epoch,
            rows_B=self.rows_B[kept_B],
            own_B=self.own_B[kept_B],
            received_BD=self.received_BD[kept_B],
            targets_B=some(self.targets_B),
            sent_BD=some(self.sent_BD),
            length_B=some(self.length_B),
            energy_BH=some(self.energy_BH),
            pairs_B=some(self.pairs_B),
            mean_BD=some(self.mean_BD),
            looks_BE=some(self.looks_BE),
            looks_at_BL=some(self.looks_at_BL),
            sightings_B=some(self.sightings_B),
        )


def renumbered(steps: Sequence[StepView]) -> tuple[tuple[StepView, ...], Tensor]:
    """Return the same steps with their rows numbered 0, 1, ... in order, and the old number of each row, (rows,).

    Attacks allocate one entry per row number, so a few recorded rows of a large table must not need as much as the table.
    """
    numbers_N = torch.unique(torch.cat([step.rows_B for step in steps]))
    return tuple(replace(step, rows_B=torch.searchsorted(numbers_N, step.rows_B)) for step in steps), numbers_N


@dataclass(frozen=True, kw_only=True)
class View:
    """One party's view of a run: its steps in order, and what the party knows in any case.

    A party knows that the other side has every row of the union that it lacks itself, and that the other side lacks the
    dummy rows that it planted. It may know a few labels. The view holds no other labels and no truth.

    Args:
        received: what the party received.
        steps: at least one.
        known_present: int64 rows that the other side is known to have, in addition to those that this party lacks itself.
        known_absent: int64 rows, the planted ones.
        known_labels: per step int64 (B,), the class of each row whose label the attacker knows in that step, -1 for the rest.
        known_numbers: float64 by row number (rows,), the targets that the attacker knows where these are numbers, else NaN.
        clean_hints: per step (H, D), the undefended gradients of the step's rows with a known label, in their order. Marvell's
            evaluation grants them to its attacker. If None, the attacker has only what it received.
        classes: number of classes of the contract's target; 2 for a binary one, whose class 1 is positive; 0 for a number.
        labels: number of binary labels of a row; the attack looks for one of them.
        rarer_labels: number of labels that are rarer than that one.
        class_order: int64 (C,), the classes from the most frequent to the rarest, if the attacker knows the order.
        own_model: this party's trained bottom model over its own columns. It takes rows (B,) to cut embeddings (B, D).
        start: the label party's model before training, if its weights follow from facts that every party knows.
        flip: probability that a label was replaced by the other one before training, if the contract says so.
        own_NA: this party's own columns as numbers, by row number (rows, A); None if it has none, or if the attack is measured
            without them.
        sent_NC: the sender's columns of real and made-up rows as numbers, by row number (rows, C). No view holds them, but an
            attacker who rebuilds columns has them. None if the attack is not measured for such an attacker.
    """

    received: Received
    steps: tuple[StepView, ...]
    known_present: Tensor | None = None
    known_absent: Tensor | None = None
    known_labels: tuple[Tensor, ...] | None = None
    known_numbers: Tensor | None = None
    clean_hints: tuple[Tensor, ...] | None = None
    classes: int = 2
    labels: int = 1
    rarer_labels: int = 0
    class_order: Tensor | None = None
    own_model: nn.Module | None = None
    start: Start | None = None
    flip: float | None = None
    own_NA: Tensor | None = None
    sent_NC: Tensor | None = None

    def __post_init__(self) -> None:
        if not self.steps:
            raise DataError("attack: the view holds no step; record at least one step of the run")
        for index, step in enumerate(self.steps):
            if not len(step.rows_B) or int(step.rows_B.min()) < 0:
                raise DataError(f"attack: step {index} of the view (epoch {step.epoch}) names no row, or one below 0")
        for name, told in (("known_labels", self.known_labels), ("clean_hints", self.clean_hints)):
            if told is not None and len(told) != len(self.steps):
                raise DataError(f"attack: {name} has {len(told)} entries for {len(self.steps)} steps; give one per step")
        if self.own_NA is not None and len(self.own_NA) < self.rows:
            raise DataError(f"attack: own columns of {len(self.own_NA)} rows for a view of {self.rows}; give one row for each")

    @property
    def rows(self) -> int:
        """Return one more than the greatest row number seen."""
        return 1 + max(int(step.rows_B.max()) for step in self.steps)

    @property
    def epochs(self) -> tuple[int, ...]:
        """List the epochs that have steps in this view, in order."""
        return tuple(sorted({step.epoch for step in self.steps}))

    def epoch(self, epoch: int) -> "View":
        """Keep one epoch's steps, with what is known in them. Raises DataError if it has none."""
        places = [index for index, step in enumerate(self.steps) if step.epoch == epoch]
        if not places:
            raise DataError(f"attack: the view holds no step of epoch {epoch}; it has epochs {list(self.epochs)}")
        return replace(
            self,
            steps=tuple(self.steps[index] for index in places),
            known_labels=None if self.known_labels is None else tuple(self.known_labels[index] for index in places),
            clean_hints=None if self.clean_hints is None else tuple(self.clean_hints[index] for index in places),
        )

    def known_label(self, index: int) -> Tensor:
        """Return the known classes of a step's rows, int64 (B,), -1 if the label is unknown.

        Raises DataError if they do not fit.
        """
        if self.known_labels is None:
            return torch.full_like(self.steps[index].rows_B, -1)
        label_B = self.known_labels[index]
        if label_B.shape != self.steps[index].rows_B.shape:
            raise DataError(
                f"attack: known_labels of step {index} has shape {tuple(label_B.shape)}; give one per row, "
                f"{len(self.steps[index].rows_B)}"
            )
        return label_B

    def known(self) -> Tensor:
        """Return 1 per row known to be present at the other side, -1 for absent, 0 for unknown, as int8, length ``rows``."""
        known_N = torch.zeros(self.rows, dtype=torch.int8)
        for step in self.steps:
            known_N[step.rows_B[~step.own_B]] = 1
        for rows, value in ((self.known_present, 1), (self.known_absent, -1)):
            if rows is not None:
                known_N[rows[rows < self.rows]] = value
        return known_N


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores that an attack gives to groups of rows. A group is a step's batch or the whole run, and is judged by itself.

    Args:
        rows: per group, int64, the scored rows.
        values: per group, float64, a score per row: the higher, the more likely the row is positive, or real at the other side;
            for several classes (N, C), a score per row and class.
        named: whether column c is class c; if not, columns are clusters that the attacker could not name.
    """

    rows: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    named: bool = True


class Attack(Protocol):
    """Reads a view and scores rows. It sees nothing else."""

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score rows of the view."""
        ...
