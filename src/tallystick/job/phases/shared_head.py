"""A head on shares as a phase: features fitted at home, the head trained, rows scored once each, with the helper's deals.

    label party     features of own columns   -> training on shares -> scores of validation and test rows -> measured at home
    feature party   features of own columns   -> training on shares -> its shares of these scores
    helper          deals for both, and sees neither rows nor labels

Shapes: N positions, D own features, C outputs.
"""

import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import Diverged
from tallystick.job.job import Job
from tallystick.job.phases.train import own_screening, start_of
from tallystick.models.fixed_features import FixedFeatures
from tallystick.network.channel import Channel, Progress
from tallystick.privacy.randomness import generator_of
from tallystick.run_folder.own_network import MEMBERS, OwnNetwork, build_own_network
from tallystick.run_folder.shared_head import SharedHead, enter_scored
from tallystick.secret_sharing.head import (
    LARGEST_LABEL,
    HeadPlan,
    deal_scoring,
    deal_training,
    score_feature_party,
    score_label_party,
    train_head_feature_party,
    train_head_label_party,
)
from tallystick.secret_sharing.matrix_products import Index, Shares
from tallystick.secret_sharing.ring import SEED_BYTES
from tallystick.secret_sharing.share_messages import HeadSizes, exchange_counts, receive_sizes
from tallystick.secret_sharing.sides import Dealer, ShareHolder
from tallystick.secret_sharing.sigmoid import RANGE
from tallystick.training.checkpoint import TrainingState
from tallystick.training.folds import Folds
from tallystick.training.label_party import train_label_party as train_network
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun

OWN_EPOCHS = 20
"""Most epochs of the label party's own network."""


@dataclass(frozen=True, kw_only=True)
class SharedRows:
    """How much a party brings: training rows, rows to score, and its features."""

    training: int
    scored: int
    columns: int


@dataclass(frozen=True, kw_only=True)
class ScoredOnce:
    """What the label party has of a head on shares: its half, and the logits of validation and test rows, opened once."""

    head: SharedHead
    validation_N: Tensor
    test_N: Tensor


def train_shared_label_party(job: Job, dataset: Dataset, rows: OwnRows) -> ScoredOnce:
    """Train with the feature party and the helper, and open the scores of validation and test rows; all part after that.

    What the parties and the helper see does not depend on a label, in order, number or size: the label party measures, and finds
    out what its labels are worth, once it has left.
    """
    features = _fitted(job, dataset)
    own_network, own_NC = _own_network(job, dataset)
    training_ND = _columns(features, dataset, dataset.train_N, own_NC)
    shares, side, state = _train(
        job, dataset, training_ND, partial(train_head_label_party, labels_NC=_labels(job.contract, dataset))
    )
    head = SharedHead(features=features, shares=shares, state=state, own_network=own_network)
    head.keep(job.folder)
    index_N = _scored(dataset)
    enter_scored(job.folder, rows.keys.ids_of(rows.rows_at(index_N)))
    logits_N = open_scores(head, dataset, index_N, side, job.contract, progress=job.logbook.watcher.progress)
    job.leave()
    if beyond := int((logits_N.abs() > RANGE).sum()):  # only at home, for it may depend on labels
        job.logbook.watcher.say(
            f"{beyond} of {logits_N.numel()} scores are beyond {RANGE:g}, where training on shares goes wrong: lower "
            "training.learning_rate, or raise training.weight_decay or training.batch_size"
        )
    validation_N, test_N = logits_N[: len(dataset.validation_N)], logits_N[len(dataset.validation_N) :]
    return ScoredOnce(head=head, validation_N=validation_N, test_N=test_N)


