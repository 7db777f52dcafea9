"""Train as the label party. Shapes: B batch, D cut width, C classes."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.config.sections import CompressionName
from tallystick.cut.cut_messages import receive_embedding, send_gradient
from tallystick.cut.forward import CutRows, Cuts, FeatureSource, KeptCuts, crossing, logits_over, side_by_side
from tallystick.errors import Diverged
from tallystick.models.folds import networks_in
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.training.checkpoint import TrainingState
from tallystick.training.finite import refuse_lost_loss, refuse_lost_weights
from tallystick.training.folds import ValidationLosses, validation_losses
from tallystick.training.label_defense import CutDefense
from tallystick.training.objective import Objective
from tallystick.training.parallel_embedding import parallel_embedding_lookup
from tallystick.training.plan import Batch, commits
from tallystick.training.run import TrainingRun
from tallystick.training.screening import screen_own_columns
from tallystick.training.step import CutObserver, LabelLearner, absent_cuts, label_step
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick.training.training_messages import ValidationDecision


@dataclass(frozen=True, kw_only=True)
class FeaturePeer:
    """A feature party as the label party sees it: its channel, its cut width, an observer of its cut, and the compression."""

    channel: Channel
    width: int
    observer: CutObserver | None = None
    compression: CompressionName = "none"

    @property
    def name(self) -> str:
        """Return its name."""
        return self.channel.peer

    def cuts(self, place: int, cut_rows: CutRows) -> Cuts:
        """Return its cut embeddings, as it sends them. ``place`` is its place in the contract's order."""
        return crossing(self.channel, self.width, place, cut_rows=cut_rows)

    def embeddings(self, joint: Sequence[Batch], rows: Sequence[int]) -> Sequence[Tensor]:
        """Receive the embeddings of a message's joint batches, with these numbers of rows."""
        cut_BD = receive_embedding(self.channel, joint[0].step, sum(rows), self.width, compression=self.compression)
        return torch.split(cut_BD.to(joint[0].index_B.device), list(rows))

    def answer(self, step: int, grads_BD: Sequence[Tensor]) -> Sequence[Tensor]:
        """Send the party the gradients of the message that began with this step. Return them as the party reads them."""
        return send_gradient(self.channel, step, *grads_BD, compression=self.compression)

    def decided(self, decision: ValidationDecision) -> None:
        """Tell the party the decision on the weights after a step."""
        self.channel.send(decision)


@dataclass(frozen=True, kw_only=True)
class KeptPeer:
    """A feature party whose embeddings crossed before training. Nothing is sent to it, and there is no channel to it here."""

    name: str
    kept: KeptCuts
    observer: None = None

    @property
    def width(self) -> int:
        """Return its cut width."""
        return self.kept.width

    def cuts(self, place: int, cut_rows: CutRows) -> Cuts:  # noqa: ARG002
        """Return its kept cut embeddings."""
        return self.kept

    def embeddings(self, joint: Sequence[Batch], rows: Sequence[int]) -> Sequence[Tensor]:  # noqa: ARG002
        """Look up the embeddings of a message's joint batches."""
        return [self.kept(batch.step, batch.index_B) for batch in joint]

    def answer(self, step: int, grads_BD: Sequence[Tensor]) -> Sequence[Tensor]:  # noqa: ARG002
        """Send nothing."""
        return grads_BD

    def decided(self, decision: ValidationDecision) -> None:
        """Send nothing."""


Peer = FeaturePeer | KeptPeer


