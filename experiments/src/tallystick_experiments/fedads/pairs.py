"""MixPro with partners chosen by class, which FedAds names its weak point (section 5.2.4). Shapes: B batch."""

from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.defenses.mixpro import MixPro
from tallystick.defenses.noise import Randomness, uniform


@dataclass(frozen=True, kw_only=True)
class PairedByClass(MixPro):
    """MixPro that mixes every row with one of its own class alone, or with one of the other class alone.

    A benchmark's probe of what pairs of one class give away; threat model and guarantee are MixPro's. Not protected: which
    rows were paired follows from the labels, whose party draws the pairs.

    Args:
        own_class: the partner is of the row's own class; otherwise of the other one. Where there is none, any other row is.
    """

    own_class: bool

    def partners(self, labels_B: Tensor, generator: Randomness) -> Tensor:
        """Return a row of the class that is asked for, drawn for each row by itself."""
        usual_B, drawn_B = super().partners(labels_B, generator), uniform(len(labels_B), generator)
        positive_B, found_B = labels_B > 0.5, usual_B.clone()
        for row, is_positive in enumerate(positive_B.tolist()):
            allowed_B = positive_B if is_positive == self.own_class else ~positive_B
            choice = torch.nonzero(allowed_B)[:, 0]
            choice = choice[choice != row]
            if len(choice):
                found_B[row] = choice[int(drawn_B[row] * len(choice))]
        return found_B
