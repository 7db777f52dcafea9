"""Measure an attack on numbers by comparing its scores with the true targets, by ranks and by a straight line.

Shapes: N rows of the run, M rows that are scored.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.attacks.label_inference.auxiliary import AuxiliaryLabels, NoLabels
from tallystick.attacks.scoring import IntervalEstimate
from tallystick.attacks.view import Attack, View, renumbered
from tallystick.errors import DataError

Floats = NDArray[np.float64]
REPLICATES = 200
NO_LABELS = NoLabels()


@dataclass(frozen=True, kw_only=True)
class NumberMetrics:
    """Measured success of an attack on targets that are numbers.

    The evaluator supplies the direction of the scores, one bit that a single known row gives an attacker.

    Args:
        spearman: rank correlation of scores and targets, in the better direction; its interval may begin below 0.
        r_squared: R² of the best straight line from scores to targets; the evaluator supplies its offset and slope.
        chance_spearman: ``spearman`` of a guess.
        rows: number of scored rows.
    """

    spearman: IntervalEstimate
    r_squared: float
    chance_spearman: float
    rows: int


def evaluate_on_numbers(
    attack: Attack, view: View, target_N: Tensor, *, knows: AuxiliaryLabels = NO_LABELS, seed: int = 0
) -> NumberMetrics | None:
    """Attack a view and compare the scores with the targets. Rows are resampled for the interval.

    Args:
        attack: scores one group of rows.
        view: the feature party's view; its ``classes`` are 0.
        target_N: the truth: the target of each row of the contract.
        knows: which targets the attacker knows.
        seed: seed of the attack and of the resamples.

    Returns:
        None if fewer than three rows are scored, or if all their targets are equal. Equal scores are a guess with correlation 0.

    Raises DataError for a broken view, a score that is not finite, or targets that do not fit the view.
    """
    if target_N.ndim != 1 or len(target_N) < view.rows or not bool(torch.isfinite(target_N).all()):
        raise DataError(
            f"label inference: targets of shape {tuple(target_N.shape)} for a view that names row {view.rows - 1}; "
            "give one finite number per row"
        )
    steps, numbers_N = renumbered(view.steps)
    own_NA = None if view.own_NA is None else view.own_NA[numbers_N]
    compact = View(received=view.received, steps=steps, classes=view.classes, own_NA=own_NA)
    informed = knows.reveal(compact, target_N[numbers_N], rng=np.random.default_rng([seed, 3]))
    scores = attack(informed, generator=torch.Generator().manual_seed(seed))
    score_M = torch.cat(scores.values).double().numpy()
    target_M = target_N[numbers_N][torch.cat(scores.rows)].double().numpy()
    if not np.isfinite(score_M).all():
        raise DataError("label inference: a score is NaN or infinite; an attack must give every row a finite score")
    if len(score_M) < 3 or np.ptp(target_M) == 0:
        return None
    ranks = pl.Series(score_M).rank().to_numpy(), pl.Series(target_M).rank().to_numpy()
    correlation = _correlation(*ranks)
    rng, sign = np.random.default_rng([seed, 5]), 1 if correlation >= 0 else -1
    draws = (rng.integers(len(score_M), size=len(score_M)) for _ in range(REPLICATES))
    resampled = [sign * _correlation(ranks[0][drawn_M], ranks[1][drawn_M]) for drawn_M in draws]
    low, high = np.quantile(resampled, [0.025, 0.975])
    return NumberMetrics(
        spearman=IntervalEstimate(mean=abs(correlation), low=float(low), high=float(high)),
        r_squared=_correlation(score_M, target_M) ** 2,
        chance_spearman=(2 / (np.pi * (len(score_M) - 1))) ** 0.5,
        rows=len(score_M),
    )


def _correlation(a_M: Floats, b_M: Floats) -> float:
    a_M, b_M = a_M - a_M.mean(), b_M - b_M.mean()
    scale = float(np.sqrt((a_M @ a_M) * (b_M @ b_M)))
    return float(a_M @ b_M) / scale if scale > 0 else 0.0
