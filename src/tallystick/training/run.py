"""Describe a training run: its settings, batches, storage and callbacks."""

from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

from torch import nn

from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import Announce, ignore_rows
from tallystick.network.channel import Progress, no_progress
from tallystick.training.checkpoint import CheckpointPart, CheckpointStore, TrainingState
from tallystick.training.plan import Batch, Committed, Schedule, batches_per_message, ignore_commit
from tallystick.training.screening import Screening
from tallystick.training.updates import Updates


@dataclass(frozen=True, kw_only=True)
class TrainingRun:
    """Settings and storage that both roles' loops need in addition to their models and channels.

    Args:
        training: the contract's settings.
        schedule: the batches of every epoch, the same for all parties.
        store: keeps this party's checkpoints.
        resume_from: the step that all parties have committed; 0 starts a new training.
        progress: called during training.
        committed: called with a step when all parties are known to have committed it.
        announce: called with the positions of the next message's batches.
        begins: the state at the start; for a refit, epochs and steps count on from the first training's.
        screening: how this party's columns are screened, if its bottom has columns that may be closed; None screens nothing.
    """

    training: TrainingConfig
    schedule: Schedule
    store: CheckpointStore
    resume_from: int = 0
    progress: Progress = no_progress
    committed: Committed = ignore_commit
    announce: Announce = ignore_rows
    begins: TrainingState = field(default_factory=TrainingState)
    screening: Screening | None = None

    @property
    def epochs(self) -> int:
        """Count all epochs, if training is not stopped early."""
        return self.schedule.epochs_before + (self.begins.refit_epochs or self.training.epochs)

    @property
    def steps(self) -> int:
        """Count all steps, if training is not stopped early."""
        return self.ends(self.epochs - 1)

    def ends(self, epoch: int) -> int:
        """Return the last step of an epoch. A refit's last epoch may end before all of its batches."""
        whole = self.schedule.steps_before(epoch + 1)
        return min(whole, self.begins.step + self.begins.refit_steps) if self.begins.refit_epochs else whole

    def rows(self, epoch: int) -> int:
        """Count the positions that an epoch uses."""
        whole, steps = self.schedule.rows(epoch), self.ends(epoch) - self.schedule.steps_before(epoch)
        return min(whole, steps * self.training.batch_size) if self.begins.refit_epochs else whole

    def updates(self, module: nn.Module, rates: Mapping[str, float] | None = None) -> Updates:
        """Build the updates of a party's module, with ``rates`` as for optimizer_of."""
        before, most = self.begins.step, self.schedule.steps_before(self.schedule.epochs_before + self.training.epochs)
        return Updates(self.training, module, steps=most - before, before=before, rates=rates)

    def is_over_time(self, state: TrainingState) -> bool:
        """Tell whether the epochs so far took the time limit of training (``training.minutes``). A refit has no limit."""
        minutes = self.training.minutes
        return minutes is not None and not state.refit_epochs and sum(each["seconds"] for each in state.history) >= 60 * minutes

    def begun(self) -> TrainingState:
        """Return the state from which the run starts or is resumed, before anything is loaded. Raises DamagedFile."""
        return self.store.state(self.resume_from) if self.resume_from else TrainingState()

    def refit(self, schedule: Schedule, state: TrainingState) -> "TrainingRun":
        """Return the refit after this run, with these batches. ``state`` is its start, or the state from which it is resumed.

        Its learning rate follows the schedule of the first training, up to the best point. A rate that falls to 0 over the
        refit's own epochs overfits if few epochs are best.
        """
        step = self.schedule.steps_before(state.first_epochs)
        begins = replace(state, step=step, epoch=state.first_epochs)
        return replace(self, schedule=schedule.after(self.schedule, epochs=state.first_epochs), begins=begins)

    def resume(self, module: nn.Module, *beside: CheckpointPart | None) -> TrainingState:
        """Load a module and the other parts at the step from which the run is resumed. Delete later checkpoints."""
        goes_on = self.resume_from > self.begins.step
        state = self.store.load(self.resume_from, module, *beside) if goes_on else deepcopy(self.begins)
        self.store.drop_after(state)
        return state

    def messages(self, state: TrainingState) -> Iterator[tuple[Batch, ...]]:
        """Yield the batches of each remaining message of the current epoch."""
        done_steps = state.step - self.schedule.steps_before(state.epoch)
        size, last = batches_per_message(self.training), self.ends(state.epoch)
        groups = self.schedule.messages(state.epoch, size=size, skip=done_steps, last=last)
        coming = next(groups, None)
        while coming is not None:
            group, coming = coming, next(groups, None)
            for batch in coming or ():
                self.announce(batch.index_B)
            yield group
