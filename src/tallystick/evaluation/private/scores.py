"""Implement mechanism 3: Laplace noise on the scores (DPAUC Table 3), and the top-k attack on scores (Table 2). They are
baselines, never a default.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tallystick.evaluation.private.bins import Floats, Population, auc_of_counts
from tallystick.privacy.events import Event, NotPrivate, check_epsilon
from tallystick.privacy.noise import NoiseSource

_CELLS = 1 << 16


@dataclass(frozen=True, kw_only=True)
class NoisyScores:
    """Every score with Laplace noise of scale 1/epsilon, sent with its label (DPAUC, "Utility and Privacy Analysis", Table 3).

    Threat model: a server that sees noisy scores with their labels. Guarantee: epsilon DP for a single score if its label is
    known, and **none for labels**. Labels are sent in the clear (the paper flips them beforehand), so the ledger counts it as not
    private. The noise is in floating point: this mechanism is only for comparison. Its AUC is far too low at any usual epsilon.
    """

    name: ClassVar[str] = "noisy-scores"
    protects: ClassVar[str] = "scores; labels not at all"
    reveals: ClassVar[str] = "every label, and every score with noise"
    shares_scores: ClassVar[bool] = True

    epsilon: float

    def __post_init__(self) -> None:
        check_epsilon(self.epsilon)

    @property
    def sensitivity(self) -> float:
        """Return 1: a score is in [0, 1]."""
        return 1.0

    @property
    def event(self) -> Event:
        """Return the event: labels have no guarantee."""
        return NotPrivate()

    def perturb(self, scores_N: Floats, *, noise: NoiseSource) -> Floats:
        """Add the noise."""
        return scores_N + noise.laplace(self.sensitivity / self.epsilon, scores_N.shape)

    def estimate(self, labels_N: NDArray[np.bool_], noisy_N: Floats) -> float:
        """Compute the AUC over 65,536 cells, finest around the scores' range, with half credit within a cell."""
        width = 2 / self.epsilon + 1
        centred = noisy_N - 0.5
        cells = ((centred / (np.abs(centred) + width) + 1) * (_CELLS / 2)).astype(np.int64)
        np.minimum(cells, _CELLS - 1, out=cells)
        cells += labels_N.astype(np.int64) * _CELLS
        negatives, positives = np.bincount(cells, minlength=2 * _CELLS).reshape(2, _CELLS)
        return float(auc_of_counts(positives, negatives))

    def predicted_sd(self, population: Population) -> float:
        """Sum the effects of each row's noise on the AUC (Hoeffding projection), on the assumed population."""
        return self._moments(population)[1]

    def predicted_mean(self, population: Population) -> float:
        """Predict the AUC that remains."""
        return self._moments(population)[0]

    def _moments(self, population: Population) -> tuple[float, float]:
        points = (np.arange(400) + 0.5) / 400
        from statistics import NormalDist

        normal = NormalDist()
        latent = np.array([normal.inv_cdf(point) for point in points])
        scores_pos, scores_neg = population.score(latent + population.separation), population.score(latent)
        noise = -np.sign(points - 0.5) * np.log1p(-2 * np.abs(points - 0.5)) / self.epsilon
        axis = np.linspace(noise[0], 1 + noise[-1], 4001)
        below = {True: self._cdf(axis, scores_neg), False: self._cdf(axis, scores_pos)}
        positive = np.interp(scores_pos[:, None] + noise, axis, below[True])
        negative = np.interp(scores_neg[:, None] + noise, axis, below[False])
        variance = positive.var(axis=1).mean() / population.positives + negative.var(axis=1).mean() / population.negatives
        return float(positive.mean()), float(np.sqrt(variance))

    def _cdf(self, axis: Floats, scores: Floats) -> Floats:
        distance = (axis[:, None] - scores) * self.epsilon
        tail = 0.5 * np.exp(-np.abs(distance))
        return np.asarray(np.where(distance < 0, tail, 1 - tail).mean(axis=1))


@dataclass(frozen=True, kw_only=True)
class TopK:
    """Result of the attack that guesses the top k scores to be positives."""

    k: int
    positives: int
    precision: float
    recall: float


def top_k_attack(labels_N: NDArray[np.bool_], scores_N: Floats, ks: Sequence[int]) -> list[TopK]:
    """Guess that the k rows with the highest scores are positive, for each k (DPAUC Table 2). Ties are taken in row order."""
    order = np.argsort(-scores_N, kind="stable")
    true_positives = np.cumsum(labels_N[order].astype(np.int64))
    return [
        TopK(
            k=k,
            positives=int(true_positives[k - 1]),
            precision=float(true_positives[k - 1] / k),
            recall=float(true_positives[k - 1] / max(true_positives[-1], 1)),
        )
        for k in ks
        if k <= len(true_positives)
    ]
