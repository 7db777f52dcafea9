"""Rebuild columns from embeddings by the columns' distributions, without a known row.

Shapes: N rows, D inputs, P principal components, Q quantiles, S starts, F numeric columns, G categorical columns, C categories.
"""

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Reads, inputs
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, Marginals, Reconstruction
from tallystick.errors import ConfigError, DataError

Floats = NDArray[np.float32]
Order = NDArray[np.int64]
QUANTILES = 101
TINY = 1e-30
LEAST_VARIANCE = 1e-6  # least deviation of a principal component, in units of the first one's
STILL = 1e-4  # a direction that moved by less has converged
FEWER = ((32, 3), (8, 8), (3, 25))  # (number of best directions to keep, after this many steps), on some of the rows
ALIKE = 0.999  # two directions with a greater cosine count as the same


def marginals_of(columns: ColumnValues) -> Marginals:
    """Return the distributions of columns as published: 101 quantiles of each number, the share of each category."""
    at_Q = torch.linspace(0, 1, QUANTILES, dtype=torch.float64)
    shares = [
        torch.bincount(code_N, minlength=size).double() / max(len(code_N), 1)
        for code_N, size in zip(columns.categorical_NG.T, columns.categories, strict=True)
    ]
    numeric_NF = columns.numeric_NF.double()
    if not columns.numeric:  # torch.quantile refuses a table without columns
        return Marginals(quantile_QF=numeric_NF.new_empty(QUANTILES, 0), shares=tuple(shares))
    return Marginals(quantile_QF=torch.quantile(numeric_NF, at_Q, dim=0), shares=tuple(shares))


@dataclass(frozen=True, kw_only=True)
class MarginalMatching:
    """Search for directions of the embeddings along which rows have a column's distribution.

    It knows no row, but the distribution of each column. Embeddings are projected on their principal components, each scaled to
    deviation 1. If embeddings contain a column, it is roughly a direction in this space. The search has many starts: components,
    in both directions, and random ones. Rows are ranked along a direction, each row gets the quantile of its rank, and the
    direction is fitted to these values again. The direction that fits best is kept. A normal distribution fits many directions,
    and for a symmetric one the sign is open. So the attack works for columns that are skewed or have gaps or frequent values. An
    attacker who knows how columns depend on each other may find more. Categories are searched one by one, by their shares.

    After the moment-matching of blind source separation (Hyvärinen and Oja 2000, on what can be found without distributions) and,
    for binary columns, Ye et al. (2022), arXiv 2210.06771.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, all, or the first components of their course.
        components: greatest P. There are no more than numbers and categories, without the first category of each column.
        starts: number of random starts, in addition to two per component.
        rows: number of rows on which the search begins.
        steps: number of steps of the search, at least 1.
        least_share: categories with a smaller share are not searched.
    """

    reads: Reads = "mean"
    components: int = 32
    starts: int = 32
    rows: int = 1000
    steps: int = 25
    least_share: float = 0.02

    def __post_init__(self) -> None:
        if min(self.components, self.rows, self.steps) < 1 or self.starts < 0:
            raise ConfigError(
                f"marginal matching: components={self.components}, starts={self.starts}, rows={self.rows}, steps={self.steps}; "
                "expected at least 1, 0, 1 and 1"
            )

    def __call__(self, view: FeatureView, *, generator: torch.Generator) -> Reconstruction:
        """Guess every row's columns. ``generator`` draws the random starts. Raises DataError for a view without marginals."""
        if view.marginals is None:
            raise DataError("feature attack: the view has no distributions of columns, and this attack needs them")
        unknowns = view.marginals.quantile_QF.shape[1] + sum(max(len(share_C) - 1, 0) for share_C in view.marginals.shares)
        x_ND, most = inputs(view, self.reads, own_columns=False), min(self.components, unknowns)
        if self.reads == "course":
            x_ND = x_ND[:, :most]
        centred_ND = x_ND - x_ND.mean(dim=0)
        value_D, vector_DD = torch.linalg.eigh(centred_ND.T @ centred_ND)
        components_used = max(1, min(most, int((value_D > LEAST_VARIANCE * value_D[-1:]).sum())))
        z_NP: Tensor = centred_ND @ vector_DD.flip(1)[:, :components_used]
        z_NP = z_NP / z_NP.square().mean(dim=0).sqrt().clamp(min=TINY)
        axes_PP = torch.eye(z_NP.shape[1], dtype=z_NP.dtype)
        drawn_PS = torch.randn(z_NP.shape[1], self.starts, generator=generator, dtype=z_NP.dtype)
        starts_PS = torch.nn.functional.normalize(torch.cat([axes_PP, -axes_PP, drawn_PS], dim=1), dim=0)
        search = _Search(z_NP, starts_PS, rows=self.rows, steps=self.steps)
        numbers = [search(_RankedNumbers(quantile_Q)) for quantile_Q in view.marginals.quantile_QF.double().T]
        guesses, scores, codes = [], [], []
        for share_C in view.marginals.shares:
            code_J = ((share_C >= self.least_share) & (share_C < 1)).nonzero().flatten()
            others_C = share_C.index_fill(0, code_J, -1.0)  # all rows score the same here
            guess_N = others_C.argmax().expand(len(z_NP))
            score_JN = torch.zeros(0, len(z_NP), dtype=z_NP.dtype)
            if len(code_J):
                score_JN = torch.stack([search(_Highest(float(share_C[code]))) for code in code_J.tolist()])
                best = score_JN.max(dim=0)
                guess_N = torch.where(best.values >= others_C.max(), code_J[best.indices], guess_N)
            guesses.append(guess_N)
            scores.append(score_JN)
            codes.append(code_J)
        none = z_NP[:, :0]
        return Reconstruction(
            numeric_NF=torch.stack(numbers, dim=1) if numbers else none,
            categorical_NG=torch.stack(guesses, dim=1) if guesses else none.long(),
            scores=tuple(scores),
            codes=tuple(codes),
        )


