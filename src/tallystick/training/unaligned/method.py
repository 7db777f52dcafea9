"""Define a method for unaligned rows: the label party's model, its preparation, and how it learns from a batch.

Shapes: N positions, B batch, D cut width.

A method sends nothing about unaligned rows except what its class says. No formal guarantee covers what later cut gradients reveal
through the weights that these rows shape. Label defences and the ledger treat these rows' labels like all others.
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

FASTEST = 4.0  # the largest: beyond some size a rate in proportion to the batch no longer helps (Goyal et al. 2017)


@dataclass(frozen=True, kw_only=True)
class OwnPart:
    """One party's rows for training before the first joint step. Nothing about them crosses.

    Args:
        source: its features by position.
        train_N: positions to train on.
        validation_N: positions for early stopping.
        training: the contract's settings.
        store: returns the checkpoints of a model trained here, by name.
        seed: seed of the order of batches, the contract's.
        start: seed of everything else, the contract's seed or this party's secret.
        progress: called during training.
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
        """Train a model of own columns alone by the ordinary loop, with early stopping if there are validation rows."""
        validated = len(self.validation_N) > 0
        training = self.training.model_copy(
            update={
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": self.training.learning_rate * rate,
                "patience": 1 if validated else None,  # its epochs are long, and after a first worse one no later one was better
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
        settings: the contract's settings.
        batch_size: rows of a joint batch.
        ratio: rows of a local batch per row of a joint one, known only to this party; 1 if it does not matter.
        seed: seed of weights and of made-up embeddings: the contract's, or this party's secret.
        columns: names of the label party's categorical columns, in the order of their codes.
    """

    scores_alone: ClassVar[bool] = True
    """Whether rows without a partner's row get a score."""

    settings: UnalignedKeys
    batch_size: int
    ratio: float = 1.0
    seed: Seed = field(default=0, repr=False)
    columns: Sequence[str] = ()

    @property
    def local_rate(self) -> float:
        """Return the learning rate of parts that local batches train, as a share of the usual: in proportion to their size,
        within limits.
        """
        return min(max(self.ratio, 1.0), FASTEST)

    @abstractmethod
    def model(self, parts: BranchParts) -> BranchedModel:
        """Build the label party's model, the same from the same seed."""

    def prepare(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Prepare for the label party's first step. Nothing crosses."""

    def prepare_again(self, model: LabelModel, objective: Objective, own: OwnPart) -> None:
        """Prepare for the label party's first step if the model starts from an earlier run's weights, which must not change."""

    def prepare_bottom(self, bottom: nn.Module, own: OwnPart) -> None:
        """Prepare for a feature party's first step. Nothing crosses."""


@dataclass(frozen=True, kw_only=True)
class LocalBatches(UnalignedMethod):
    """Base of the methods whose local batches train a separate branch."""

    def loss(
        self, model: LabelModel, objective: Objective, batch: Batch, cuts_BD: Sequence[Tensor], own: Features
    ) -> tuple[Tensor, Tensor]:
        """Compute the loss: a joint batch trains the joint branch, a local one the other."""
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
