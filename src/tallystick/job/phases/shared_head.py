"""Train a head on shares as a phase of a job: fit features locally, train the head, score each row once. The helper deals for
it.

    label party     features of own columns   -> training on shares -> scores of validation and test rows -> measured locally
    feature parties features of own columns -> training on shares -> their shares of these scores
    helper          deals for all, and sees neither rows nor labels

Shapes: N positions, D own features, C outputs.
"""

import math
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.alignment.ids import Ids
from tallystick.audit.shared_head import record_features
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import Diverged, ProtocolError
from tallystick.job.job import Job
from tallystick.job.phases.train import start_of
from tallystick.models.fixed_features import FixedFeatures
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel, Progress
from tallystick.privacy.randomness import generator_of
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.own_network import MEMBERS, OwnNetwork, build_own_network, unexplained_share
from tallystick.run_folder.score_count import count_scores
from tallystick.run_folder.shared_head import (
    SharedHead,
    enter_scored,
    features_of,
    forget_score_shares,
    keep_opened,
    keep_row_scores,
    keep_score_shares,
    kept_score_shares,
    require_unscored,
    shares_path,
)
from tallystick.secret_sharing.columns import HeadColumns, Index
from tallystick.secret_sharing.head import (
    LARGEST_DECAY,
    LARGEST_LABEL,
    HeadPlan,
    deal_scoring,
    deal_training,
    open_edge_feature_party,
    open_edge_label_party,
    open_scores_feature_party,
    open_scores_label_party,
    score_shares,
    train_head_feature_party,
    train_head_label_party,
)
from tallystick.secret_sharing.ring import SEED_BYTES, Words
from tallystick.secret_sharing.share_messages import (
    HeadSizes,
    exchange_counts_feature_party,
    exchange_counts_label_party,
    exchange_kept_feature_party,
    exchange_kept_label_party,
    receive_sizes,
)
from tallystick.secret_sharing.sides import Dealer, ShareHolder
from tallystick.secret_sharing.sigmoid import PERIOD, RANGE
from tallystick.training.checkpoint import TrainingState
from tallystick.training.label_party import train_label_party as train_network
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun

_OWN_STEPS_AN_EPOCH, _OWN_STEPS = 20, 1600
"""Steps of each member of the label party's own network, in these batch sizes and epochs. Large batches take the least time."""
_OWN_BATCHES, OWN_EPOCHS = (32, 512), (10, 60)
_OWN_ROWS = 200_000
"""Rows from which each member learns, over all epochs, unless that is less than the fewest epochs."""
_OWN_RATE = 0.008
"""The rate in the largest batches. In smaller ones it falls with the root of their size."""
_MOST_FEATURES_A_ROW = 0.3
"""For the weight decay. With few rows it would remove everything that only the other party's columns show."""
LEAST_NEAR_EDGE = 2
"""The least count of training scores near the edge that is more than rounding."""
MOST_DEVIATIONS = 2 * LARGEST_LABEL
"""Greatest number of deviations of a score from the labels' mean. Beyond them training diverged."""
Learnt = TypeVar("Learnt")


@dataclass(frozen=True, kw_only=True)
class SharedRows:
    """How much a party brings: training rows, rows to score, features; and whether its rows have weights."""

    training: int
    scored: int
    columns: int
    weighted: bool = False


NOTHING_DUE = SharedRows(training=0, scored=0, columns=1)
"""The demand of a party whose shares of all scores are kept: the helper deals nothing."""


@dataclass(frozen=True, kw_only=True)
class ScoredOnce:
    """What the label party gets from a head on shares: its half, and the logits of validation and test rows, opened once."""

    head: SharedHead
    validation_N: Tensor
    test_N: Tensor


