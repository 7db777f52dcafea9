"""Absent labels drawn once, before training. Shapes: B batch, K draws."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from tallystick.imputation.imputer import LabelBatch, LabelImputer


@dataclass(frozen=True, kw_only=True)
class SettledLabels(LabelImputer):
    """Gives an absent label one draw from what a model predicts that was trained before the first cut gradient, and keeps it.

    Not in FLORIST. The feature party embeds the training rows once before training; the label party trains a model of its own on
    these embeddings and its real labels, sends nothing of it, and draws every absent label from its predictions by its secret.
    So an imputed label follows x, as random-pred's does, and never changes, as a real one never does. No formal guarantee.
    Not protected: the model knows less than the one that is trained, so real labels go with x a little more than imputed ones do:
    a feature party that reads labels off gradients and boosts its own columns on them tells real ones with an AUC of .54 to .56.
    An audit, which has its embeddings and not its columns, finds .52 to .53.
    """

    name: ClassVar[str] = "settled"
    gives: ClassVar[str] = "a draw, kept for the whole run, from what a model of the first embeddings predicts"
    settles_first: ClassVar[bool] = True

    @property
    def draws(self) -> int:
        """Return one draw."""
        return 1

    def imputed_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """Return None: the rate follows x, so there is nothing to calibrate."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Impute what was drawn before training."""
        assert batch.settled_B is not None, "labels are drawn before the first step"
        return batch.imputed(batch.settled_B)
