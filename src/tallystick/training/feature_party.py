"""Train as the feature party. Shapes: B batch, D cut width."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tallystick.config.sections import TrainingConfig
from tallystick.cut.cut_messages import receive_gradient, send_embedding
from tallystick.cut.forward import FeatureSource, Part, PassObserver, Sending, Watch, send_embeddings, uncounted, unwatched
from tallystick.models.folds import networks_in
from tallystick.network.channel import Channel
from tallystick.tables.features import Features
from tallystick.training.checkpoint import TrainingState
from tallystick.training.feature_defense import KEPT, embeds_by
from tallystick.training.finite import refuse_lost_weights
from tallystick.training.parallel_embedding import parallel_embedding_lookup
from tallystick.training.plan import Batch, commits, staleness_of
from tallystick.training.run import TrainingRun
from tallystick.training.screening import ColumnScreen, FoldedScreen, feature_screen
from tallystick.training.step import CutObserver, apply, embed
from tallystick.training.training_messages import receive_decision
from tallystick.training.updates import Updates
from tallystick.training.weight_stash import weights_kept


def train_feature_party(
    bottom: nn.Module,
    source: FeatureSource,
    channel: Channel,
    run: TrainingRun,
    *,
    observer: CutObserver | None = None,
    passes: PassObserver | None = None,
    sending: Sending = uncounted,
) -> TrainingState:
    """Train a bottom model whose output's gradients come from the label party, and leave the best weights in it.

    Synchronous training applies a batch's cut gradient before the next batch is embedded, so the network's weights are those of
    training in one process. Pipelined training embeds up to ``staleness`` batches ahead, half of them per message: a gradient is
    computed at the weights with which its batch was embedded, and applied at most ``staleness`` steps later.

    Threat model: an honest-but-curious label party. It sees the cut embedding of every row in every epoch, which no formal
    guarantee protects; this party sees cut gradients, from which labels can be estimated. ``sending`` is called before rows are
    sent, ``observer`` after the gradients of rows came back, ``passes`` after other rows crossed.

    Raises PeerLost, PeerStopped and ProtocolError from the channel, StorageError from the store, Diverged if a cut embedding or a
    weight is no longer finite. Committed steps stay as they were.
    """
    training, schedule = run.training, run.schedule
    updates = run.updates(bottom)
    screen = feature_screen(bottom, source, schedule, epoch=run.begins.epoch, screening=run.screening)
    state = run.resume(bottom, updates, screen)
    loop = _Loop(bottom, updates, channel, training, observer=observer, screen=screen)
    bottom.train()
    last_commit = reported = state.step
    with parallel_embedding_lookup(bottom):
        while state.epoch < run.epochs and not state.stopped:
            # Embed the training positions if made-up labels are drawn from them, and report how often rows cross in the epoch
            schedule = run.schedule
            if embedded := schedule.embedded(state.epoch, step=state.step):
                sending("training", 1)
                embeds_by(bottom, f"before step {state.step + 1}")
                send_embeddings(bottom, source, embedded, channel, watch=_watch(passes, "training"))
                if passes is not None:
                    passes.pass_ended("training")
            if schedule.crosses(state.epoch):
                sending("training", 1)
            messages, ends = _Messages(run.messages(state), source), run.ends(state.epoch)
            for group, joint, features in messages:
                if joint:
                    loop.forward(joint, features, meanwhile=messages.load)
                if reported < last_commit < loop.answered:
                    run.committed(last_commit)
                    reported = last_commit
                if schedule.validates(group):
                    loop.drain()
                    sending("validation", 1)
                    state.step = group[-1].step
                    if _compare(bottom, source, channel, run, loop, state, passes):
                        last_commit = reported = state.step
                if commits(group, training, ends=ends, last=last_commit):
                    loop.drain()
                    state.step = last_commit = group[-1].step
                    refuse_lost_weights(bottom, updates, step=last_commit)
                    run.store.save(state, bottom, updates, screen)
                run.progress("training", group[-1].step, run.steps)
            loop.drain()
            if len(schedule.validation_N):
                sending("validation", 1)
            state.step = ends
            _compare(bottom, source, channel, run, loop, state, passes, ends_epoch=True)
            last_commit = reported = state.step
    assert state.best_step is not None, "the first epoch is the best so far"
    run.store.load_best(bottom, step=state.best_step)
    embeds_by(bottom, KEPT)
    return state


def _compare(
    bottom: nn.Module,
    source: FeatureSource,
    channel: Channel,
    run: TrainingRun,
    loop: "_Loop",
    state: TrainingState,
    passes: PassObserver | None,
    *,
    ends_epoch: bool = False,
) -> bool:
    """Embed the validation rows, receive the label party's decision, and commit if the label party does.

    Return whether the weights improved.
    """
    updates = loop.updates
    embeds_by(bottom, f"validation after step {state.step}")
    with updates.averaged():
        send_embeddings(bottom, source, run.schedule.validation(), channel, watch=_watch(passes, "validation"))
    if passes is not None:
        passes.pass_ended("validation")
    first, networks = state.best_step is None, networks_in(bottom)
    decision = receive_decision(channel, step=state.step, networks=networks, first=first, may_stop=ends_epoch)
    refuse_lost_weights(bottom, updates, step=state.step)
    improved = [number for number, better in enumerate(decision.improved) if better]
    if improved:
        with updates.averaged():
            run.store.save_best(bottom, step=state.step, improved=improved, before=state.best_step)
        state.best_epoch, state.best_step = state.epoch, state.step
    if ends_epoch:
        if loop.observer is not None:
            loop.observer.epoch_ended(state.epoch)
        if passes is not None:
            passes.epoch_ended()
        state.epoch, state.stopped = state.epoch + 1, decision.stop
    if improved or ends_epoch:
        run.store.save(state, bottom, updates, loop.screen)
        run.committed(state.step)  # the label party commits before its decision
    return bool(improved)


def _watch(passes: PassObserver | None, part: Part) -> Watch:
    return partial(passes.sent, part) if passes is not None else unwatched


_Message = tuple[tuple[Batch, ...], tuple[Batch, ...], list[Features]]


class _Messages:
    """An epoch's messages: their batches, the joint ones and the features of these, which can be loaded in advance."""

    def __init__(self, groups: Iterator[tuple[Batch, ...]], source: FeatureSource) -> None:
        self._groups = groups
        self._source = source
        self._next: _Message | None = None

    def __iter__(self) -> Iterator[_Message]:
        while True:
            self.load()
            if self._next is None:
                return
            present, self._next = self._next, None
            yield present

    def load(self) -> None:
        """Prepare the next message, if there is one."""
        group = next(self._groups, None) if self._next is None else None
        if group is not None:
            joint = tuple(batch for batch in group if not batch.is_local)
            self._next = group, joint, [self._source(batch.index_B) for batch in joint]


