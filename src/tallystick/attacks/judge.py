"""The judge: alone in seeing who is real, it says how well an attack's scores tell.

Shapes: N rows of a group, M groups, R bootstrap replicates.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from tallystick.attacks.view import Scores
from tallystick.errors import ConfigError, DataError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def rank_auc(real_N: Bools, score_N: Floats) -> float:
    """P(score of a real row > score of a synthetic one) + half P(equal); NaN if either kind is missing."""
    reals, synthetics = int(real_N.sum()), int((~real_N).sum())
    if reals == 0 or synthetics == 0:
        return np.nan
    _, group_N, count_G = np.unique(score_N, return_inverse=True, return_counts=True)
    rank_G = np.cumsum(count_G) - (count_G - 1) / 2
    return float((rank_G[group_N][real_N].sum() - reals * (reals + 1) / 2) / (reals * synthetics))


def tpr_at_fpr(real_N: Bools, score_N: Floats, fpr: float) -> float:
    """Greatest share of real rows that a threshold picks out while it picks at most a share ``fpr`` of synthetic ones."""
    synthetic_N = np.sort(score_N[~real_N])[::-1]
    if len(synthetic_N) == 0 or not real_N.any():
        return np.nan
    allowed = int(np.floor(fpr * len(synthetic_N)))
    if allowed >= len(synthetic_N):
        return 1.0
    return float((score_N[real_N] > synthetic_N[allowed]).mean())


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean with a percentile bootstrap interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """How much an attack found out.

    Args:
        auc: of real against synthetic rows, max(a, 1 - a) in every group, averaged: 0.5 is a guess. Folding lifts a pure
            guess above 0.5 by about 0.8 standard errors of one group's AUC (``folding``).
        folding: that lift.
        tpr_at_fpr: share of members found at a false-alarm rate of at most ``fpr``, the better of the two orientations.
        fpr: the false-alarm rate; 0 means certain finds only.
        groups: groups that hold both kinds of rows.
    """

    auc: Interval
    folding: float
    tpr_at_fpr: Interval
    fpr: float
    groups: int


@dataclass(frozen=True, kw_only=True)
class Judge:
    """Compares scores with the truth: AUC per batch as max(a, 1 - a), TPR at a small FPR, intervals over batches.

    FLORIST, section 3 "Evaluation Metrics", corrected: the paper reports AUCs below one half (.4426) as if they were
    safe. The rate of finds is judged in both orientations and the better taken: an attacker knows the contract, hence which
    end of its score is certain. Intervals resample batches; a whole-run attack has one group, whose rows are resampled.

    Args:
        fpr: false-alarm rate of the second figure, in [0, 1).
        replicates: bootstrap replicates, at least 1.
        level: coverage of the intervals.
    """

    fpr: float = 0.0
    replicates: int = 200
    level: float = 0.95

    def __post_init__(self) -> None:
        if not (0 <= self.fpr < 1 and self.replicates >= 1 and 0 < self.level < 1):
            raise ConfigError(
                f"judge: fpr={self.fpr} must lie in [0, 1), level={self.level} in (0, 1), "
                f"and replicates={self.replicates} must be at least 1"
            )

    def __call__(self, scores: Scores, present_U: Tensor, *, rng: np.random.Generator) -> Verdict | None:
        """Judge.

        Args:
            scores: from an attack.
            present_U: bool per row of the union: does the other side have it? The truth.
            rng: for the bootstrap.

        Returns:
            None if no group holds both kinds of rows.
        """
        truth_U = present_U.numpy()
        groups: list[tuple[Bools, Floats]] = []
        for rows, values in zip(scores.rows, scores.values, strict=True):
            if not np.isfinite(values.numpy()).all():
                raise DataError("judge: a score is NaN or infinite; an attack must give every row a finite score")
            real_N = truth_U[rows.numpy()]
            if real_N.any() and not real_N.all():
                groups.append((real_N, values.numpy()))
        if not groups:
            return None
        figures_M3 = np.array([self._figures(*group) for group in groups])
        if len(groups) > 1:
            resampled_R3 = figures_M3[rng.integers(len(groups), size=(self.replicates, len(groups)))].mean(axis=1)
        else:
            resampled_R3 = self._resample_rows(*groups[0], rng)
        mean_3 = figures_M3.mean(axis=0)
        low_3, high_3 = np.quantile(resampled_R3, [(1 - self.level) / 2, (1 + self.level) / 2], axis=0)
        auc, *finds = [
            Interval(mean=float(mean), low=float(low), high=float(high))
            for mean, low, high in zip(mean_3, low_3, high_3, strict=True)
        ]
        errors = [((len(real) + 1) / (12 * real.sum() * (~real).sum())) ** 0.5 for real, _ in groups]
        return Verdict(
            auc=auc,
            folding=float(np.mean(errors) * (2 / np.pi) ** 0.5),
            tpr_at_fpr=max(finds, key=lambda interval: interval.mean),
            fpr=self.fpr,
            groups=len(groups),
        )

    def _figures(self, real_N: Bools, score_N: Floats) -> tuple[float, float, float]:
        auc = rank_auc(real_N, score_N)
        return max(auc, 1 - auc), tpr_at_fpr(real_N, score_N, self.fpr), tpr_at_fpr(real_N, -score_N, self.fpr)

    def _resample_rows(self, real_N: Bools, score_N: Floats, rng: np.random.Generator) -> NDArray[np.float64]:
        figures = []
        for _ in range(min(self.replicates, 50)):  # each sorts the whole run
            chosen = rng.integers(len(real_N), size=len(real_N))
            if real_N[chosen].any() and not real_N[chosen].all():
                figures.append(self._figures(real_N[chosen], score_N[chosen]))
        return np.array(figures or [self._figures(real_N, score_N)])
