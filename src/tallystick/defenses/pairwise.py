"""Sum over all pairs of rows of a matrix, tile by tile: time n^2 D, memory n D and two tiles. Shapes: n rows, D columns.

Each tile of squared distances is one matrix product of extended rows. The part below the diagonal is not computed. Rows must be
sorted by class, so that the pairs of one class are a contiguous part of a tile.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from tallystick.lazy_torch import Tensor, torch

ROWS, COLUMNS = 512, 8192
"""Size of a tile, 16 MiB of float32, so large that threads rarely wait for each other."""


@dataclass(frozen=True, kw_only=True)
class DistanceSums:
    """Hold sums of the Euclidean distances d_ij of all ordered pairs, in float64.

    Args:
        rows_n: the sum over j, for every i.
        within: the sum over the pairs whose rows are of one class.
        squares: the sum of all d_ij^2, of exactly the distances that were summed: see ``_lowered_squares``.
    """

    rows_n: Tensor
    within: float
    squares: float


def distance_sums(centred_nD: Tensor, starts: list[int]) -> DistanceSums:
    """Sum distances by row and within classes. Class c is rows starts[c] to starts[c + 1] - 1."""
    rows_n = torch.zeros(len(centred_nD), dtype=torch.float64, device=centred_nD.device)
    within = torch.zeros((), dtype=torch.float64, device=centred_nD.device)
    for i, j, tile in _squared_distance_tiles(centred_nD):
        tile.clamp_min_(0).sqrt_()
        rows_n[i] += tile.sum(dim=1)
        if i != j:
            rows_n[j] += tile.sum(dim=0)
        for part in _within(tile, i, j, starts):
            within += part.sum(dtype=torch.float64) * (1 if i == j else 2)
    # Rows are centred, so the products a.b add up to 0.
    squares = 2 * len(centred_nD) * float(_lowered_squares(centred_nD).double().sum())
    return DistanceSums(rows_n=rows_n, within=float(within), squares=squares)


def weighted_differences(centred_nD: Tensor, weight_n: Tensor, between: float, starts: list[int]) -> Tensor:
    """Return sum_j g_ij (f_i - f_j) / d_ij for every row i, with g_ij = weight_i + weight_j + (between if classes differ).

    A pair at distance 0 adds nothing: the distance has no gradient there.
    """
    total_nD = torch.zeros_like(centred_nD)
    scale_n = torch.zeros_like(weight_n)
    space = centred_nD.new_empty(_tile_size(len(centred_nD)))
    for i, j, tile in _squared_distance_tiles(centred_nD):
        torch.threshold_(tile, 0.0, torch.inf).rsqrt_()
        factor = torch.add(weight_n[i, None], weight_n[None, j] + between, out=space[: tile.numel()].view(tile.shape))
        for part in _within(factor, i, j, starts):
            part -= between
        tile *= factor
        total_nD[i].addmm_(tile, centred_nD[j])
        scale_n[i] += tile.sum(dim=1)
        if i != j:
            total_nD[j].addmm_(tile.T, centred_nD[i])
            scale_n[j] += tile.sum(dim=0)
    return scale_n[:, None] * centred_nD - total_nD


def _squared_distance_tiles(centred_nD: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Yield |a - b|^2 = |a|^2 + |b|^2 - 2 a.b on and above the diagonal. Equal rows give at most 0."""
    square_n = _lowered_squares(centred_nD)
    one_n = torch.ones_like(square_n)
    left_factor = torch.cat([-2 * centred_nD, square_n[:, None], one_n[:, None]], dim=1)
    right = torch.cat([centred_nD, one_n[:, None], square_n[:, None]], dim=1)
    n = len(centred_nD)
    space = left_factor.new_empty(_tile_size(n))
    for top in range(0, n, ROWS):
        i = slice(top, min(top + ROWS, n))
        # The square on the diagonal, then the part to its right.
        for j in (i, *(slice(start, min(start + COLUMNS, n)) for start in range(i.stop, n, COLUMNS))):
            tile = space[: (i.stop - top) * (j.stop - j.start)].view(i.stop - top, j.stop - j.start)
            torch.mm(left_factor[i], right[j].T, out=tile)
            if i == j:
                tile.fill_diagonal_(0)
            yield i, j, tile


def _lowered_squares(centred_nD: Tensor) -> Tensor:
    """Return |f_i|^2 minus the error that rounding may add to a distance, so that equal rows do not seem apart."""
    return centred_nD.square().sum(dim=1) * (1 - 16 * torch.finfo(centred_nD.dtype).eps)


def _tile_size(n: int) -> int:
    return min(ROWS, n) * min(COLUMNS, n)


def _within(tile: Tensor, i: slice, j: slice, starts: list[int]) -> Iterator[Tensor]:
    """Yield the parts of a tile whose rows and columns are of one class."""
    for start, end in pairwise(starts):
        top, bottom = max(start, i.start), min(end, i.stop)
        first, right = max(start, j.start), min(end, j.stop)
        if top < bottom and first < right:
            yield tile[top - i.start : bottom - i.start, first - j.start : right - j.start]
