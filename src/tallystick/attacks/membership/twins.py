"""Find rows that look like another row at every stage of training.

Shapes: B rows of a step's batch, D cut width, N rows of the union.
"""

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize

from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError

_TINY = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True)
class TwinEmbeddings:
    """Score a row by its similarity to the most similar other row of any batch. A synthetic row is like its donor in all batches.

    Not in the paper. Copies that never share a batch differ by what the bottom model learned between the two batches;
    standardising each batch removes most of that. The attack compares the last observation of each row with those of all others,
    by cosine. Aimed at sampled features that keep their donor (drawn once). It reads the label party's view.

    Args:
        queries: number of rows to score, a random sample (each is compared with all rows), at least 1.
    """

    queries: int = 2000

    def __post_init__(self) -> None:
        if self.queries < 1:
            raise ConfigError(f"twin-embeddings attack: queries={self.queries}; expected at least 1")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score sampled rows by minus their greatest cosine with another row. ``generator`` draws the sample."""
        last_ND = torch.zeros(view.rows, view.steps[0].received_BD.shape[1])
        seen_N = torch.zeros(view.rows, dtype=torch.bool)
        for step in view.steps:
            x_BD = step.received_BD - step.received_BD.mean(dim=0)
            deviation_D = x_BD.std(dim=0, correction=0)
            last_ND[step.rows_B] = normalize(x_BD / (deviation_D + 1e-3 * deviation_D.mean() + _TINY), dim=1)
            seen_N[step.rows_B] = True
        unknown = torch.nonzero(seen_N & (view.known() == 0)).squeeze(1)
        rows = unknown[torch.randperm(len(unknown), generator=generator)[: self.queries]]
        alike_Q = torch.empty(len(rows), dtype=torch.float64)
        for part in torch.split(torch.arange(len(rows)), 256):
            cosine_QN = last_ND[rows[part]] @ last_ND.T
            cosine_QN[torch.arange(len(part)), rows[part]] = -1.0
            alike_Q[part] = cosine_QN.max(dim=1).values.double()
        return Scores(rows=(rows,), values=(-alike_Q,))
