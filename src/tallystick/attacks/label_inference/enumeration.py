"""Simulate the gradient of each possible label, and compare it with the received gradient.

Shapes: B rows of a step's batch, D cut width, C classes, K clusters, N rows seen.
"""

from dataclasses import dataclass

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.nn.functional import cosine_similarity, one_hot

from tallystick.attacks.label_inference.observations import clusters_of_run, matrices, unlabelled_per_step, whole_run
from tallystick.attacks.view import Scores, Start, View
from tallystick.errors import DataError


@dataclass(frozen=True, kw_only=True)
class LabelEnumeration:
    """Simulate the first epoch's cut gradients for every label, and compare them with the received ones by cosine.

    After Jiang et al. 2026 (arXiv 2603.03777), of which only the abstract could be read. In that paper rows are clustered, every
    mapping of clusters to labels is simulated, and the mapping whose first gradients are most similar to the received ones wins.
    Similarity is a sum over rows, so the best of all C! mappings is found exactly in C³ steps (an assignment problem). There the
    attacker simulates a model of its own. Here the top model's starting weights may follow from the contract's seed, which every
    party knows, so the attacker simulates that very model (``View.start``), with 0 as the other parties' input. Then clusters are
    not needed: each row is compared by itself. The attacker knows no label, and not even which class is rarer.

    Args:
        clusters: whether to sort rows into clusters of embeddings first and name these, as the paper does. Guesses are then hard.
    """

    clusters: bool = False

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score the first epoch's batches, or with clusters all rows that were seen. ``generator`` draws the clusters' starts."""
        if view.start is None:
            raise DataError("label enumeration: the view has no initial top model (View.start)")
        first = view.epoch(view.epochs[0])
        both = zip(matrices(first, "cut_embedding"), matrices(first, "cut_gradient"), strict=True)
        likeness = [agreement(view.start, cut_BD, grad_BD, view.classes) for cut_BD, grad_BD in both]
        if not self.clusters:
            return unlabelled_per_step(
                first, [like_BC[:, 1] - like_BC[:, 0] if view.classes == 2 else like_BC for like_BC in likeness]
            )
        rows, cluster_N = clusters_of_run(view, "cut_embedding", generator)
        cluster_of_row = torch.full((view.rows,), -1)
        cluster_of_row[rows] = cluster_N
        usual_C = torch.cat(likeness).mean(dim=0)  # frequent classes are similar to every cluster, so subtract this
        total_KC = torch.zeros(view.classes, view.classes, dtype=torch.float64)
        for step, like_BC in zip(first.steps, likeness, strict=True):
            total_KC.index_add_(0, cluster_of_row[step.rows_B], like_BC - usual_C)
        _, name_K = linear_sum_assignment(total_KC.numpy(), maximize=True)
        guess_N = torch.from_numpy(name_K)[cluster_N]
        return whole_run(view, rows, guess_N if view.classes == 2 else one_hot(guess_N, view.classes))


def agreement(start: Start, cut_BD: Tensor, grad_BD: Tensor, classes: int) -> Tensor:
    """Compute the cosine of each received gradient with the gradient of each possible label, float64 (B, C)."""
    cut_BD = cut_BD.float().detach().requires_grad_()
    logit_BO = start(cut_BD)
    logit_BC = torch.stack([torch.zeros_like(logit_BO[:, 0]), logit_BO[:, 0]], dim=1) if classes == 2 else logit_BO
    chance_BC = logit_BC.detach().softmax(dim=1)
    slopes = [
        torch.autograd.grad(logit_BC[:, c].sum(), cut_BD, retain_graph=True)[0] if logit_BC[:, c].requires_grad else 0 * cut_BD
        for c in range(classes)
    ]
    slope_BCD = torch.stack(slopes, dim=1).detach()
    mean_BD = torch.einsum("bc,bcd->bd", chance_BC, slope_BCD)
    given_BCD = mean_BD[:, None] - slope_BCD  # gradient of the loss for label c: the sum of (p - y) times the logit's slope
    return cosine_similarity(grad_BD[:, None].double(), given_BCD.double(), dim=2)
