"""Combine several attacks on one view: add their ranks, and use the clearest rows as labels for a model of all rows.

Shapes: N rows seen, P parts, F inputs of the model, D cut width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.label_inference.linear import fit_linear, standardised
from tallystick.attacks.label_inference.observations import binary_only, observations, whole_run
from tallystick.attacks.matrix import principal_components, two_means_cut
from tallystick.attacks.view import Attack, Scores, View

FOLDS = 5
GRADIENTS, EMBEDDINGS = 20, 5  # principal components of each that the model reads
SURE_OF_RARER, SURE_OF_OTHER = 0.6, 0.75  # share of each class's rows whose guess counts as certain
PENALTY = 1e-2


@dataclass(frozen=True, kw_only=True)
class CombinedAttack:
    """Add several attacks' ranks of each row, and learn from the clearest rows how to score the others.

    In no paper; self-training after Scudder (1965). The parts agree about the label, but make different errors. The first
    principal component of their ranks gives each part a weight, negative for a part that points the other way. The orientation as
    a whole is that of the parts, which know which class is rarer. The share of the rarer class is the median over the parts: each
    splits its scores into two clusters and takes the smaller one. The rows with the highest and the lowest combined ranks then
    get pseudo-labels. A logistic head learns these from the parts' scores and the first principal components of the mean
    gradients (and embeddings), in five folds, so that no row's score depends on its own pseudo-label.

    Like its parts, it knows no label, only which class is rarer. Binary targets only.

    Args:
        parts: attacks that score each row once, higher for the rarer class.
        embeddings: whether the head reads embeddings too.
    """

    parts: tuple[Attack, ...]
    embeddings: bool = False

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows that were seen. Each part draws what it would draw by itself; then ``generator`` draws folds."""
        binary_only(view, "combined attack", "completion or clusters")
        rows, grad_ND = observations(view, "cut_gradient")
        scores = [part(view, generator=torch.Generator().manual_seed(generator.initial_seed())) for part in self.parts]
        # Put the parts' scores side by side, each minus the part's mean: 0 for a row that the part does not score
        columns = []
        for score in scores:
            by_row = torch.zeros(view.rows, dtype=torch.float64)
            value = torch.cat(score.values).double()
            by_row[torch.cat(score.rows)] = value - value.mean()
            columns.append(by_row[rows])
        part_NP = torch.stack(columns, dim=1)
        part_NP = part_NP[:, (part_NP != part_NP[:1]).any(dim=0)]  # drop parts with equal scores
        if not part_NP.shape[1]:
            return whole_run(view, rows, torch.zeros(len(rows)))
        # Add the parts' ranks, weighted by how much they agree
        rank_NP = part_NP.argsort(dim=0, stable=True).argsort(dim=0).double()
        equal = [torch.unique(part_N, return_inverse=True)[1] for part_N in part_NP.T]  # equal scores share their mean rank
        for place, group_N in enumerate(equal):
            count_G = torch.bincount(group_N).double()
            mean_G = torch.zeros_like(count_G).index_add_(0, group_N, rank_NP[:, place]) / count_G
            rank_NP[:, place] = mean_G[group_N]
        x_NP = standardised(rank_NP)
        weight_P = torch.linalg.eigh(x_NP.T @ x_NP).eigenvectors[:, -1]
        together_N: Tensor = x_NP @ (weight_P if float(weight_P.sum()) >= 0 else -weight_P)
        inputs = [part_NP, principal_components(grad_ND, GRADIENTS)]
        if self.embeddings:
            inputs.append(principal_components(observations(view, "cut_embedding")[1], EMBEDDINGS))
        x_NF = standardised(torch.cat(inputs, dim=1))
        # The share of rows in the smaller of two clusters of scores, as the median over the parts
        shares = []
        for part_N in part_NP.T:
            cut = two_means_cut(part_N)
            above = 0.5 if cut is None else float((part_N > cut).double().mean())
            shares.append(min(above, 1 - above))
        # Score each row by a head that was fitted to the most certain rows of the other folds
        share = float(torch.tensor(shares).median())
        row_count = len(together_N)
        rarer = max(1, round(SURE_OF_RARER * share * row_count))
        other_count = max(1, round(SURE_OF_OTHER * (1 - share) * row_count))
        order_N = together_N.argsort(stable=True)
        label_N = torch.full((row_count,), -1)
        label_N[order_N[:other_count]], label_N[order_N[-rarer:]] = 0, 1
        fold_N = torch.randint(FOLDS, (row_count,), generator=generator)
        found_N = torch.zeros(row_count, dtype=torch.float64)
        for fold in range(FOLDS):
            sure_N, here_N = (fold_N != fold) & (label_N >= 0), fold_N == fold
            head = fit_linear(x_NF[sure_N], label_N[sure_N], 2, penalty=PENALTY)
            found_N[here_N] = head(x_NF[here_N])
        return whole_run(view, rows, found_N)