def train_shared_label_party(job: Job, dataset: Dataset, rows: OwnRows) -> ScoredOnce:
    """Train with the feature parties and the helper, and open the scores of validation and test rows. All sessions end after
    that.

    The order, number and size of what the parties and the helper see does not depend on a label: the label party measures the
    scores after it has left.
    """
    index_N, peers = _scored(dataset), job.feature_channels
    due = DueScores.of(job.folder, rows, index_N, job.contract)
    if due.kept_by_all(peers):
        begin_side(job.contract, job.name, job.channels, NOTHING_DUE)
        head, edge_E1 = SharedHead.load(job.folder, job.architecture, dataset.encoder, is_label=True), None
    else:
        features = _fitted(job, dataset)
        own_network, logits_NC = _own_network(job, dataset)
        own_NC = own_network.scaled(logits_NC) if own_network is not None and logits_NC is not None else None
        training_ND = _columns(features, dataset, dataset.train_N, own_NC)
        labels_N = dataset.known_labels.training_labels_N[dataset.train_N]
        if job.contract.target.type == "multiclass":
            labels_NC = torch.nn.functional.one_hot(labels_N.long(), job.contract.target.classes).double().numpy()
        else:  # numbers beyond 8 deviations count as 8, so that nobody learns that there are any
            labels_NC = labels_N.double().clamp(-LARGEST_LABEL, LARGEST_LABEL).numpy()[:, None]
        weight_N = dataset.known_labels.weight_N
        row_weights_N = weight_N[dataset.train_N].double() if weight_N is not None else None

        def role(
            columns_ND: NDArray[np.float64], *, side: ShareHolder, plan: HeadPlan, progress: Progress
        ) -> tuple[Words, Words]:
            decay = job.contract.training.weight_decay * min(sum(plan.columns.counts) / plan.rows, _MOST_FEATURES_A_ROW)
            if logits_NC is not None:
                decay *= unexplained_share(logits_NC, torch.from_numpy(labels_NC), job.contract.target.type, row_weights_N)
            return train_head_label_party(
                columns_ND,
                labels_NC,
                side,
                plan,
                decay=min(decay, LARGEST_DECAY),
                row_weights_N=row_weights_N.numpy() if row_weights_N is not None else None,
                progress=progress,
            )

        (weights_WC, edge_E1), side, plan, state = _train(job, dataset, training_ND, role)
        head = SharedHead(
            features=features, weights_WC=weights_WC, columns=plan.columns, place=0, state=state, own_network=own_network
        )
        head.keep(job.folder)
        due.keep(shares_of_scores(head, dataset, index_N, side, progress=job.logbook.watcher.progress))
    scores_NC = due.open_as_label_party(peers)
    near_edge = open_edge_label_party(edge_E1, peers) if edge_E1 is not None else 0
    job.leave()
    _say_of_range(job, dataset, near_edge, scores_NC)
    if job.contract.audit:
        keep_opened(job.folder, index_N, scores_NC)
    logits_N = logits_of(job.contract, scores_NC)
    validation_N, test_N = logits_N[: len(dataset.validation_N)], logits_N[len(dataset.validation_N) :]
    return ScoredOnce(head=head, validation_N=validation_N, test_N=test_N)


def train_shared_feature_party(job: Job, dataset: Dataset, rows: OwnRows, *, run_id: str) -> SharedHead:
    """Train with the other parties and the helper, and give the label party this side's shares of its scores.

    It keeps its features of the scored rows for the audit.
    """
    index_N, peer = _scored(dataset), job.channels[job.contract.label_party]
    due = DueScores.of(job.folder, rows, index_N, job.contract)
    if due.kept_by_all([peer]):
        begin_side(job.contract, job.name, job.channels, NOTHING_DUE)
        head, edge_E1 = SharedHead.load(job.folder, job.architecture, dataset.encoder, is_label=False), None
    else:
        features = _fitted(job, dataset)
        (weights_WC, edge_E1), side, plan, state = _train(
            job, dataset, _columns(features, dataset, dataset.train_N), train_head_feature_party
        )
        head = SharedHead(features=features, weights_WC=weights_WC, columns=plan.columns, place=side.place, state=state)
        head.keep(job.folder)
        due.keep(shares_of_scores(head, dataset, index_N, side, progress=job.logbook.watcher.progress))
    due.open_as_feature_party(peer)
    if edge_E1 is not None:
        open_edge_feature_party(edge_E1, peer)
    job.leave()
    if job.contract.audit:

        def features_at(index_K: Tensor) -> Tensor:
            return torch.from_numpy(_columns(head.features, dataset, index_K))

        record_features(job.folder, job.contract, job.name, rows, dataset, features_at, run_id=run_id)
    return head


