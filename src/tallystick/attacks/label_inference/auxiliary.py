"""Choose the auxiliary labels that an attacker knows. The evaluation draws them from the truth before the attack sees the view.

Shapes: N rows of the run, B rows of a step's batch.
"""

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.view import View
from tallystick.errors import ConfigError


class AuxiliaryLabels(Protocol):
    """Decides which labels the attacker knows."""

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:
        """Return the view with the known labels, and no others."""
        ...

    def describe(self) -> str:
        """Say in a few words what the attacker knows, for reports."""
        ...


@dataclass(frozen=True, kw_only=True)
class NoLabels:
    """No label."""

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:  # noqa: ARG002
        """Return the view unchanged."""
        return view

    def describe(self) -> str:
        """Describe this."""
        return "no label"


@dataclass(frozen=True, kw_only=True)
class LabelsPerBatch:
    """The labels of some random rows in every batch: of positive rows, or with several classes of each class.

    If a batch has no more than ``count`` such rows, all of them are known and none is left to score. The evaluator then skips the
    batch and counts it.

    Args:
        count: number of labels per batch and class, at least 1.
    """

    count: int = 1

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"labels per batch: count={self.count}; expected at least 1")

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:
        """Draw labels for every step separately."""
        labels = []
        for step in view.steps:
            truth_B = labels_N[step.rows_B]
            label_B = torch.full_like(step.rows_B, -1)
            for value in range(1 if view.classes == 2 else 0, view.classes):
                label_B[_sample(truth_B == value, self.count, rng)] = value
            labels.append(label_B)
        return replace(view, known_labels=tuple(labels))

    def describe(self) -> str:
        """Say how many labels are known."""
        return f"{self.count} label{'s' if self.count > 1 else ''} in every batch"


@dataclass(frozen=True, kw_only=True)
class FewLabels:
    """The labels of a few random rows, equally many of each class and at most half of a class, known in every step.

    Args:
        count: total number of labels, at least one per class.
    """

    count: int = 40

    def __post_init__(self) -> None:
        if self.count < 2:
            raise ConfigError(f"few labels: count={self.count}; expected at least one per class")

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:
        """Draw rows once."""
        if self.count < view.classes:
            raise ConfigError(f"few labels: count={self.count}; expected at least one for each of {view.classes} classes")
        observed_N = _observed(view)
        samples = []
        for value in range(view.classes):
            of_class_N = observed_N & (labels_N[: view.rows] == value)
            share = self.count // view.classes + (value < self.count % view.classes)
            samples.append(_sample(of_class_N, min(share, int(of_class_N.sum()) // 2), rng))
        return _reveal(view, torch.cat(samples), labels_N)

    def describe(self) -> str:
        """Say how many labels are known."""
        return f"{self.count} labels"


@dataclass(frozen=True, kw_only=True)
class FewKnownNumbers:
    """The targets of a few random rows, at most half of all rows, where targets are numbers.

    Args:
        count: number of rows, at least 1.
    """

    count: int = 40

    def __post_init__(self) -> None:
        if self.count < 1:
            raise ConfigError(f"few known numbers: count={self.count}; expected at least 1")

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:
        """Draw rows once."""
        observed_N = _observed(view)
        rows = _sample(observed_N, min(self.count, int(observed_N.sum()) // 2), rng)
        known_N = torch.full((view.rows,), torch.nan, dtype=torch.float64)
        known_N[rows] = labels_N[rows].double()
        return replace(view, known_numbers=known_N)

    def describe(self) -> str:
        """Say how many labels are known."""
        return f"{self.count} numbers"


@dataclass(frozen=True, kw_only=True)
class TheseLabels:
    """The labels of these rows, known in every step, so that two views can be attacked with the same knowledge.

    Args:
        rows_T: int64, distinct, as the view numbers them.
    """

    rows_T: Tensor

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:  # noqa: ARG002
        """Reveal these labels; nothing is drawn."""
        return _reveal(view, self.rows_T, labels_N)

    def describe(self) -> str:
        """Say how many labels are known."""
        return f"{len(self.rows_T)} labels"


@dataclass(frozen=True, kw_only=True)
class ShareOfLabels:
    """The labels of a random share of all rows, known in every step: far more than an attacker has.

    Args:
        share: in (0, 1).
    """

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share < 1:
            raise ConfigError(f"share of labels: share={self.share}; expected a number in (0, 1)")

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:
        """Draw rows once."""
        observed_N = _observed(view)
        return _reveal(view, _sample(observed_N, round(self.share * int(observed_N.sum())), rng), labels_N)

    def describe(self) -> str:
        """Say how many labels are known."""
        return f"{self.share:.0%} of all labels"


@dataclass(frozen=True, kw_only=True)
class ClassOrder:
    """The order of the classes from the most frequent to the rarest, and no label of a row."""

    def reveal(self, view: View, labels_N: Tensor, *, rng: np.random.Generator) -> View:  # noqa: ARG002
        """Count the classes of all rows that were seen."""
        count_C = torch.bincount(labels_N[: view.rows][_observed(view)], minlength=view.classes)
        return replace(view, class_order=count_C.argsort(descending=True, stable=True))

    def describe(self) -> str:
        """Describe this."""
        return "the order of the classes by frequency"


def _observed(view: View) -> Tensor:
    observed_N = torch.zeros(view.rows, dtype=torch.bool)
    for step in view.steps:
        observed_N[step.rows_B] = True
    return observed_N


def _sample(wanted_N: Tensor, count: int, rng: np.random.Generator) -> Tensor:
    candidates = torch.nonzero(wanted_N).squeeze(1).numpy()
    return torch.from_numpy(rng.choice(candidates, size=min(count, len(candidates)), replace=False))


def _reveal(view: View, rows: Tensor, labels_N: Tensor) -> View:
    known_N = torch.full((view.rows,), -1, dtype=torch.int64)
    known_N[rows] = labels_N[rows]
    return replace(view, known_labels=tuple(known_N[step.rows_B] for step in view.steps))
