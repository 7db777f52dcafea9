"""Make one run of FedSim's experiments: a set, a method and a seed.

It links rows, splits them, trains with the product's own step, and measures.

Shapes: N rows of the label party, M rows of the feature party, K candidates, T test rows, C classes.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any, Literal, TypedDict

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.alignment.nearest import nearest
from tallystick.config.merge import AttentionMergeConfig, CNNMergeConfig
from tallystick.config.sections import NetworkModel, SynchronousTraining, TrainingConfig, target_of
from tallystick.dataset.similarity import CandidateSource, DistinctCandidates, LinkedSource
from tallystick.errors import ConfigError
from tallystick.models.build import build_bottom, build_label_model, width_of
from tallystick.models.similarity.model import learnt_weights
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import Features, Numbers
from tallystick.tables.target import LabelCoder, classes_of
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule
from tallystick.training.single_process import SplitNetwork
from tallystick_experiments.catalogue.pairs import Pair
from tallystick_experiments.fedsim.inside import looked_into
from tallystick_experiments.fedsim.methods import METHODS, ComparedMethod
from tallystick_experiments.observed_training import best_logits

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
_PASS = 1024
WARM_STEPS, TIMED_STEPS = 3, 12  # steps before and during the measurement of an epoch's time
FIXED_SPLIT = 0  # the seed of the paper's one split

SplitKind = Literal["varied", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Define the training of a set's networks, which is the same for every method.

    Args:
        neighbors: K, if a run does not give another.
        hidden: widths of the layers, those of the bottoms first.
        cut_after: how many of these layers belong to the bottoms.
        epochs, batch_size, learning_rate, weight_decay, optimizer, schedule: settings of the training.
        clip: largest norm of a party's gradients. At hdb's rate it must be bounded: in some starts, a few large steps at the
            beginning leave most units dead, and FedSim's merge does not recover.
        published: the sizes of FedSim's merge for this set.
    """

    neighbors: int
    hidden: tuple[int, ...]
    cut_after: int = 2
    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float = 0.01
    clip: float | None = None
    warm_up: float = 0.0
    optimizer: Literal["adamw", "lamb"] = "adamw"
    schedule: Literal["cosine", "constant"] = "cosine"
    published: CNNMergeConfig = field(default_factory=partial(CNNMergeConfig, method="cnn"))

    @property
    def model(self) -> NetworkModel:
        """Return the network as a contract describes it, without the merge: the paper's plain numbers and its widths."""
        return NetworkModel(embedding_width=4, embedding_scale=1.0, numeric="plain", hidden=self.hidden, cut_after=self.cut_after)

    def training(self, rows: int) -> TrainingConfig:  # noqa: ARG002
        """Return the training as a contract describes it, for any number of training rows."""
        return TrainingConfig(
            epochs=self.epochs,
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            optimizer=self.optimizer,
            schedule=self.schedule,
            clip=self.clip,
            warm_up=self.warm_up,
            patience=None,
        )


@dataclass(frozen=True, kw_only=True)
class ContractRecipe:
    """Define the training of a contract that leaves network and training out."""

    model: NetworkModel = field(default_factory=NetworkModel)
    published: CNNMergeConfig = field(default_factory=partial(CNNMergeConfig, method="cnn"))

    def training(self, rows: int) -> TrainingConfig:
        """Resolve the training for this number of training rows."""
        return SynchronousTraining(folds=1).resolved(rows)  # as similarity has


