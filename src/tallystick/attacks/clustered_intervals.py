"""Compute intervals of a mean AUC over batches that share rows, so that their scores are correlated.

Shapes: M groups, N rows of a group, O observations of a row in a group, T rows in all.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
FEW_GROUPS = 5


@dataclass(frozen=True, kw_only=True)
class GroupInfluence:
    """Influence of each row of a group on the group's AUC.

    Args:
        auc: of the group.
        rows_N: which rows these are.
        moves_N: each row's contribution to the AUC's error (DeLong et al. 1988); the sum is 0.
        smaller: rows of the smaller class.
    """

    auc: float
    rows_N: Integers
    moves_N: Floats
    smaller: int


def half_width(groups: Sequence[GroupInfluence], *, level: float, signs: Sequence[int] | None = None) -> float:
    """Return half the width of the confidence interval of the groups' mean AUC.

    The interval covers a new draw of rows, each with all its observations, and of batches. The variance is DeLong's, clustered by
    row (Obuchowski 1997) and by batch; both are added up as in Cameron, Gelbach and Miller (2011). The factor is Student's
    quantile for the smaller of two numbers: batches, and rows of the smaller class. Variance between batches is counted only from
    FEW_GROUPS batches on.

    Args:
        groups: at least one.
        level: coverage.
        signs: for each group, -1 if its AUC is inverted; by default none is.
    """
    share = 1 / len(groups)
    turned = [1] * len(groups) if signs is None else signs
    moves_O = np.concatenate([share * sign * each.moves_N for sign, each in zip(turned, groups, strict=True)])
    rows_O = np.unique(np.concatenate([each.rows_N for each in groups]), return_inverse=True)[1]
    by_row, by_both = float(np.square(np.bincount(rows_O, weights=moves_O)).sum()), float(np.square(moves_O).sum())
    variance, degrees = by_row, max(1, min(each.smaller for each in groups) * len(groups) - 1)
    if len(groups) >= FEW_GROUPS:
        aucs_M = np.array([max(each.auc, 1 - each.auc) if signs is not None else each.auc for each in groups])
        by_group = float(aucs_M.var(ddof=1)) * share
        variance, degrees = max(by_row, by_row + by_group - by_both), len(groups) - 1
    return float(stdtrit(degrees, (1 + level) / 2) * np.sqrt(variance))
