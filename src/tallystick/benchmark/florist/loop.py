"""Training on a union, one object per side: what each computes from its own rows and from what crosses the cut.

Shapes: B rows of a batch, D cut width, U rows of the union, N own rows of a side, K draws per row.

``train`` runs both sides in one process; nothing but cut embeddings and cut gradients passes between them, so a networked
loop can put a channel there. A batch is a set of union rows; each side knows which of them it has (own row, or -1).
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.attacks.view import StepView
from tallystick.data.features import Features
from tallystick.imputation.draws import Draws
from tallystick.imputation.imputer import FeatureImputer, LabelBatch, LabelImputer
from tallystick.imputation.moments import MovingMoments
from tallystick.training.calibration import Calibration


@dataclass(kw_only=True)
class FeatureSide:
    """The feature party: own features, bottom model, and an imputer for rows it lacks."""

    own_U: Tensor  # int64: own row of each union row, -1 where absent
    features: Features
    bottom: nn.Module
    optimizer: torch.optim.Optimizer
    imputer: FeatureImputer
    draws: Draws
    moments: MovingMoments
    generator: torch.Generator
    _sent_BD: Tensor | None = field(default=None, init=False)

    def embed(self, rows_B: Tensor) -> Tensor:
        """Give the batch's cut embeddings, to be sent."""
        own_B = self.own_U[rows_B]
        present_B = own_B >= 0
        inputs_B = self.imputer.inputs(own_B, own_rows=len(self.features), uniform_B=self.draws.at(rows_B)[:, 0])
        cut_BD = self.bottom(self.features.rows(inputs_B))
        self.moments.update(cut_BD.detach()[present_B])
        self._sent_BD = self.imputer.cut(cut_BD, present_B, moments=self.moments, generator=self.generator)
        return self._sent_BD.detach()

    def learn(self, grad_BD: Tensor) -> None:
        """Take the received cut gradients into the bottom model."""
        assert self._sent_BD is not None, "embed comes before learn"
        self.optimizer.zero_grad()
        self._sent_BD.backward(grad_BD)  # type: ignore[no-untyped-call]
        self.optimizer.step()
        self._sent_BD = None


@dataclass(kw_only=True)
class LabelSide:
    """The label party: own labels, top model, an imputer for labels it lacks, and calibration."""

    own_U: Tensor
    labels_N: Tensor
    top: nn.Module
    optimizer: torch.optim.Optimizer
    imputer: LabelImputer
    draws: Draws
    calibration: Calibration

    def learn(self, rows_B: Tensor, received_BD: Tensor) -> tuple[Tensor, Tensor, float]:
        """Give the cut gradients to be sent, the targets that were used and the mean loss."""
        cut_BD = received_BD.clone().requires_grad_()
        logits_B = self.top(cut_BD).squeeze(1)
        own_B = self.own_U[rows_B]
        batch = LabelBatch(
            labels_B=self.labels_N[own_B.clamp(min=0)],
            present_B=own_B >= 0,
            logits_B=logits_B.detach(),
            cut_BD=received_BD,
            positive_rate=float(self.labels_N.mean()),
        )
        targets_B = self.imputer(batch, uniform_BK=self.draws.at(rows_B))
        loss = binary_cross_entropy_with_logits(self.calibration.training_logits(logits_B), targets_B)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        assert cut_BD.grad is not None
        return cut_BD.grad, targets_B, loss.item()


Record = Callable[[StepView, StepView], None]
"""Called with the feature party's and the label party's view of every step."""


def train(
    feature: FeatureSide,
    label: LabelSide,
    *,
    rows: Tensor,
    epochs: int,
    batch_size: int,
    generator: torch.Generator,
    record: Record | None = None,
) -> list[float]:
    """Run both sides over ``rows`` of the union, shuffled anew each epoch; gives each step's mean loss."""
    losses = []
    for epoch in range(epochs):
        for rows_B in torch.split(rows[torch.randperm(len(rows), generator=generator)], batch_size):
            sent_BD = feature.embed(rows_B)
            grad_BD, targets_B, loss = label.learn(rows_B, sent_BD)
            feature.learn(grad_BD)
            losses.append(loss)
            if record is not None:
                has_features_B, has_labels_B = feature.own_U[rows_B] >= 0, label.own_U[rows_B] >= 0
                record(
                    StepView(epoch=epoch, rows_B=rows_B, own_B=has_features_B, received_BD=grad_BD),
                    StepView(epoch=epoch, rows_B=rows_B, own_B=has_labels_B, received_BD=sent_BD, targets_B=targets_B),
                )
    return losses


@torch.no_grad()
def predict(bottom: nn.Module, top: nn.Module, features: Features, *, calibration: Calibration, chunk: int = 8192) -> Tensor:
    """Give calibrated logits of real rows."""
    logits = [top(bottom(features.rows(index_B))).squeeze(1) for index_B in torch.split(torch.arange(len(features)), chunk)]
    return calibration.prediction_logits(torch.cat(logits))