RECIPES = {
    "house": Recipe(
        neighbors=5,
        hidden=(200, 100, 100),
        epochs=20,
        batch_size=256,
        learning_rate=0.003,
        clip=1.0,
        warm_up=0.1,
        published=CNNMergeConfig(method="cnn", dropout=0.3),
    ),
    "hdb": Recipe(neighbors=5, hidden=(200, 100, 100), epochs=40, batch_size=256, learning_rate=0.003, clip=1.0, warm_up=0.1),
    "frogs": Recipe(neighbors=20, hidden=(100, 50, 100), epochs=20, batch_size=128, learning_rate=0.003),
    "synthetic": Recipe(neighbors=20, hidden=(100, 50, 100), epochs=15, batch_size=128, learning_rate=0.002),
    "synthetic-random": Recipe(neighbors=30, hidden=(100, 50, 100), epochs=15, batch_size=128, learning_rate=0.002),
    "bike": Recipe(
        neighbors=5,
        hidden=(100, 50, 100),
        epochs=15,
        batch_size=128,
        learning_rate=0.002,
        published=CNNMergeConfig(method="cnn", kernel=5, dropout=0.1),
    ),
}
"""The recipe of each set's networks."""
RecipeKind = Literal["ours", "the paper's"]


def recipe_of(name: str, kind: RecipeKind = "ours") -> Recipe:
    """Return a set's recipe, or the paper's with LAMB and our number of epochs."""
    recipe = RECIPES[name]
    if kind == "ours":
        return recipe
    return replace(recipe, optimizer="lamb", schedule="constant", clip=None, warm_up=0.0, **PUBLISHED[name])


class _Published(TypedDict):
    batch_size: int
    learning_rate: float
    weight_decay: float
    published: CNNMergeConfig


PUBLISHED: dict[str, _Published] = {
    "house": {
        "batch_size": 128,
        "learning_rate": 1e-3,
        "weight_decay": 1e-5,
        "published": CNNMergeConfig(method="cnn", dropout=0.3),
    },
    "hdb": {
        "batch_size": 128,
        "learning_rate": 1e-3,
        "weight_decay": 1e-4,
        "published": CNNMergeConfig(method="cnn", dropout=0.2),
    },
    "bike": {
        "batch_size": 64,
        "learning_rate": 3e-4,
        "weight_decay": 1e-5,
        "published": CNNMergeConfig(method="cnn", kernel=5, dropout=0.1),
    },
}
"""The values that differ in the paper's recipe, by the authors' settings."""


@dataclass(frozen=True, kw_only=True)
class LinkedPair:
    """Hold a set that is split and linked, which all methods of a seed share.

    Args:
        their_encoders, theirs: per feature party; several parties hold columns of the same rows.
        numbers_NK: candidates, the most similar first.
        similarity_NK: standardised, with noise if they are linked like a job that adds noise.
        located: how near attackers came to keys, in metres, by the attack's name, if that was measured.
    """

    pair: Pair
    train_N: Ints
    validation_N: Ints
    test_N: Ints
    numbers_NK: Ints
    similarity_NK: NDArray[np.float32]
    own_encoder: Encoder
    own: Features
    their_encoders: Sequence[Encoder]
    theirs: Sequence[Features]
    coder: LabelCoder
    labels_N: Tensor
    located: Mapping[str, float] = field(default_factory=dict)

    def first(self, rows: int) -> "LinkedPair":
        """Return the same pair with only this many training rows."""
        return replace(self, train_N=self.train_N[:rows], validation_N=self.validation_N[:0])

    def best(self) -> Ints:
        """Return the most similar candidate by the similarities that the label party learns (N, 1)."""
        return np.take_along_axis(self.numbers_NK, self.similarity_NK.argmax(axis=1)[:, None], axis=1)


def split_rows(rows: int, *, seed: int, kind: SplitKind = "varied") -> tuple[Ints, Ints, Ints]:
    """Split rows for training, validation and test, 7:1:2, drawn by a seed, or the paper's one split."""
    order_N = np.random.default_rng(FIXED_SPLIT if kind == "fixed" else seed).permutation(rows)
    test, validation = rows // 5, rows // 10
    return order_N[test + validation :], order_N[test : test + validation], order_N[:test]


