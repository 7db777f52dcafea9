"""Add Gaussian noise to binary labels. Shapes: N rows."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Any, ClassVar

import numpy as np
from pydantic import Field

from tallystick.defenses.checks import check_defense_epsilon, class_numbers
from tallystick.defenses.defense import BINARY, Defense, Epsilon, Fraction, Guarantee, RandomBytes, Stage
from tallystick.errors import ConfigError
from tallystick.lazy_torch import Tensor, torch
from tallystick.privacy.events import GaussianDP, check_delta
from tallystick.privacy.gaussian import gaussian_multiplier

SAMPLING_ERROR = 2e-11
"""The most total variation between the noise that is drawn and an exact Gaussian."""
GRID = 2.0**-12
"""Noisy labels are rounded to this share of sigma, so that the last bits of a float reveal nothing."""


@dataclass(frozen=True, kw_only=True)
class GaussianLabels(Defense):
    """Adds Gaussian noise to every label once, and trains on how likely the noisy label makes a positive.

    This is the Gaussian mechanism with Balle and Wang's (2018) analytic calibration. A binary label has sensitivity 1.
    Cross-entropy with a target outside [0, 1] has no lower bound, so the noisy label t becomes the posterior sigmoid(logit(pi) +
    (t - 1/2) / sigma^2), where the positive share pi is the mean of the noisy labels. This is post-processing and costs nothing.
    The targets' mean is the positive share, so a model trained on them is right on average, but its probabilities are pulled
    towards that share: ranks stay, calibration does not.

    Randomised response (``LabelDP``) keeps more for the same epsilon at the usual deltas. This defence is for ledgers that add up
    Gaussian events.

    Threat model: any adversary who sees anything of the run and knows anything except the labels. Guarantee: (epsilon,
    delta)-label-DP for the labels given, in training and validation. Noise is drawn by inversion from 52 random bits and rounded
    to a grid of sigma / 4096: it is within 2e-11 of exact in total variation, which adds at most (1 + e^epsilon) 2e-11 to delta.
    A delta of less than ten times that is refused. Not protected: features; test labels; what a good model reveals about anyone's
    label.

    Args:
        epsilon: the budget, 1e-6 to 100.
        delta: the chance that it does not hold, in (0, 1) and at least ten times the sampling's share.

    Raises ConfigError for a budget out of range, DataError for labels other than 0 and 1.
    """

    method: ClassVar[str] = "gaussian-labels"
    stage: ClassVar[Stage] = "labels"
    targets: ClassVar[tuple[str, ...]] = BINARY
    soft_labels: ClassVar[bool] = True
    strength: ClassVar[str] = "epsilon"
    usual: ClassVar[Mapping[str, Any]] = MappingProxyType({"epsilon": 1.0, "delta": 1e-6})

    epsilon: Annotated[Epsilon, Field(description="label-DP budget of the run, 1e-6 to 100")]
    delta: Annotated[Fraction, Field(description="chance that the budget does not hold; well below one over the number of rows")]

    def __post_init__(self) -> None:
        check_defense_epsilon("gaussian-labels", self.epsilon)
        check_delta(self.delta)
        least = 10 * (1 + math.exp(self.epsilon)) * SAMPLING_ERROR
        if self.delta < least:
            raise ConfigError(
                f"gaussian-labels: delta is {self.delta!r}; at epsilon {self.epsilon:g} it must be at least {least:.2g}, "
                "ten times what the sampling of noise may add; take a larger delta, a smaller epsilon, or label-dp"
            )

    @property
    def sigma(self) -> float:
        """Return the standard deviation of the noise, in labels."""
        return gaussian_multiplier(self.epsilon, self.delta)

    def noisy(self, labels_N: Tensor, *, random_bytes: RandomBytes) -> Tensor:
        """Return the labels with noise, float64, which is what is released."""
        from scipy.special import ndtri

        numbers_N = class_numbers(labels_N, 2, "gaussian-labels").cpu().numpy()
        words_N = np.frombuffer(random_bytes(8 * len(numbers_N)), dtype=np.uint64, count=len(numbers_N)) >> np.uint64(12)
        noise_N = ndtri((words_N.astype(np.float64) + 0.5) * 2.0**-52)
        step = GRID * self.sigma
        return torch.from_numpy(np.rint((numbers_N + self.sigma * noise_N) / step) * step).to(labels_N.device)

    def __call__(self, labels_N: Tensor, *, classes: int, random_bytes: RandomBytes) -> Tensor:
        """Return the targets to train on, in (0, 1)."""
        if classes != 2:
            raise ConfigError(f"gaussian-labels is for two classes, found {classes}; use label-dp")
        noisy_N = self.noisy(labels_N, random_bytes=random_bytes).cpu().numpy()
        if not len(noisy_N):
            return labels_N
        from scipy.special import expit, logit

        least = 1 / (2 * len(noisy_N))
        share = min(max(float(noisy_N.mean()), least), 1 - least)
        target_N = expit(logit(share) + (noisy_N - 0.5) / self.sigma**2)
        dtype = labels_N.dtype if labels_N.is_floating_point() else torch.float32
        return torch.from_numpy(target_N).to(device=labels_N.device, dtype=dtype)

    def guarantee(self) -> Guarantee:
        """Return the noise as an event."""
        return Guarantee(
            text=f"({self.epsilon:g}, {self.delta:g})-label-DP: Gaussian noise of {self.sigma:.3g} added once to the labels of "
            "training and validation rows",
            event=GaussianDP(noise_multiplier=self.sigma, unit="label"),
        )
