"""Compare the direction of a cut gradient with that of rows whose label the attacker knows.

Shapes: B rows of a step's batch, N rows of the run, D cut width, H hint rows, C classes.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tallystick.attacks.label_inference.observations import known_rows, matrices, observations, unlabelled_per_step, whole_run
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError, DataError


@dataclass(frozen=True, kw_only=True)
class DirectionAttack:
    """Score a row by how closely its cut gradient points in the direction of a known positive row's gradient.

    Li et al. 2022 (Marvell), section 3.2. It reads cut gradients and knows a few labels in every batch (View.known_labels). If
    View.clean_hints is set, it also knows the undefended gradients of these rows, as in Marvell's evaluation. Known gradients are
    averaged as unit vectors, so the score is the mean cosine with them; under noise a mean is more stable than a maximum. With
    several classes it gives one score per class. In a batch without a known row all scores are 0, which is a guess; a class
    without a known row scores -1.

    Args:
        measure: "cosine", or "inner" product, which also uses the gradient's length.
        scope: "batch", as in the paper; "run" compares mean gradients over the training, so that noise which a defence draws anew
            at every step averages out.
    """

    measure: Literal["cosine", "inner"] = "cosine"
    scope: Literal["batch", "run"] = "batch"

    def __post_init__(self) -> None:
        if self.measure not in ("cosine", "inner"):
            raise ConfigError(f'direction attack: measure={self.measure!r}; expected "cosine" or "inner"')

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch separately, or the run. It draws nothing at random. A zero gradient has cosine 0 with every hint."""
        if self.scope == "run":
            rows, mean_ND = observations(view, "cut_gradient")
            mean_ND, known_N = mean_ND.double(), known_rows(view)[rows]
            return whole_run(view, rows, self._scores(mean_ND, mean_ND[known_N >= 0], known_N, view.classes))
        scores = []
        for index, grad_BD in enumerate(matrices(view, "cut_gradient")):
            label_B = view.known_label(index)
            told_B = label_B >= 0
            if view.clean_hints is None:
                hint_HD = grad_BD[told_B]
            else:
                clean_HD = view.clean_hints[index]
                received_HD = grad_BD[told_B]
                if clean_HD.shape != received_HD.shape or not bool(torch.isfinite(clean_HD).all()):
                    raise DataError(
                        f"direction attack: clean hints of step {index} have shape {tuple(clean_HD.shape)} and must be finite "
                        f"and of shape {tuple(received_HD.shape)}, one row per known label"
                    )
                hint_HD = clean_HD.double()
            scores.append(self._scores(grad_BD, hint_HD, label_B, view.classes))
        return unlabelled_per_step(view, scores)

    def _scores(self, grad_BD: Tensor, hint_HD: Tensor, label_B: Tensor, classes: int) -> Tensor:
        towards_BD = normalize(grad_BD, dim=1, eps=_TINY) if self.measure == "cosine" else grad_BD
        label_H = label_B[label_B >= 0]
        absent = 0.0 if classes == 2 else -1.0
        scores = []
        for each in range(1, 2) if classes == 2 else range(classes):
            hints_of_class = hint_HD[label_H == each]
            if len(hints_of_class):
                scores.append(towards_BD @ normalize(hints_of_class, dim=1, eps=_TINY).mean(dim=0))
            else:
                scores.append(torch.full((len(towards_BD),), absent, dtype=torch.float64))
        score_BC = torch.stack(scores, dim=1)
        return score_BC.squeeze(1) if classes == 2 else score_BC


_TINY = torch.finfo(torch.float64).tiny