def link_pair(pair: Pair, *, neighbors: int, seed: int, kind: SplitKind = "varied", key_noise: float = 0.0) -> LinkedPair:
    """Split a set's rows and link each to its K nearest.

    Args:
        pair: the set.
        neighbors: K.
        seed: the seed of the noise, and of the split unless that is fixed.
        kind: the kind of split.
        key_noise: standard deviation of the noise that this benchmark adds to both sides' keys, as in its Figure 5.
    """
    train_N, validation_N, test_N = split_rows(len(pair.own), seed=seed, kind=kind)
    random = np.random.default_rng([seed, 7])
    own_key_NP, their_key_MP = (
        key + random.normal(scale=key_noise, size=key.shape) if key_noise else key for key in (pair.own_key_NP, pair.their_key_MP)
    )
    neighbors_of_keys = nearest(own_key_NP, their_key_MP, neighbors=neighbors)
    raw_NK = -neighbors_of_keys.distance_NK
    mean, deviation = raw_NK[train_N].mean(), raw_NK[train_N].std()
    similarity_NK = (raw_NK - mean) / (deviation or 1.0)
    return linked_pair(pair, (train_N, validation_N, test_N), neighbors_of_keys.numbers_NK, similarity_NK)


def linked_pair(
    pair: Pair,
    split: tuple[Ints, Ints, Ints],
    numbers_NK: Ints,
    similarity_NK: NDArray[np.floating[Any]],
    *,
    numbers: Literal["auto"] | Numbers = "plain",
) -> LinkedPair:
    """Encode a set that is split and linked. Encoders are fitted on training rows and on the rows to which these are linked."""
    train_N, validation_N, test_N = split
    own_encoder = Encoder.fit(pair.own, pair.own_columns, train_N, numbers=numbers)
    linked_M = np.unique(numbers_NK[train_N])
    their_encoders = [
        Encoder.fit(pair.theirs, columns, linked_M, numbers=numbers) for columns in pair.parties or (pair.their_columns,)
    ]
    label = pair.own.get_column(pair.label)
    classes = len(classes_of(label)) if pair.target == "multiclass" else 2
    coder = LabelCoder.fit(label, target_of(pair.target, classes=classes), train_N)
    return LinkedPair(
        pair=pair,
        train_N=train_N,
        validation_N=validation_N,
        test_N=test_N,
        numbers_NK=numbers_NK,
        similarity_NK=similarity_NK.astype(np.float32),
        own_encoder=own_encoder,
        own=own_encoder.encode(pair.own).unpacked(),
        their_encoders=their_encoders,
        theirs=[encoder.encode(pair.theirs).unpacked() for encoder in their_encoders],
        coder=coder,
        labels_N=coder.encode(label),
    )


def with_keys(linked: LinkedPair) -> LinkedPair:
    """Add the label party's keys to its columns."""
    pair = linked.pair
    names = [f"key {place}" for place in range(pair.own_key_NP.shape[1])]
    own = pair.own.with_columns(pl.Series(name, key_N) for name, key_N in zip(names, pair.own_key_NP.T, strict=True))
    columns = pair.own_columns.model_copy(update={"numeric": (*pair.own_columns.numeric, *names)})
    split = (linked.train_N, linked.validation_N, linked.test_N)
    return linked_pair(replace(pair, own=own, own_columns=columns), split, linked.numbers_NK, linked.similarity_NK)


def encoded_for(linked: LinkedPair, model: NetworkModel) -> LinkedPair:
    """Encode numbers as the model requires."""
    split = (linked.train_N, linked.validation_N, linked.test_N)
    return linked_pair(linked.pair, split, linked.numbers_NK, linked.similarity_NK, numbers=model.numeric)


@dataclass(kw_only=True)
class TrainedMethod:
    """Hold a trained network and its outputs for the test rows."""

    network: SplitNetwork
    figures: dict[str, Any]
    outputs_T: Tensor