class _Sent(NamedTuple):
    """A message in flight: its batches, their features and cut embeddings, and the embeddings as the label party reads them."""

    group: Sequence[Batch]
    features: Sequence[Features]
    cuts_BD: list[Tensor]
    read_BD: list[Tensor]


class _Loop:
    """Messages in flight: their batches were embedded and sent, and their gradients have not come back."""

    def __init__(
        self,
        bottom: nn.Module,
        updates: Updates,
        channel: Channel,
        training: TrainingConfig,
        *,
        observer: CutObserver | None,
        screen: ColumnScreen | FoldedScreen | None,
    ) -> None:
        self.bottom = bottom
        self.updates = updates
        self.channel = channel
        self.staleness = staleness_of(training)
        self.compression = training.compression
        self.observer = observer
        self.screen = screen
        self._in_flight: deque[_Sent] = deque()
        self._batches_in_flight = 0
        self.answered = 0  # the last step whose gradients came back
        self._unseen: list[tuple[Batch, Tensor, Tensor]] = []  # not shown to the observer yet

    def forward(self, group: Sequence[Batch], features: Sequence[Features], *, meanwhile: Callable[[], None]) -> None:
        """Embed and send a message's batches, then apply gradients until at most ``staleness`` batches are in flight.

        ``meanwhile`` is called when the message has been sent.
        """
        cuts_BD = []
        for batch, part in zip(group, features, strict=True):
            embeds_by(self.bottom, f"step {batch.step}")
            # If weights change in between, the weights of a batch's forward pass are kept for its backward pass.
            with weights_kept(self.bottom) if self.staleness else nullcontext():
                cuts_BD.append(embed(self.bottom, part))
        read_BD = send_embedding(self.channel, group[0].step, *cuts_BD, compression=self.compression)
        self._in_flight.append(_Sent(group, features, cuts_BD, read_BD))
        self._batches_in_flight += len(cuts_BD)
        self._observe()  # show earlier messages, while the label party works
        meanwhile()
        while self._batches_in_flight > self.staleness:
            self._backward()

    def drain(self) -> None:
        """Apply the gradients of all batches in flight."""
        while self._in_flight:
            self._backward()
        self._observe()

    def _observe(self) -> None:
        """Show the observer the messages that have crossed."""
        for batch, cut_BD, grad_BD in self._unseen:
            if self.observer is not None:
                self.observer.crossed(batch, cut_BD, grad_BD)
        self._unseen.clear()

    def _backward(self) -> None:
        group, features, cuts_BD, read_BD = self._in_flight.popleft()
        self._batches_in_flight -= len(cuts_BD)
        rows = [len(cut_BD) for cut_BD in cuts_BD]
        self.updates.zero_grad()  # takes a while for large tables, during which the gradient is on its way
        step, width = group[0].step, cuts_BD[0].shape[1]
        grads_BD = receive_gradient(self.channel, step, sum(rows), width, compression=self.compression).to(cuts_BD[0].device)
        self.updates.received.note(self.channel.peer, grads_BD)
        split_BD = torch.split(grads_BD, rows)
        for batch, part, cut_BD, as_read_BD, grad_BD in zip(group, features, cuts_BD, read_BD, split_BD, strict=True):
            apply(self.updates, cut_BD, grad_BD, step=batch.step)
            if self.screen is not None:
                self.screen.crossed(batch, part, grad_BD)
            if batch is not group[-1]:
                self.updates.zero_grad()
            self._unseen.append((batch, as_read_BD.detach(), grad_BD))
        self.answered = group[-1].step
