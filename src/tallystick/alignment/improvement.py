"""Compute FedSim's estimate, made before training, of how much weighing K links helps. Shapes: N positions, K links."""

import numpy as np

from tallystick.alignment.nearest import PAD
from tallystick.alignment.outcome import Candidates


def estimated_improvement(candidates: Candidates) -> dict[str, float]:
    """Return FedSim's delta (definition 1) over the average of all links (AvgSim) and over the most similar link (Top1Sim).

    Each record's similarities s are scaled to [0, 1] over its own links. A method loses 1 - s for each link that it uses, and s
    for each link that it ignores. The loss is summed per record and averaged over records. It only compares methods on the same
    links; it does not say how useful any link is.

    Raises ValueError for the feature party's candidates, which have no similarities.
    """
    if candidates.similarity_NK is None:
        raise ValueError("candidates hold no similarities; only the label party has them")
    there_NK = candidates.numbers_NK != PAD
    similarity_NK = candidates.similarity_NK.astype(np.float64)
    linked_N = there_NK.any(axis=1)
    if not linked_N.any():
        return {"AvgSim": 0.0, "Top1Sim": 0.0}
    similarity_NK, there_NK = similarity_NK[linked_N], there_NK[linked_N]
    low_N1 = np.where(there_NK, similarity_NK, np.inf).min(axis=1, keepdims=True)
    high_N1 = np.where(there_NK, similarity_NK, -np.inf).max(axis=1, keepdims=True)
    spread_N1 = high_N1 - low_N1
    scaled_NK = np.where(there_NK & (spread_N1 > 0), (similarity_NK - low_N1) / np.where(spread_N1 > 0, spread_N1, 1), 0.0)
    scaled_NK[(spread_N1 == 0).ravel()] = there_NK[(spread_N1 == 0).ravel()]  # all equal: none is less similar than another
    lost_NK = np.where(there_NK, 1 - scaled_NK, 0.0)
    first_N = lost_NK[:, 0] + scaled_NK[:, 1:].sum(axis=1)
    return {"AvgSim": float(lost_NK.sum(axis=1).mean()), "Top1Sim": float(first_N.mean())}
