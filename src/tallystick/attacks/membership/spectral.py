"""Score rows by how far they lie along their batch's main direction.

Shapes: B rows of a step's batch, D cut width, N rows of the union.
"""

from dataclasses import dataclass

import torch

from tallystick.attacks.matrix import rescaled, top_direction
from tallystick.attacks.membership.observations import unknown_per_step
from tallystick.attacks.view import Scores, View
from tallystick.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class SpectralMembership:
    """Score a row by its distance from the batch's mean along the top singular direction, |<x - mean, v>|.

    FLORIST, appendix C (after Tran et al. 2018): x is the cut gradient for the feature party and [embedding; label] for the
    label party. The paper leaves the label's scale open; here the label column is centred and multiplied by ``label_scale``
    times the embeddings' root mean square deviation per column.

    Args:
        signed: keep the sign of the projection. This finds more where real and synthetic rows form two clusters of equal size,
            which the absolute value maps onto each other.
        label_scale: weight of the label column, at least 0.
    """

    signed: bool = False
    label_scale: float = 1.0

    def __post_init__(self) -> None:
        if not self.label_scale >= 0:
            raise ConfigError(f"spectral membership attack: label_scale={self.label_scale}; expected at least 0")

    def __call__(self, view: View, *, generator: torch.Generator) -> Scores:  # noqa: ARG002
        """Score every batch separately. It draws nothing at random."""
        scores = []
        for step in view.steps:
            features_BD = rescaled(step.received_BD)
            if step.targets_B is not None and self.label_scale > 0:
                label_B = (step.targets_B.double() - step.targets_B.double().mean()) * self.label_scale
                features_BD = torch.cat([features_BD, label_B[:, None]], dim=1)
            projection_B = features_BD @ top_direction(features_BD)
            scores.append(projection_B if self.signed else -projection_B.abs())
        return unknown_per_step(view, scores)
