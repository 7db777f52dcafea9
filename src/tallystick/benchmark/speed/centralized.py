"""Training of the joined model in one process: the reference for speed and for every bit. Shapes: B batch."""

from collections.abc import Callable, Sequence

import torch

from tallystick.config.contract import Training
from tallystick.cut.forward import Source
from tallystick.models.split import JoinedModel
from tallystick.training.objective import Objective
from tallystick.training.plan import Schedule, optimizer_of


def train_joined(
    model: JoinedModel,
    sources: Sequence[Source],
    own: Source | None,
    objective: Objective,
    *,
    training: Training,
    schedule: Schedule,
    steps: int,
    progress: Callable[[int], None] = lambda step: None,  # noqa: ARG005
) -> None:
    """Train for a number of steps: plain PyTorch, nothing of tallystick but the schedule."""
    optimizer = optimizer_of(training, model)
    assert optimizer is not None
    model.train()
    done = 0
    for epoch in range(training.epochs):
        for batch in schedule.epoch(epoch):
            features = [source(batch.index_B) for source in sources]
            logits = model(features, own(batch.index_B) if own is not None else None)
            loss, _ = objective(logits, batch.index_B)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            done += 1
            progress(done)
            if done == steps:
                return
