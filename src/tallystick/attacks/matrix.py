"""Linear algebra and clustering that several attacks share.

Shapes: B rows, D columns, R restarts, K clusters, J = R K.
"""

import numpy as np
import torch
from scipy.linalg import eigh
from torch import Tensor
from torch.nn.functional import normalize, one_hot

UNSOLVED = (torch.linalg.LinAlgError, np.linalg.LinAlgError)  # type: ignore[attr-defined]
"""Errors of linear algebra if an attack's equations have no solution. The attack then has no result; the run goes on."""


def centred(matrix_BD: Tensor, *, dtype: torch.dtype = torch.float64) -> Tensor:
    """Centre each column. Only one new tensor is allocated, because allocation dominates the time for large tensors."""
    copy_BD = matrix_BD.to(dtype, copy=True)
    return copy_BD.sub_(copy_BD.mean(dim=0))


def rescaled(matrix_BD: Tensor, *, dtype: torch.dtype = torch.float64, rows: Tensor | None = None) -> Tensor:
    """Centre each column and divide all columns by one scale, which keeps directions. Equal rows become 0.

    With ``rows``, return only these rows; the mean and the scale are still those of all rows.
    """
    centred_BD = centred(matrix_BD, dtype=dtype)
    deviation = torch.linalg.vector_norm(centred_BD) / centred_BD.numel() ** 0.5
    selected = centred_BD if rows is None else centred_BD[rows]
    return selected.div_(deviation.clamp(min=torch.finfo(torch.float32).tiny))


def principal_components(matrix_BD: Tensor, count: int) -> Tensor:
    """Compute the rows' first principal components from the smaller of the two Gram matrices.

    The result is float64: in float32 LAPACK returns NaN for compressed gradients.
    """
    centred_BD = centred(matrix_BD)
    if count <= len(centred_BD) < centred_BD.shape[1]:
        rows_BB = torch.linalg.eigh(centred_BD @ centred_BD.T)
        components_BC: Tensor = rows_BB.eigenvectors[:, -count:] * rows_BB.eigenvalues[-count:].clamp(min=0).sqrt()
        return components_BC
    wide_DC: Tensor = torch.linalg.eigh(centred_BD.T @ centred_BD).eigenvectors[:, -count:]
    return centred_BD @ wide_DC


def top_direction(matrix_BD: Tensor) -> Tensor:
    """Return the top right-singular vector, computed from the smaller of the two Gram matrices in float64."""
    matrix_BD = matrix_BD.double()
    wide = matrix_BD.shape[0] < matrix_BD.shape[1]
    gram = matrix_BD @ matrix_BD.T if wide else matrix_BD.T @ matrix_BD
    last = len(gram) - 1
    vector = torch.from_numpy(eigh(gram.numpy(), subset_by_index=[last, last])[1][:, 0])  # four times as fast as all vectors
    return normalize(matrix_BD.T @ vector, dim=0) if wide else vector


def two_means_cut(score_B: Tensor) -> float | None:
    """Return the value at which exact 2-means splits numbers into a lower and an upper cluster, or None if all are equal.

    The split maximises the squared distance between the two means, weighted by both sizes.
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


SAMPLE = 4096
RESTARTS, ROUNDS = 4, 100


def k_means(x_BD: Tensor, clusters: int, *, generator: torch.Generator) -> Tensor:
    """Run Lloyd's algorithm from k-means++ starts (Arthur and Vassilvitskii 2007) and keep the best of several.

    Starts are compared on a sample of at most 4,096 rows. The centres of the best start are then refined on all rows.

    Returns:
        int64 (B,), the cluster of each row; fewer than ``clusters`` occur if the rows have fewer distinct values.
    """
    x_BD = x_BD - x_BD.mean(dim=0)
    power = torch.frexp(x_BD.abs().max()).exponent.clamp(-126, 126)
    x_BD = torch.ldexp(x_BD, -power)  # keeps squares within the type's range without rounding
    sample_SD = x_BD if len(x_BD) <= SAMPLE else x_BD[torch.randperm(len(x_BD), generator=generator)[:SAMPLE]]
    start_RKD = torch.stack([_spread_out(sample_SD, clusters, generator) for _ in range(RESTARTS)])
    cluster_SR, centre_RKD, inertia_R = _lloyd(sample_SD, start_RKD)
    best = int(inertia_R.argmin())
    return cluster_SR[:, best] if len(x_BD) <= SAMPLE else _lloyd(x_BD, centre_RKD[best : best + 1])[0][:, 0]


def _lloyd(x_BD: Tensor, centre_RKD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return per restart each row's cluster, the centres, and the sum of squared distances minus the constant sum of squares.

    All restarts are computed together, because for small batches the number of calls takes the time. A restart that has
    converged no longer changes.
    """
    restarts, clusters, width = centre_RKD.shape
    cluster_BR, inertia_R = _nearest(x_BD, centre_RKD)
    for _ in range(ROUNDS):
        before_BR = cluster_BR
        member_BJ = one_hot(cluster_BR, clusters).to(x_BD.dtype).flatten(1)
        count_RK1 = member_BJ.sum(dim=0).reshape(restarts, clusters, 1)
        mean_RKD = (member_BJ.T @ x_BD).reshape(restarts, clusters, width) / count_RK1.clamp(min=1)
        centre_RKD = torch.where(count_RK1 > 0, mean_RKD, centre_RKD)  # the centre of an empty cluster does not move
        cluster_BR, inertia_R = _nearest(x_BD, centre_RKD)
        if torch.equal(cluster_BR, before_BR):
            break
    return cluster_BR, centre_RKD, inertia_R


def _spread_out(x_BD: Tensor, clusters: int, generator: torch.Generator) -> Tensor:
    centers = torch.randint(len(x_BD), (1,), generator=generator)
    nearest_B = (x_BD - x_BD[centers]).square().sum(dim=1)
    for _ in range(clusters - 1):
        # a rounded cumulative sum rather than torch.multinomial, which takes no more than 2^24 rows
        edge_B = nearest_B.double().cumsum(dim=0)
        next_center = torch.searchsorted(edge_B, torch.rand(1, generator=generator, dtype=torch.float64) * edge_B[-1], right=True)
        next_center = next_center.clamp(max=len(x_BD) - 1)
        centers = torch.cat([centers, next_center])
        nearest_B = torch.minimum(nearest_B, (x_BD - x_BD[next_center]).square().sum(dim=1))
    return x_BD[centers]


def _nearest(x_BD: Tensor, centre_RKD: Tensor) -> tuple[Tensor, Tensor]:
    distance_BJ = centre_RKD.square().sum(dim=2).flatten() - x_BD @ (2 * centre_RKD).flatten(0, 1).T
    least_BR, cluster_BR = distance_BJ.reshape(-1, *centre_RKD.shape[:2]).min(dim=2)
    return cluster_BR, least_BR.sum(dim=0)
