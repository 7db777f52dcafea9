"""ROC, precision-recall, calibration and log-loss from one noisy label histogram: post-processing, at no further cost."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from tallystick.evaluation.private.bins import Floats, Ints, Population, ScoreBins, check_both_classes, check_scores, score_grid
from tallystick.evaluation.private.histogram import LabelHistogram
from tallystick.evaluation.private.release import ASSUMED_AUC, ASSUMED_POSITIVE_RATE
from tallystick.evaluation.private.result import PrivateAuc, estimate_auc
from tallystick.privacy.ledger import Ledger
from tallystick.privacy.noise import NoiseSource, SecureNoise


@dataclass(frozen=True, kw_only=True)
class BinnedCurves:
    """Curves over B bins, from the highest score down; all of them monotone where the true ones would be."""

    false_positive_rate: tuple[float, ...]
    true_positive_rate: tuple[float, ...]
    recall: tuple[float, ...]
    precision: tuple[float, ...]
    bin_score: tuple[float, ...]
    """Mean score per bin, ascending; with ``positive_rate`` and ``bin_rows`` a calibration plot."""
    positive_rate: tuple[float, ...]
    bin_rows: tuple[int, ...]
    log_loss: float
    calibration_error: float
    """Mean absolute difference between score and positive rate over rows, in equal-mass bins."""


def curves(noisy_positives_B: Ints, bins: ScoreBins, bin_scores_B: Floats) -> BinnedCurves:
    """Compute the curves from noisy positives per bin, public bin totals and public mean scores per bin.

    The rates are made monotone in the score by isotonic regression weighted by rows (Stoddard et al. 2014 do so for ROC
    curves), which presumes that a higher score means a higher rate; then every count is non-negative, and the ROC curve
    rises and is concave.
    """
    totals_B = bins.totals()
    occupied = totals_B > 0
    totals_B, scores_B = totals_B[occupied], bin_scores_B[occupied]
    rates_B = isotonic_regression(noisy_positives_B[occupied] / totals_B, weights=totals_B).x.clip(0.0, 1.0)
    positives_B, negatives_B = rates_B * totals_B, (1 - rates_B) * totals_B
    tp, fp = (np.concatenate([[0.0], np.cumsum(counts[::-1])]) for counts in (positives_B, negatives_B))
    tpr, fpr = tp / max(tp[-1], 1e-12), fp / max(fp[-1], 1e-12)
    safe_B = scores_B.clip(1e-12, 1 - 1e-12)
    loss = -(positives_B * np.log(safe_B) + negatives_B * np.log1p(-safe_B)).sum() / totals_B.sum()
    return BinnedCurves(
        false_positive_rate=tuple(fpr.tolist()),
        true_positive_rate=tuple(tpr.tolist()),
        recall=tuple(tpr[1:].tolist()),
        precision=tuple((tp[1:] / (tp[1:] + fp[1:])).tolist()),
        bin_score=tuple(scores_B.tolist()),
        positive_rate=tuple(rates_B.tolist()),
        bin_rows=tuple(totals_B.tolist()),
        log_loss=float(loss),
        calibration_error=float((np.abs(rates_B - scores_B) * totals_B).sum() / totals_B.sum()),
    )


def release_curves(
    labels_N: NDArray[Any],
    scores_N: NDArray[Any],
    *,
    epsilon: float,
    ledger: Ledger,
    dataset: str,
    rng: NoiseSource | None = None,
    count: int | None = None,
) -> tuple[PrivateAuc, BinnedCurves]:
    """Release AUC and curves of one label party's test set by one label histogram of ``count`` bins (default: 20 to 100 by size).

    Guarantee: epsilon label DP, spent in ``ledger`` before the noise is drawn. Not protected: the score histogram and the mean
    score per bin, which are released exactly; that both classes occur. Arguments and errors as in ``release_private_auc``.
    """
    labels, scores = check_scores(labels_N, scores_N)
    check_both_classes(labels)
    mechanism = LabelHistogram(epsilon=epsilon, count=min(max(math.isqrt(len(labels)), 20), 100) if count is None else count)
    grid = score_grid()
    bins = mechanism.bins(ScoreBins(edges=grid, totals_B=ScoreBins(edges=grid).count(scores)))
    owner_N = np.searchsorted(bins.edges, scores, side="right")
    means_B = np.bincount(owner_N, weights=scores, minlength=len(bins)) / np.maximum(bins.totals(), 1)
    ledger.spend(dataset, mechanism.event, what=f"AUC and curves by {mechanism.name}")
    total_B = bins.count_classes(labels, scores)[0] + mechanism.noise(bins, source=rng if rng is not None else SecureNoise())
    assumed = Population(rows=len(labels), positive_rate=ASSUMED_POSITIVE_RATE, auc=ASSUMED_AUC)
    result = estimate_auc(mechanism, total_B, bins, rows=len(labels), clients=1, assumed=assumed)
    return result, curves(total_B, bins, means_B)