def train_label_party(
    model: LabelModel,
    own: FeatureSource,
    objective: Objective,
    peers: Sequence[Peer],
    run: TrainingRun,
    *,
    step_rule: StepRule = PLAIN,
    defense: CutDefense | None = None,
) -> TrainingState:
    """Train the top model, and the other parties' bottom models by their cut gradients. The model ends with the best weights.

    Without peers it trains on own columns alone: the baseline that a partner has to beat. Threat model: honest-but-curious
    feature parties. A cut gradient reveals much about the label of its row. ``defense`` changes what is sent to them: it adds its
    penalty to the cut gradients, and noise to their sum. The own model learns from the loss alone. Without a defence there is no
    guarantee, and the weights equal those of one process to the bit. ``step_rule`` defines how the model learns.

    Raises PeerLost, PeerStopped and ProtocolError from the channels, StorageError from the store, Diverged if the loss, a cut
    gradient or a weight is no longer finite. Committed steps stay as they were.
    """
    training, schedule = run.training, run.schedule
    cuts = [peer.cuts(place, schedule.cut_rows) for place, peer in enumerate(peers)]
    updates = run.updates(model, step_rule.rates)
    learner = LabelLearner(model=model, updates=updates, objective=objective, step_rule=step_rule, defense=defense)
    state = run.resume(model, updates)
    if state.step == run.begins.step:
        screen_own_columns(model, own, objective, schedule.train_N, run.screening)
    model.train()
    step_rule.start(model, own, schedule.train_N)
    last_commit = reported = state.step
    with parallel_embedding_lookup(model):
        while state.epoch < run.epochs and not state.stopped:
            started = time.monotonic()
            if embedded := schedule.embedded(state.epoch, step=state.step):
                cuts_ND = side_by_side(embedded, cuts)
                step_rule.fit(model, objective, own, schedule.train_N, cuts_ND)
            # On the device of the losses: adding one to a sum on the CPU would fail, and fetching each would wait for the device.
            loss_sum = torch.tensor(state.loss_sum, dtype=torch.float64, device=schedule.train_N.device)
            ends = run.ends(state.epoch)
            for group in run.messages(state):
                loss_sum += _answer(learner, own, peers, group, cut_rows=schedule.cut_rows)
                if reported < last_commit and any(not batch.is_local for batch in group):
                    run.committed(last_commit)  # the peers commit before they send more
                    reported = last_commit
                if schedule.validates(group):
                    state.step, state.loss_sum = group[-1].step, loss_sum.item()
                    if _compare(learner, own, peers, run, state):
                        last_commit = state.step
                if commits(group, training, ends=ends, last=last_commit):
                    state.step, state.loss_sum = group[-1].step, loss_sum.item()
                    last_commit = group[-1].step
                    refuse_lost_weights(model, updates, step=last_commit)
                    run.store.save(state, model, updates)
                run.progress("training", group[-1].step, run.steps)
            state.step, state.loss_sum = ends, loss_sum.item()
            _compare(learner, own, peers, run, state, started=started)
            last_commit = state.step
    assert state.best_step is not None, "the first epoch is the best so far"
    run.store.load_best(model, step=state.best_step)
    return state


def _compare(
    learner: LabelLearner,
    own: FeatureSource,
    peers: Sequence[Peer],
    run: TrainingRun,
    state: TrainingState,
    *,
    started: float | None = None,
) -> bool:
    """Validate with the averaged weights, commit those that are a network's best so far, and tell the peers.

    Return whether any improved.

    At the end of an epoch, which began at ``started``, the epoch is recorded and committed, and training may stop.
    """
    model, updates, objective, schedule = learner.model, learner.updates, learner.objective, run.schedule
    cuts = [peer.cuts(place, schedule.cut_rows) for place, peer in enumerate(peers)]
    with updates.averaged(), model.apart():
        logits = logits_over(model, own, schedule.validation(), cuts)
    losses = validation_losses(objective, logits, schedule.validation_N) if len(logits) else None
    epoch, best_step, improved = state.epoch, state.best_step, _improved(state, losses, networks_in(model), run)
    refuse_lost_weights(model, updates, step=state.step)
    if improved:
        with updates.averaged():
            run.store.save_best(model, step=state.step, improved=improved, before=best_step)
        state.best_fitted = objective.fitted()
    if started is not None:
        # Record the epoch, and whether patience or time is over
        record = {
            "epoch": state.epoch,
            "train_loss": state.loss_sum / run.rows(state.epoch),
            "seconds": time.monotonic() - started,
        }
        if state.epoch_loss is not None:
            record["validation_loss"] = state.epoch_loss
        state.history.append(record)
        state.epochs_since_best = 0 if state.best_epoch == state.epoch else state.epochs_since_best + 1
        is_patience_over = run.training.patience is not None and state.epochs_since_best >= run.training.patience
        state.stopped = is_patience_over or (state.epoch >= run.schedule.epochs_before and run.is_over_time(state))
        state.epoch, state.loss_sum, state.epoch_loss = state.epoch + 1, 0.0, None
    if improved or started is not None:
        run.store.save(state, model, updates)
    better = tuple(number in improved for number in range(networks_in(model)))
    for peer in peers:
        peer.decided(ValidationDecision(step=state.step, improved=better, stop=state.stopped))
        if started is not None and peer.observer is not None:
            peer.observer.epoch_ended(epoch)
    return bool(improved)


