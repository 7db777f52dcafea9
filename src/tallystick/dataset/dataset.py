"""Define a party's rows at the linked positions, for training, evaluation, prediction and the report, for every linkage.

Shapes: N linked positions, B batch.

Position n means the same for every party. The dataset knows which own row is there, or what replaces it. Its callers never ask
how rows were linked. A further way of linking is a class next to ``intersection.py`` and ``union.py`` and a row in
``registry.py``, such as:

- rows that are not linked at all (unaligned, of an intersection): positions after the linked ones, which ``schedule`` puts into
  local batches (``training/plan.py: Schedule.local_N``) or for which it adds phases (``Schedule.before``); ``objective`` knows
  their labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from tallystick.config.sections import TrainingConfig, TrainingSettings
from tallystick.cut.forward import Announce, FeatureSource, a_row_each, ignore_rows, no_columns
from tallystick.privacy.randomness import Seed
from tallystick.reading import shown
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features
from tallystick.tables.target import LabelCoder
from tallystick.training.calibration import NO_CALIBRATION, Calibration
from tallystick.training.checkpoint import TrainingState
from tallystick.training.folds import Folds, untaught
from tallystick.training.objective import Objective
from tallystick.training.plan import Schedule, no_positions
from tallystick.training.unaligned.method import UnalignedMethod

D = TypeVar("D", bound="Dataset")

FEW_VALIDATED = 10  # with fewer validation rows a run warns that they judge by luck


@dataclass(frozen=True, kw_only=True)
class Labels:
    """The label party's labels by position, with any value if it lacks the row.

    ``true_N`` stay here: the results on test rows and the baseline are compared with them. ``training_labels_N`` are used in
    training and validation, and so shape everything that is sent: the true labels, unless a defence replaced them.
    """

    coder: LabelCoder
    true_N: Tensor
    training_labels_N: Tensor
    weight_N: Tensor | None = None

    @classmethod
    def of(cls, coder: LabelCoder, true_N: Tensor, weight_N: Tensor | None = None) -> "Labels":
        """Wrap labels that no defence replaced."""
        return cls(coder=coder, true_N=true_N, training_labels_N=true_N, weight_N=weight_N)

    def units(self, index_B: Tensor) -> tuple[Any, Any]:
        """Return true labels at these positions in their own units, and the weights there, if rows have any."""
        weight_B = self.weight_N[index_B].cpu().numpy() if self.weight_N is not None else None
        return self.coder.in_units(self.true_N[index_B].cpu().numpy()), weight_B


@dataclass(frozen=True, kw_only=True)
class UnalignedRows:
    """Positions after the linked ones, of rows that only this party has. No other party knows about them.

    Args:
        train_N, validation_N, test_N: the positions of each part.
    """

    train_N: Tensor = field(default_factory=no_positions)
    validation_N: Tensor = field(default_factory=no_positions)
    test_N: Tensor = field(default_factory=no_positions)


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """One party's rows at the linked positions.

    Args:
        encoder: encoder of this party's columns; None for a label party without columns.
        source: its features by position.
        train_N, validation_N, test_N: the positions of each part; empty if rows are only scored.
        labels: labels of the label party.
        unaligned: own rows that are not linked, if the contract's method for them uses them.
        dispensed: the agreed method for unaligned rows, if there was no such row to train on and the run does without it.
        folds: which rows train which of several networks side by side; None for a single network.
        own_folds: which own rows train which of several networks of own columns alone; None for a single one.
        announce: called with the positions that a batch will need next, so that a file's rows are read ahead.
    """

    encoder: Encoder | None
    source: FeatureSource | None
    train_N: Tensor = field(default_factory=no_positions)
    validation_N: Tensor = field(default_factory=no_positions)
    test_N: Tensor = field(default_factory=no_positions)
    labels: Labels | None = None
    unaligned: UnalignedRows = field(default_factory=UnalignedRows)
    dispensed: str | None = None
    folds: Folds | None = None
    own_folds: Folds | None = None
    announce: Announce = ignore_rows

    @property
    def has_branches(self) -> bool:
        """Tell whether the label party's model has branches besides the joint one, for rows without a partner's row."""
        return False

    @property
    def networks(self) -> int:
        """Return how many networks train side by side."""
        return self.folds.count if self.folds is not None else 1

    def resolved(self, training: TrainingSettings) -> TrainingConfig:
        """Resolve the contract's training settings for the number of training positions, which is the same for every party."""
        return training.model_copy(update={"folds": self.networks}).resolved(len(self.train_N))

    def resolved_notes(self, training: TrainingSettings) -> list[str]:
        """Say which values ``auto`` got, and whether a method for unaligned rows had no rows."""
        rows = len(self.validation_N)
        notes = training.resolved_notes(len(self.train_N))
        if rows and self.folds is None:  # a single network, which no other network judges
            single = False
            if self.labels is not None and not self.labels.coder.is_number:
                each = self.labels.coder.each_label(self.labels.true_N[self.validation_N])
                single = any(bool((classes_V == classes_V[0]).all()) for _, classes_V in each)
            if which := f"all {rows:,} are of one class" if single else f"{rows:,} are few" if rows < FEW_VALIDATED else "":
                notes.append(
                    f"validation rows: {which}, so they hardly say which weights are good, or when training should end; raise "
                    "split.validation or set training.epochs"
                )
        if self.folds is not None:
            notes += training.folds_notes(self.folds.count) + self._untaught_notes(self.folds)
        if self.own_folds is not None:
            notes.append(f"own columns alone: {self.own_folds.count} networks, each trained on all own rows except one fold")
            notes += self.own_part()._untaught_notes(self.own_folds)
        if self.dispensed is None:
            return notes
        return [
            *notes,
            f"unaligned.method = {self.dispensed} had no effect: the label party has no row without a partner's row to train "
            "on, so this run trains as with none",
        ]

    def _untaught_notes(self, folds: Folds) -> list[str]:
        """Say which classes some network does not see in training. Only the party with labels knows."""
        if self.labels is None or self.labels.coder.is_number:
            return []
        all_N = torch.cat([self.train_N, self.validation_N])
        labels_N, fold_N = (values_N[all_N] for values_N in (self.labels.true_N, folds.fold_N))
        return [
            f"network {member + 1} of {folds.count} has no training row of class {shown(classes[code])}, because all are in "
            "the fold that judges it; training.folds = 1 trains one network on all classes"
            for classes, numbers_N in self.labels.coder.each_label(labels_N)
            for member, code in untaught(numbers_N, fold_N, classes=len(classes), members=folds.count)
        ]

    def features_at(self, index_B: Tensor) -> Features:
        """Return the features at these positions. The rows have no columns if this party has none."""
        return (self.source or no_columns)(index_B)

    def schedule(self, training: TrainingConfig, *, seed: int) -> Schedule:
        """Build the batches of training. With folds every row trains some networks and judges another."""
        all_N = torch.cat([self.train_N, self.validation_N])
        return Schedule(
            train_N=self.train_N if self.folds is None else all_N,
            validation_N=self.validation_N if self.folds is None else all_N,
            batch_size=training.batch_size,
            seed=seed,
            cut_rows=self.cut_rows,
            validations=training.validations,
        )

    def with_validation(self: D) -> D:
        """Move the validation rows to the training rows, for a refit."""
        return replace(self, train_N=torch.cat([self.train_N, self.validation_N]), validation_N=self.validation_N[:0])

    def method(self, training: TrainingConfig, *, start: Seed) -> UnalignedMethod | None:  # noqa: ARG002
        """Build the method for unaligned rows, with weights drawn from ``start``. Return None if unaligned rows are not used."""
        return None

    def test_batches(self, batch_size: int) -> Sequence[Tensor]:
        """Yield the test positions in batches."""
        return torch.split(self.test_N, batch_size) if len(self.test_N) else ()

    def cut_rows(self, index_B: Tensor, peer: int) -> int:
        """Count the rows of a feature party's cut embedding that cross for these positions.

        ``peer`` is its place in the contract.
        """
        return a_row_each(index_B, peer)

    def most_cut_rows(self, positions: int, peer: int) -> int:  # noqa: ARG002
        """Bound how many rows cross for this many positions."""
        return positions

    def is_linked(self, index_B: Tensor) -> Tensor:
        """Mark the positions to which a row of any feature party is linked."""
        return torch.ones(len(index_B), dtype=torch.bool, device=index_B.device)

    @property
    def candidates(self) -> tuple[int, ...]:
        """Return how many rows of each feature party are linked to a position. It is empty if each has one."""
        return ()

    def cut_numbers(self, index_B: Tensor, peer: int) -> Tensor:  # noqa: ARG002
        """Return which rows of a feature party cross for these positions, in the order of crossing: here one for each."""
        return index_B

    def columns_of(self, rows_R: Tensor) -> Features:
        """Return a feature party's columns of crossing rows, by the numbers that ``cut_numbers`` returns."""
        return self.features_at(rows_R)

    def sent_columns(self, rows_R: Tensor) -> Tensor:
        """Return the columns that this party embeds for these positions, including made-up rows, as numbers (R, F + G)."""
        features = self.features_at(rows_R.to(self.train_N.device))
        return torch.cat([features.numeric_NF, features.categorical_NG], dim=1).cpu()

    def seen(self, index_B: Tensor, rows_BD: Tensor, peer: int) -> Tensor:  # noqa: ARG002
        """Turn what crossed into one row per example, as an attack needs it."""
        return rows_BD

    def is_own(self, index_B: Tensor) -> Tensor:
        """Mark the positions that are rows of this party."""
        return torch.ones(len(index_B), dtype=torch.bool, device=index_B.device)

    @property
    def membership(self) -> Tensor | None:
        """Mark the positions that are own rows, if a peer must not find out. Return None if every party knows them."""
        return None

    def wrap(self, bottom: nn.Module) -> nn.Module:
        """Wrap a feature party's bottom model with the required changes to its cut embeddings."""
        return bottom

    @abstractmethod
    def objective(self) -> Objective:
        """Build the label party's loss."""

    @abstractmethod
    def own_part(self) -> "Dataset":
        """Select the positions of this party's own rows, with the true labels, for the baseline, which sends nothing."""

    def calibration(self, state: TrainingState | None) -> Calibration:  # noqa: ARG002
        """Build the calibration that turns the trained model's logits into those of real rows. The label party keeps it."""
        return NO_CALIBRATION

    @property
    def known_labels(self) -> Labels:
        """Return the labels. Only the label party may call this."""
        assert self.labels is not None, "only the label party asks for labels"
        return self.labels

    @property
    def known_encoder(self) -> Encoder:
        """Return the encoder. Only a party with columns may call this."""
        assert self.encoder is not None, "only a party with columns is asked for them"
        return self.encoder

    def trained_on(self: D, training_labels_N: Tensor) -> D:
        """Return the same rows with these labels for training and validation."""
        return replace(self, labels=replace(self.known_labels, training_labels_N=training_labels_N))
