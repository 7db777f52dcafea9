"""Describe a training run: its settings and batches, where it is kept, who is told."""

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
    """Settings and storage that both roles' loops need besides their models and channels.

    Args:
        training: the contract's settings.
        schedule: the batches of every epoch, the same for all parties.
        store: where this party's checkpoints go.
        resume_from: the step that all parties have committed; 0 starts anew.
        progress: called as steps go by.
        committed: called with a step once all parties are known to have committed it.
        announce: hears which positions the next message's batches take.
        begins: where it begins; other than at nothing for a refit, whose epochs and steps count on from the first training's.
        screening: that this party's columns are screened, where its bottom has columns that may be closed; None screens nothing.
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
        """Count the epochs in all, if training is not stopped early."""
        return self.schedule.epochs_before + (self.begins.refit_epochs or self.training.epochs)

    @property
    def steps(self) -> int:
        """Count the steps in all, if training is not stopped early."""
        return self.ends(self.epochs - 1)

    def ends(self, epoch: int) -> int:
        """Return the last step of an epoch. A refit's last epoch may end before all of its batches."""
        whole = self.schedule.steps_before(epoch + 1)
        return min(whole, self.begins.step + self.begins.refit_steps) if self.begins.refit_epochs else whole

    def rows(self, epoch: int) -> int:
        """Count the positions that an epoch takes."""
        whole, steps = self.schedule.rows(epoch), self.ends(epoch) - self.schedule.steps_before(epoch)
        return min(whole, steps * self.training.batch_size) if self.begins.refit_epochs else whole

    def updates(self, module: nn.Module, rates: Mapping[str, float] | None = None) -> Updates:
        """Build the updates of a party's module. ``rates`` as optimizer_of takes it."""
        before, most = self.begins.step, self.schedule.steps_before(self.schedule.epochs_before + self.training.epochs)
        return Updates(self.training, module, steps=most - before, before=before, rates=rates)

    def is_over_time(self, state: TrainingState) -> bool:
        """Tell whether the epochs so far took as long as training may (``training.minutes``). A refit takes what it needs."""
        minutes = self.training.minutes
        return minutes is not None and not state.refit_epochs and sum(each["seconds"] for each in state.history) >= 60 * minutes

    def begun(self) -> TrainingState:
        """Return the state from which the run goes on, before anything is loaded. Raises DamagedFile."""
        return self.store.state(self.resume_from) if self.resume_from else TrainingState()

    def refit(self, schedule: Schedule, state: TrainingState) -> "TrainingRun":
        """Return the refit after this run, by these batches. ``state`` is where it begins, or where it goes on.

        Its rate goes as if it took all epochs, as that of the first training did when it was at its best: a rate that falls to 0
        over the refit's own epochs learns by heart where few epochs are best.
        """
        step = self.schedule.steps_before(state.first_epochs)
        begins = replace(state, step=step, epoch=state.first_epochs)
        return replace(self, schedule=schedule.after(self.schedule, epochs=state.first_epochs), begins=begins)

    def resume(self, module: nn.Module, *beside: CheckpointPart | None) -> TrainingState:
        """Take a module and what is kept beside it up where the run goes on. Later checkpoints are dropped."""
        goes_on = self.resume_from > self.begins.step
        state = self.store.load(self.resume_from, module, *beside) if goes_on else deepcopy(self.begins)
        self.store.drop_after(state)
        return state

    def messages(self, state: TrainingState) -> Iterator[tuple[Batch, ...]]:
        """Yield the batches of each message that is left of the present epoch."""
        done_steps = state.step - self.schedule.steps_before(state.epoch)
        size, last = batches_per_message(self.training), self.ends(state.epoch)
        groups = self.schedule.messages(state.epoch, size=size, skip=done_steps, last=last)
        coming = next(groups, None)
        while coming is not None:
            group, coming = coming, next(groups, None)
            for batch in coming or ():
                self.announce(batch.index_B)
            yield group
