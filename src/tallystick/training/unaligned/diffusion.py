"""Implement denoising diffusion: the noise schedule, the possible predictions of a network, and sampling by DDIM or DDPM.

Shapes: B batch, D width of the denoised vectors, C width of the condition, T steps of noise.

Ho et al. 2020 (DDPM), Song et al. 2021 (DDIM; eta = 0, or 1, which with every step is DDPM), Salimans and Ho 2022 (v-prediction).
The formulas are our own, tested against closed forms: the best denoiser of a Gaussian is known, and so is the sampler's result
with it.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

Prediction = Literal["epsilon", "x0", "v"]
Predict = Callable[[Tensor, Tensor], Tensor]
"""A network with its condition: it maps noisy (B, D) and step (B,) to its prediction (B, D)."""


@dataclass(frozen=True, kw_only=True)
class NoiseSchedule:
    """DDPM's linear schedule: beta from 1e-4 to .02 in T = 1000 steps."""

    steps: int = 1000
    first: float = 1e-4
    last: float = 0.02

    @property
    def variances(self) -> Tensor:
        """Return beta (T,): variance of the noise that each step adds."""
        return torch.linspace(self.first, self.last, self.steps, dtype=torch.float64)

    @property
    def kept(self) -> Tensor:
        """Return alpha-bar (T,): the share of the original variance that remains after each step."""
        return torch.cumprod(1 - self.variances, dim=0)

    def noisy(self, clean_BD: Tensor, noise_BD: Tensor, step_B: Tensor) -> Tensor:
        """Draw from q(x_t | x_0), equation 4 of DDPM."""
        kept_B1 = self.kept[step_B][:, None].to(clean_BD.dtype)
        return kept_B1.sqrt() * clean_BD + (1 - kept_B1).sqrt() * noise_BD

    def target(self, clean_BD: Tensor, noise_BD: Tensor, step_B: Tensor, prediction: Prediction) -> Tensor:
        """Return the network's target."""
        if prediction == "epsilon":
            return noise_BD
        if prediction == "x0":
            return clean_BD
        kept_B1 = self.kept[step_B][:, None].to(clean_BD.dtype)
        return kept_B1.sqrt() * noise_BD - (1 - kept_B1).sqrt() * clean_BD

    def clean_and_noise(
        self, noisy_BD: Tensor, predicted_BD: Tensor, signal_share: float, prediction: Prediction
    ) -> tuple[Tensor, Tensor]:
        """Return x_0 and the noise that a prediction implies."""
        signal, spread = math.sqrt(signal_share), math.sqrt(1 - signal_share)
        if prediction == "epsilon":
            return (noisy_BD - spread * predicted_BD) / signal, predicted_BD
        if prediction == "x0":
            return predicted_BD, (noisy_BD - signal * predicted_BD) / spread
        return signal * noisy_BD - spread * predicted_BD, spread * noisy_BD + signal * predicted_BD

    def sample(
        self,
        predict: Predict,
        noise_BD: Tensor,
        *,
        evaluations: int,
        prediction: Prediction,
        limit: float = math.inf,
        fresh: torch.Generator | None = None,
    ) -> Tensor:
        """Turn noise into a sample in this many evaluations, equation 12 of DDIM.

        ``limit`` bounds the intermediate x_0, when a network is least sure. ``fresh`` draws new noise at every evaluation but the
        last (eta = 1: with as many evaluations as steps, this is DDPM's own sampling); without it eta is 0.
        """
        kept_T = self.kept.tolist()
        places = torch.linspace(self.steps - 1, 0, evaluations).round().long().tolist()
        sample_BD = noise_BD
        for number, step in enumerate(places):
            predicted_BD = predict(sample_BD, torch.full((len(sample_BD),), step))
            clean_BD, noise = self.clean_and_noise(sample_BD, predicted_BD, kept_T[step], prediction)
            clean_BD = clean_BD.clamp(-limit, limit)
            if number + 1 == len(places):
                return clean_BD
            before, after = kept_T[step], kept_T[places[number + 1]]
            # the variance of x at the next step, given x_0 and x at this one (equation 7 of DDPM)
            variance = (1 - after) / (1 - before) * (1 - before / after) if fresh is not None else 0.0
            sample_BD = math.sqrt(after) * clean_BD + math.sqrt(1 - after - variance) * noise
            if fresh is not None:
                sample_BD += math.sqrt(variance) * torch.randn(sample_BD.shape, generator=fresh)
        raise AssertionError("at least one evaluation")


TIMES = 32  # numbers that encode the step for the denoiser


class Denoiser(nn.Module):
    """An MLP on [noisy embedding, condition, sines and cosines of the step]."""

    def __init__(self, width: int, condition: int, *, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width + condition + TIMES, hidden),
            nn.SiLU(),
            nn.Linear(hidden, hidden),
            nn.SiLU(),
            nn.Linear(hidden, width),
        )
        self.register_buffer("frequencies_K", torch.exp(-math.log(10_000) * torch.arange(TIMES // 2) / (TIMES // 2)))

    frequencies_K: Tensor

    def forward(self, noisy_BD: Tensor, step_B: Tensor, condition_BC: Tensor) -> Tensor:
        """Predict (B, D)."""
        angle_BK = step_B[:, None].to(noisy_BD.dtype) * self.frequencies_K
        predicted_BD: Tensor = self.layers(torch.cat([noisy_BD, condition_BC, angle_BK.sin(), angle_BK.cos()], dim=1))
        return predicted_BD
