"""Columns told from embeddings by how each is distributed, and by no row at all.

Shapes: N rows, D inputs, P principal components, Q quantiles, S starts, F numeric columns, G categorical columns, C categories.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.inputs import Reads, inputs
from tallystick.attacks.feature_inference.view import ColumnValues, FeatureView, Marginals, Reconstruction
from tallystick.errors import ConfigError, DataError

QUANTILES = 101
STILL = 1e-9  # a direction that moved by less has its ranks for good


def marginals_of(columns: ColumnValues) -> Marginals:
    """Return the published distributions of columns: a hundred and one quantiles of each number, the share of each category."""
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
    """Look for the directions of the embeddings along which rows are distributed as a column is.

    Knows no row, but how each column is distributed. Embeddings are projected on their principal components and made uncorrelated
    and of deviation 1, in which a column that is told by them is about a direction. From many starts (components, both ways, and
    random ones) rows are ranked along a direction, each is given the quantile of its rank, and the direction is fitted to these
    values anew; the direction whose values fit best stays. A normal distribution fits many directions, and the sign of a
    symmetric one is open, so the attack is good at what is skewed, has gaps or heavy values, and no bound for anybody who knows
    how columns go together. Categories are looked for one by one, by their shares.

    After the moment-matching of blind source separation (Hyvärinen and Oja 2000, for what is told without a distribution) and,
    for binary columns, Ye et al. (2022), arXiv 2210.06771.

    Args:
        reads: last embeddings, mean ones, those of several epochs side by side, all, or the first components of their course.
        components: P at most; no more than there are numbers, and categories beyond the first of each column.
        starts: random ones, beside two for each of the components.
        rows: that directions are first looked for on.
        steps: of the search, at least 1.
        least_share: of a category that is looked for.
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
        """Guess every row's columns; ``generator`` draws the random starts. Raises DataError for a view without marginals."""
        if view.marginals is None:
            raise DataError(
                "feature attack: how the columns are distributed is not in the view, and this attack knows nothing else"
            )
        told_values = view.marginals.quantile_QF.shape[1] + sum(max(len(share_C) - 1, 0) for share_C in view.marginals.shares)
        x_ND, most = inputs(view, self.reads, own_columns=False), min(self.components, told_values)
        z_NP = _uncorrelated(x_ND if self.reads != "course" else x_ND[:, :most], most)
        axes_PP = torch.eye(z_NP.shape[1], dtype=z_NP.dtype)
        drawn_PS = torch.randn(z_NP.shape[1], self.starts, generator=generator, dtype=z_NP.dtype)
        starts_PS = torch.nn.functional.normalize(torch.cat([axes_PP, -axes_PP, drawn_PS], dim=1), dim=0)
        numbers = [self._told(z_NP, quantile_Q, starts_PS) for quantile_Q in view.marginals.quantile_QF.double().T]
        codes, scores = [], []
        for share_C in view.marginals.shares:
            score_NC = share_C.expand(len(z_NP), -1).clone()
            for code in (share_C >= self.least_share).nonzero().flatten().tolist():
                at_Q = torch.linspace(0, 1, QUANTILES, dtype=z_NP.dtype)
                score_NC[:, code] = self._told(z_NP, (at_Q > 1 - share_C[code]).to(z_NP.dtype), starts_PS)
            codes.append(score_NC.argmax(dim=1))
            scores.append(score_NC)
        none = z_NP[:, :0]
        return Reconstruction(
            numeric_NF=torch.stack(numbers, dim=1) if numbers else none,
            categorical_NG=torch.stack(codes, dim=1) if codes else none.long(),
            scores=tuple(scores),
        )

    def _told(self, z_NP: Tensor, quantile_Q: Tensor, starts_PS: Tensor) -> Tensor:
        """Return the column's values along the best of the directions, as far from its mean as they fit."""
        some_N = torch.linspace(0, len(z_NP) - 1, min(len(z_NP), self.rows), dtype=torch.float64).round().long()
        found_PS = starts_PS
        for left, steps in ((starts_PS.shape[1] // 2, 6), (3, self.steps)):
            found_PS, fit_S = _search(z_NP[some_N], quantile_Q, found_PS, steps=steps)
            found_PS = found_PS[:, fit_S.argsort(descending=True)[: max(left, 3)]]
        found_PS, fit_S = _search(z_NP, quantile_Q, found_PS, steps=self.steps)
        wanted_N = at_ranks(quantile_Q, len(z_NP))
        place = int(fit_S.argmax())
        return wanted_N.mean() + fit_S[place].clamp(min=0) * wanted_N.std(correction=0) * (z_NP @ found_PS[:, place])


def _uncorrelated(x_ND: Tensor, components: int) -> Tensor:
    centred_ND = x_ND - x_ND.mean(dim=0)
    u_NR, s_R, _ = torch.linalg.svd(centred_ND, full_matrices=False)
    components_used = max(1, min(components, int((s_R > 1e-3 * s_R[:1]).sum())))
    z_NP: Tensor = u_NR[:, :components_used] * len(x_ND) ** 0.5
    return z_NP


def at_ranks(quantile_Q: Tensor, rows: int) -> Tensor:
    """Return the values (N,) of rows in ascending order."""
    place_N = (torch.arange(rows, dtype=quantile_Q.dtype) + 0.5) / rows * (len(quantile_Q) - 1)
    below_N = place_N.floor().long()
    return torch.lerp(quantile_Q[below_N], quantile_Q[(below_N + 1).clamp(max=len(quantile_Q) - 1)], place_N - below_N)


def _search(z_NP: Tensor, quantile_Q: Tensor, start_PS: Tensor, *, steps: int) -> tuple[Tensor, Tensor]:
    """Find directions, and the correlation of what is projected on each with the values that its ranks have."""
    wanted_N = at_ranks(quantile_Q, len(z_NP))
    wanted_N = wanted_N - wanted_N.mean()
    wanted_N = wanted_N / wanted_N.square().mean().sqrt().clamp(min=torch.finfo(wanted_N.dtype).tiny)
    z_PN, along_SP = z_NP.T.contiguous(), start_PS.T.contiguous()
    moving_S = torch.arange(len(along_SP))
    for _ in range(steps):
        before_SP = along_SP[moving_S]
        next_SP = torch.nn.functional.normalize(_by_rank(before_SP @ z_PN, wanted_N) @ z_NP, dim=1)
        along_SP[moving_S] = next_SP
        moving_S = moving_S[(next_SP - before_SP).abs().amax(dim=1) > STILL]
        if not len(moving_S):
            break
    projected_SN = along_SP @ z_PN
    scale_S = projected_SN.square().mean(dim=1).sqrt().clamp(min=torch.finfo(wanted_N.dtype).tiny)
    return along_SP.T, (projected_SN * _by_rank(projected_SN, wanted_N)).mean(dim=1) / scale_S


def _by_rank(value_SN: Tensor, wanted_N: Tensor) -> Tensor:
    """Put the wanted values of each row, which ascend, in the order that its own values have."""
    order_SN = torch.from_numpy(np.argsort(value_SN.numpy(), axis=1))  # in half of the time of PyTorch's
    return torch.empty_like(value_SN).scatter_(1, order_SN, wanted_N.expand_as(value_SN))
