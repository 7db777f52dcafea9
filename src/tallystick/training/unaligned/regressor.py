"""Implement regressor: the mean embedding given the own one, an ablation that FedAds leaves out. Shapes: N rows, B batch, D cut
width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tallystick.config.unaligned import RegressorConfig
from tallystick.cut.forward import FeatureSource
from tallystick.models.branches import Synthesizing
from tallystick.models.build import BranchParts, seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import mlp
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.unaligned.synthesis import HIDDEN, Conditioned, Synthesis, embedded_rows, fit_network, targets_at


class Regression(Conditioned):
    """E[h_N | condition] by an MLP."""

    def __init__(self, bottom: nn.Module, *, cut_width: int, classes: int, with_label: bool) -> None:
        super().__init__(bottom, cut_width=cut_width, classes=classes, with_label=with_label)
        self.network = nn.Sequential(*mlp(self.width, [HIDDEN, HIDDEN]), nn.Linear(HIDDEN, cut_width))

    def forward(self, condition_BC: Tensor) -> Tensor:
        """Compute the mean embedding (B, D), standardised."""
        mean_BD: Tensor = self.network(condition_BC)
        return mean_BD


@dataclass(frozen=True, kw_only=True)
class Regressor(Synthesis):
    """Made-up embeddings are a least-squares regression of h_N on h_L: the centre of a diffusion's samples.

    The ablation that FedAds leaves out. Threat model and guarantee are those of Synthesis.
    """

    settings: RegressorConfig

    def generator(self, parts: BranchParts) -> nn.Module:
        """Build the regression, with a copy of the bottom."""
        bottom = parts.bottom("condition")
        with seeded(self.seed, "regressor"):
            classes = parts.label_width or parts.outputs
            return Regression(bottom, cut_width=parts.cut_width, classes=classes, with_label=self.settings.label_condition)

    def fit(self, model: LabelModel, objective: Objective, own: FeatureSource, index_N: Tensor, cuts_ND: Tensor) -> None:
        """Fit the generator to the aligned training rows."""
        assert isinstance(model, Synthesizing)
        assert isinstance(model.generator, Regression)
        regression = model.generator
        regression.bottom.load_state_dict(model.bottom.state_dict())
        embedded_NW = embedded_rows(regression.bottom, own, index_N, batch_size=self.batch_size)
        targets_N = targets_at(objective, model, own, index_N, batch_size=self.batch_size)
        regression.take_moments(cuts_ND, embedded_NW)
        condition_NC, wanted_ND = regression.condition(embedded_NW, targets_N), regression.standardised(cuts_ND)

        def loss_of(rows_B: Tensor, generator: torch.Generator) -> Tensor:  # noqa: ARG001
            return nn.functional.mse_loss(regression(condition_NC[rows_B]), wanted_ND[rows_B])

        fit_network(
            regression.network,
            loss_of,
            rows=len(index_N),
            epochs=self.settings.epochs,
            batch_size=self.batch_size,
            seed=self.seed,
        )

    def made(self, model: Synthesizing, own: Features, targets_B: Tensor, *, generator: torch.Generator) -> Tensor:  # noqa: ARG002
        """Return the mean for these rows."""
        regression = model.generator
        assert isinstance(regression, Regression)
        return regression.in_units(regression(regression.condition(regression.bottom(own), targets_B)))
