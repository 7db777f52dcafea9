"""One training run of the FLORIST benchmark: who lacks what, what is imputed, what it is worth and what leaks.

Shapes: U rows of the union, N own rows of a side.
"""

from dataclasses import dataclass, field
from math import log2
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.membership.evaluate import evaluate_membership
from tallystick.attacks.membership.identical import IdenticalEmbeddings
from tallystick.attacks.view import StepView
from tallystick.benchmark.clicks import ClickData
from tallystick.benchmark.florist.loop import FeatureSide, LabelSide, predict, train
from tallystick.imputation.draws import Draws, Redraw
from tallystick.imputation.imputer import FeatureImputer, LabelImputer
from tallystick.imputation.majority_labels import MajorityLabels
from tallystick.imputation.moments import MovingMoments
from tallystick.imputation.sampling_features import SamplingFeatures
from tallystick.metrics import ace_statistic, auc_statistic, sigmoid
from tallystick.models.build import seeded
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitShift

Side = Literal["labels", "features", "both"]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The paper's model and optimiser, with batch, step size and rows per category scaled to the sample.

    The paper: batch 8,192, Adam 1e-4, 3 epochs, about 1,500 updates on 4.1 M rows. A sample of 72,000 rows at that batch would
    be updated 27 times; here the batch keeps about 140 updates an epoch and Adam's step is ten times as long.
    """

    epochs: int = 3
    learning_rate: float = 1e-3
    updates_per_epoch: int = 140
    batch_size: int | None = None  # None: the power of two nearest to rows / updates_per_epoch
    hidden: tuple[int, ...] = (128, 128, 128, 128)
    cut_after: int = 2
    embedding_width: int = 4
    bins: int = 15  # of ACE; the paper does not say how many
    planted: int = 200  # rows of each kind whose presence the attacker knows

    def batch(self, rows: int) -> int:
        """Rows of a batch."""
        return self.batch_size or min(8192, max(16, 2 ** round(log2(rows / self.updates_per_epoch))))

    def facts(self) -> dict[str, Any]:
        """Everything that a run's figures depend on, as plain data."""
        return {
            "epochs": self.epochs,
            "learning_rate": self.learning_rate,
            "updates_per_epoch": self.updates_per_epoch,
            "fixed_batch_size": self.batch_size,
            "hidden": list(self.hidden),
            "cut_after": self.cut_after,
            "embedding_width": self.embedding_width,
            "ace_bins": self.bins,
            "planted": self.planted,
        }


@dataclass(frozen=True, kw_only=True)
class Membership:
    """Which rows of the union each side has."""

    has_labels_U: Tensor
    has_features_U: Tensor

    @classmethod
    def of(cls, side: Side, *, rows: int, ratio: float, seed: int) -> "Membership":
        """Take a share ``ratio`` of the rows from a side, or from each independently.

        As in the paper one seed fixes who is absent for all strategies, and with both sides a row may be absent from both:
        the sides added dummy ids.
        """
        rng = np.random.default_rng([seed, 1])
        masks = [torch.from_numpy(rng.permutation(rows) >= round(ratio * rows)) for _ in range(2)]
        full = torch.ones(rows, dtype=torch.bool)
        return cls(
            has_labels_U=full if side == "features" else masks[0],
            has_features_U=full if side == "labels" else masks[side == "both"],
        )

    @property
    def real(self) -> float:
        """Share of the label party's rows whose features are real."""
        return int((self.has_labels_U & self.has_features_U).sum()) / int(self.has_labels_U.sum())

    def shift(self, positive_rate: float, *, imputed_rate: float) -> LogitShift:
        """Give the logit shift of this union; with ``has_features_U`` all true it is the one for labels only."""
        return LogitShift.of_union(
            shared=int((self.has_labels_U & self.has_features_U).sum()),
            label_only=int((self.has_labels_U & ~self.has_features_U).sum()),
            union=len(self.has_labels_U),
            positive_rate=positive_rate,
            imputed_rate=imputed_rate,
        )


@dataclass(frozen=True, kw_only=True)
class Job:
    """What one training run depends on; strategies that differ only at prediction share it."""

    membership: Membership
    rows: Tensor  # rows of the union that are trained on
    labels: LabelImputer = field(default_factory=MajorityLabels)
    features: FeatureImputer = field(default_factory=SamplingFeatures)
    redraw: Redraw = "step"
    shift: LogitShift | None = None  # in training
    held_out: Tensor = field(default_factory=lambda: torch.arange(0))  # rows of the union on which calibration is fitted