def at_ranks(quantile_Q: Tensor, rows: int) -> Tensor:
    """Return the values (N,) of rows in ascending order."""
    place_N = (torch.arange(rows, dtype=quantile_Q.dtype) + 0.5) / rows * (len(quantile_Q) - 1)
    below_N = place_N.floor().long()
    return torch.lerp(quantile_Q[below_N], quantile_Q[(below_N + 1).clamp(max=len(quantile_Q) - 1)], place_N - below_N)


@dataclass(frozen=True)
class _RankedNumbers:
    """Values by rank for a number: its quantiles."""

    quantile_Q: Tensor
    even: dict[int, Floats] = field(default_factory=dict)  # values in order, by the number of rows

    def __call__(self, along_SN: Floats, order_SN: Order | None = None) -> Floats:
        """Assign each row of ``along_SN`` the values that its ranks have, of mean 0 and deviation 1."""
        rows = along_SN.shape[1]
        if rows not in self.even:
            wanted_N = at_ranks(self.quantile_Q, rows)
            even_N = (wanted_N - wanted_N.mean()) / wanted_N.std(correction=0).clamp(min=TINY)
            self.even[rows] = even_N.numpy().astype(np.float32)
        value_SN = np.empty_like(along_SN)
        np.put_along_axis(value_SN, np.argsort(along_SN, axis=1) if order_SN is None else order_SN, self.even[rows], axis=1)
        return value_SN

    def scale(self, rows: int) -> tuple[float, float]:
        """Return mean and deviation of so many rows."""
        wanted_N = at_ranks(self.quantile_Q, rows)
        return float(wanted_N.mean()), float(wanted_N.std(correction=0))


