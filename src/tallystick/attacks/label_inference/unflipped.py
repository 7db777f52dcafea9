"""Undo randomised response: read the replaced labels, and correct predictions from similar rows for the flips.

Shapes: B rows of a step's batch, N rows seen, D cut width, F inputs.
"""

from dataclasses import dataclass
from math import log

import torch
from torch.nn.functional import normalize

from tallystick.attacks.label_inference.linear import fit_linear
from tallystick.attacks.label_inference.observations import binary_only, matrices, observations, whole_run
from tallystick.attacks.matrix import rescaled, top_direction, two_means_cut
from tallystick.attacks.view import Attack, Scores, View
from tallystick.errors import ConfigError, DataError

FOLDS = 3
LEAST_CHANCE = 0.02  # corrected probabilities are limited to this and 1 - this; beyond it they are the model's error


@dataclass(frozen=True, kw_only=True)
class UnflippedAttack:
    """Read the replaced labels, fit a model to them, correct its predictions for the flips, and add the row's own evidence.

    In no paper; the correction is that of randomised response (Warner 1965). Labels that are replaced once with a known
    probability f leak like undefended labels, or as far as a second defence lets them. Without a second defence, the replaced
    label is the side of the batch's main direction on which a gradient lies; the rarer side is positive. Behind noise, another
    attack that works in spite of the noise (``reader``) reads them, and its scores are split into two groups. Then f is corrected
    for: a logistic head on the embeddings, and on the attacker's own columns if the view has them, predicts probability p for the
    replaced label, which gives q = (p - f) / (1 - 2 f) for the true label. The row's own replaced label adds or subtracts
    log((1 - f) / f), the epsilon. The sum is the row's posterior log odds. Each row is predicted by a head that was fitted to
    other folds. Without a reader, the head also gets the direction of the row's gradients; behind noise that direction would be
    the noise's.

    The guarantee holds: epsilon bounds what a row's own label reveals, but not what similar rows reveal. The attacker knows no
    label. It knows f from the contract (``View.flip``), and which class is rarer. It reads cut gradients and embeddings. Binary
    targets only.

    Args:
        reader: an attack that knows no label and scores the rarer replaced label higher; if None, the gradient's side is used.
        penalty: factor of the head's squared weights, greater than 0.
        most: greatest number of rows to fit a fold's head to, at least 1.
    """

    reader: Attack | None = None
    penalty: float = 0.3
    most: int = 8192

    def __post_init__(self) -> None:
        if not (self.penalty > 0 and self.most >= 1):
            raise ConfigError(
                f"un-flipped attack: penalty={self.penalty}, most={self.most}; expected a number greater than 0 and at least 1"
            )

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows by their log odds. ``generator`` draws the folds; the reader draws what it would draw by itself."""
        binary_only(view, "un-flipped attack", "completion or clusters")
        if view.flip is None or not 0 < view.flip < 0.5:
            raise DataError("un-flipped attack: the view does not say how likely a label was replaced (View.flip)")
        seen_rows, cut_ND = observations(view, "cut_embedding")
        if self.reader is None:
            # Take the side of each row's gradients, with the rarer side positive, and their directions with one sign
            side_N, count_N, towards_ND = torch.zeros(view.rows).double(), torch.zeros(view.rows), torch.zeros(0)
            for step, grad_BD in zip(view.steps, matrices(view, "cut_gradient"), strict=True):
                unit_BD = normalize(grad_BD, dim=1, eps=torch.finfo(torch.float64).tiny)
                along_B = unit_BD @ top_direction(unit_BD)
                if int((along_B > 0).sum()) * 2 > len(along_B):
                    along_B = -along_B
                towards_ND = towards_ND if len(towards_ND) else torch.zeros(view.rows, grad_BD.shape[1], dtype=torch.float64)
                towards_ND.index_add_(0, step.rows_B, unit_BD * along_B.sign()[:, None])
                side_N.index_add_(0, step.rows_B, along_B)
                count_N[step.rows_B] += 1
            rows = torch.nonzero(count_N).squeeze(1)
            side_N, towards_ND = side_N[rows], towards_ND[rows] / count_N[rows, None]
            replaced_N, parts = side_N > 0, [rescaled(towards_ND)]
        else:
            drawn_alike = torch.Generator().manual_seed(generator.initial_seed())
            # Take the scored rows, in order, and their mean scores; each group's scores are standardised first
            scores = self.reader(view, generator=drawn_alike)
            sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
            for rows_B, score_B in zip(scores.rows, scores.values, strict=True):
                if not bool(torch.isfinite(score_B).all()):
                    raise DataError("un-flipped attack: a score was NaN or infinite; training diverged or the record is damaged")
                if len(rows_B):
                    sum_N.index_add_(0, rows_B, rescaled(score_B))
                    count_N[rows_B] += 1
            rows = torch.nonzero(count_N).squeeze(1)
            score_N = sum_N[rows] / count_N[rows]
            cut = two_means_cut(score_N)
            if cut is None:  # all scores are equal, so there are no labels to correct
                return whole_run(view, rows, torch.zeros(len(rows)))
            replaced_N, parts = score_N > cut, []
        parts.append(rescaled(cut_ND[torch.searchsorted(seen_rows, rows)]))
        if view.own_NA is not None:
            parts.append(rescaled(view.own_NA[rows]))
        # Predict the probability that a row's replaced label is 1, by a head that was fitted to the other folds
        x_NF = torch.cat(parts, dim=1)
        fold_N = torch.randint(FOLDS, (len(x_NF),), generator=generator)
        chance_N = torch.zeros(len(x_NF), dtype=torch.float64)
        for fold in range(FOLDS):
            here_N = fold_N == fold
            rest = torch.nonzero(~here_N).squeeze(1)
            some = rest[torch.randperm(len(rest), generator=generator)[: self.most]]
            head = fit_linear(x_NF[some], replaced_N.long()[some], 2, penalty=self.penalty)
            chance_N[here_N] = head(x_NF[here_N]).sigmoid()
        true_N = ((chance_N - view.flip) / (1 - 2 * view.flip)).clamp(LEAST_CHANCE, 1 - LEAST_CHANCE)
        epsilon = log((1 - view.flip) / view.flip)
        return whole_run(view, rows, true_N.logit() + torch.where(replaced_N, epsilon, -epsilon))
