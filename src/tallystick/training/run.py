"""How a training run goes: its settings and batches, where it is kept, who is told."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from tallystick.config.sections import TrainingConfig
from tallystick.network.channel import Progress, no_progress
from tallystick.training.checkpoint import CheckpointStore, TrainingState
from tallystick.training.plan import Batch, Committed, Schedule, batches_per_message, ignore_commit
from tallystick.training.updates import Updates


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """What both roles' loops need besides their models and their way to each other.

    Args:
        training: the contract's settings.
        schedule: the batches of every epoch, the same for all parties.
        store: where this party's checkpoints go.
        resume_from: the step that all parties have committed; 0 starts anew.
        progress: called as steps go by.
        committed: called with a step once all parties are known to have committed it.
    """

    training: TrainingConfig
    schedule: Schedule
    store: CheckpointStore
    resume_from: int = 0
    progress: Progress = no_progress
    committed: Committed = ignore_commit

    @property
    def epochs(self) -> int:
        """Epochs in all, if training is not stopped early."""
        return self.schedule.epochs_before + self.training.epochs

    @property
    def steps(self) -> int:
        """Steps in all, if training is not stopped early."""
        return self.schedule.steps_before(self.epochs)

    def updates(self, module: nn.Module, rates: Mapping[str, float] | None = None) -> Updates:
        """The updates of a party's module; ``rates`` as optimizer_of takes it."""
        return Updates(self.training, module, steps=self.steps, rates=rates)

    def resume(self, module: nn.Module, updates: Updates) -> TrainingState:
        """Take a module and its updates up where the run goes on; later checkpoints are dropped."""
        state = self.store.load(self.resume_from, module, updates) if self.resume_from else TrainingState()
        self.store.drop_after(state)
        return state

    def messages(self, state: TrainingState) -> Iterator[tuple[Batch, ...]]:
        """What is left of the present epoch: the batches of each message."""
        done = state.step - self.schedule.steps_before(state.epoch)
        return self.schedule.messages(state.epoch, size=batches_per_message(self.training), skip=done)
