"""Test whether one party's messages about a row agree with the other party's own label or columns for that row.

Shapes: B rows of a step's batch, D cut width, N rows of the union, M rows that the label party has, A own columns as numbers,
P inputs that predict the embedding.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from tallystick.attacks.label_inference.linear import fit_linear, standardised
from tallystick.attacks.matrix import rescaled
from tallystick.attacks.membership.direction import oriented_cosine
from tallystick.attacks.membership.observations import mean_over_run
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError

_TURNS = 20  # rounds in which batches' signs settle


@dataclass(frozen=True, kw_only=True)
class LabelAgreement:
    """Score a row by how much likelier its mean embedding makes its label. A row that was made without its label scores low.

    Not in the paper. It needs no known row. A logistic regression from embeddings to labels is fitted to one half of the label
    party's rows, imputed ones included. It scores the other half by log p(y|f) - log p(y). If the regression were exact, no score
    of one row's embedding and label would separate real pairs (f, y) better from independent ones. So an imputation that ignores
    the label does not stop this attack: the more useful the embeddings are, the more it finds. It reads the label party's view,
    and scores no rows if the labels are not in it.

    Args:
        most: greatest number of rows of each half to fit, at least 1.
        penalty: factor of the squared weights, above 0.
    """

    most: int = 10_000
    penalty: float = 1e-2

    def __post_init__(self) -> None:
        _check(self.most, self.penalty)

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each of the label party's rows once. ``generator`` draws the halves."""
        pairs = _Pairs.of(view)
        if pairs.label_M is None:
            return pairs.scores(view, None)
        positive_M = pairs.label_M > 0.5
        return pairs.scores(view, _likelier_labels(pairs.x_MD, positive_M, self.most, self.penalty, generator))

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs labels."""
        return "it needs the receiving party's labels, which are not in the view"


@dataclass(frozen=True, kw_only=True)
class InferredLabelAgreement:
    """Score a row by how well its label, read from gradients, fits the feature party's own columns. Imputed labels fit less well.

    Not in the paper. It needs no known row. The label of a row is the side of its batches' main directions on which its gradients
    lie on average. ``LabelAgreement`` then compares it with the columns. So a label that is drawn once and never changes differs
    from a real one as far as the columns predict the label better than the model that drew it. If the own columns are not in the
    view, as when the label party audits what it sent, the embeddings that the feature party sent replace them; the columns would
    find more. It reads the feature party's view, and scores no rows if neither is in it.

    Args:
        most: greatest number of rows of each half to fit, at least 1.
        penalty: factor of the squared weights, above 0.
    """

    most: int = 20_000
    penalty: float = 1e-2

    def __post_init__(self) -> None:
        _check(self.most, self.penalty)

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each row once. ``generator`` draws the halves."""
        # Take the side of the batches' main directions on which a row's gradients lie on average; the rarer side is positive. If
        # labels are balanced, a batch does not show which side is which: a step that contradicts the other epochs is reversed.
        cosines = [oriented_cosine(step.received_BD) for step in view.steps]
        count_N = torch.zeros(view.rows, dtype=torch.float64)
        for step in view.steps:
            count_N[step.rows_B] += 1
        for _ in range(_TURNS):
            sum_N = torch.zeros(view.rows, dtype=torch.float64)
            for step, cosine_B in zip(view.steps, cosines, strict=True):
                sum_N[step.rows_B] += cosine_B
            against = [
                float(cosine_B @ (sum_N[step.rows_B] - cosine_B)) < 0 for step, cosine_B in zip(view.steps, cosines, strict=True)
            ]
            if not any(against):
                break
            cosines = [-each if turns else each for each, turns in zip(cosines, against, strict=True)]
        side_N, seen_N = sum_N / count_N.clamp(min=1), count_N
        (rows_M,) = torch.nonzero(seen_N > 0, as_tuple=True)
        score_N, count_N = (torch.zeros(view.rows, dtype=torch.float64) for _ in range(2))
        parts = [] if view.own_NA is None else [view.own_NA[rows_M]]
        if not parts and all(step.sent_BD is not None for step in view.steps):
            width = next(step.sent_BD.shape[1] for step in view.steps if step.sent_BD is not None)
            sum_ND, sightings_N = torch.zeros(view.rows, width), torch.zeros(view.rows)
            for step in view.steps:
                if step.sent_BD is not None:
                    sum_ND[step.rows_B] += rescaled(step.sent_BD, dtype=torch.float32)
                    sightings_N[step.rows_B] += 1
            parts = [(sum_ND / sightings_N[:, None].clamp(min=1))[rows_M]]
        if parts and parts[0].shape[1]:
            x_MD, positive_M = standardised(parts[0]), side_N[rows_M] > 0
            score_N[rows_M] = _likelier_labels(x_MD, positive_M, self.most, self.penalty, generator)
            count_N[rows_M] = 1.0
        return mean_over_run(view, score_N, count_N)

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs columns or embeddings."""
        return "it needs the receiving party's columns or embeddings, which are not in the view"


def _likelier_labels(x_MD: Tensor, positive_M: Tensor, most: int, penalty: float, generator: torch.Generator) -> Tensor:
    """Compute how much likelier x makes each row's label, with a regression that is fitted to the other half of the rows."""
    score_M = torch.zeros(len(positive_M), dtype=torch.float64)
    for fitted, scored in _halves(len(positive_M), generator):
        some = fitted[:most]
        head = fit_linear(x_MD[some], positive_M[some].long(), 2, penalty=penalty)
        logit, prior = head(x_MD[scored]), torch.logit(positive_M[some].double().mean(), eps=1e-6)
        sign = torch.where(positive_M[scored], 1.0, -1.0)
        score_M[scored] = logsigmoid(sign * logit) - logsigmoid(sign * prior)
    return score_M


