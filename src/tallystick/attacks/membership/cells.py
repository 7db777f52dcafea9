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

    Not in the paper. Needs no known row, but every row's columns without error, which no view holds: who rebuilds them from
    embeddings has them. Each value counts 1 / (rows that have it), and the sum over columns, or over pairs of them, is the score.
    For the label party's view; it scores no rows if the columns are not given.

    Args:
        together: columns whose values are looked at together, 1 or 2.
        most: columns, or pairs of them, a random sample if there are more, at least 1.
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
            score_N[rows] += torch.from_numpy(1 / np.bincount(code_M)[code_M])  # the rows that have a row's values there
        count_N[rows] = 1.0
        return mean_over_run(view, score_N, count_N)

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs columns."""
        return f"it reads {self.together} or more columns of the party that sends, and has fewer"
