"""Train a split network in one process, by the steps of the networked loops: with the same bits, and without a network.

This is for experiments that train hundreds of networks and look at both sides between epochs. Shapes: B rows of a batch, D cut
width.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import FeatureSource, no_columns
from tallystick.models.build import width_of
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.folds import ValidationLosses, validation_losses
from tallystick.training.label_defense import CutDefense
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch, Schedule
from tallystick.training.screening import ColumnScreen, FoldedScreen, Screening, feature_screen, screen_own_columns
from tallystick.training.step import LabelLearner, LabelStep, absent_cuts, apply, embed, label_step
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick.training.updates import Updates


@dataclass(frozen=True, kw_only=True)
class CrossedStep:
    """A step and what crossed the cut in it, if joint: the embeddings of each feature party, and the label party's answer."""

    batch: Batch
    embeddings_BD: list[Tensor]
    answer: LabelStep


@dataclass(kw_only=True)
class SplitNetwork:
    """All parties' models, columns and updates. Training is synchronous.

    Args:
        bottoms: the feature parties' models.
        sources: their columns, in the same order.
        model: the label party's model.
        own: its columns, if it has any.
        objective: its loss.
        training: the contract's settings.
        schedule: the batches of every epoch.
        step_rule: how the label party learns from a batch.
        defense: defences that change the cut gradients.
        screening: how columns are screened, if any may be closed.
    """

    bottoms: Sequence[nn.Module]
    sources: Sequence[FeatureSource]
    model: LabelModel
    own: FeatureSource = no_columns
    objective: Objective
    training: TrainingConfig
    schedule: Schedule
    step_rule: StepRule = PLAIN
    defense: CutDefense | None = None
    screening: Screening | None = None
    _screens: list[ColumnScreen | FoldedScreen | None] = field(init=False)
    _updates: list[Updates] = field(init=False)
    _learner: LabelLearner = field(init=False)

    def __post_init__(self) -> None:
        steps = self.schedule.steps_before(self.schedule.epochs_before + self.training.epochs)
        own = Updates(self.training, self.model, steps=steps, rates=self.step_rule.rates)
        self._updates = [own, *(Updates(self.training, bottom, steps=steps) for bottom in self.bottoms)]
        screen_own_columns(self.model, self.own, self.objective, self.schedule.train_N, self.screening)
        self._screens = [
            feature_screen(bottom, source, self.schedule, epoch=0, screening=self.screening)
            for bottom, source in zip(self.bottoms, self.sources, strict=True)
        ]
        self.step_rule.start(self.model, self.own, self.schedule.train_N)
        self._learner = LabelLearner(
            model=self.model, updates=own, objective=self.objective, step_rule=self.step_rule, defense=self.defense
        )

    def epoch(self, number: int) -> Iterator[CrossedStep]:
        """Train an epoch, step by step."""
        if embedded := self.schedule.embedded(number, step=self.schedule.steps_before(number)):
            # Embed these positions without training: all feature parties' cut embeddings side by side
            self.train(False)
            with torch.no_grad():
                cuts_of_batches = [
                    torch.cat([bottom(source(index_B)) for bottom, source in zip(self.bottoms, self.sources, strict=True)], dim=1)
                    for index_B in embedded
                ]
            cuts_ND = torch.cat(cuts_of_batches)
            self.step_rule.fit(self.model, self.objective, self.own, self.schedule.train_N, cuts_ND)
        self.train(True)
        own_updates, *others = self._updates
        for batch in self.schedule.epoch(number):
            if batch.is_local:
                own_columns = self.own(batch.index_B)
                absent = absent_cuts(batch, [width_of(bottom) for bottom in self.bottoms])
                local_step = self._step(batch, absent, own_columns)
                self._updates[0].step(batch.step)
                yield CrossedStep(batch=batch, embeddings_BD=[], answer=local_step)
                continue
            features = [source(batch.index_B) for source in self.sources]
            cuts_BD = [embed(bottom, part) for bottom, part in zip(self.bottoms, features, strict=True)]
            sent_BD = [cut_BD.detach() for cut_BD in cuts_BD]
            own = self.own(batch.index_B)
            step = self._step(batch, sent_BD, own)
            own_updates.step(batch.step)
            for updates, cut_BD, grad_BD in zip(others, cuts_BD, step.grads_BD, strict=True):
                updates.zero_grad()
                apply(updates, cut_BD, grad_BD, step=batch.step)
            for screen, part, grad_BD in zip(self._screens, features, step.grads_BD, strict=True):
                if screen is not None:
                    screen.crossed(batch, part, grad_BD)
            yield CrossedStep(batch=batch, embeddings_BD=sent_BD, answer=step)

    def _step(self, batch: Batch, cuts_BD: Sequence[Tensor], own: Features) -> LabelStep:
        return label_step(self._learner, batch, cuts_BD, own)

    @contextmanager
    def averaged(self) -> Iterator[None]:
        """Provide all modules with the averaged weights within this block, if the contract asks for them."""
        with ExitStack() as stack:
            for updates in self._updates:
                stack.enter_context(updates.averaged())
            yield

    def validation_losses(self, batch_size: int) -> ValidationLosses:
        """Compute the losses that compare weights, on the schedule's validation rows."""
        index_V = self.schedule.validation_N
        with self.model.apart():
            logits = self.logits(torch.split(index_V, batch_size))
        return validation_losses(self.objective, logits, index_V)

    @torch.no_grad()
    def logits(self, batches: Sequence[Tensor]) -> Tensor:
        """Return the logits of the batches' positions without training, with the averaged weights if there are any."""
        self.train(False)
        logits: list[Tensor] = []
        with self.averaged():
            for index_B in batches:
                cuts_BD = [bottom(source(index_B)) for bottom, source in zip(self.bottoms, self.sources, strict=True)]
                logits.append(self.model(cuts_BD, self.own(index_B)))
        return torch.cat(logits)

    def train(self, mode: bool) -> None:
        """Switch all modules to training, or to evaluation."""
        for module in (self.model, *self.bottoms):
            module.train(mode)
