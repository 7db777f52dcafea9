"""Compare the messages about one row in consecutive epochs.

Shapes: B rows of a step's batch, D cut width, N rows of the union.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import cosine_similarity

from tallystick.attacks.matrix import rescaled
from tallystick.attacks.membership.observations import mean_over_run, other_epochs
from tallystick.attacks.view import Scores, View


@dataclass(frozen=True, kw_only=True)
class Consistency:
    """Score a row by how similar its messages are in consecutive epochs. They differ for a row that is drawn anew each epoch.

    Not in the paper. Aimed at sampled, random and Gaussian features that are drawn anew, and at such labels. The embeddings of a
    real row change slowly. In a run of one epoch it scores no rows.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score each row by the mean cosine between standardised vectors of consecutive observations.

        It draws nothing at random.
        """
        width = view.steps[0].received_BD.shape[1]
        last_ND, seen_N = torch.zeros(view.rows, width), torch.zeros(view.rows, dtype=torch.bool)
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            now_BD = rescaled(step.received_BD)
            again_B = seen_N[step.rows_B]
            rows = step.rows_B[again_B]
            sum_N[rows] += cosine_similarity(now_BD[again_B], last_ND[rows].double(), dim=1)
            count_N[rows] += 1
            last_ND[step.rows_B], seen_N[step.rows_B] = now_BD.float(), True
        return mean_over_run(view, sum_N, count_N)

    def unmet(self, view: View) -> str:
        """Say that it needs several epochs."""
        return other_epochs(view)
