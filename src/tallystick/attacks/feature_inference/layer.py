"""Rebuild columns by fitting the layer that embedded them, and the columns, in turn.

Shapes: N rows, K known rows, T targets, L looks (embeddings of a row), E = L D units of all looks, Q edges,
B = 1 + T + Q T functions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.feature_inference.course import CourseAttack
from tallystick.attacks.feature_inference.inputs import LEAST_LOOKS, Targets
from tallystick.attacks.feature_inference.view import FeatureView, Reconstruction
from tallystick.errors import ConfigError

START = CourseAttack()
EDGES = 5  # of each column's function, at its quantiles
KNOWN_COUNT = 5.0  # a known row counts as so many others
SLOPES, BENDS, OFFSETS = 1e-6, 1e-3, 1e-9  # penalties, per row
DOUBT = 0.2  # variance of the starting guess, in deviations of a column
LEAST_ERROR = 1e-4  # of a unit, in its deviations
STEPS, MOST_STEP, MOST_DEVIATIONS = 2, 2.0, 12.0  # of a row's columns in each round
FLAT = 1e-6
MOST_WORK = 2**29  # products of a fit, N E B B


@dataclass(frozen=True, kw_only=True)
class LayerAttack:
    """Guess the columns as *course* does, then correct the guess until one layer explains all embeddings.

    In no paper that we know; semi-supervised, because unknown rows fit the layer, too. In a pass over rows whose weights stand
    still each unit is a ReLU of a sum of functions of single columns, if the bottom model is one layer. So in turn: each unit of
    each pass is fitted to all rows' guessed columns, by piecewise linear functions, over the rows in which it is open or is
    wrongly said to be; and each unknown row's columns move to what its units say, as far as the first guess is in doubt. The
    passes differ by what the model learnt between them, so a unit gives as many equations as there are passes.

    Rows that were embedded at different steps of an epoch, fewer than three embeddings, and many targets keep the first guess.

    Args:
        rounds: how often layer and columns are fitted in turn, at least 1.
    """

    rounds: int = 6

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ConfigError(f"layer: rounds={self.rounds}; expected at least 1")

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. It draws nothing at random."""
        first, targets = view.guess(START, seed=generator.initial_seed()), Targets.of(view.columns_K)
        cut_NE = view.looks_NE.double()
        deviation_E = cut_NE.std(dim=0, correction=0)
        varies_E = deviation_E > FLAT * deviation_E.max()
        cut_NE = cut_NE[:, varies_E] / deviation_E[varies_E]
        mean_T, deviation_T = targets.means, targets.y_KT.std(dim=0, correction=0)
        deviation_T = torch.where(deviation_T > FLAT, deviation_T, 1.0)
        at_NL = view.looks_at_NL
        is_fixed = at_NL is not None and at_NL.shape[1] >= LEAST_LOOKS and bool((at_NL == at_NL[:1]).all())
        if not is_fixed or not cut_NE.shape[1] or cut_NE.numel() * (1 + (1 + EDGES) * len(mean_T)) ** 2 > MOST_WORK:
            return first
        y_NT = (targets.values(first) - mean_T) / deviation_T
        y_NT[view.known_K] = (targets.y_KT - mean_T) / deviation_T
        start_NT, is_open_NE = y_NT.clone(), cut_NE > 0
        weight_N = torch.ones(len(y_NT), dtype=y_NT.dtype).index_fill_(0, view.known_K, KNOWN_COUNT)
        is_unknown_N = torch.ones(len(y_NT), dtype=torch.bool).index_fill_(0, view.known_K, False)
        at_Q = torch.linspace(0, 1, EDGES + 2, dtype=y_NT.dtype)[1:-1]
        for _ in range(self.rounds):
            edge_QT = torch.quantile(y_NT, at_Q, dim=0)
            slope_BE, error_E = _fitted(_basis(y_NT, edge_QT), cut_NE, is_open_NE, weight_N)
            unknown = y_NT[is_unknown_N], start_NT[is_unknown_N], cut_NE[is_unknown_N], is_open_NE[is_unknown_N]
            y_NT[is_unknown_N] = _moved(*unknown, edge_QT, slope_BE, error_E + LEAST_ERROR)
        return targets.reconstruction((y_NT * deviation_T + mean_T).T)