@dataclass(frozen=True, kw_only=True)
class OwnColumnAgreement:
    """Score a row by how much likelier the label party's own columns and label make its mean embedding. Made-up rows score low.

    Not in the paper. It needs no known row. A ridge regression from own columns, and labels if the view has them, to embeddings
    is fitted to one half of the label party's rows, imputed ones included. It scores the other half by
    log p(f|c, y) - log p(f), both normal. As for ``LabelAgreement``, no score would separate real pairs better if the regression
    were exact. An imputation that does not know these columns does not stop this attack. Columns often predict the other side's
    columns better than a label does. It reads the view of a label party with own columns; otherwise it scores no rows.

    Args:
        most: greatest number of rows of each half to fit, at least 1.
        penalty: factor of the squared weights, for inputs of deviation 1, above 0.
    """

    most: int = 20_000
    penalty: float = 0.1

    def __post_init__(self) -> None:
        _check(self.most, self.penalty)

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score each of the label party's rows once. ``generator`` draws the halves."""
        pairs = _Pairs.of(view)
        if view.own_NA is None or not view.own_NA.shape[1]:
            return pairs.scores(view, None)
        parts = [view.own_NA[pairs.rows_M], *([] if pairs.label_M is None else [pairs.label_M[:, None]])]
        given_MP = torch.cat([standardised(part) for part in parts], dim=1)
        score_M = torch.zeros(len(given_MP), dtype=torch.float64)
        for fitted, scored in _halves(len(given_MP), generator):
            # Twice the log of how much likelier the inputs make the scored rows' embeddings, minus a constant
            x_MD, fitted = pairs.x_MD, fitted[: self.most]
            mean_P, mean_D = given_MP[fitted].mean(dim=0), x_MD[fitted].mean(dim=0)
            a_FP, b_FD = given_MP[fitted] - mean_P, x_MD[fitted] - mean_D
            gram_PP = a_FP.T @ a_FP / max(len(fitted), 1) + self.penalty * torch.eye(a_FP.shape[1], dtype=a_FP.dtype)
            weight_PD = torch.linalg.solve(gram_PP, a_FP.T @ b_FD / max(len(fitted), 1))
            alone_SD = x_MD[scored] - mean_D
            beside_SD = alone_SD - (given_MP[scored] - mean_P) @ weight_PD
            score_M[scored] = _distance(alone_SD, b_FD) - _distance(beside_SD, b_FD - a_FP @ weight_PD)
        return pairs.scores(view, score_M)

    def unmet(self, view: View) -> str:  # noqa: ARG002
        """Say that it needs own columns."""
        return "it needs the receiving party's columns, which are not in the view"


def _distance(x_SD: Tensor, of_FD: Tensor) -> Tensor:
    """Compute the squared Mahalanobis distance from 0. The covariance is that of other rows, plus a small ridge."""
    width = of_FD.shape[1]
    covariance_DD = of_FD.T @ of_FD / max(len(of_FD), 1) + 1e-2 * torch.eye(width, dtype=of_FD.dtype)
    scaled_SD: Tensor = torch.linalg.solve(covariance_DD, x_SD.T).T
    return (scaled_SD * x_SD).sum(dim=1)


@dataclass(frozen=True, kw_only=True)
class _Pairs:
    """Rows of the label party with their mean embeddings over the run."""

    rows_M: Tensor
    x_MD: Tensor  # standardised, float64
    label_M: Tensor | None

    @classmethod
    def of(cls, view: View) -> "_Pairs":
        sum_ND = torch.zeros(view.rows, view.steps[0].received_BD.shape[1])
        count_N, label_N, own_N = torch.zeros(view.rows), torch.zeros(view.rows), torch.zeros(view.rows, dtype=torch.bool)
        labelled = all(step.targets_B is not None for step in view.steps)
        for step in view.steps:
            sum_ND[step.rows_B] += rescaled(step.received_BD, dtype=torch.float32)
            count_N[step.rows_B] += 1
            own_N[step.rows_B] = step.own_B
            if step.targets_B is not None:
                label_N[step.rows_B] = step.targets_B.float()
        rows_M = torch.nonzero(own_N).squeeze(1)
        x_MD = standardised(sum_ND[rows_M] / count_N[rows_M, None])
        return cls(rows_M=rows_M, x_MD=x_MD, label_M=label_N[rows_M] if labelled else None)

    def scores(self, view: View, score_M: Tensor | None) -> Scores:
        """Return one score per row, or no scores if ``score_M`` is None."""
        score_N, count_N = (torch.zeros(view.rows, dtype=torch.float64) for _ in range(2))
        if score_M is not None:
            score_N[self.rows_M], count_N[self.rows_M] = score_M, 1.0
        return mean_over_run(view, score_N, count_N)


def _halves(rows: int, generator: torch.Generator) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Split rows at random into two halves; return both orders of (rows to fit, rows to score)."""
    one, other = torch.tensor_split(torch.randperm(rows, generator=generator), 2)
    return (one, other), (other, one)


def _check(most: int, penalty: float) -> None:
    if most < 1 or not penalty > 0:
        raise ConfigError(f"agreement attack: most={most}, penalty={penalty}; expected at least 1 and above 0")
