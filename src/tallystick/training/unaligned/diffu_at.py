"""Implement diffu-at: FedAds' own method, a conditional diffusion for the missing embedding. Shapes: N rows, B batch, D cut
width.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tallystick.config.unaligned import DiffuATConfig
from tallystick.cut.forward import FeatureSource
from tallystick.models.branches import Synthesizing
from tallystick.models.build import BranchParts, seeded
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.objective import Objective
from tallystick.training.unaligned.diffusion import Denoiser, NoiseSchedule
from tallystick.training.unaligned.synthesis import HIDDEN, Conditioned, Synthesis, embedded_rows, fit_network, targets_at

SCHEDULE = NoiseSchedule()
LIMIT = 5.0  # made-up units are cut at this many standard deviations


class Diffusion(Conditioned):
    """A denoiser of h_N, conditioned on h_L and, if asked for, y."""

    def __init__(self, bottom: nn.Module, *, cut_width: int, classes: int, with_label: bool) -> None:
        super().__init__(bottom, cut_width=cut_width, classes=classes, with_label=with_label)
        self.network = Denoiser(cut_width, self.width, hidden=HIDDEN)

    def predict(self, condition_BC: Tensor, noisy_BD: Tensor, step_B: Tensor) -> Tensor:
        """Predict with the network."""
        predicted_BD: Tensor = self.network(noisy_BD, step_B, condition_BC)
        return predicted_BD


@dataclass(frozen=True, kw_only=True)
class DiffuAT(Synthesis):
    """A diffusion on the aligned rows' cut embeddings makes up those of unaligned rows. Both kinds of batches alternate.

    FedAds, section 4.1: T = 1000, linear beta, sines and cosines of the step. Here h_N is standardised, the loss is only on h_N
    (for the condition there is nothing to learn), and an embedding takes ``evaluations`` steps of ``sampling``: 20 of DDIM; the
    paper's are 1,000 of DDPM. The paper's condition [y; h_L] (``label_condition``) lets the local branch read the label from the
    made-up embedding; without y it cannot. Threat model and guarantee are those of Synthesis.
    """

    settings: DiffuATConfig

    def generator(self, parts: BranchParts) -> nn.Module:
        """Build the denoiser, with a copy of the bottom."""
        bottom = parts.bottom("condition")
        with seeded(self.seed, "diffusion"):
            classes = parts.label_width or parts.outputs
            return Diffusion(bottom, cut_width=parts.cut_width, classes=classes, with_label=self.settings.label_condition)

    def fit(self, model: LabelModel, objective: Objective, own: FeatureSource, index_N: Tensor, cuts_ND: Tensor) -> None:
        """Fit the generator to the aligned training rows."""
        assert isinstance(model, Synthesizing)
        assert isinstance(model.generator, Diffusion)
        diffusion = model.generator
        diffusion.bottom.load_state_dict(model.bottom.state_dict())
        embedded_NW = embedded_rows(diffusion.bottom, own, index_N, batch_size=self.batch_size)
        targets_N = targets_at(objective, model, own, index_N, batch_size=self.batch_size)
        diffusion.take_moments(cuts_ND, embedded_NW)
        condition_NC, clean_ND = diffusion.condition(embedded_NW, targets_N), diffusion.standardised(cuts_ND)

        def loss_of(rows_B: Tensor, generator: torch.Generator) -> Tensor:
            clean_BD = clean_ND[rows_B]
            noise_BD = torch.randn(clean_BD.shape, generator=generator)
            step_B = torch.randint(SCHEDULE.steps, (len(rows_B),), generator=generator)
            noisy_BD = SCHEDULE.noisy(clean_BD, noise_BD, step_B)
            wanted_BD = SCHEDULE.target(clean_BD, noise_BD, step_B, self.settings.prediction)
            return nn.functional.mse_loss(diffusion.predict(condition_NC[rows_B], noisy_BD, step_B), wanted_BD)

        fit_network(
            diffusion.network, loss_of, rows=len(index_N), epochs=self.settings.epochs, batch_size=self.batch_size, seed=self.seed
        )

    def made(self, model: Synthesizing, own: Features, targets_B: Tensor, *, generator: torch.Generator) -> Tensor:
        """Draw a sample for each row."""
        diffusion = model.generator
        assert isinstance(diffusion, Diffusion)
        condition_BC = diffusion.condition(diffusion.bottom(own), targets_B)
        sample_BD = SCHEDULE.sample(
            partial(diffusion.predict, condition_BC),
            torch.randn((len(targets_B), len(diffusion.mean_D)), generator=generator),
            evaluations=self.settings.evaluations,
            prediction=self.settings.prediction,
            limit=LIMIT,
            fresh=generator if self.settings.sampling == "ddpm" else None,
        )
        return diffusion.in_units(sample_BD)
