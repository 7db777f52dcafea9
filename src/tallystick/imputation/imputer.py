"""Define imputers, one kind for absent labels and one for absent features, and the facts that each states about itself.

Shapes: B rows of a batch, D cut width, K draws per row.

No imputer carries a formal guarantee, and none hides the sizes of the two sides and of their intersection.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from tallystick.lazy_torch import Generator, Tensor, torch

if TYPE_CHECKING:
    from tallystick.imputation.moments import MovingMoments

When = Literal["never", "training", "prediction", "fitted"]
"""The place where a logit calibration applies."""


class Imputer(ABC):
    """Base of imputers: the facts that an imputer states about itself, in addition to its work. All other code reads
    them here.
    """

    name: ClassVar[str]
    """Its name in a contract, without a suffix for calibration."""
    gives: ClassVar[str]
    """The imputed data of a row that the side lacks, in a line. docs/explanation/unions.md says the same."""
    calibrated: ClassVar[tuple[When, ...]] = ("never",)
    """The ways in which it may be calibrated."""
    reader: ClassVar[str] = ""
    """The evidence that separates its rows from real ones, with a share or an AUC (docs/results/unions.md). It is empty if the
    imputer may be recommended.

    An imputer with such evidence is never a default, an example or a first choice.
    """


ANY_CALIBRATION: tuple[When, ...] = ("never", "training", "prediction", "fitted")


@dataclass(frozen=True, kw_only=True)
class LabelBatch:
    """Hold inputs that the label party may read to impute labels.

    Args:
        labels_B: its labels, 0 or 1; any value if absent.
        present_B: bool, whether it has the row.
        logits_B: current logits, detached.
        cut_BD: current cut embeddings, detached.
        positive_rate: the rate of positives on its own rows (π), in [0, 1].
        settled_B: labels that were drawn before training; None for imputers that do not need them.
    """

    labels_B: Tensor
    present_B: Tensor
    logits_B: Tensor
    cut_BD: Tensor
    positive_rate: float
    settled_B: Tensor | None = None

    def imputed(self, synthetic_B: Tensor | float) -> Tensor:
        """Return real labels where present and ``synthetic_B`` elsewhere."""
        synthetic_B = torch.as_tensor(synthetic_B, dtype=self.labels_B.dtype, device=self.labels_B.device)
        return torch.where(self.present_B, self.labels_B, synthetic_B)


class LabelImputer(Imputer):
    """Imputes absent binary labels, as a pure function of the batch and of uniform numbers.

    It returns targets in [0, 1] for all rows of a batch: real labels where present, synthetic ones elsewhere. Threat model of
    all: an honest-but-curious feature party that reads the cut gradients and wants to know which of its own rows the label party
    has. None hides real labels from the gradients, which is a defence's task.
    """

    couples_rows: ClassVar[bool] = False
    """Whether one row's label sets the targets of other rows."""
    settles_first: ClassVar[bool] = False
    """Whether labels are drawn before training, from embeddings that the feature party sends once for it."""

    @property
    def soft_targets(self) -> bool:
        """Tell whether its targets may lie between the classes."""
        return False

    @property
    def draws(self) -> int:
        """Return how many uniform numbers a row needs (K, 0 if none)."""
        return 0

    @abstractmethod
    def imputed_rate(self, positive_rate: float) -> float | None:
        """Return the rate of positives among imputed labels for every x, for calibration, or None if it depends on x."""

    @abstractmethod
    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Return a target in [0, 1] for every row of the batch."""


class FeatureImputer(Imputer):
    """Imputes absent features in one of three places: ``made_up`` before training, ``inputs`` before the bottom, ``cut`` after
    it.

    Threat model of all: an honest-but-curious label party that reads the cut embeddings next to its labels and wants to know
    which of its own rows the feature party has. The label party uses the same objects for its own features on rows that it lacks.
    """

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:  # noqa: ARG002
        """Return the own row to embed for every row of the batch. ``own_B`` is -1 if the side lacks it, which embeds row 0."""
        return own_B.clamp(min=0)

    makes_rows: ClassVar[bool] = False
    """Whether ``made_up`` makes a row for every absent one, before training."""

    def made_up(self, numeric_NF: Tensor, categorical_NG: Tensor, count: int, *, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the numbers and codes of ``count`` rows made from the side's own rows. They are embedded like real ones.

        It is not abstract, because an imputer that makes no rows is never asked.
        """
        raise NotImplementedError(f"{self.name} makes no rows")

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: "MovingMoments", generator: Generator) -> Tensor:  # noqa: ARG002
        """Return the cut embeddings to send. A replaced embedding passes no gradient."""
        return cut_BD
