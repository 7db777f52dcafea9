"""Score single rows by a trained label party, with the same bits as in a prediction.

Shapes: B rows, D cut width.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.cut.forward import no_columns, whole_tiles
from tallystick.models.branches import BranchedModel
from tallystick.run_folder.trained import TrainedLabelParty
from tallystick.scoring.predict import score_columns
from tallystick.scoring.stores.store import KeyedRows
from tallystick.tables.features import Features

Columns = dict[str, NDArray[np.float32]]
"""Scores of rows: ``score``, or one column per class."""


ByOwnColumns = Callable[[Features], Columns]


class Scoring(Protocol):
    """Scoring from the other sides' answers."""

    @property
    def names(self) -> Sequence[str]:
        """Return the names of the columns."""
        ...

    def joint(self, cuts_BD: Sequence[Tensor], own_B: Features | None) -> Columns:
        """Score by all parties' columns."""
        ...

    @property
    def alone(self) -> ByOwnColumns | None:
        """Return a function that scores rows by own columns, or None if only joint scores are given."""
        ...


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """The label party's part of the network, in evaluation mode. Several threads may score."""

    trained: TrainedLabelParty

    @classmethod
    def of(cls, trained: TrainedLabelParty) -> "Scorer":
        """Wrap a model whose training has ended."""
        trained.model.eval()
        return cls(trained=trained)

    @property
    def alone(self) -> ByOwnColumns | None:
        """Return a function that scores rows by own columns, calibrated as the joint scores are, or None if the contract has no
        method for it.
        """
        return self._alone if self.trained.alone is not None else None

    @cached_property
    def names(self) -> list[str]:
        """Return the names of the columns."""
        return self.trained.coder.score_names

    @torch.inference_mode()
    def joint(self, cuts_BD: Sequence[Tensor], own_B: Features | None) -> Columns:
        """Score by all parties' columns."""
        index = whole_tiles(torch.arange(len(cuts_BD[0])))
        own = no_columns(index) if own_B is None else own_B.rows(index)
        logits = self.trained.model([cut_BD.index_select(0, index) for cut_BD in cuts_BD], own)
        return score_columns(self.trained.coder, self.trained.calibration.prediction_logits(logits)[: len(cuts_BD[0])])

    @torch.inference_mode()
    def _alone(self, own_B: Features) -> Columns:
        assert self.trained.alone is not None
        assert isinstance(self.trained.model, BranchedModel)
        logits = self.trained.model.score_alone(own_B.rows(whole_tiles(torch.arange(len(own_B)))))[: len(own_B)]
        return score_columns(self.trained.coder, self.trained.alone(logits))


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoringRun:
    """A run loaded by a side with clients: what computes scores, and own rows by key, encoded for this run."""

    run_id: str
    scorer: Scoring
    store: KeyedRows