@dataclass(frozen=True, kw_only=True)
class DueScores:
    """Rows whose scores are due, each opened once: keeps a party's shares of them, and notes each stage.

    All parties save their shares before any share crosses. If a party is killed before that, nothing was opened, and the rows
    may be scored again. If it is killed later, the saved shares are opened again, which gives the label party exactly the same
    numbers.

    Args:
        folder: of the run.
        party: this party. The ledger of a feature party counts the scores.
        ids: of the rows, in the order of their positions.
        contract: of the run.
    """

    folder: RunFolder
    party: PartyFile
    ids: Ids
    contract: Contract

    @classmethod
    def of(cls, folder: RunFolder, rows: OwnRows, index_N: Tensor, contract: Contract) -> "DueScores":
        """Make the scores of the rows at these positions due."""
        ids = rows.keys.ids_of(rows.rows_at(index_N))
        return cls(folder=folder, party=rows.party, ids=ids, contract=contract)

    def kept_by_all(self, peers: Sequence[Channel]) -> bool:
        """Tell whether all parties have saved their shares of these scores. Raises ConfigError if rows would get a second
        score.

        Shares that only some parties have are deleted, because they do not fit new shares of the others.

        Args:
            peers: the feature parties; at a feature party the label party.
        """
        is_kept = kept_score_shares(self.folder, self.ids) is not None
        if not self._lacking(peers, kept=is_kept) and is_kept:
            return True
        require_unscored(self.folder, self.ids)
        forget_score_shares(self.folder, self.ids)
        return False

    def keep(self, share_NC: Words) -> None:
        """Save this party's shares."""
        keep_score_shares(self.folder, self.ids, share_NC)

    def open_as_label_party(self, peers: Sequence[Channel]) -> NDArray[np.float64]:
        """Open the scores, (N, C), when all parties have saved their shares, and save them."""
        self._agree(peers)
        enter_scored(self.folder, self.ids)
        scores_NC = open_scores_label_party(self._kept(), peers)
        keep_row_scores(self.folder, self.ids, scores_NC)
        return scores_NC

    def open_as_feature_party(self, peer: Channel) -> None:
        """Send own shares, when all parties have saved theirs."""
        self._agree([peer])
        shares = shares_path(self.folder, self.ids)
        count_scores(self.party, self.folder, self.ids, self.contract, shares=shares)
        enter_scored(self.folder, self.ids)
        open_scores_feature_party(self._kept(), peer)

    def _agree(self, peers: Sequence[Channel]) -> None:
        """Confirm that own shares are saved, and wait for the others to confirm. Raises ProtocolError if one has not saved
        them.
        """
        for lacking in self._lacking(peers, kept=True):
            raise ProtocolError(lacking, f"{lacking} wants to open scores, but not all parties have saved their shares of them")

    def _lacking(self, peers: Sequence[Channel], *, kept: bool) -> list[str]:
        """Say whether own shares are saved, and return the peers who say that some party's are not."""
        if self.party.party == self.contract.label_party:
            return exchange_kept_label_party(peers, kept=kept)
        (peer,) = peers
        return [] if exchange_kept_feature_party(peer, kept=kept) else [peer.peer]

    def _kept(self) -> Words:
        share_NC = kept_score_shares(self.folder, self.ids)
        assert share_NC is not None, "they were kept before"
        return share_NC


