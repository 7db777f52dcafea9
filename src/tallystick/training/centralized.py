"""Train the joined model in one process: the reference for speed and for every bit. Shapes: B batch."""

from collections.abc import Callable, Sequence
from itertools import islice

import torch
from torch import nn

from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import FeatureSource
from tallystick.models.normalization import statistics_of
from tallystick.models.split import CentralizedModel
from tallystick.training.objective import Objective
from tallystick.training.optimizers import optimizer_of
from tallystick.training.plan import Schedule
from tallystick.training.updates import decay_at, rate_at


def train_joined(
    model: CentralizedModel,
    sources: Sequence[FeatureSource],
    objective: Objective,
    *,
    training: TrainingConfig,
    schedule: Schedule,
    steps: int,
    first_epoch: int = 0,
    progress: Callable[[int], None] = lambda step: None,  # noqa: ARG005
) -> None:
    """Train for a number of steps, in plain PyTorch. Only the schedule is tallystick's.

    ``sources`` are the columns of each party, in the order of the model's bottoms, with the label party's own last. It leaves the
    averaged weights if the settings ask for averages. A refit begins with the ``first_epoch`` after the first training's.
    """
    optimizer = optimizer_of(training, model)
    assert optimizer is not None
    model.train()
    averaged = [*model.parameters(), *statistics_of(model).values()] if training.ema else []
    averages = [weight.detach().clone() for weight in averaged]
    before, last = schedule.steps_before(first_epoch), first_epoch + training.epochs
    batches = (batch for epoch in range(first_epoch, last) for batch in schedule.epoch(epoch))
    for done, batch in enumerate(islice(batches, steps), start=1):
        *features, own_columns = [source(batch.index_B) for source in sources]
        logits = model(features, own_columns)
        loss, _ = objective(logits, batch.index_B)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        if training.clip is not None:  # each party's own norm
            for module in (*model.bottoms, model.label):
                nn.utils.clip_grad_norm_(module.parameters(), training.clip)
        optimizer.step(rate_at(training, batch.step - before, schedule.steps_before(last) - before))
        for average, weight in zip(averages, averaged, strict=True):
            average.lerp_(weight.detach(), 1 - decay_at(training.ema or 0.0, batch.step - before))
        progress(done)
    for average, weight in zip(averages, averaged, strict=True):
        weight.detach().copy_(average)
