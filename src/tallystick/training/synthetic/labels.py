"""Labels for union rows that the label party does not have; binary labels, one small object per strategy.

Shapes: B rows of a batch, D cut width, K draws per row.

Every strategy maps a batch to targets in [0, 1] for all its rows: real labels where present, synthetic ones elsewhere.
Common threat model: an honest-but-curious feature party that reads the cut gradients and wants to know which of its own
rows the label party has. No strategy here carries a formal guarantee. None hides the sizes of the two sides and of
their intersection, and none hides real labels from the gradients (that is a defence's task, such as Marvell).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LabelBatch:
    """What the label party may look at to fill labels.

    Args:
        labels_B: its labels, 0 or 1; any value where absent.
        present_B: bool, whether it has the row.
        logits_B: current logits, detached.
        cut_BD: current cut embeddings, detached.
        positive_rate: rate of positives on its own rows (π), in [0, 1].
    """

    labels_B: Tensor
    present_B: Tensor
    logits_B: Tensor
    cut_BD: Tensor
    positive_rate: float

    def filled(self, synthetic_B: Tensor | float) -> Tensor:
        """Give real labels where present and ``synthetic_B`` elsewhere."""
        synthetic_B = torch.as_tensor(synthetic_B, dtype=self.labels_B.dtype, device=self.labels_B.device)
        return torch.where(self.present_B, self.labels_B, synthetic_B)


class LabelFill(Protocol):
    """A strategy for absent labels: a pure function of the batch and of uniform numbers."""

    @property
    def draws(self) -> int:
        """How many uniform numbers a row needs (K; 0 if none)."""
        ...

    def filled_rate(self, positive_rate: float) -> float | None:
        """Rate of positives among filled labels whatever x is, for calibration; None if it depends on x."""
        ...

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Give a target in [0, 1] for every row of the batch."""
        ...


@dataclass(frozen=True, kw_only=True)
class MajorityLabels:
    """Gives every absent label the commoner class.

    FLORIST, section 3.1, label-majority. No formal guarantee. Not protected: every gradient that looks like the rarer
    class's is certainly of a shared row, so its sign alone betrays a share π of the intersection without a single
    false alarm.
    """

    draws: ClassVar[int] = 0

    def filled_rate(self, positive_rate: float) -> float:
        """1 if positives are the commoner class, else 0."""
        return float(positive_rate > 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Fill with the commoner class."""
        return batch.filled(self.filled_rate(batch.positive_rate))


@dataclass(frozen=True, kw_only=True)
class MinorityLabels:
    """Gives every absent label the rarer class.

    FLORIST, section 3.1, label-minority: a foil. No formal guarantee. Not protected: every gradient that looks like the
    commoner class's is certainly of a shared row, which betrays a share 1 - π of the intersection without a false alarm.
    """

    draws: ClassVar[int] = 0

    def filled_rate(self, positive_rate: float) -> float:
        """0 if positives are the commoner class, else 1."""
        return float(positive_rate <= 0.5)

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Fill with the rarer class."""
        return batch.filled(self.filled_rate(batch.positive_rate))


@dataclass(frozen=True, kw_only=True)
class RandomPositiveLabels:
    """Draws absent labels from the rate of positives on the label party's own rows.

    FLORIST, section 3.1, label-random-pos. No formal guarantee. Not protected: labels that do not follow x stand out
    where the model is sure, and a label drawn anew each epoch changes its gradient's sign, which real labels never do
    (draw once per row).
    """

    draws: ClassVar[int] = 1

    def filled_rate(self, positive_rate: float) -> float:
        """The rate itself."""
        return positive_rate

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Fill with Bernoulli(π)."""
        return batch.filled((uniform_BK[:, 0] < batch.positive_rate).to(batch.labels_B.dtype))


@dataclass(frozen=True, kw_only=True)
class RandomPredictedLabels:
    """Draws absent labels from the model's current predictions; k draws are averaged.

    FLORIST, section 3.1 and appendix H, label-random-pred; table 5 for k. The expected gradient of a filled row is 0, so
    filled rows do not pull the model. No formal guarantee. Not protected: with k > 1 the averaged gradients shrink
    towards 0, which marks them; drawn anew each step, a filled row's gradient changes sign between epochs, which a real
    row's never does (draw once per row: the target then changes only where the prediction crosses the row's number).

    Args:
        k: draws to average, at least 1.
    """

    k: int = 1

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"synthetic labels random-pred: k={self.k} draws; expected at least 1")

    @property
    def draws(self) -> int:
        """K."""
        return self.k

    def filled_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """None: it follows x, so there is nothing to calibrate."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Fill with the mean of K draws from Bernoulli(sigmoid(logit)): gradients are linear in the target."""
        positive_BK = uniform_BK < torch.sigmoid(batch.logits_B)[:, None]
        return batch.filled(positive_BK.to(batch.labels_B.dtype).mean(dim=1))


@dataclass(frozen=True, kw_only=True)
class NeighborLabels:
    """Gives an absent label the vote of the nearest rows of the batch whose labels are real.

    FLORIST, section 3.1, label-neighbors: k = 3, cosine similarity of cut embeddings. No formal guarantee. Not
    protected: votes agree with the model more than real labels do, so filled rows have small gradients, and with rare
    positives they look almost like majority's.

    Args:
        k: neighbours that vote, at least 1; with fewer real rows in the batch all vote, with none the commoner class wins.
    """

    k: int = 3
    draws: ClassVar[int] = 0

    def __post_init__(self) -> None:
        if self.k < 1:
            raise ConfigError(f"synthetic labels neighbors: k={self.k}; expected at least 1")

    def filled_rate(self, positive_rate: float) -> None:  # noqa: ARG002
        """None: it follows x."""
        return

    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Fill with the majority vote; a tie gives one half."""
        present_B = batch.present_B
        if not present_B.any():
            return batch.filled(float(batch.positive_rate > 0.5))
        if present_B.all():
            return batch.labels_B
        unit_BD = normalize(batch.cut_BD, dim=1)
        similarity_AP = unit_BD[~present_B] @ unit_BD[present_B].T  # absent x present rows
        nearest_AK = similarity_AP.topk(min(self.k, similarity_AP.shape[1]), dim=1).indices
        share_A = batch.labels_B[present_B][nearest_AK].mean(dim=1)
        targets_B = batch.labels_B.clone()
        targets_B[~present_B] = (torch.sign(share_A - 0.5) + 1) / 2
        return targets_B


LABEL_FILLS: Mapping[str, type[LabelFill]] = {
    "majority": MajorityLabels,
    "minority": MinorityLabels,
    "random-pos": RandomPositiveLabels,
    "random-pred": RandomPredictedLabels,
    "neighbors": NeighborLabels,
}