def _answer(
    learner: LabelLearner, own: FeatureSource, peers: Sequence[Peer], group: Sequence[Batch], *, cut_rows: CutRows
) -> Tensor:
    """Train on a message's batches, one step after the other, and answer. Return the sum of their losses, by row.

    The answer is sent before the own weights are updated for the last joint batch, so that the peers need not wait for it. For
    local batches nothing is received or sent.
    """
    own_columns = [own(batch.index_B) for batch in group]
    joint = [batch for batch in group if not batch.is_local]
    device = group[0].index_B.device
    cuts_of_peer = [
        peer.embeddings(joint, [cut_rows(batch.index_B, number) for batch in joint])
        for number, peer in enumerate(peers if joint else ())
    ]
    received = iter([[cuts[number] for cuts in cuts_of_peer] for number in range(len(joint))])
    answers: list[list[Tensor]] = [[] for _ in peers]
    cuts_of_joint: list[Sequence[Tensor]] = []
    loss_sum = torch.zeros((), device=device)
    for batch, columns in zip(group, own_columns, strict=True):
        answered = bool(joint) and batch is joint[-1]
        cuts_BD = absent_cuts(batch, [peer.width for peer in peers]) if batch.is_local else next(received)
        checked = answered or batch is group[-1] or learner.defense is not None
        check = _refusing(peers, batch, loss_sum) if checked else None
        step = label_step(learner, batch, cuts_BD, columns, check=check)
        if not batch.is_local:
            cuts_of_joint.append(cuts_BD)
            for peer, cut_BD in zip(peers, cuts_BD, strict=True):
                learner.updates.received.note(peer.name, cut_BD)
            for answer, grad_BD in zip(answers, step.grads_BD, strict=True):
                answer.append(grad_BD)
        if answered:
            answers = [list(peer.answer(joint[0].step, answer)) for peer, answer in zip(peers, answers, strict=True)]
        learner.updates.step(batch.step)
        if answered:
            for number, peer in enumerate(peers):
                if peer.observer is not None:
                    for joint_batch, cuts, grad_BD in zip(joint, cuts_of_joint, answers[number], strict=True):
                        peer.observer.crossed(joint_batch, cuts[number], grad_BD)
        loss_sum += step.loss * len(batch.index_B)
    return loss_sum


def _refusing(peers: Sequence[Peer], batch: Batch, loss_sum: Tensor) -> Callable[[Tensor, Sequence[Tensor]], None]:
    """Return a check that raises Diverged before gradients are sent if losses are not finite."""

    def check(loss: Tensor, cuts_BD: Sequence[Tensor]) -> None:
        received = [(peer.name, cut_BD) for peer, cut_BD in zip(peers, cuts_BD, strict=True)]
        refuse_lost_loss(loss_sum + loss * len(batch.index_B), step=batch.step, received=received)

    return check


def _improved(state: TrainingState, losses: ValidationLosses | None, networks: int, run: TrainingRun) -> list[int]:
    """Record a validation. Return the networks for which these weights are the best so far; all of them without validation rows.

    Weights of an earlier phase are kept until the next epoch, and any of a usual epoch replace them.
    """
    validation_loss = losses.common if losses is not None else None
    if not math.isfinite(state.loss_sum) or not (validation_loss is None or math.isfinite(validation_loss)):
        raise Diverged(
            f"training diverged in epoch {state.epoch + 1}: loss {state.loss_sum}, summed over its rows, "
            f"validation {validation_loss}; lower training.learning_rate"
        )
    if losses is None:  # a refit keeps the loss that determined its number of steps
        state.best_epoch, state.best_step = state.epoch, state.step
        return list(range(networks))
    state.epoch_loss = min(losses.common, state.epoch_loss if state.epoch_loss is not None else math.inf)
    compared = state.epoch >= run.schedule.epochs_before
    if state.best_loss is None or losses.common < state.best_loss:
        state.best_epoch, state.best_loss = state.epoch, losses.common if compared else None
    before = state.network_losses or [math.inf] * networks
    improved = [number for number, (loss, lowest) in enumerate(zip(losses.each, before, strict=True)) if loss < lowest]
    if improved:
        state.best_step, state.network_losses = state.step, list(map(min, losses.each, before)) if compared else []
    return improved
