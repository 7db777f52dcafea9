"""Does a row's embedding agree with its label? Shapes: B rows of a step's batch, D cut width, N rows of the union."""

from dataclasses import dataclass

import torch
from torch.nn.functional import logsigmoid

from tallystick.attacks.label_inference.linear import fit_linear, standardised
from tallystick.attacks.matrix import rescaled
from tallystick.attacks.membership.observations import mean_over_run
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class LabelAgreement:
    """How much likelier does a row's mean embedding make its label? Of a row made without its label, not at all on average.

    Not in the paper. Needs no known row. A logistic regression from embeddings to labels is fitted to one half of the label
    party's rows, imputed ones among them, and scores the other by log p(y|f) - log p(y): if the regression were the truth, no
    other score that reads one row's embedding and label would rank pairs (f, y) better against independent ones. So no
    filling that ignores the label holds against it: the more the embeddings are worth, the more it finds. For the label party's
    view; it scores no rows where the labels are not in the view.

    Args:
        most: rows of each half that it is fitted to, at least 1.
        penalty: on squared weights, above 0.
    """

    most: int = 10_000
    penalty: float = 1e-2

    def __post_init__(self) -> None:
        if self.most < 1 or not self.penalty > 0:
            raise ConfigError(f"agreement attack: most={self.most}, penalty={self.penalty}; expected at least 1 and above 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each of the label party's rows once; ``generator`` draws the halves."""
        sum_ND = torch.zeros(view.rows, view.steps[0].received_BD.shape[1])
        count_N, label_N, own_N = torch.zeros(view.rows), torch.zeros(view.rows), torch.zeros(view.rows, dtype=torch.bool)
        score_N = torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            if step.targets_B is None:
                return mean_over_run(view, score_N, torch.zeros_like(score_N))
            sum_ND[step.rows_B] += rescaled(step.received_BD, dtype=torch.float32)
            count_N[step.rows_B] += 1
            label_N[step.rows_B], own_N[step.rows_B] = step.targets_B.float(), step.own_B
        rows_M = torch.nonzero(own_N).squeeze(1)
        x_MD = standardised(sum_ND[rows_M] / count_N[rows_M, None])
        positive_M = label_N[rows_M] > 0.5
        halves = torch.tensor_split(torch.randperm(len(rows_M), generator=generator), 2)
        for fitted, scored in (halves, halves[::-1]):
            some = fitted[: self.most]
            head = fit_linear(x_MD[some], positive_M[some].long(), 2, penalty=self.penalty)
            logit, prior = head(x_MD[scored]), torch.logit(positive_M[some].double().mean(), eps=1e-6)
            sign = torch.where(positive_M[scored], 1.0, -1.0)
            score_N[rows_M[scored]] = logsigmoid(sign * logit) - logsigmoid(sign * prior)
        return mean_over_run(view, score_N, own_N.double())
