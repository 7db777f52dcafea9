"""Make one training run of the FLORIST benchmark: which rows a side lacks, how they are imputed, the utility and the leaks.

Shapes: U rows of the union, N own rows of a side.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from math import log2
from typing import Annotated, Any, Literal

import numpy as np
import torch
from torch import Tensor
from typer import Option

from tallystick.attacks.membership.evaluate import evaluate_membership
from tallystick.attacks.membership.identical import IdenticalEmbeddings
from tallystick.attacks.view import StepView
from tallystick.config.sections import TrainingConfig
from tallystick.dataset.drawn_labels import SettlingRule
from tallystick.dataset.union import Imputation
from tallystick.defenses.chain import EmbeddingDefenses
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.imputation.draws import Redraw
from tallystick.imputation.feature_imputers import SamplingFeatures
from tallystick.imputation.imputer import FeatureImputer, LabelImputer, When
from tallystick.imputation.label_imputers import MajorityLabels
from tallystick.metrics import ace_statistic, auc_statistic, sigmoid
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitShift
from tallystick.training.feature_defense import DefendedBottom
from tallystick.training.plan import Schedule, no_positions
from tallystick.training.single_process import CrossedStep, SplitNetwork
from tallystick.training.step_rule import PLAIN
from tallystick_experiments.catalogue.table import SplitData
from tallystick_experiments.feature_leakage.data import as_numbers
from tallystick_experiments.observed_training import KEPT_ROWS, PASS, PLAIN_ADAM
from tallystick_experiments.stats import evenly

Side = Literal["labels", "features", "both"]
BOTH: Mapping[str, tuple[str, str, When, bool]] = {
    "florist-vanilla": ("majority", "sampling", "prediction", False),
    "florist-tr": ("majority", "sampling", "training", True),
    "florist-te": ("majority", "sampling", "prediction", True),
    "florist-fit": ("majority", "sampling", "fitted", True),
}
"""If both sides lack rows: label imputer, feature imputer, when to calibrate, and whether for both sides or labels only."""


@dataclass(frozen=True, kw_only=True)
class FloristSetting:
    """Set the paper's model and optimiser, with batch, step size and rows per category scaled to the sample.

    The paper has batch 8,192, Adam 1e-4, 3 epochs, and about 1,500 updates on 4.1 M rows. A sample of 72,000 rows at that batch
    would get 27 updates. Here the batch gives about 140 updates an epoch, and Adam's step is ten times as long.
    """

    epochs: Annotated[int, Option(help="Of every training run; the paper's table 5 has 2.", min=1)] = 3
    learning_rate: Annotated[float, Option(help="Of Adam; the paper's is 0.0001, over 1,500 updates.")] = 1e-3
    updates_per_epoch: int = 140
    fixed_batch_size: Annotated[
        int | None, Option("--batch-size", help="Rows per step; scaled to the file if left out.", min=2)
    ] = None  # None: the power of two nearest to rows / updates_per_epoch
    hidden: tuple[int, ...] = (128, 128, 128, 128)
    cut_after: int = 2
    embedding_width: int = 4
    ace_bins: int = 15  # number of bins of ACE; the paper does not give it
    min_count: Annotated[
        int, Option(help="Training rows that a category needs for a code of its own; the paper's is 1.", min=1)
    ] = 10
    planted: int = 200  # rows of each kind whose presence the attacker knows
    own_columns: Annotated[
        int, Option(help="Columns that the label party has, of the file's; for --sides features. The paper: none.", min=0)
    ] = 0
    features_ratio: Annotated[
        float | None, Option(help="For --sides both: share of rows whose features are absent; the ratio, if left out.")
    ] = None

    def batch(self, rows: int) -> int:
        """Return the rows of a batch."""
        return self.fixed_batch_size or min(8192, max(16, 2 ** round(log2(rows / self.updates_per_epoch))))

    def facts(self) -> dict[str, Any]:
        """Return everything that a run's figures depend on, as plain data."""
        return {name: value for name, value in asdict(self).items() if name not in ("own_columns", "features_ratio") or value}


