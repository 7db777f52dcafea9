"""Find rows with unique values, for an attacker who rebuilt the columns.

Shapes: N rows, C columns of the party that sent.
"""

from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch

from tallystick.attacks.membership.observations import mean_over_run
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class UniqueCells:
    """Score a row by how rare its values are. A made-up row that copies cells of real rows has no unique value.

    Not in the paper. It needs no known row, but the exact columns of every row. No view holds them; an attacker who rebuilds them
    from embeddings has them. The score is the sum of 1 / (number of rows with this value) over columns, or over pairs of columns.
    It reads the label party's view, and scores no rows if the columns are not given.

    Args:
        together: number of columns whose values are combined, 1 or 2.
        most: greatest number of columns, or of pairs, at least 1; if there are more, a random sample is taken.
    """

    together: int = 1
    most: int = 300

    def __post_init__(self) -> None:
        if self.together not in (1, 2) or self.most < 1:
            raise ConfigError(
                f"unique-cells attack: together={self.together}, most={self.most}; expected 1 or 2, and at least 1 column"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each row once. ``generator`` draws the sample of columns."""
        score_N, count_N = (torch.zeros(view.rows, dtype=torch.float64) for _ in range(2))
        if view.sent_NC is None or view.sent_NC.shape[1] < self.together:
            return mean_over_run(view, score_N, count_N)
        rows = torch.unique(torch.cat([step.rows_B for step in view.steps]))
        codes = [np.unique(value_M, return_inverse=True)[1] for value_M in view.sent_NC[rows].numpy().T]
        groups = list(combinations(range(len(codes)), self.together))
        for place in torch.randperm(len(groups), generator=generator)[: self.most].tolist():
            code_M, *others = (codes[column] for column in groups[place])
            for other_M in others:
                code_M = np.unique(code_M * (other_M.max() + 1) + other_M, return_inverse=True)[1]
            score_N[rows] += torch.from_numpy(1 / np.bincount(code_M)[code_M])  # count_M: the rows with the same values
        count_N[rows] = 1.0
        return mean_over_run(view, score_N, count_N)

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs columns."""
        return f"it needs at least {self.together} of the sending party's columns, and the view has fewer"
