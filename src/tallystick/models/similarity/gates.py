"""The gates of FedSim around a merge: what a link weighs, and in which order links are read.

A similarity is what the helper gave the label party (``alignment/outcome.py: SimilarityScale``): minus the distance, standardised
by mean and deviation over all links of the training's linkage, with noise if asked for, and then brought back to variance 1.
A batch's links, and those of new rows, are on that scale, but their own mean is not 0 nor their variance 1; a pad's is 0.

Shapes: B batch, K candidates of a row.
"""

import torch
from torch import Tensor, nn

SMALLEST = 1e-7
"""Added to a learnt weight: no link is ever switched off for good."""


class LearntWeight(nn.Module):
    """FedSim's similarity model: a similarity to a weight in (0, 1], learnt with all else (section 4.2, "Weight Gate")."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 10), nn.ReLU(), nn.Linear(10, 1), nn.Sigmoid())

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Weigh similarities (B, K): weights (B, K)."""
        weight_BK: Tensor = self.layers(similarity_BK[:, :, None])[:, :, 0] + SMALLEST
        return weight_BK


class SimilarityWeight(nn.Module):
    """FedSim without its similarity model: the similarity itself, below 0 for a link that is farther than the average one."""

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Return the similarities."""
        return similarity_BK


class EqualWeight(nn.Module):
    """Every link counts alike."""

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Return ones (B, K)."""
        return torch.ones_like(similarity_BK)


def ascending(similarity_BK: Tensor, present_BK: Tensor) -> Tensor:
    """Return FedSim's sort gate: the order (B, K) from the least similar link to the most similar one, pads first."""
    return torch.where(present_BK, similarity_BK, -torch.inf).argsort(dim=1, stable=True)
