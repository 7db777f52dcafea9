"""Define a method for unaligned rows: the label party's model, what comes before the first step, and how a batch teaches.

Shapes: N positions, B batch, D cut width.

None of the methods sends anything about unaligned rows but what its class says. No formal guarantee covers what the weights
that they shape tell through later cut gradients: label defences and the ledger see these rows' labels as they see all others.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from torch import Tensor, nn

from tallystick.config.sections import TrainingConfig
from tallystick.config.unaligned import UnalignedKeys
from tallystick.cut.forward import FeatureSource
from tallystick.models.branches import BranchedModel
from tallystick.models.build import BranchParts
from tallystick.models.split import LabelModel
from tallystick.network.channel import Progress, no_progress
from tallystick.privacy.randomness import Seed
from tallystick.tables.features import Features
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.label_party import train_label_party
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch, Schedule
from tallystick.training.run import TrainingRun
from tallystick.training.step_rule import StepRule

FASTEST = 4.0  # most: beyond some size a rate in proportion to the batch no longer helps (Goyal et al. 2017)


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """One party's rows that it may train on before the first joint step, of which nothing crosses.

    Args:
        source: its features by position.
        train_N: positions to train on.
        validation_N: positions to stop by.
        training: the contract's settings.
        store: gives the checkpoints of what is trained here, by name.
        seed: the contract's: of the order of batches.
        start: of what else is drawn, the contract's seed or this party's secret.
        progress: called as steps go by.
    """

    source: FeatureSource
    train_N: Tensor
    validation_N: Tensor
    training: TrainingConfig
    store: Callable[[str], CheckpointStore]
    seed: int
    start: Seed = field(repr=False)
    progress: Progress = no_progress

    def train(self, model: LabelModel, objective: Objective, name: str, *, epochs: int, batch_size: int, rate: float) -> None:
        """Train a model of own columns alone by the ordinary loop, with early stopping where there are validation rows."""
        validated = len(self.validation_N) > 0
        training = self.training.model_copy(
            update={
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": self.training.learning_rate * rate,
                "patience": 1 if validated else None,  # its epochs are long, and after the first worse one none was better
                "mode": "synchronous",
                "schedule": "constant",  # it is stopped long before its last epoch
                "ema": None,
            }
        )
        schedule = Schedule(train_N=self.train_N, validation_N=self.validation_N, batch_size=batch_size, seed=self.seed)
        run = TrainingRun(training=training, schedule=schedule, store=self.store(name), progress=self.progress)
        train_label_party(model, self.source, objective, [], run)


@dataclass(frozen=True, kw_only=True)
class UnalignedMethod(StepRule, ABC):
    """A method for unaligned rows.

    Args:
        settings: the contract's.
        batch_size: rows of a joint batch.
        ratio: rows of a local batch for each row of a joint one: this party's alone to know; 1 where it is of no matter.
        seed: of weights and of what is made up: the contract's, or this party's secret.
        columns: names of the label party's categorical columns, in the order of their codes.
    """

    scores_alone: ClassVar[bool] = True
    """Whether a row without a partner's row gets a score."""

    settings: UnalignedKeys
    batch_size: int
    ratio: float = 1.0
    seed: Seed = field(default=0, repr=False)
    columns: Sequence[str] = ()

    @property
    def local_rate(self) -> float:
        """Return the learning rate of what local batches teach, as a share of the usual: in proportion to their size, within
        limits.
        """
        return min(max(self.ratio, 1.0), FASTEST)

    @abstractmethod
    def model(self, parts: BranchParts) -> BranchedModel:
        """Build the label party's model, the same from the same seed."""

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Prepare for the label party's first step. Nothing crosses."""

    def prepare_again(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Prepare for the label party's first step where the model starts from an earlier run's weights, which must stay."""

    def prepare_bottom(self, bottom: nn.Module, own: OwnPart) -> None:
        """Prepare for a feature party's first step. Nothing crosses."""


@dataclass(frozen=True, kw_only=True)
class LocalBatches(UnalignedMethod):
    """Base of the methods whose local batches train a branch of their own."""

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss: a joint batch teaches the joint branch, a local one the other."""
        if batch.is_local:
            return self.local_loss(model, objective, batch, own)
        return self.joint_loss(model, objective, batch, cuts_BD, own)

    def joint_loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the plain loss of joint logits."""
        return objective(model(cuts_BD, own), batch.index_B, cuts_BD)

    @abstractmethod
    def local_loss(self, model: LabelModel, objective: Objective, batch: Batch, own: Features) -> tuple[Tensor, Tensor]:
        """Compute the loss of rows without a partner's row, and their targets."""