def train_shared_feature_party(job: Job, dataset: Dataset, rows: OwnRows) -> SharedHead:
    """Train with the label party and the helper, and give the label party this side's shares of its scores."""
    features = _fitted(job, dataset)
    shares, side, state = _train(job, dataset, _columns(features, dataset, dataset.train_N), train_head_feature_party)
    head = SharedHead(features=features, shares=shares, state=state)
    head.keep(job.folder)
    index_N = _scored(dataset)
    enter_scored(job.folder, rows.keys.ids_of(rows.rows_at(index_N)))
    share_scores(head, dataset, index_N, side, progress=job.logbook.watcher.progress)
    job.leave()
    return head


def help_shared_head(contract: Contract, channels: Mapping[str, Channel], *, trains: bool, progress: Progress) -> HeadSizes:
    """Deal for a training and the scores after it, or for a prediction, as the helper; returns the sizes that it saw."""
    label, feature = channels[contract.label_party], channels[contract.feature_parties[0]]
    sizes = receive_sizes(label, feature)
    dealer = Dealer.begin(label, feature)
    if trains:
        deal_training(dealer, plan_of(contract, sizes), progress=progress)
    deal_scoring(dealer, (sizes.label_columns, sizes.feature_columns), sizes.scored, sizes.outputs)
    return sizes


def open_scores(
    head: SharedHead, dataset: Dataset, index_N: Tensor, side: ShareHolder, contract: Contract, *, progress: Progress
) -> Tensor:
    """Learn the scores of these positions, as the label party: what a network would give, (N,), or (N, C) for several classes.

    Each class has a head of its own, whose chance is what counts beside the others'.
    """
    own_NC = head.own_network.features(dataset.features_at, index_N) if head.own_network is not None else None
    columns_ND = _columns(head.features, dataset, index_N, own_NC)
    scores = torch.from_numpy(score_label_party(columns_ND, head.shares, side, progress=progress)).float()
    return torch.nn.functional.logsigmoid(scores) if contract.target.type == "multiclass" else scores[:, 0]


def share_scores(head: SharedHead, dataset: Dataset, index_N: Tensor, side: ShareHolder, *, progress: Progress) -> None:
    """Give the label party this side's shares of the scores of these positions, as the feature party."""
    score_feature_party(_columns(head.features, dataset, index_N), head.shares, side, progress=progress)


def begin_side(
    contract: Contract, party: str, channels: Mapping[str, Channel], sizes: SharedRows
) -> tuple[ShareHolder, HeadSizes]:
    """Tell the other party and the helper how much there is, and the helper a fresh seed of this party's masks."""
    is_label = party == contract.label_party
    assert contract.helper is not None, "a head on shares has a helper"
    helper, peer = channels[contract.helper], channels[contract.feature_parties[0] if is_label else contract.label_party]
    others = exchange_counts(peer, sizes.columns)
    label_columns, feature_columns = (sizes.columns, others) if is_label else (others, sizes.columns)
    whole = HeadSizes(
        training=sizes.training,
        scored=sizes.scored,
        label_columns=label_columns,
        feature_columns=feature_columns,
        outputs=contract.target.classes if contract.target.type == "multiclass" else 1,
    )
    helper.send(whole)
    return ShareHolder.begin(peer, helper, is_label=is_label, seed=secrets.token_bytes(SEED_BYTES)), whole


def plan_of(contract: Contract, sizes: HeadSizes) -> HeadPlan:
    """Return the training as all three know it: by the contract, and by how many rows and columns there are."""
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
        columns=(sizes.label_columns, sizes.feature_columns),
        rows=sizes.training,
        outputs=sizes.outputs,
        loss="squared" if contract.target.type == "regression" else "logistic",
        batches=batches,
        steps=training.epochs * schedule.steps_per_epoch,
        rate=training.learning_rate,
        decay=training.weight_decay,
    )