def train_method(linked: LinkedPair, name: str, recipe: Recipe, *, seed: int) -> TrainedMethod:
    """Train one method and measure it on the test rows, at the epoch that is best on validation rows."""
    started, method = time.perf_counter(), METHODS[name]
    if method.sees_keys:
        linked = with_keys(linked)
    trained_by = ContractRecipe() if method.by_contract else recipe
    if method.by_contract:
        linked = encoded_for(linked, trained_by.model)
    network = network_of(linked, method, trained_by, seed=seed)
    outputs_T, _, best_step = best_logits(network, torch.from_numpy(linked.test_N), rows=_PASS)
    figures = score_outputs(linked, outputs_T) | {
        "best_epoch": -(-best_step // network.schedule.steps_per_epoch),
        "seconds": time.perf_counter() - started,
        "parameters": sum(weight.numel() for module in (network.model, *network.bottoms) for weight in module.parameters()),
        "weights": next(iter(learnt_weights(network.model)), None),
        **looked_into(network, torch.from_numpy(linked.test_N[:_PASS])),
    }
    return TrainedMethod(network=network, figures=figures, outputs_T=outputs_T)


def epoch_cost(linked: LinkedPair, name: str, recipe: Recipe, *, seed: int) -> dict[str, float]:
    """Measure the processor seconds of an epoch, from those of some steps after the first few, and the number of its steps.

    It uses one thread, so other work of the machine does not count. ``seconds`` is the time of the measurement itself.
    """
    started = time.perf_counter()
    network = network_of(linked, METHODS[name], recipe, seed=seed)
    count = network.schedule.steps_per_epoch
    warm = min(WARM_STEPS, count - 1)
    ended = [time.process_time(), *(time.process_time() for _ in islice(network.epoch(0), warm + TIMED_STEPS))]
    marks = ended[warm:]
    a_step = (marks[-1] - marks[0]) / (len(marks) - 1)
    return {"epoch_s": a_step * count, "steps": count, "seconds": time.perf_counter() - started}


def network_of(
    linked: LinkedPair,
    method: ComparedMethod,
    recipe: Recipe | ContractRecipe,
    *,
    seed: int,
    crossing: type[DistinctCandidates] = DistinctCandidates,
) -> SplitNetwork:
    """Build the network of a method, with its batches and sources. ``crossing`` says which rows cross."""
    merge = method.merged(recipe.published)
    model = recipe.model.model_copy(update={"merge": merge if merge is not None else AttentionMergeConfig()})
    training = recipe.training(len(linked.train_N))
    pair, own = linked.pair, linked.own
    own_shape = linked.own_encoder.feature_shape if method.own_columns else None
    schedule = Schedule(
        train_N=torch.from_numpy(linked.train_N),
        validation_N=torch.from_numpy(linked.validation_N),
        batch_size=training.batch_size,
        seed=seed,
        validations=training.validations,
    )
    outputs = len(linked.coder.classes) if pair.target == "multiclass" else 1
    label_model_on = partial(build_label_model, model, "label", own_shape, outputs=outputs, seed=seed)
    objective = Supervised(pair.target, linked.labels_N)
    if merge is None:
        label_model = label_model_on([])
        return SplitNetwork(
            bottoms=[], sources=[], model=label_model, own=own.rows, objective=objective, training=training, schedule=schedule
        )
    numbers_NK, similarity_NK = _links(linked, method, seed)
    candidates = crossing(numbers_NK=torch.from_numpy(numbers_NK), rows=len(pair.theirs))
    bottoms = [
        build_bottom(model, f"feature-{number}" if number else "feature", encoder.feature_shape, seed=seed)
        for number, encoder in enumerate(linked.their_encoders)
    ]
    count = len(bottoms)
    label_model = label_model_on([width_of(bottom) for bottom in bottoms], candidates=[numbers_NK.shape[1]] * count)
    similarities_NK = [torch.from_numpy(similarity_NK)] * count
    return SplitNetwork(
        bottoms=bottoms,
        sources=[CandidateSource(features=features, crossing=candidates) for features in linked.theirs],
        model=label_model,
        own=LinkedSource(features=own, crossings=[candidates] * count, similarities_NK=similarities_NK),
        objective=objective,
        training=training,
        schedule=replace(schedule, cut_rows=lambda index_B, _: len(candidates.numbers(index_B))),
    )


def _links(linked: LinkedPair, method: ComparedMethod, seed: int) -> tuple[Ints, NDArray[np.float32]]:
    """Return the numbers and similarities of a method's links."""
    if method.links == "most similar":
        return linked.best(), linked.similarity_NK.max(axis=1, keepdims=True)
    if method.links == "same row":
        rows_N1 = np.arange(len(linked.pair.own))[:, None]
        return rows_N1, np.zeros(rows_N1.shape, dtype=np.float32)
    if not method.shuffles:
        return linked.numbers_NK, linked.similarity_NK
    order_NK = np.random.default_rng([seed, 8]).random(linked.numbers_NK.shape).argsort(axis=1)
    return np.take_along_axis(linked.numbers_NK, order_NK, axis=1), np.take_along_axis(linked.similarity_NK, order_NK, axis=1)


def score_outputs(linked: LinkedPair, outputs_T: Tensor) -> dict[str, float]:
    """Compute RMSE and R-squared of a regression in the label's units, or accuracy of classes."""
    labels_T = linked.labels_N[torch.from_numpy(linked.test_N)]
    if linked.pair.target == "regression":
        found_T, true_T = (linked.coder.in_units(values.numpy()) for values in (outputs_T, labels_T))
        squared = float(np.mean((found_T - true_T) ** 2))
        return {"rmse": squared**0.5, "r2": 1 - squared / float(np.var(true_T))}
    if linked.pair.target == "binary":
        return {"accuracy": float(((outputs_T > 0) == (labels_T > 0.5)).double().mean())}
    return {"accuracy": float((outputs_T.argmax(dim=1) == labels_T).double().mean())}


def boosted_trees(linked: LinkedPair, *, seed: int) -> dict[str, float]:
    """Fit boosted trees on the joined table: own columns, and those of the K nearest rows side by side.

    No partner would allow this. Raises ConfigError without scikit-learn.
    """
    try:
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
    except ImportError:
        raise ConfigError("bench fedsim: boosted trees need scikit-learn; install it, or name other methods") from None
    own_NF = _plain(linked.pair.own, linked.own_encoder)
    their_MF = np.concatenate([_plain(linked.pair.theirs, encoder) for encoder in linked.their_encoders], axis=1)
    side_by_side = their_MF[linked.numbers_NK].reshape(len(own_NF), -1)
    columns_NF = np.concatenate([own_NF, side_by_side, linked.similarity_NK], axis=1)
    kind = HistGradientBoostingRegressor if linked.pair.target == "regression" else HistGradientBoostingClassifier
    started = time.perf_counter()
    trees = kind(max_iter=1000, learning_rate=0.05, max_leaf_nodes=63, early_stopping=True, random_state=seed)
    known_N = np.concatenate([linked.train_N, linked.validation_N])
    trees.fit(columns_NF[known_N], linked.labels_N.numpy()[known_N])
    found_T = trees.predict(columns_NF[linked.test_N])
    if linked.pair.target == "multiclass":
        outputs_T = torch.nn.functional.one_hot(torch.from_numpy(found_T).long(), len(linked.coder.classes)).float()
    else:
        outputs_T = torch.from_numpy(found_T).float() - (0.5 if linked.pair.target == "binary" else 0.0)
    return score_outputs(linked, outputs_T) | {"seconds": time.perf_counter() - started}


def _plain(frame: pl.DataFrame, encoder: Encoder) -> Floats:
    """Return encoded columns as trees read them: numbers, and the codes of categories."""
    features = encoder.encode(frame).unpacked()
    return np.concatenate([features.numeric_NF.numpy(), features.categorical_NG.numpy()], axis=1).astype(np.float64)