def help_shared_head(contract: Contract, channels: Mapping[str, Channel], *, progress: Progress) -> HeadSizes:
    """Deal, as the helper, for a training and its scores, or for a prediction. Return the sizes that the helper saw."""
    label, features = channels[contract.label_party], [channels[name] for name in contract.feature_parties]
    sizes = receive_sizes(label, features)
    dealer = Dealer.begin(label, features)
    if sizes.training:
        deal_training(dealer, plan_of(contract, sizes), progress=progress)
    deal_scoring(dealer, HeadColumns(counts=sizes.columns), sizes.scored, sizes.outputs, progress=progress)
    return sizes


def shares_of_scores(head: SharedHead, dataset: Dataset, index_N: Tensor, side: ShareHolder, *, progress: Progress) -> Words:
    """Score the rows at these positions with the other parties, and return own shares, (N, C)."""

    def features_at(rows_B: Index) -> NDArray[np.float64]:
        index_B = index_N[torch.from_numpy(rows_B)]
        own_BC = head.own_network.features(dataset.features_at, index_B) if head.own_network is not None else None
        return _columns(head.features, dataset, index_B, own_BC)

    return score_shares(features_at, len(index_N), head.weights_WC, head.columns, side, progress=progress)


def logits_of(contract: Contract, scores_NC: NDArray[np.float64]) -> Tensor:
    """Convert the head's scores to a network's logits: (N,), or (N, C) for several classes.

    Each class has a head of its own; its probability is compared with those of the other classes.
    """
    scores = torch.from_numpy(scores_NC).float()
    return torch.nn.functional.logsigmoid(scores) if contract.target.type == "multiclass" else scores[:, 0]


def begin_side(
    contract: Contract, party: str, channels: Mapping[str, Channel], sizes: SharedRows
) -> tuple[ShareHolder, HeadSizes]:
    """Send the sizes to the other parties and the helper, and to the helper a fresh seed of this party's masks."""
    parties = (contract.label_party, *contract.feature_parties)
    place = parties.index(party)
    assert contract.helper is not None, "a head on shares has a helper"
    helper = channels[contract.helper]
    if place == 0:
        peers = [channels[name] for name in contract.feature_parties]
        counts = exchange_counts_label_party(peers, sizes.columns, weighted=sizes.weighted)
    else:
        peers = [channels[contract.label_party]]
        counts = exchange_counts_feature_party(peers[0], sizes.columns, place=place, parties=len(parties))
    whole = HeadSizes(
        training=sizes.training,
        scored=sizes.scored,
        columns=counts.columns,
        outputs=contract.scores_of_a_row,
        weighted=counts.weighted,
    )
    helper.send(whole)
    return ShareHolder.begin(peers, helper, place=place, seed=secrets.token_bytes(SEED_BYTES)), whole


def plan_of(contract: Contract, sizes: HeadSizes) -> HeadPlan:
    """Return the plan that all sides know: it follows from the contract and the numbers of rows and columns."""
    training = contract.training.resolved(sizes.training)
    schedule = Schedule(
        train_N=torch.arange(sizes.training),
        validation_N=torch.empty(0, dtype=torch.int64),
        batch_size=training.batch_size,
        seed=contract.seed,
    )

    def batches() -> Iterator[Index]:
        for epoch in range(training.epochs):
            for batch in schedule.epoch(epoch):
                yield batch.index_B.numpy()

    return HeadPlan(
        columns=HeadColumns(counts=sizes.columns),
        rows=sizes.training,
        outputs=sizes.outputs,
        loss="squared" if contract.target.type == "regression" else "logistic",
        batches=batches,
        steps=training.epochs * schedule.steps_per_epoch,
        rate=training.learning_rate,
        weighted=sizes.weighted,
    )


