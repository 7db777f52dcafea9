"""Linear algebra and clustering that several attacks share.

Shapes: B rows, D columns, K clusters.
"""

import torch
from torch import Tensor
from torch.nn.functional import normalize


def top_direction(matrix_BD: Tensor) -> Tensor:
    """Top right-singular vector; by the smaller Gram matrix, in float64."""
    matrix_BD = matrix_BD.double()
    wide = matrix_BD.shape[0] < matrix_BD.shape[1]
    gram = matrix_BD @ matrix_BD.T if wide else matrix_BD.T @ matrix_BD
    vector: Tensor = torch.linalg.eigh(gram).eigenvectors[:, -1]
    return normalize(matrix_BD.T @ vector, dim=0) if wide else vector


def two_means_cut(score_B: Tensor) -> float | None:
    """Where exact 2-means cuts a line: values above belong to the upper cluster. None if all values are equal.

    Sorted values are cut where the squared distance between the two means, weighted by both sizes, is greatest.
    """
    value_B = score_B.double().sort().values
    if len(value_B) < 2 or value_B[0] == value_B[-1]:
        return None
    centred_B = value_B - value_B.mean()
    centred_B = centred_B / centred_B.abs().max()  # values near the ends of the float range must not vanish when squared
    below_B = torch.arange(1, len(value_B), dtype=torch.float64)
    above_B = len(value_B) - below_B
    sum_B = centred_B.cumsum(dim=0)
    gap_B = sum_B[:-1] / below_B - (sum_B[-1] - sum_B[:-1]) / above_B
    gain_B = torch.where(value_B[1:] > value_B[:-1], below_B * above_B * gap_B.square(), -1.0)
    return float(value_B[int(gain_B.argmax())])


def k_means(x_BD: Tensor, clusters: int, *, generator: torch.Generator, restarts: int = 4, rounds: int = 100) -> Tensor:
    """Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii 2007), the best of several; float64.

    Returns:
        int64 (B,), the cluster of each row; fewer than ``clusters`` occur if the rows have fewer distinct values.
    """
    x_BD = x_BD.double() - x_BD.double().mean(dim=0)
    best, least = torch.zeros(len(x_BD), dtype=torch.int64), torch.inf
    for _ in range(restarts):
        centre_KD = _spread_out(x_BD, clusters, generator)
        cluster_B = _nearest(x_BD, centre_KD)[0]
        for _ in range(rounds):
            before_B = cluster_B
            centre_KD = _means(x_BD, cluster_B, centre_KD)
            cluster_B, inertia = _nearest(x_BD, centre_KD)
            if torch.equal(cluster_B, before_B):
                break
        if inertia < least:
            best, least = cluster_B, inertia
    return best


def _spread_out(x_BD: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    chosen = torch.randint(len(x_BD), (1,), generator=generator)
    nearest_B = (x_BD - x_BD[chosen]).square().sum(dim=1)
    for _ in range(clusters - 1):
        # a rounded cumulative sum rather than torch.multinomial, which takes no more than 2^24 rows
        edge_B = nearest_B.cumsum(dim=0)
        drawn = torch.searchsorted(edge_B, torch.rand(1, generator=generator, dtype=torch.float64) * edge_B[-1], right=True)
        drawn = drawn.clamp(max=len(x_BD) - 1)
        chosen = torch.cat([chosen, drawn])
        nearest_B = torch.minimum(nearest_B, (x_BD - x_BD[drawn]).square().sum(dim=1))
    return x_BD[chosen]


def _nearest(x_BD: Tensor, centre_KD: Tensor) -> tuple[Tensor, float]:
    distance_BK = centre_KD.square().sum(dim=1) - 2 * x_BD @ centre_KD.T
    least_B, cluster_B = distance_BK.min(dim=1)
    return cluster_B, float((least_B + x_BD.square().sum(dim=1)).sum())


def _means(x_BD: Tensor, cluster_B: Tensor, centre_KD: Tensor) -> Tensor:
    count_K = torch.bincount(cluster_B, minlength=len(centre_KD)).double()
    sum_KD = torch.zeros_like(centre_KD).index_add_(0, cluster_B, x_BD)
    return torch.where(count_K[:, None] > 0, sum_KD / count_K[:, None].clamp(min=1), centre_KD)  # an empty one stays
