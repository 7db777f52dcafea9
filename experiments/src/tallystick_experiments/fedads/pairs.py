"""Choose MixPro's partners by class, which FedAds calls its weak point (section 5.2.4). Shapes: B batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.defenses.mixpro import MixPro
from tallystick.defenses.noise import Randomness, uniform


@dataclass(frozen=True, kw_only=True)
class PairedByClass(MixPro):
    """Mixes every row only with rows of its own class, or only with rows of the other class.

    This is a benchmark's probe of the leakage through pairs of one class. Threat model and guarantee are MixPro's. Not protected:
    the pairing depends on the labels, because the label party draws the pairs.

    Args:
        own_class: whether the partner is of the row's own class, or of the other. If there is none, the partner is any other row.
    """

    own_class: bool

    def partners(self, labels_B: Tensor, generator: Randomness) -> Tensor:
        """Return a row of the required class, drawn for each row independently."""
        usual_B, drawn_B = super().partners(labels_B, generator), uniform(len(labels_B), generator)
        positive_B, found_B = labels_B > 0.5, usual_B.clone()
        for row, is_positive in enumerate(positive_B.tolist()):
            allowed_B = positive_B if is_positive == self.own_class else ~positive_B
            choice = torch.nonzero(allowed_B)[:, 0]
            choice = choice[choice != row]
            if len(choice):
                found_B[row] = choice[int(drawn_B[row] * len(choice))]
        return found_B
