"""Score rows by the length of their cut gradients.

Shapes: B rows of a step's batch, D cut width.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.attacks.label_inference.observations import binary_only, matrices, unlabelled_per_step
from tallystick.attacks.view import Scores, View


@dataclass(frozen=True, kw_only=True)
class NormAttack:
    """Score a row by the length of its cut gradient. Positive rows have longer gradients.

    Li et al. 2022 (Marvell), section 3.1; FedAds, section 5.2.1, attack (1): where positives are rare, a model is less certain of
    positive rows than of negative ones. It reads cut gradients and knows no label. Binary targets only.
    """

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch separately. It draws nothing at random. Zero or equal gradients get equal scores: a guess."""
        binary_only(view, "norm attack", "direction or clusters")
        norms: list[Tensor] = [torch.linalg.vector_norm(grad_BD, dim=1) for grad_BD in matrices(view, "cut_gradient")]
        return unlabelled_per_step(view, norms)