def _train(
    job: Job, dataset: Dataset, columns_ND: NDArray[np.float64], role: Callable[..., Learnt]
) -> tuple[Learnt, ShareHolder, HeadPlan, TrainingState]:
    """Run one role of the training. Return its result, the side for the next steps, the plan, and a record of the training.

    This party's half of an earlier training is deleted first: it would not fit the others' halves of this one.
    """
    job.folder.model.unlink(missing_ok=True)
    rows = SharedRows(
        training=len(dataset.train_N),
        scored=len(_scored(dataset)),
        columns=columns_ND.shape[1],
        weighted=job.is_label and dataset.known_labels.weight_N is not None,
    )
    side, sizes = begin_side(job.contract, job.name, job.channels, rows)
    plan = plan_of(job.contract, sizes)
    head = role(columns_ND, side=side, plan=plan, progress=job.logbook.watcher.progress)
    return head, side, plan, TrainingState(step=plan.steps, epoch=job.contract.training.resolved(plan.rows).epochs)


def _say_of_range(job: Job, dataset: Dataset, near_edge: int, scores_NC: NDArray[np.float64]) -> None:
    """Say if numbers left the range, after the sessions have ended: it may depend on labels, so others must not learn it."""
    say, helps = job.logbook.watcher.say, "lower training.learning_rate, or raise training.weight_decay or training.batch_size"
    if near_edge >= LEAST_NEAR_EDGE:
        say(
            f"in training, scores came near {PERIOD / 2:g}, where training on shares goes wrong, about {near_edge:,} times (of "
            f"{len(dataset.train_N):,} rows in each epoch): {helps}"
        )
    is_regression = job.contract.target.type == "regression"
    if not is_regression and (beyond := int((np.abs(scores_NC) > RANGE).sum())):
        say(f"{beyond} of {scores_NC.size} scores are beyond {RANGE:g}, where training on shares goes wrong: {helps}")
    if is_regression and (beyond := int((np.abs(scores_NC) > MOST_DEVIATIONS).sum())):
        # up to 512 rows larger batches take larger steps, and more decay makes steep losses steeper
        say(
            f"{beyond} of {scores_NC.size} scores are {MOST_DEVIATIONS:g} deviations or more off, so training diverged: lower "
            "training.learning_rate"
        )
    if is_regression:
        labels_N = dataset.known_labels.training_labels_N[dataset.train_N].double()
        if clipped := int((labels_N.abs() > LARGEST_LABEL).sum()):
            say(
                f"{clipped:,} of {len(labels_N):,} training labels are more than {LARGEST_LABEL:g} deviations from their mean, "
                f"and count as {LARGEST_LABEL:g}. If they are wrong, correct them: they set the scale of all labels"
            )


def _scored(dataset: Dataset) -> Tensor:
    return torch.cat([dataset.validation_N, dataset.test_N])


def _fitted(job: Job, dataset: Dataset) -> FixedFeatures:
    """Fit this party's features on its training rows. A label party without columns uses a constant."""
    features = features_of(dataset.encoder, is_label=job.is_label)
    return features.fit(dataset.features_at(dataset.train_N), seed=start_of(job.contract, job.folder))


