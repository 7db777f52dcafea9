"""Blend two models' logits, to see what the second model adds to the first.

Weights are chosen on one half of the rows for the other half, so no row is judged by weights that its own label influenced. They
are 0 or more, and shrunk towards 1 and 0, the first model alone, because few rows determine little. For classes the two weights
add up to 1 in both halves, without a constant, so that rows of both halves can be ranked together.

No formal guarantee: everything here is computed from labels, and stays with the label party. Shapes: N rows, C classes.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import minimize

from tallystick.metrics import TargetType, log_softmax

Reals = NDArray[np.float64]


def blended(
    target: TargetType, own: ArrayLike, joint: ArrayLike, labels_N: ArrayLike, *, generator: np.random.Generator
) -> NDArray[Any]:
    """Return the blend of both models' logits, (N,) or (N, C)."""
    both: Reals = np.stack([np.asarray(own, dtype=np.float64), np.asarray(joint, dtype=np.float64)])
    labels = np.asarray(labels_N)
    half_N = generator.permutation(len(labels)) % 2
    result: Reals = np.empty_like(both[0])
    for half in (0, 1):
        settles_N = half_N != half
        weights = _settled(target, both[:, settles_N], labels[settles_N])
        if target in ("binary", "multiclass"):
            weights = np.array([*weights[:2] / weights[:2].sum(), 0.0]) if weights[:2].any() else np.array([1.0, 0.0, 0.0])
        result[~settles_N] = _mixed(weights, both[:, ~settles_N])
    return result


def _mixed(weights: Reals, both: Reals) -> Reals:
    """Weigh both models' logits."""
    first: Reals = weights[0] * both[0] + weights[2]
    if not weights[1]:  # 0 times a value that is not finite would be NaN
        return first
    mixed: Reals = first + weights[1] * both[1]
    return mixed


def _settled(target: TargetType, both: Reals, labels: NDArray[Any]) -> Reals:
    """Return the two weights and a constant with the least loss on these rows. A model that diverged gets the weight 0."""
    alone = np.array([1.0, 0.0, 0.0])
    if not np.isfinite(both).all() or not len(labels):
        return alone

    def loss(weights: Reals) -> float:
        logits = _mixed(weights, both)
        if target == "multiclass":
            by_row = -log_softmax(logits)[np.arange(len(labels)), labels.astype(np.int64)]
        elif target == "binary":
            by_row = np.logaddexp(0.0, logits) - labels * logits
        else:
            by_row = np.square(logits - labels) / 2
        distance = np.square(weights[0] - 1) + np.square(weights[1])
        return float(by_row.mean() + distance / (2 * len(labels)))

    settled: Reals = minimize(loss, alone, method="L-BFGS-B", bounds=[(0, None), (0, None), (None, None)]).x
    return settled
