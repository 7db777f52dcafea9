"""Training as the label party does it. Shapes: B batch, D cut width, C classes."""

import math
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from tallystick.config.contract import Training
from tallystick.cut.forward import Source, receive_logits
from tallystick.cut.messages import receive_embedding, send_gradient
from tallystick.errors import ConfigError, Diverged
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.training.checkpoint import CheckpointStore, Progressed
from tallystick.training.defended import CutDefense
from tallystick.training.finite import refuse_lost_loss, refuse_lost_weights
from tallystick.training.messages import EpochVerdict
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch, Committed, Schedule, batches_per_message, commits, ignore_commit, optimizer_of
from tallystick.training.tables import side_by_side


def train_label_party(
    model: LabelModel,
    own: Source | None,
    objective: Objective,
    channels: Sequence[Channel],
    widths: Sequence[int],
    *,
    training: Training,
    schedule: Schedule,
    store: CheckpointStore,
    defense: CutDefense | None = None,
    resume_from: int = 0,
    progress: Progress = no_progress,
    committed: Committed = ignore_commit,
) -> Progressed:
    """Train the top model, and the other parties' bottom models through their cut gradients; leaves the best weights.

    ``widths`` are the cut widths that the channels' peers announced, in the same order. Without channels it trains on the
    label party's own columns alone, which is the baseline that a partner has to beat.

    Threat model: honest-but-curious feature parties. A cut gradient tells much about the label of its row (see the label
    leakage papers). ``defense`` changes what they are sent: its penalty is in the cut gradients, its noise over their sum. The
    own model learns from the loss alone. Without a defence there is no guarantee, and the bits are those of one process.

    Raises PeerLost, PeerStopped and ProtocolError from the channels, StorageError from the store, Diverged when the loss, a cut
    gradient or a weight is no longer finite: what is committed stays as it was.
    """
    optimizer = optimizer_of(training, model)
    progressed = store.load(resume_from, model, optimizer) if resume_from else Progressed()
    store.drop_after(resume_from)
    model.train()
    total = training.epochs * schedule.steps_per_epoch
    last_commit = progressed.step
    with side_by_side(model):
        while progressed.epoch < training.epochs and not progressed.stopped:
            started = time.monotonic()
            done = progressed.step - progressed.epoch * schedule.steps_per_epoch
            loss_sum = torch.tensor(progressed.loss_sum, dtype=torch.float64)
            for group in schedule.messages(progressed.epoch, size=batches_per_message(training), skip=done):
                loss_sum += _take_message(model, own, objective, optimizer, channels, widths, group, defense)
                if last_commit and group[0].step == last_commit + 1:
                    committed(last_commit)
                if commits(group, training, schedule):
                    progressed.step, progressed.loss_sum = group[-1].step, loss_sum.item()
                    last_commit = group[-1].step
                    refuse_lost_weights(model, optimizer, step=last_commit)
                    store.save(progressed, model, optimizer)
                progress("training", group[-1].step, total)
            train_loss = loss_sum.item() / len(schedule.train_N)
            logits = receive_logits(model, own, schedule.validation(), channels, widths)
            validation_loss = objective.validation_loss(logits, schedule.validation_N).item() if len(logits) else None
            verdict = _judge(progressed, train_loss, validation_loss, time.monotonic() - started, training)
            progressed.step = last_commit = progressed.epoch * schedule.steps_per_epoch
            refuse_lost_weights(model, optimizer, step=last_commit)
            if verdict.improved:
                store.save_best(model)
                progressed.best_fitted = objective.fitted()
            store.save(progressed, model, optimizer)
            for channel in channels:
                channel.send(verdict)
    store.load_best(model)
    return progressed


def _take_message(
    model: LabelModel,
    own: Source | None,
    objective: Objective,
    optimizer: torch.optim.Optimizer | None,
    channels: Sequence[Channel],
    widths: Sequence[int],
    group: Sequence[Batch],
    defense: CutDefense | None,
) -> Tensor:
    """Take the batches of a message one step after the other and answer; gives the sum of their losses, by row.

    A step finishes the forward pass and goes back to the cut. The answer leaves before the last update of the own weights, so
    that the peers need not wait for it.
    """
    own_columns = [own(batch.index_B) if own is not None else None for batch in group]
    rows = [len(batch.index_B) for batch in group]
    device = group[0].index_B.device
    received = [
        torch.split(receive_embedding(channel, group[0].step, sum(rows), width).to(device), rows)
        for channel, width in zip(channels, widths, strict=True)
    ]
    answers: list[list[Tensor]] = [[] for _ in channels]
    loss_sum = torch.zeros((), device=device)
    for number, batch in enumerate(group):
        cuts_BD = [parts[number].detach().requires_grad_() for parts in received]
        loss, targets_B = objective(model(cuts_BD, own_columns[number]), batch.index_B, cuts_BD)
        loss_sum += loss.detach() * rows[number]
        if batch is group[-1] or defense is not None:
            refuse_lost_loss(loss_sum, step=batch.step, received=list(zip(channels, cuts_BD, strict=True)))
        if optimizer is not None:
            optimizer.zero_grad()
        torch.autograd.backward(loss)
        grads_BD = [_cut_gradient(cut_BD, channel) for cut_BD, channel in zip(cuts_BD, channels, strict=True)]
        if defense is not None:
            grads_BD = defense(cuts_BD, grads_BD, targets_B, step=batch.step)
        for answer, grad_BD in zip(answers, grads_BD, strict=True):
            answer.append(grad_BD)
        if batch is group[-1]:
            for channel, answer in zip(channels, answers, strict=True):
                send_gradient(channel, group[0].step, *answer)
        if optimizer is not None:
            optimizer.step()
    return loss_sum


def _cut_gradient(cut_BD: Tensor, channel: Channel) -> Tensor:
    if cut_BD.grad is None:
        raise ConfigError(f"model.top: the loss does not depend on the cut embedding of {channel.peer}; use every input")
    return cut_BD.grad


def _judge(
    progressed: Progressed, train_loss: float, validation_loss: float | None, seconds: float, training: Training
) -> EpochVerdict:
    """Note the epoch and decide: the best so far? patience at its end? Without validation rows the last epoch is the best."""
    epoch = progressed.epoch
    if not math.isfinite(train_loss) or (validation_loss is not None and not math.isfinite(validation_loss)):
        raise Diverged(
            f"training diverged in epoch {epoch + 1}: loss {train_loss}, validation {validation_loss}; "
            "lower training.learning_rate"
        )
    improved = validation_loss is None or progressed.best_loss is None or validation_loss < progressed.best_loss
    if improved:
        progressed.best_epoch, progressed.best_loss, progressed.epochs_since_best = epoch, validation_loss, 0
    else:
        progressed.epochs_since_best += 1
    record = {"epoch": epoch, "train_loss": train_loss, "seconds": seconds}
    if validation_loss is not None:
        record["validation_loss"] = validation_loss
    progressed.history.append(record)
    progressed.epoch += 1
    progressed.loss_sum = 0.0
    progressed.stopped = training.patience is not None and progressed.epochs_since_best >= training.patience
    return EpochVerdict(epoch=epoch, improved=improved, stop=progressed.stopped)