@dataclass(frozen=True)
class _Highest:
    """Values by rank for a category: 1 for the highest rows, as many as the category's share, and 0 for others."""

    share: float

    def __call__(self, along_SN: Floats, order_SN: Order | None = None) -> Floats:
        """Assign each row of ``along_SN`` the values that its ranks have, of mean 0 and deviation 1."""
        rows = along_SN.shape[1]
        below = min(max(rows - round(self.share * rows), 1), rows - 1)
        if order_SN is None:
            least_S1 = np.partition(along_SN, below, axis=1)[:, below, None]
        else:
            least_S1 = np.take_along_axis(along_SN, order_SN[:, below, None], axis=1)
        mean, deviation = (along_SN.dtype.type(each) for each in self.scale(rows))
        return np.where(along_SN >= least_S1, (1 - mean) / deviation, -mean / deviation)

    def scale(self, rows: int) -> tuple[float, float]:  # noqa: ARG002
        """Return mean and deviation of so many rows."""
        return self.share, (self.share * (1 - self.share)) ** 0.5


class _Search:
    """Search for directions along which rows have the distribution of the values. Of many starts only the best continue."""

    def __init__(self, z_NP: Tensor, starts_PS: Tensor, *, rows: int, steps: int) -> None:
        self.z_NP, self.steps, self.starts_SP = z_NP, steps, starts_PS.T.numpy().astype(np.float32)
        self.all_NP = z_NP.numpy().astype(np.float32)
        some_N = torch.linspace(0, len(z_NP) - 1, min(len(z_NP), rows), dtype=torch.float64).round().long()
        self.some_NP = self.all_NP[some_N.numpy()]
        self.order_SN = np.argsort(self.starts_SP @ np.ascontiguousarray(self.some_NP.T), axis=1)  # the same for all columns

    def __call__(self, values: _RankedNumbers | _Highest) -> Tensor:
        """Return the column's values (N,) along the best direction, shrunk to the mean according to the fit."""
        along_SP = self.starts_SP
        order_SN: Order | None = self.order_SN
        for left, steps in FEWER:
            along_SP, fit_S = _moved(self.some_NP, values, along_SP, steps=min(steps, self.steps), order_SN=order_SN)
            order_SN = None
            along_SP = along_SP[np.argsort(-fit_S)[:left]]
            before_SS = np.tril(along_SP @ along_SP.T, -1)
            along_SP = along_SP[before_SS.max(axis=1) < ALIKE]
        along_SP, fit_S = _moved(self.all_NP, values, along_SP, steps=self.steps)
        best = int(fit_S.argmax())
        mean, deviation = values.scale(len(self.z_NP))
        along_N = self.z_NP @ torch.from_numpy(along_SP[best]).to(self.z_NP.dtype)
        return mean + max(float(fit_S[best]), 0.0) * deviation * along_N


def _moved(
    z_NP: Floats, values: _RankedNumbers | _Highest, along_SP: Floats, *, steps: int, order_SN: Order | None = None
) -> tuple[Floats, Floats]:
    """Refit directions to the values of the rows' ranks. Return them, and the correlations of values and projections.

    ``order_SN`` is the order of the rows along the given directions, if it is known already.
    """
    moving_S, along_SP, z_PN = np.arange(len(along_SP)), along_SP.copy(), np.ascontiguousarray(z_NP.T)
    for _ in range(steps):
        before_SP = along_SP[moving_S]
        next_SP = values(before_SP @ z_PN, order_SN) @ z_NP
        order_SN = None
        next_SP /= np.maximum(np.linalg.norm(next_SP, axis=1, keepdims=True), TINY)
        along_SP[moving_S] = next_SP
        moving_S = moving_S[np.abs(next_SP - before_SP).max(axis=1) > STILL]
        if not len(moving_S):
            break
    at_SN = along_SP @ z_PN
    scale_S = np.maximum(np.sqrt(np.square(at_SN).mean(axis=1)), TINY)
    return along_SP, (at_SN * values(at_SN)).mean(axis=1) / scale_S