PAPERS = FloristSetting()


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Say which rows of the union each side has."""

    has_labels_U: Tensor
    has_features_U: Tensor

    @classmethod
    def of(cls, side: Side, *, rows: int, ratio: float, seed: int, features_ratio: float | None = None) -> "Membership":
        """Take a share ``ratio`` of the rows from a side, or from each side independently.

        ``features_ratio`` is the share of features, if it is given. As in the paper, one seed fixes the absent rows for all
        strategies. If both sides lack rows, a row may be absent from both, because the sides added dummy ids.
        """
        rng = np.random.default_rng([seed, 1])
        shares = (ratio, ratio if features_ratio is None else features_ratio)
        masks = [torch.from_numpy(rng.permutation(rows) >= round(share * rows)) for share in shares]
        full = torch.ones(rows, dtype=torch.bool)
        return cls(
            has_labels_U=full if side == "features" else masks[0],
            has_features_U=full if side == "labels" else masks[side == "both"],
        )

    @property
    def real(self) -> float:
        """Return the share of the label party's rows whose features are real."""
        return int((self.has_labels_U & self.has_features_U).sum()) / int(self.has_labels_U.sum())

    def shift(self, positive_rate: float, *, imputed_rate: float) -> LogitShift:
        """Return the logit shift of this union. If ``has_features_U`` is all true, it is the shift for labels only."""
        return LogitShift.of_union(
            shared=int((self.has_labels_U & self.has_features_U).sum()),
            label_only=int((self.has_labels_U & ~self.has_features_U).sum()),
            union=len(self.has_labels_U),
            positive_rate=positive_rate,
            imputed_rate=imputed_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Treatment:
    """Set everything that one training run depends on. Strategies that differ only at prediction share a run."""

    membership: Membership
    rows: Tensor  # rows of the union for training
    labels: LabelImputer = field(default_factory=MajorityLabels)
    features: FeatureImputer = field(default_factory=SamplingFeatures)
    noise: GaussianEmbeddings | None = None  # on all cut embeddings
    redraw: Redraw = "step"
    shift: LogitShift | None = None  # in training
    held_out: Tensor = field(default_factory=no_positions)  # rows of the union on which calibration is fitted


class Trained:
    """Hold a finished run of the product's own training: test logits under any calibration, and the recorded views.

    A view holds all steps of an epoch. For a large table it holds evenly spread steps with ``KEPT_ROWS`` rows, which bounds
    memory.
    """

    def __init__(
        self,
        treatment: Treatment,
        data: SplitData,
        setting: FloristSetting,
        *,
        seed: int,
        record: bool,
        watch: "Callable[[Trained, CrossedStep], None] | None" = None,
    ) -> None:
        self.treatment, self.data, self.setting, self.seed = treatment, data, setting, seed
        self.views: tuple[list[StepView], list[StepView]] = ([], [])
        with seeded(seed, "florist"):
            self.bottom: TabularBottom | DefendedBottom = TabularBottom(
                data.shape, embedding_width=setting.embedding_width, hidden=setting.hidden[: setting.cut_after]
            )
            own = self._own_bottom()
            width = self.bottom.width + (own.width if own is not None else 0)
            self.top = TabularTop(width, hidden=setting.hidden[setting.cut_after :], outputs=1)
        self.model = LabelModel(self.top, bottom=own)
        if treatment.noise is not None:
            defenses = EmbeddingDefenses(embeddings=(treatment.noise,))
            self.bottom = DefendedBottom(self.bottom, defenses, secret=seed.to_bytes(32, "big"))
        self.network = self._network()
        schedule = self.network.schedule
        chosen_steps = set(evenly(schedule.steps_per_epoch, KEPT_ROWS // schedule.batch_size)) if record else set[int]()
        for epoch in range(setting.epochs):
            for index, step in enumerate(self.network.epoch(epoch)):
                if index in chosen_steps:
                    self._keep(epoch, step)
                if watch is not None:
                    watch(self, step)

    def _own_bottom(self) -> TabularBottom | None:
        """Build the label party's bottom over its own columns, if it has any. Its cut is as wide as the feature party's."""
        if self.data.own_shape is None:
            return None
        hidden = self.setting.hidden[: self.setting.cut_after]
        return TabularBottom(self.data.own_shape, embedding_width=self.setting.embedding_width, hidden=hidden)

    def _network(self) -> SplitNetwork:
        treatment, data, setting = self.treatment, self.data, self.setting
        has_labels_U, has_features_U = treatment.membership.has_labels_U, treatment.membership.has_features_U
        # The values that a side uses for a row that it lacks, with draws of its own
        label_party, feature_party = (
            Imputation(
                own_U=torch.where(has_U, torch.cumsum(has_U, dim=0) - 1, -1),
                labels=self.treatment.labels,
                features=self.treatment.features,
                seed=int(np.random.default_rng([self.seed, 3, number]).integers(2**62)),
                redraw=self.treatment.redraw,
            )
            for number, has_U in enumerate((has_labels_U, has_features_U))
        )
        calibration = Calibration(shift=treatment.shift, when="training") if treatment.shift else NO_CALIBRATION
        training = TrainingConfig(
            epochs=setting.epochs,
            batch_size=setting.batch(len(data.training)),
            learning_rate=setting.learning_rate,
            patience=None,
            **PLAIN_ADAM,
        )
        objective = label_party.objective(data.training_labels_N[has_labels_U], calibration, positive_rate=self.positive_rate)
        settles = objective.settles_first
        return SplitNetwork(
            bottoms=[feature_party.bottom(self.bottom)],
            sources=[feature_party.source(data.training.picked(torch.nonzero(has_features_U).squeeze(1)))],
            model=self.model,
            own=data.own_training,
            objective=objective,
            training=training,
            schedule=Schedule(
                train_N=treatment.rows,
                validation_N=no_positions(),
                batch_size=training.batch_size,
                seed=self.seed,
                embeds_before=0 if settles else None,
            ),
            step_rule=SettlingRule(objective=objective, seed=self.seed) if settles else PLAIN,
        )

    @property
    def positive_rate(self) -> float:
        """Return the positive rate of the label party's own rows in training."""
        rows = self.treatment.rows
        return float(self.data.training_labels_N[rows[self.treatment.membership.has_labels_U[rows]]].double().mean())

    def _keep(self, epoch: int, step: CrossedStep) -> None:
        rows_B, membership = step.batch.index_B, self.treatment.membership
        ((embedding_BD,), (gradient_BD,)) = step.embeddings_BD, step.answer.grads_BD
        self.views[0].append(
            StepView(
                epoch=epoch,
                rows_B=rows_B,
                own_B=membership.has_features_U[rows_B],
                received_BD=gradient_BD,
                sent_BD=embedding_BD,
            )
        )
        self.views[1].append(
            StepView(
                epoch=epoch,
                rows_B=rows_B,
                own_B=membership.has_labels_U[rows_B],
                received_BD=embedding_BD,
                targets_B=step.answer.targets_B,
            )
        )

    @torch.no_grad()
    def utility(self, calibration: Calibration = NO_CALIBRATION) -> dict[str, float]:
        """Compute test AUC and ACE of calibrated predictions."""
        logits_T = self.test_logits(calibration).numpy()
        labels_T, weights_T = self.data.test_labels_T.numpy(), np.ones(len(logits_T))
        return {
            "auc": auc_statistic(labels_T, logits_T)(weights_T),
            "ace": ace_statistic(labels_T, sigmoid(logits_T), bins=self.setting.ace_bins)(weights_T),
        }

    @torch.no_grad()
    def test_logits(self, calibration: Calibration = NO_CALIBRATION) -> Tensor:
        """Compute the calibrated logits of the test rows: float64 (T,)."""
        if calibration.when == "fitted":
            # Fit on the label party's own held-out rows as it sees them: with a donor's features if they lack
            held_out = self.treatment.held_out
            own_V = self.treatment.membership.has_labels_U[held_out]
            logits_V = self.network.logits(torch.split(held_out, PASS))[own_V]
            calibration = calibration.fit(
                logits_V, self.data.training_labels_N[held_out][own_V], positive_rate=self.positive_rate
            )[0]
        test = self.data.test
        batches = torch.split(torch.arange(len(test)), PASS)
        logits = [self.model([self.bottom(test.rows(rows_B))], self.data.own_test(rows_B)) for rows_B in batches]
        return calibration.prediction_logits(torch.cat(logits)).double()

    def leaks(self, party: Literal["feature", "label"]) -> dict[str, dict[str, Any]]:
        """Run this party's attacks on its view, and measure how well they show whether the other side has the row."""
        membership, setting = self.treatment.membership, self.setting
        evaluate = partial(evaluate_membership, planted=setting.planted, seed=self.seed)
        if party == "feature":
            metrics_by_name = evaluate("cut_gradient", self.views[0], membership.has_labels_U).found
        else:
            present_U = membership.has_features_U
            own = None if self.data.own_shape is None else self.data.own_training(torch.arange(len(present_U)))
            own_UA = None if own is None else as_numbers(own)
            one_pass = {"identical-one-pass": IdenticalEmbeddings()}
            step = self._one_pass(membership.has_labels_U)
            metrics_by_name = {
                **evaluate("cut_embedding", self.views[1], present_U, own_UA=own_UA, sent=self._sent).found,
                **evaluate("cut_embedding", [step], present_U, planted=0, attacks=one_pass).found,
            }
        return {name: metrics.as_figures() for name, metrics in metrics_by_name.items()}

    def _sent(self, rows_R: Tensor) -> Tensor:
        (source,) = self.network.sources
        features = source(rows_R)
        return torch.cat([features.numeric_NF, features.categorical_NG], dim=1)

    @torch.no_grad()
    def _one_pass(self, own_U: Tensor) -> StepView:
        """Return the label party's view if the union, or ``KEPT_ROWS`` of it, is embedded once without training in between."""
        (bottom,), (source,) = self.network.bottoms, self.network.sources
        self.network.train(False)
        rows_B = torch.arange(len(own_U))[:KEPT_ROWS]
        embedded = [bottom(source(each_B)) for each_B in torch.split(rows_B, self.network.schedule.batch_size)]
        return StepView(epoch=0, rows_B=rows_B, own_B=own_U[rows_B], received_BD=torch.cat(embedded))
