"""Average several epochs, so that fresh noise averages out.

Shapes: B rows of a step's batch, N rows of the run.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.label_inference.norm import NormAttack
from tallystick.attacks.label_inference.observations import binary_only, known_rows
from tallystick.attacks.view import Attack, Scores, View


@dataclass(frozen=True, kw_only=True)
class OverEpochs:
    """Average an attack's standardised score of each row over all its observations.

    In neither paper; their attacks look at one batch at a time. A defence that adds fresh noise to every gradient (Marvell,
    isotropic noise, Gaussian DP) becomes weaker with E epochs: the signal-to-noise ratio grows by up to sqrt(E). A label that is
    flipped once stays flipped. The scores of a batch are centred and divided by their deviation, so that all batches weigh the
    same. Binary targets only.

    Args:
        attack: scores batches. With only one epoch no row is scored here, because the attack alone would find the same.
    """

    attack: Attack

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:
        """Score all rows of the run that were seen at least twice and whose label is not known in any step."""
        binary_only(view, "averaged attack", "the attack by itself")
        (step, *others) = view.steps
        if not isinstance(self.attack, NormAttack) or others or step.length_B is None or step.sightings_B is None:
            whole = None
        else:
            kept_B = (step.sightings_B > 1) & (known_rows(view)[step.rows_B] < 0)
            whole = Scores(rows=(step.rows_B[kept_B],), values=(step.length_B[kept_B].double(),))
        if whole is not None:
            return whole
        sum_N, count_N = torch.zeros(view.rows, dtype=torch.float64), torch.zeros(view.rows, dtype=torch.float64)
        scores = self.attack(view, generator=generator)
        for rows_B, score_B in zip(scores.rows, scores.values, strict=True):
            if not len(rows_B):
                continue
            centred_B = score_B - score_B.mean()
            deviation = centred_B.square().mean().sqrt()
            sum_N[rows_B] += centred_B / deviation if deviation > 0 else centred_B
            count_N[rows_B] += 1
        rows = torch.nonzero((count_N > 1) & (known_rows(view) < 0)).squeeze(1)
        return Scores(rows=(rows,), values=(sum_N[rows] / count_N[rows],))