class Trained:
    """A finished run: test logits under any calibration, and the recorded views."""

    def __init__(self, job: Job, data: ClickData, setting: Setting, *, seed: int, record: bool) -> None:
        self.job, self.data, self.setting, self.seed = job, data, setting, seed
        self.views: tuple[list[StepView], list[StepView]] = ([], [])
        with seeded(seed, "florist"):
            self.bottom = TabularBottom(
                data.shape, embedding_width=setting.embedding_width, hidden=setting.hidden[: setting.cut_after]
            )
            self.top = TabularTop(self.bottom.width, hidden=setting.hidden[setting.cut_after :], outputs=1)
        generator = torch.Generator().manual_seed(seed)
        feature, label = self._sides(generator)
        self.feature = feature

        def keep(feature_view: StepView, label_view: StepView) -> None:
            self.views[0].append(feature_view)
            self.views[1].append(label_view)

        train(
            feature,
            label,
            rows=job.rows,
            epochs=setting.epochs,
            batch_size=setting.batch(len(data.training)),
            generator=generator,
            record=keep if record else None,
        )

    def _sides(self, generator: torch.Generator) -> tuple[FeatureSide, LabelSide]:
        job, data, rate = self.job, self.data, self.setting.learning_rate
        own_features, own_labels = _own_rows(job.membership.has_features_U), _own_rows(job.membership.has_labels_U)
        union = len(own_labels)
        feature = FeatureSide(
            own_U=own_features,
            features=data.training.rows(torch.nonzero(own_features >= 0).squeeze(1)),
            bottom=self.bottom,
            optimizer=torch.optim.Adam(self.bottom.parameters(), lr=rate),
            imputer=job.features,
            draws=Draws.of(rows=union, k=1, redraw=job.redraw, generator=generator),
            moments=MovingMoments(self.bottom.width),
            generator=generator,
        )
        label = LabelSide(
            own_U=own_labels,
            labels_N=data.training_labels_N[own_labels >= 0],
            top=self.top,
            optimizer=torch.optim.Adam(self.top.parameters(), lr=rate),
            imputer=job.labels,
            draws=Draws.of(rows=union, k=job.labels.draws, redraw=job.redraw, generator=generator),
            calibration=Calibration(shift=job.shift, when="training") if job.shift else NO_CALIBRATION,
        )
        return feature, label

    def utility(self, calibration: Calibration = NO_CALIBRATION) -> dict[str, float]:
        """Test AUC and ACE of calibrated predictions."""
        if calibration.when == "fitted":
            calibration = self._fitted(calibration)
        logits_T = predict(self.bottom, self.top, self.data.test, calibration=calibration).double().numpy()
        labels_T, weights_T = self.data.test_labels_T.numpy(), np.ones(len(logits_T))
        return {
            "auc": auc_statistic(labels_T, logits_T)(weights_T),
            "ace": ace_statistic(labels_T, sigmoid(logits_T), bins=self.setting.bins)(weights_T),
        }

    @torch.no_grad()
    def _fitted(self, calibration: Calibration) -> Calibration:
        """Fit on the label party's own rows among those held out, as it sees them: with a donor's features where they lack."""
        has_labels_U, labels_N = self.job.membership.has_labels_U, self.data.training_labels_N
        own_V = has_labels_U[self.job.held_out]
        logits_V = self.top(self._embedded(self.job.held_out)).squeeze(1)[own_V]
        rate = float(labels_N[self.job.rows[has_labels_U[self.job.rows]]].mean())
        return calibration.fit(logits_V, labels_N[self.job.held_out][own_V], positive_rate=rate)[0]

    @torch.no_grad()
    def _embedded(self, rows: Tensor) -> Tensor:
        return torch.cat([self.feature.embed(rows_B) for rows_B in torch.split(rows, self.setting.batch(len(rows)))])

    def leaks(self, party: Literal["feature", "label"]) -> dict[str, dict[str, Any]]:
        """Run that party's attacks on its view and measure them by whether the other side has the row."""
        membership, setting = self.job.membership, self.setting
        if party == "feature":
            found = evaluate_membership(
                "cut_gradient", self.views[0], membership.has_labels_U, planted=setting.planted, seed=self.seed
            )
        else:
            present_U = membership.has_features_U
            found = evaluate_membership("cut_embedding", self.views[1], present_U, planted=setting.planted, seed=self.seed)
            one_pass = {"identical-one-pass": IdenticalEmbeddings()}
            step = self._one_pass(membership.has_labels_U)
            found |= evaluate_membership("cut_embedding", [step], present_U, planted=0, attacks=one_pass, seed=self.seed)
        return {name: metrics.as_figures() for name, metrics in found.items()}

    def _one_pass(self, own_U: Tensor) -> StepView:
        """What the label party sees if the whole union is embedded once without training in between."""
        rows_U = torch.arange(len(own_U))
        return StepView(epoch=0, rows_B=rows_U, own_B=own_U, received_BD=self._embedded(rows_U))


def _own_rows(has_U: Tensor) -> Tensor:
    """Number a side's own rows: 0, 1, ... where it has the row, -1 where it does not."""
    return torch.where(has_U, torch.cumsum(has_U, dim=0) - 1, -1)
