"""Training as the label party does it. Shapes: B batch, D cut width, C classes."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.config.contract import Training
from tallystick.cut.forward import Source, receive_logits
from tallystick.cut.messages import receive_embedding, send_gradient
from tallystick.errors import Diverged
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.training.checkpoint import TrainingState
from tallystick.training.defended import CutDefense
from tallystick.training.finite import refuse_lost_loss, refuse_lost_weights
from tallystick.training.messages import EpochVerdict
from tallystick.training.objective import Objective
from tallystick.training.parallel_embedding import parallel_embedding_lookup
from tallystick.training.plan import Batch, commits, optimizer_of
from tallystick.training.run import TrainingRun
from tallystick.training.step import CutObserver, label_step


@dataclass(frozen=True, kw_only=True)
class FeaturePeer:
    """A feature party as the label party sees it: the way there, its cut width, and who keeps what crosses the cut."""

    channel: Channel
    width: int
    observer: CutObserver | None = None


def train_label_party(
    model: LabelModel,
    own: Source | None,
    objective: Objective,
    peers: Sequence[FeaturePeer],
    run: TrainingRun,
    *,
    defense: CutDefense | None = None,
) -> TrainingState:
    """Train the top model, and the other parties' bottom models through their cut gradients; leaves the best weights.

    Without peers it trains on the label party's own columns alone, which is the baseline that a partner has to beat.

    Threat model: honest-but-curious feature parties. A cut gradient tells much about the label of its row (see the label
    leakage papers). ``defense`` changes what they are sent: its penalty is in the cut gradients, its noise over their sum. The
    own model learns from the loss alone. Without a defence there is no guarantee, and the bits are those of one process.

    Raises PeerLost, PeerStopped and ProtocolError from the channels, StorageError from the store, Diverged when the loss, a cut
    gradient or a weight is no longer finite: what is committed stays as it was.
    """
    training, schedule = run.training, run.schedule
    channels, widths = [peer.channel for peer in peers], [peer.width for peer in peers]
    optimizer = optimizer_of(training, model)
    state = run.resume(model, optimizer)
    model.train()
    last_commit = state.step
    with parallel_embedding_lookup(model):
        while state.epoch < training.epochs and not state.stopped:
            started = time.monotonic()
            loss_sum = torch.tensor(state.loss_sum, dtype=torch.float64)
            for group in run.messages(state):
                loss_sum += _answer(model, optimizer, own, objective, peers, group, defense)
                if last_commit and group[0].step == last_commit + 1:
                    run.committed(last_commit)
                if commits(group, training, schedule):
                    state.step, state.loss_sum = group[-1].step, loss_sum.item()
                    last_commit = group[-1].step
                    refuse_lost_weights(model, optimizer, step=last_commit)
                    run.store.save(state, model, optimizer)
                run.progress("training", group[-1].step, run.steps)
            train_loss = loss_sum.item() / len(schedule.train_N)
            logits = receive_logits(model, own, schedule.validation(), channels, widths)
            validation_loss = objective.validation_loss(logits, schedule.validation_N).item() if len(logits) else None
            verdict = _judge(state, train_loss, validation_loss, time.monotonic() - started, training)
            state.step = last_commit = state.epoch * schedule.steps_per_epoch
            refuse_lost_weights(model, optimizer, step=last_commit)
            if verdict.improved:
                run.store.save_best(model)
                state.best_fitted = objective.fitted()
            run.store.save(state, model, optimizer)
            for peer in peers:
                peer.channel.send(verdict)
                if peer.observer is not None:
                    peer.observer.epoch_ended(verdict.epoch)
    run.store.load_best(model)
    return state


def _answer(
    model: LabelModel,
    optimizer: torch.optim.Optimizer | None,
    own: Source | None,
    objective: Objective,
    peers: Sequence[FeaturePeer],
    group: Sequence[Batch],
    defense: CutDefense | None,
) -> Tensor:
    """Take the batches of a message one step after the other and answer; gives the sum of their losses, by row.

    The answer leaves before the last update of the own weights, so that the peers need not wait for it.
    """
    own_columns = [own(batch.index_B) if own is not None else None for batch in group]
    rows = [len(batch.index_B) for batch in group]
    device = group[0].index_B.device
    received = [
        torch.split(receive_embedding(peer.channel, group[0].step, sum(rows), peer.width).to(device), rows) for peer in peers
    ]
    answers: list[list[Tensor]] = [[] for _ in peers]
    loss_sum = torch.zeros((), device=device)
    for number, batch in enumerate(group):
        cuts_BD = [parts[number] for parts in received]
        checked = batch is group[-1] or defense is not None
        step = label_step(
            model,
            optimizer,
            objective,
            batch,
            cuts_BD,
            own_columns[number],
            defense=defense,
            check=_refusing(peers, batch, loss_sum) if checked else None,
        )
        for answer, grad_BD in zip(answers, step.grads_BD, strict=True):
            answer.append(grad_BD)
        if batch is group[-1]:
            for peer, answer in zip(peers, answers, strict=True):
                send_gradient(peer.channel, group[0].step, *answer)
        if optimizer is not None:
            optimizer.step()
        for peer, cut_BD, grad_BD in zip(peers, cuts_BD, step.grads_BD, strict=True):
            if peer.observer is not None:
                peer.observer.crossed(batch, cut_BD, grad_BD)
        loss_sum += step.loss * rows[number]
    return loss_sum


def _refusing(peers: Sequence[FeaturePeer], batch: Batch, loss_sum: Tensor) -> Callable[[Tensor, Sequence[Tensor]], None]:
    """Give a check that raises Diverged before gradients leave for losses that are not finite."""

    def check(loss: Tensor, cuts_BD: Sequence[Tensor]) -> None:
        received = [(peer.channel, cut_BD) for peer, cut_BD in zip(peers, cuts_BD, strict=True)]
        refuse_lost_loss(loss_sum + loss * len(batch.index_B), step=batch.step, received=received)

    return check


def _judge(
    state: TrainingState, train_loss: float, validation_loss: float | None, seconds: float, training: Training
) -> EpochVerdict:
    """Note the epoch and decide: the best so far? patience at its end? Without validation rows the last epoch is the best."""
    epoch = state.epoch
    if not math.isfinite(train_loss) or (validation_loss is not None and not math.isfinite(validation_loss)):
        raise Diverged(
            f"training diverged in epoch {epoch + 1}: loss {train_loss}, validation {validation_loss}; "
            "lower training.learning_rate"
        )
    improved = validation_loss is None or state.best_loss is None or validation_loss < state.best_loss
    if improved:
        state.best_epoch, state.best_loss, state.epochs_since_best = epoch, validation_loss, 0
    else:
        state.epochs_since_best += 1
    record = {"epoch": epoch, "train_loss": train_loss, "seconds": seconds}
    if validation_loss is not None:
        record["validation_loss"] = validation_loss
    state.history.append(record)
    state.epoch += 1
    state.loss_sum = 0.0
    state.stopped = training.patience is not None and state.epochs_since_best >= training.patience
    return EpochVerdict(epoch=epoch, improved=improved, stop=state.stopped)
