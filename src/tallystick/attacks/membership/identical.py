"""Find rows with nearly the same embedding as another row nearby.

Shapes: B rows of a step's batch, D cut width, N rows of the union.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.membership.observations import unknown_per_step
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class IdenticalEmbeddings:
    """Attack by whether another row nearby has (nearly) the same embedding. A synthetic row has its donor's.

    FLORIST's fea-sampling feeds a real row's features for an absent one, so both have one embedding. In one batch it is the
    same to the bit, and nearly so in batches a few steps apart. In any pass that does not train (validation, prediction) it is
    the same to the bit over the whole union. Both rows of a pair look the same, so a donor is suspected with its copies. For
    the label party's view.

    Rows are compared with those that lie next to them in the order of a few random projections: copies always do, and for
    the rest an upper bound of the distance will do. This costs O(N log N) where all pairs would cost N^2.

    Args:
        pool: how many consecutive steps are compared with each other (1: only within a batch), at least 1.
        projections: random directions, at least 1.
        reach: neighbours on each side in each order, at least 1.
    """

    pool: int = 1
    projections: int = 4
    reach: int = 3

    def __post_init__(self) -> None:
        if min(self.pool, self.projections, self.reach) < 1:
            raise ConfigError(
                f"identical-embeddings attack: pool={self.pool}, projections={self.projections}, reach={self.reach} "
                "must be at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each row of each step by its distance to the nearest other row in the pool. ``generator`` draws directions."""
        nearest: list[Tensor] = []
        for start in range(0, len(view.steps), self.pool):
            steps = view.steps[start : start + self.pool]
            x_ND = torch.cat([step.received_BD for step in steps])
            rows_N = torch.cat([step.rows_B for step in steps])
            least_N = torch.full((len(x_ND),), torch.inf)
            direction_DP = torch.randn(x_ND.shape[1], self.projections, generator=generator)
            for order_N in torch.argsort(x_ND @ direction_DP, dim=0).T:
                for offset in range(1, min(self.reach, len(x_ND) - 1) + 1):
                    one, other = order_N[:-offset], order_N[offset:]
                    distance = torch.linalg.vector_norm(x_ND[one] - x_ND[other], dim=1)
                    distance[rows_N[one] == rows_N[other]] = torch.inf  # a row seen twice is no copy of itself
                    least_N[one] = torch.minimum(least_N[one], distance)
                    least_N[other] = torch.minimum(least_N[other], distance)
            greatest = least_N[least_N.isfinite()].max() if least_N.isfinite().any() else least_N.new_tensor(0.0)
            distance_N = torch.where(least_N.isfinite(), least_N, greatest).double()
            nearest += torch.split(distance_N, [len(step.rows_B) for step in steps])
        return unknown_per_step(view, nearest)
