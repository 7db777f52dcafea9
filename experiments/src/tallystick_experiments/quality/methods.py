"""Define the compared methods: split networks trained by the product's own steps, gradient boosting by scikit-learn and LightGBM,
and TabM by its authors' package.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import polars as pl
import torch
from torch import nn

from tallystick import metrics
from tallystick.config.party import EncodingConfig
from tallystick.config.sections import NetworkModel, StillTraining, SynchronousTraining, TrainingConfig
from tallystick.cut.forward import KeptCuts, logits_over
from tallystick.errors import DataError
from tallystick.models.build import width_of
from tallystick.models.folds import build_folded_bottom, build_folded_label_model
from tallystick.storage import scratch_folder
from tallystick.tables.encoder import Encoder
from tallystick.tables.target import LabelCoder
from tallystick.training.checkpoint import CheckpointStore
from tallystick.training.folds import FoldedObjective
from tallystick.training.label_party import KeptPeer, train_label_party
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Schedule
from tallystick.training.run import TrainingRun
from tallystick.training.screening import Screening
from tallystick.training.single_process import SplitNetwork
from tallystick_experiments.catalogue.public import PublicTable
from tallystick_experiments.observed_training import best_logits
from tallystick_experiments.quality.figure import Figure, Ints, QualityMethod, coder_of, test_figure
from tallystick_experiments.quality.shared import SharedMethod
from tallystick_experiments.quality.tabm import TabMMethod, require_device
from tallystick_experiments.quality.unmatched import UnmatchedMethod

MOST_CATEGORIES = 254  # limit of scikit-learn's boosting for a column, without missing cells


@dataclass(frozen=True, kw_only=True)
class NetworkMethod:
    """Train a network as the contract says, with the product's own steps in one process.

    Args:
        model: the contract's network.
        training: the contract's training, given the number of training rows.
        encoding: the encoding of both party files.
        columns: whether columns are split between two parties, all belong to one, or only the label party's half is used.
    """

    model: NetworkModel
    training: Callable[[int], TrainingConfig]
    encoding: EncodingConfig
    columns: Literal["split", "joined", "own"] = "split"

    @property
    def feature_model(self) -> NetworkModel:
        """Return the contract's network, as a feature party builds its bottom."""
        return self.model

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Train, keep the weights that are best on the validation rows, and score the test rows."""
        started = time.perf_counter()
        network, coder = self.network(table, seed)
        train, validation, test = table.parts(seed)
        logits, epochs, best = best_logits(network, torch.from_numpy(test), rows=4096)
        schedule = network.schedule
        rows = epochs * (2 * len(schedule.train_N) + schedule.validations * len(schedule.validation_N))
        rows += len(validation) + len(test)  # validation once more, for importance
        if table.times is not None:  # if the split is by time, a contract refits by default
            passes = best / network.schedule.steps_per_epoch
            network, _ = self.network(table, seed, refit=True)
            steps = max(1, round(passes * network.schedule.steps_per_epoch))
            batches = (crossed for epoch in range(math.ceil(passes)) for crossed in network.epoch(epoch))
            for _ in islice(batches, steps):
                pass
            logits = network.logits(torch.split(torch.from_numpy(test), 4096))
            rows += round(passes * 2 * (len(train) + len(validation)))
        value = test_figure(table, coder, test, coder.predictions(logits.numpy()))
        return Figure(
            value=value, seconds=time.perf_counter() - started, epochs=epochs, crossing_bytes=_bytes_of(network.bottoms, rows)
        )

    def network(self, table: PublicTable, seed: int, *, refit: bool = False) -> tuple[SplitNetwork, LabelCoder]:
        """Build the network before its first step, and the coding of the labels. A ``refit`` also trains on validation rows."""
        train, validation, _ = table.parts(seed)
        training, partner_model = self.training(len(train)), self.feature_model
        folds = training.folds if table.times is None else 1  # a contract with a split by time has no folds
        halves = {"split": table.halves(seed), "joined": (table.columns,), "own": table.halves(seed)[:1]}[self.columns]
        fitted_rows = train if table.times is None and folds == 1 else np.concatenate([train, validation])
        encoders = [
            Encoder.fit(table.frame, half, fitted_rows, encoding=self.encoding, numbers=self.model.numeric) for half in halves
        ]
        if self.encoding.screening == "auto":
            encoders = [encoder.screening() for encoder in encoders]
        own, *others = encoders
        coder = coder_of(table, train)
        labels_N = coder.encode(table.frame.get_column(table.label))
        bottoms = [
            build_folded_bottom(
                partner_model, "feature", encoder.feature_shape, seed=seed, folds=folds, cut_width=partner_model.cut_width
            )
            for encoder in others
        ]
        label = build_folded_label_model(
            self.model,
            "label",
            own.feature_shape,
            [width_of(bottom) for bottom in bottoms],
            outputs=table.classes if table.target == "multiclass" else 1,
            seed=seed,
            folds=folds,
        )
        train_N, validation_N = torch.from_numpy(train), torch.from_numpy(validation)
        objective: Objective = Supervised(table.target, labels_N)
        if refit:
            train_N, validation_N = torch.cat([train_N, validation_N]), validation_N[:0]
        if folds > 1:  # folds have equal size; rows are in random order, and fold 0 begins with the validation rows
            train_N = validation_N = torch.cat([validation_N, train_N])
            fold_N = torch.zeros(table.frame.height, dtype=torch.int64)
            fold_N[train_N] = torch.arange(len(train_N)) * folds // len(train_N)
            objective = FoldedObjective(objective, fold_N, members=folds)
        network = SplitNetwork(
            bottoms=bottoms,
            sources=[encoder.encode(table.frame).rows for encoder in others],
            model=label,
            own=own.encode(table.frame).rows,
            objective=objective,
            training=training,
            screening=Screening(seed=seed),
            schedule=Schedule(
                train_N=train_N,
                validation_N=validation_N,
                batch_size=training.batch_size,
                seed=seed,
                validations=training.validations,
            ),
        )
        return network, coder


@dataclass(frozen=True, kw_only=True)
class KeptMethod(NetworkMethod):
    """Train without gradients: each row's embedding crosses once, and the label party trains on the embeddings that it kept."""

    @property
    def feature_model(self) -> NetworkModel:
        """Return the network of a bottom that stays as it is."""
        return self.model.still()

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Embed all rows, train by the product's loop at the label party, and score the test rows."""
        started = time.perf_counter()
        network, coder = self.network(table, seed)
        test, all_N = table.parts(seed)[2], torch.arange(table.frame.height)
        parts = []
        for bottom, source in zip(network.bottoms, network.sources, strict=True):
            with torch.no_grad():
                embedding_ND = torch.cat([bottom(source(index_B)) for index_B in torch.split(all_N, 4096)])
            parts.append(KeptCuts(numbers_R=all_N, embedding_RD=embedding_ND, numbers=lambda index_B: index_B))
        peers = [KeptPeer(name=f"feature {number}", kept=each) for number, each in enumerate(parts)]
        with scratch_folder() as folder:
            run = TrainingRun(
                training=network.training,
                schedule=network.schedule,
                store=CheckpointStore(folder),
                screening=Screening(seed=seed),
            )
            state = train_label_party(network.model, network.own, network.objective, peers, run)
        logits = logits_over(network.model, network.own, torch.split(torch.from_numpy(test), 4096), parts)
        value = test_figure(table, coder, test, coder.predictions(logits.numpy()))
        crossing = _bytes_of(network.bottoms, len(all_N))
        return Figure(value=value, seconds=time.perf_counter() - started, epochs=state.epoch, crossing_bytes=crossing)


