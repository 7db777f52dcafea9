"""Define an imputer: one kind for absent labels, one for absent features, and what each says of itself.

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
"""Where a logit calibration applies."""


class Imputer(ABC):
    """Facts that every imputer states about itself, beside what it does: everybody who asks reads them here."""

    name: ClassVar[str]
    """Its name in a contract, without a suffix for calibration."""
    gives: ClassVar[str]
    """What a row gets that the side lacks, in a line; docs/explanation/unions.md says the same."""
    calibrated: ClassVar[tuple[When, ...]] = ("never",)
    """How it may be calibrated."""
    reader: ClassVar[str] = ""
    """What tells its rows from real ones, with what share or AUC (docs/results/unions.md); empty for what may be recommended.

    Nothing that has one is a default, an example or a first choice."""


ANY_CALIBRATION: tuple[When, ...] = ("never", "training", "prediction", "fitted")


@dataclass(frozen=True, kw_only=True)
class LabelBatch:
    """Inputs that the label party may look at to impute labels.

    Args:
        labels_B: its labels, 0 or 1; any value where absent.
        present_B: bool, whether it has the row.
        logits_B: current logits, detached.
        cut_BD: current cut embeddings, detached.
        positive_rate: rate of positives on its own rows (π), in [0, 1].
        settled_B: labels that were drawn before training; None for imputers that do not ask for it.
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
    """Imputes absent binary labels: a pure function of the batch and of uniform numbers.

    It gives targets in [0, 1] for all rows of a batch: real labels where present, synthetic ones elsewhere. Threat model of
    all: an honest-but-curious feature party that reads the cut gradients and wants to know which of its own rows the label
    party has. None hides real labels from the gradients (that is a defence's task).
    """

    couples_rows: ClassVar[bool] = False
    """Whether one row's label sets the targets of other rows."""
    settles_first: ClassVar[bool] = False
    """Whether labels are drawn before training, from embeddings that the feature party sends once for it."""

    @property
    def soft_targets(self) -> bool:
        """Tell whether it gives targets between the classes."""
        return False

    @property
    def draws(self) -> int:
        """Return how many uniform numbers a row needs (K, 0 if none)."""
        return 0

    @abstractmethod
    def imputed_rate(self, positive_rate: float) -> float | None:
        """Return the rate of positives among imputed labels whatever x is, for calibration, or None if it depends on x."""

    @abstractmethod
    def __call__(self, batch: LabelBatch, *, uniform_BK: Tensor) -> Tensor:
        """Return a target in [0, 1] for every row of the batch."""


class FeatureImputer(Imputer):
    """Imputes absent features in one of three places: ``made_up`` before training, ``inputs`` before the bottom, ``cut`` after.

    Threat model of all: an honest-but-curious label party that reads the cut embeddings next to its labels and wants to know
    which of its own rows the feature party has. The label party uses the same objects for its own features on rows that it lacks.
    """

    def inputs(self, own_B: Tensor, *, own_rows: int, uniform_B: Tensor) -> Tensor:  # noqa: ARG002
        """Return the own row to embed for every row of the batch. ``own_B`` is -1 where the side lacks it, which embeds row 0."""
        return own_B.clamp(min=0)

    makes_rows: ClassVar[bool] = False
    """Whether ``made_up`` gives a row for every absent one, before training."""

    def made_up(self, numeric_NF: Tensor, categorical_NG: Tensor, count: int, *, generator: Generator) -> tuple[Tensor, Tensor]:
        """Return the numbers and codes of ``count`` rows made of the side's own rows. They are embedded as real ones are.

        Not abstract: an imputer that makes no rows has nothing to say here, and is never asked.
        """
        raise NotImplementedError(f"{self.name} makes no rows")

    def cut(self, cut_BD: Tensor, present_B: Tensor, *, moments: "MovingMoments", generator: Generator) -> Tensor:  # noqa: ARG002
        """Return the cut embeddings that are sent. An embedding that is replaced passes no gradient."""
        return cut_BD