def _train(
    job: Job, dataset: Dataset, columns_ND: NDArray[np.float64], role: Callable[..., Shares]
) -> tuple[Shares, ShareHolder, TrainingState]:
    """Play a role of the training; gives the shares of the weights, the side for what follows, and how it went."""
    rows = SharedRows(training=len(dataset.train_N), scored=len(_scored(dataset)), columns=columns_ND.shape[1])
    side, sizes = begin_side(job.contract, job.name, job.channels, rows)
    plan = plan_of(job.contract, sizes)
    shares = role(columns_ND, side=side, plan=plan, progress=job.logbook.watcher.progress)
    return shares, side, TrainingState(step=plan.steps, epoch=job.contract.training.resolved(plan.rows).epochs)


def _scored(dataset: Dataset) -> Tensor:
    return torch.cat([dataset.validation_N, dataset.test_N])


def _fitted(job: Job, dataset: Dataset) -> FixedFeatures:
    """Fit this party's features on its training rows; a label party without columns brings a constant."""
    encoder = dataset.encoder
    features = FixedFeatures(encoder.feature_shape if encoder is not None else None, constant=job.is_label)
    return features.fit(dataset.features_at(dataset.train_N), seed=start_of(job.contract, job.folder))


def _own_network(job: Job, dataset: Dataset) -> tuple[OwnNetwork | None, Tensor | None]:
    """Train a network of the label party's own columns, and give the training rows' features of it; None without columns.

    It trains for as many epochs as the number of rows says. The others can see how long it takes, which depends on labels where
    it diverges or closes columns.
    """
    if dataset.encoder is None:
        return None, None
    alone = replace(job, contract=job.contract.of_own_columns())
    start = start_of(job.contract, job.folder)
    model = build_own_network(replace(alone.architecture, seed=start), dataset.encoder)
    train_N = dataset.train_N
    fold_N = torch.zeros(len(dataset.known_labels.true_N), dtype=torch.int64)
    place_N = torch.randperm(len(train_N), generator=generator_of(start, "folds of the own network"))
    fold_N[train_N[place_N]] = torch.arange(len(train_N)) % MEMBERS
    own = replace(
        dataset.own_part(),
        train_N=train_N,
        validation_N=train_N[:0],
        test_N=train_N[:0],
        folds=Folds(count=MEMBERS, fold_N=fold_N),
    )
    training = own.resolved(alone.contract.training)
    training = training.model_copy(update={"patience": None, "epochs": min(training.epochs, OWN_EPOCHS)})
    run = TrainingRun(
        training=training,
        schedule=own.schedule(training, seed=job.contract.seed),
        store=job.folder.store("own-network"),
        progress=lambda _what, completed, total: job.progress("own columns", completed, total),
        screening=own_screening(alone, own),
    )
    try:
        train_network(model, own.features_at, own.objective(), [], run)
    except Diverged as error:  # it depends on labels, so the others must not see that this party stopped
        job.logbook.watcher.say(f"own columns: {error}; the head goes on without this feature")
    network, own_NC = OwnNetwork.of(model, own.features_at, train_N, fold_N[train_N])
    network.keep(job.folder)
    return network, own_NC


def _columns(features: FixedFeatures, dataset: Dataset, index_N: Tensor, own_NC: Tensor | None = None) -> NDArray[np.float64]:
    """Return the features at these positions, (N, D), read a part of them at a time; those of an own network come last."""
    parts = [features(dataset.features_at(index_B)) for index_B in torch.split(index_N, 1 << 14)]
    whole_ND = torch.cat(parts) if parts else torch.empty(0, features.width)
    return (whole_ND if own_NC is None else torch.cat([whole_ND, own_NC], dim=1)).double().numpy()


def _labels(contract: Contract, dataset: Dataset) -> NDArray[np.float64]:
    """Return what the head learns, (N, C); numbers beyond 8 deviations count as 8, for nobody is to hear that there are any."""
    labels_N = dataset.known_labels.training_labels_N[dataset.train_N]
    if contract.target.type == "multiclass":
        return torch.nn.functional.one_hot(labels_N.long(), contract.target.classes).double().numpy()
    return labels_N.double().clamp(-LARGEST_LABEL, LARGEST_LABEL).numpy()[:, None]