def _own_network(job: Job, dataset: Dataset) -> tuple[OwnNetwork | None, Tensor | None]:
    """Train a network of the label party's own columns. Return it with its logits of the training rows, or None without
    columns.

    The others can see how long this takes. So the number of epochs follows from the number of rows, and no columns are closed.
    If a member diverges, an unused network takes its remaining steps.
    """
    if dataset.encoder is None:
        return None, None
    alone = replace(job, contract=job.contract.of_own_columns())
    start = start_of(job.contract, job.folder)
    model = build_own_network(replace(alone.architecture, seed=start), dataset.encoder)
    train_N = dataset.train_N
    fold_N = torch.empty(len(train_N), dtype=torch.int64)
    place_N = torch.randperm(len(train_N), generator=generator_of(start, "folds of the own network"))
    fold_N[place_N] = torch.arange(len(train_N)) % MEMBERS
    own = dataset.own_part()
    if job.contract.target.type == "regression":
        own = own.trained_on(own.known_labels.training_labels_N.clamp(-LARGEST_LABEL, LARGEST_LABEL))
    for number, member in enumerate(model.members):
        learnt_N, judged_N = train_N[fold_N != number], train_N[fold_N == number]
        if len(learnt_N):
            _train_member(alone, replace(own, train_N=learnt_N, validation_N=judged_N, test_N=learnt_N[:0]), member, number)
    network, logits_NC = OwnNetwork.of(model, own.features_at, train_N, fold_N)
    network.keep(job.folder)
    return network, logits_NC


def _train_member(job: Job, own: Dataset, member: LabelModel, number: int) -> None:
    """Train a member of the own network on the rows of the other members' folds, in as many steps as their number says.

    The weights after the epoch that is best on the rows of its own fold stay. Weights are written after every epoch, because
    others could see how many epochs were better than all before.
    """
    rows = len(own.train_N)
    batch_size = min(max(2 ** round(math.log2(rows / _OWN_STEPS_AN_EPOCH)), _OWN_BATCHES[0]), _OWN_BATCHES[1])
    most_epochs = min(_OWN_STEPS / math.ceil(rows / batch_size), _OWN_ROWS / rows)
    epochs = min(max(round(most_epochs), OWN_EPOCHS[0]), OWN_EPOCHS[1])
    settings = {"batch_size": batch_size, "epochs": epochs, "learning_rate": _OWN_RATE * math.sqrt(batch_size / _OWN_BATCHES[1])}
    training = own.resolved(job.contract.training).model_copy(update={"folds": 1, "patience": None, "validations": 1, **settings})
    schedule = own.schedule(training, seed=job.contract.seed)
    last_step = 0

    def progress(_what: str, step: int, total: int) -> None:
        nonlocal last_step
        last_step = step
        job.progress("own columns", number * total + step, MEMBERS * total)

    store = job.folder.store(f"own-network-{number}")
    run = TrainingRun(training=training, schedule=schedule, store=store, progress=progress)
    try:
        state = train_network(member, own.features_at, own.objective(), [], run)
        assert state.best_step is not None, "the first epoch is the best so far"
        lowest = np.minimum.accumulate([epoch["validation_loss"] for epoch in state.history if "validation_loss" in epoch])
        for _ in range(int((np.diff(lowest) == 0).sum())):  # once for each epoch that was not better
            store.save_best(member, step=state.best_step)
    except Diverged as error:  # a divergence depends on labels, so the others must not see that this party stopped
        job.logbook.watcher.say(f"own columns: {error}; the head goes on without this feature")
        remainder = training.model_copy(update={"epochs": max(1, epochs - last_step // schedule.steps_per_epoch)})
        unused = build_own_network(job.architecture, own.encoder).members[number]
        constant = own.trained_on(torch.zeros_like(own.known_labels.training_labels_N)).objective()
        with suppress(Diverged):
            unused_run = replace(run, training=remainder, store=job.folder.store(f"own-network-unused-{number}"))
            train_network(unused, own.features_at, constant, [], unused_run)


def _columns(features: FixedFeatures, dataset: Dataset, index_N: Tensor, own_NC: Tensor | None = None) -> NDArray[np.float64]:
    """Return the features at these positions, (N, D), reading some rows at a time. Those of the own network come last."""
    parts = [features(dataset.features_at(index_B)) for index_B in torch.split(index_N, 1 << 14)]
    whole_ND = torch.cat(parts) if parts else torch.empty(0, features.width)
    return (whole_ND if own_NC is None else torch.cat([whole_ND, own_NC], dim=1)).double().numpy()