def _basis(y_NT: Tensor, edge_QT: Tensor) -> Tensor:
    """Return 1, each target, and how far it is above each of its edges, (N, B)."""
    bends = [(y_NT - edge_T).clamp(min=0) for edge_T in edge_QT]
    return torch.cat([torch.ones_like(y_NT[:, :1]), y_NT, *bends], dim=1)


def _fitted(basis_NB: Tensor, cut_NE: Tensor, is_open_NE: Tensor, weight_N: Tensor) -> tuple[Tensor, Tensor]:
    """Fit each unit to the rows in which it is open, and to 0 in those where the fit opens it wrongly. Return its coefficients
    (B, E) and its mean squared error.
    """
    targets = (basis_NB.shape[1] - 1) // (1 + EDGES)
    penalty_B = torch.tensor([OFFSETS] + [SLOPES] * targets + [BENDS] * EDGES * targets, dtype=cut_NE.dtype) * weight_N.sum()
    counts_NE = is_open_NE
    for _ in range(3):
        mask_EN1 = (counts_NE * weight_N[:, None]).T[:, :, None]
        gram_EBB = torch.stack([(basis_NB * mask_N1).T @ basis_NB for mask_N1 in mask_EN1]) + penalty_B.diag()
        right_EB = (mask_EN1[:, :, 0] * cut_NE.T) @ basis_NB
        slope_BE = torch.linalg.solve(gram_EBB, right_EB[:, :, None])[:, :, 0].T
        said_NE = basis_NB @ slope_BE
        before_NE, counts_NE = counts_NE, is_open_NE | (said_NE > 0)
        if torch.equal(before_NE, counts_NE):
            break
    share_NE = before_NE * weight_N[:, None]
    return slope_BE, ((cut_NE - said_NE).square() * share_NE).sum(dim=0) / share_NE.sum(dim=0).clamp(min=1)


def _moved(
    y_NT: Tensor, start_NT: Tensor, cut_NE: Tensor, is_open_NE: Tensor, edge_QT: Tensor, slope_BE: Tensor, error_E: Tensor
) -> Tensor:
    """Move each row's targets by Gauss-Newton steps towards what its units say."""
    rows, targets = y_NT.shape
    pieces_TPE = slope_BE[1:].reshape(1 + EDGES, targets, -1).cumsum(dim=0).transpose(0, 1)  # the slope above each edge
    for _ in range(STEPS):
        said_NE = _basis(y_NT, edge_QT) @ slope_BE
        miss_NE = torch.where(is_open_NE, cut_NE - said_NE, -said_NE)
        share_NE = (is_open_NE | (said_NE > 0)) / error_E
        piece_TN1 = (y_NT[None] > edge_QT[:, None]).sum(dim=0).T[:, :, None]
        slope_TNE = pieces_TPE.gather(1, piece_TN1.expand(targets, rows, cut_NE.shape[1]))
        gram_NTT = torch.einsum("tne,ne,sne->nts", slope_TNE, share_NE, slope_TNE)
        gram_NTT.diagonal(dim1=1, dim2=2).add_(1 / DOUBT)
        right_NT = torch.einsum("tne,ne->nt", slope_TNE, share_NE * miss_NE) + (start_NT - y_NT) / DOUBT
        step_NT = torch.linalg.solve(gram_NTT, right_NT[:, :, None])[:, :, 0]
        y_NT = (y_NT + step_NT.clamp(-MOST_STEP, MOST_STEP)).clamp(-MOST_DEVIATIONS, MOST_DEVIATIONS)
    return y_NT
