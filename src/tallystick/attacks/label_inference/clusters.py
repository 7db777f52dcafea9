"""Sort rows into as many clusters as classes, and take the smaller one for the rarer class.

Shapes: B rows of a step's batch, D columns, N rows of a run, C classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from tallystick.attacks.label_inference.observations import clusters_of_run, matrices, unlabelled_per_step, whole_run
from tallystick.attacks.matrix import k_means
from tallystick.attacks.view import Received, Scores, View
from tallystick.errors import DataError


@dataclass(frozen=True, kw_only=True)
class ClusterAttack:
    """Split rows into as many clusters as there are classes by k-means. Of two, the smaller is positive. The guesses are hard.

    FedAds, section 5.2.1, attack (2), whose clustering algorithm is not named; several classes: Sun et al., appendix E. Knows
    no label, only that positives are the rarer class. With several classes the clusters stay unnamed, and the evaluator names
    them as fits best, which is more than the attacker can. Or they are named by size, as in the paper's appendix, by somebody who
    knows how frequent each class is. Then clusters may be right and their names wrong.

    Args:
        target: the data that it reads: own cut embeddings, or cut gradients.
        scope: "run" clusters all rows at once, as FedAds does; "batch" clusters each batch separately.
        names: of several classes: "best fit", by the evaluator, or by "size", which needs ``View.class_order``.
    """

    target: Received
    scope: Literal["batch", "run"] = "run"
    names: Literal["best fit", "size"] = "best fit"

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score rows 0 or 1, or one column per cluster. ``generator`` draws starts. Equal rows share a cluster: a guess."""
        order = view.class_order if self.names == "size" else None
        if self.names == "size" and order is None:
            raise DataError("cluster attack: names=size needs the classes in the order of their frequency (View.class_order)")
        is_named = view.classes == 2 or order is not None
        if self.scope == "run":
            rows, cluster_N = clusters_of_run(view, self.target, generator)
            return whole_run(view, rows, _named(cluster_N, view.classes, order), named=is_named)
        batches = matrices(view, self.target)
        values = [_named(k_means(x_BD, view.classes, generator=generator), view.classes, order) for x_BD in batches]
        return unlabelled_per_step(view, values, named=is_named)


def _named(cluster_N: Tensor, classes: int, order_C: Tensor | None) -> Tensor:
    if classes > 2 and order_C is not None:
        by_size_C = torch.bincount(cluster_N, minlength=classes).argsort(descending=True, stable=True)
        name_C = torch.empty_like(order_C)
        name_C[by_size_C] = order_C
        return one_hot(name_C[cluster_N], classes).double()
    if classes > 2:
        return one_hot(cluster_N, classes).double()
    ones = int(cluster_N.sum())
    return (cluster_N if 2 * ones <= len(cluster_N) else 1 - cluster_N).double()
