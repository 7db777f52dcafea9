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
    """Score a row by the distance to the most similar embedding nearby. A synthetic row has (nearly) its donor's embedding.

    FLORIST's fea-sampling uses a real row's features for an absent row, so both have the same embedding. Within a batch, and in
    passes that do not train (validation, prediction), the two are equal to the bit; in batches a few steps apart, nearly so. Both
    rows of a pair look alike, so the attack suspects the donor together with its copies. It reads the label party's view.

    Rows are compared with their neighbours in the order of a few random projections. Copies are always neighbours; for other rows
    an upper bound of the distance is enough. This takes O(N log N) time instead of the N^2 of all pairs.

    Args:
        pool: number of consecutive steps that are compared with each other, at least 1 (only within a batch).
        projections: number of random directions, at least 1.
        reach: number of neighbours on each side in each order, at least 1.
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
                    distance[rows_N[one] == rows_N[other]] = torch.inf  # a row that occurs twice is not its own copy
                    least_N[one] = torch.minimum(least_N[one], distance)
                    least_N[other] = torch.minimum(least_N[other], distance)
            greatest = least_N[least_N.isfinite()].max() if least_N.isfinite().any() else least_N.new_tensor(0.0)
            distance_N = torch.where(least_N.isfinite(), least_N, greatest).double()
            nearest += torch.split(distance_N, [len(step.rows_B) for step in steps])
        return unknown_per_step(view, nearest)