def _bytes_of(bottoms: Sequence[nn.Module], rows: int) -> int:
    """Count the bytes of these rows at the cut, at four bytes a number."""
    return 4 * rows * sum(map(width_of, bottoms))


@dataclass(frozen=True, kw_only=True)
class BoostingMethod:
    """Fit scikit-learn's HistGradientBoosting on all rows that are not for tests.

    Categories are columns of their own kind if there are at most 254. Otherwise the column is the mean of the label by category,
    fitted crosswise (scikit-learn's TargetEncoder).

    Args:
        columns: all columns, or the label party's alone.
        settings: settings of the estimator that differ from scikit-learn's defaults.
    """

    columns: Literal["joined", "own"]
    settings: dict[str, Any]

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Fit and score the test rows."""
        from sklearn.compose import ColumnTransformer
        from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
        from sklearn.model_selection import KFold, StratifiedKFold
        from sklearn.pipeline import make_pipeline
        from sklearn.preprocessing import OrdinalEncoder, TargetEncoder

        started = time.perf_counter()
        train, validation, test = table.parts(seed)
        fitted_on = np.concatenate([train, validation])
        columns = table.columns if self.columns == "joined" else table.halves(seed)[0]
        counts = {name: table.frame.get_column(name).n_unique() for name in columns.categorical}
        few = [name for name in columns.categorical if counts[name] <= MOST_CATEGORIES]
        many = [name for name in columns.categorical if counts[name] > MOST_CATEGORIES]
        is_number = table.target in metrics.NUMBERS
        target_type = "continuous" if is_number else table.target
        folds = (KFold if is_number else StratifiedKFold)(5, shuffle=True, random_state=seed)
        prepared = ColumnTransformer(
            [
                ("few", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=np.nan), few),
                ("many", TargetEncoder(target_type=target_type, cv=folds), many),
            ],
            remainder="passthrough",
        )
        estimator = HistGradientBoostingRegressor if is_number else HistGradientBoostingClassifier
        settings = {**self.settings, **({"loss": "poisson"} if table.target == "count" else {})}
        model = make_pipeline(prepared, estimator(categorical_features=list(range(len(few))), random_state=seed, **settings))
        words = [pl.col(name).cast(pl.String).fill_null("missing") for name in columns.categorical]
        frame = table.frame.select(*words, *(pl.col(name).cast(pl.Float64) for name in columns.numeric)).to_pandas()
        coder = coder_of(table, fitted_on)
        labels_N = coder.in_units(coder.encode(table.frame.get_column(table.label)).numpy())
        model.fit(frame.iloc[fitted_on], labels_N[fitted_on])
        if is_number:
            scores = model.predict(frame.iloc[test])
        else:
            scores = np.log(np.clip(model.predict_proba(frame.iloc[test]), 1e-15, 1 - 1e-15))
            scores = scores[:, 1] - scores[:, 0] if table.target == "binary" else scores
        value = test_figure(table, coder, test, scores)
        return Figure(value=value, seconds=time.perf_counter() - started)


@dataclass(frozen=True, kw_only=True)
class LightGBMMethod:
    """Fit LightGBM on the joined table, with early stopping on the validation rows and a refit on training and validation rows.

    Categories are columns of their own kind. All other settings are LightGBM's defaults.

    Args:
        columns: all columns, or the label party's alone.
        rate: learning rate.
        most: the most trees.
        patience: trees without a better validation loss before it stops.
    """

    columns: Literal["joined", "own"] = "joined"
    rate: float = 0.05
    most: int = 5_000
    patience: int = 100

    def __call__(self, table: PublicTable, seed: int) -> Figure:
        """Fit and score the test rows. Raises DataError if LightGBM is not installed."""
        try:
            import lightgbm
        except ImportError:
            raise DataError("method lightgbm: LightGBM is not installed; run: pip install 'tallystick[quality]'") from None
        started = time.perf_counter()
        train, validation, test = table.parts(seed)
        own_columns = table.columns if self.columns == "joined" else table.halves(seed)[0]
        words, coder = list(range(len(own_columns.categorical))), coder_of(table, train)
        columns = [
            *(table.frame.get_column(name).cast(pl.String).rank("dense").cast(pl.Float64) for name in own_columns.categorical),
            *(table.frame.get_column(name).cast(pl.Float64) for name in own_columns.numeric),
        ]
        rows_NF = np.column_stack([column.to_numpy() for column in columns])
        labels_N = coder.in_units(coder.encode(table.frame.get_column(table.label)).numpy())
        objective = "poisson" if table.target == "count" else table.target
        settings = {"objective": objective, "learning_rate": self.rate, "seed": seed, "verbosity": -1, "num_threads": 1}
        if table.target == "multiclass":
            settings["num_class"] = table.classes

        def data(rows: Ints) -> Any:
            return lightgbm.Dataset(rows_NF[rows], labels_N[rows], categorical_feature=words, params={"verbosity": -1})

        stopping = lightgbm.early_stopping(self.patience, verbose=False)
        first = data(train)
        checked = lightgbm.Dataset(rows_NF[validation], labels_N[validation], reference=first)
        trees = lightgbm.train(settings, first, self.most, valid_sets=[checked], callbacks=[stopping]).best_iteration
        model = lightgbm.train(settings, data(np.concatenate([train, validation])), max(trees, 1))
        value = test_figure(
            table, coder, test, np.asarray(model.predict(rows_NF[test], raw_score=table.target not in metrics.NUMBERS))
        )
        return Figure(value=value, seconds=time.perf_counter() - started)


METHODS: dict[str, QualityMethod] = {
    "boosting": BoostingMethod(columns="joined", settings={}),
    "boosting-early": BoostingMethod(columns="joined", settings={"early_stopping": True, "max_iter": 1000}),
    "lightgbm": LightGBMMethod(),
    "boosting-own": BoostingMethod(columns="own", settings={}),
    "default": NetworkMethod(model=NetworkModel(), training=SynchronousTraining().resolved, encoding=EncodingConfig()),
    "open-ended": NetworkMethod(
        model=NetworkModel(),
        training=SynchronousTraining(schedule="open-ended", learning_rate=0.002).resolved,
        encoding=EncodingConfig(),
    ),
    "unscreened": NetworkMethod(
        model=NetworkModel(), training=SynchronousTraining().resolved, encoding=EncodingConfig(screening="off")
    ),
    "no-folds": NetworkMethod(model=NetworkModel(), training=SynchronousTraining(folds=1).resolved, encoding=EncodingConfig()),
    "ensemble": NetworkMethod(model=NetworkModel(ensemble=8), training=SynchronousTraining().resolved, encoding=EncodingConfig()),
    "no-gradients": KeptMethod(
        model=NetworkModel(), training=StillTraining(gradients="none").resolved, encoding=EncodingConfig()
    ),
    "joined": NetworkMethod(
        model=NetworkModel(), training=SynchronousTraining().resolved, encoding=EncodingConfig(), columns="joined"
    ),
    "lightgbm-own": LightGBMMethod(columns="own"),
    "own": NetworkMethod(model=NetworkModel(), training=SynchronousTraining().resolved, encoding=EncodingConfig(), columns="own"),
    "shared": SharedMethod(),
    "unmatched": UnmatchedMethod(method="warm-start"),
    "tabm": TabMMethod(refit="by-time"),
    "tabm-refit": TabMMethod(refit="always"),
}
USUAL = tuple(name for name in METHODS if not name.startswith("tabm") and name != "shared")
"""Methods that a processor runs in seconds or minutes, and that make up a page of all tables."""


def methods_on(device: str) -> Mapping[str, QualityMethod]:
    """Return METHODS, with TabM's training on this device. Raises ConfigError for a device that PyTorch does not find here."""
    require_device(device)
    return {name: replace(each, device=device) if isinstance(each, TabMMethod) else each for name, each in METHODS.items()}
