"""Merge the outputs of an example's K links into one row of numbers, from which the top model predicts.

Before a merge come FedSim's gates: the weight of each link, and the order in which links are read. A similarity is what the
helper gave the label party (``alignment/outcome.py: SimilarityScale``): the negative distance, standardised by mean and deviation
over all links of the training's linkage, with noise if asked for, and then scaled back to variance 1. A batch's links, and those
of new rows, are on that scale, but their own mean is not 0 nor their variance 1. The similarity of padding is 0.

A merge is built from the number of links, the width of their outputs and the contract's settings. It is called with the links'
outputs, their weights and a mask of real links, and states its own output's ``width``. The tables at the end name merges and
weights; no other module compares the names.

Shapes: B batch, K links, L width of a link's output, C channels, H heads.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from tallystick.config.merge import AttentionMergeConfig, AverageMergeConfig, CNNMergeConfig, MLPMergeConfig, Top1MergeConfig
from tallystick.models.dropout import Dropout

SMALLEST = 1e-7
"""Added to a learnt weight, so that no link is switched off permanently."""


class LearntWeight(nn.Module):
    """FedSim's similarity model: it turns a similarity into a weight in (0, 1], and is learnt with the rest (section 4.2, "Weight
    Gate").
    """

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, 10), nn.ReLU(), nn.Linear(10, 1), nn.Sigmoid())

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Turn similarities (B, K) into weights (B, K)."""
        weight_BK: Tensor = self.layers(similarity_BK[:, :, None])[:, :, 0] + SMALLEST
        return weight_BK


class SimilarityWeight(nn.Module):
    """FedSim without its similarity model: the similarity itself, below 0 for a link that is farther than the average."""

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Return the similarities."""
        return similarity_BK


class EqualWeight(nn.Module):
    """Equal weights for all links."""

    def forward(self, similarity_BK: Tensor) -> Tensor:
        """Return ones (B, K)."""
        return torch.ones_like(similarity_BK)


def ascending(similarity_BK: Tensor, present_BK: Tensor) -> Tensor:
    """Return FedSim's sort gate: the order (B, K) from the least similar link to the most similar one, padding first."""
    return torch.where(present_BK, similarity_BK, -torch.inf).argsort(dim=1, stable=True)


class CNNMerge(nn.Module):
    """FedSim's merge: a convolution along the links for each of the L outputs separately, and a layer on its result.

    FedSim, section 4.2, "Merge Gate". It is padded by k - 1, so it also reads pairs and single links at both ends. Weighted
    outputs are its input. The effect of a link depends on its place, so links are sorted first.
    """

    def __init__(self, links: int, width: int, settings: CNNMergeConfig) -> None:
        super().__init__()
        kernel = settings.kernel
        self.convolution = nn.Conv2d(1, settings.channels, (kernel, 1), padding=(kernel - 1, 0))
        self.layers = nn.Sequential(
            nn.ReLU(),
            nn.Flatten(),
            Dropout(settings.dropout),
            nn.Linear(settings.channels * (links + kernel - 1) * width, settings.hidden),
            nn.ReLU(),
            Dropout(settings.dropout),
        )
        self.width = settings.hidden

    def forward(self, output_BKL: Tensor, weight_BK: Tensor, present_BK: Tensor) -> Tensor:
        """Compute the merged row (B, hidden)."""
        weighted_BKL = output_BKL * (weight_BK * present_BK)[:, :, None]
        merged_BH: Tensor = self.layers(self.convolution(weighted_BKL[:, None]))
        return merged_BH


class MLPMerge(nn.Module):
    """Merge links as FedSim does, without its convolution: two layers on all weighted outputs of all links side by side."""

    def __init__(self, links: int, width: int, settings: MLPMergeConfig) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(),
            nn.Linear(links * width, 1600),
            nn.ReLU(),
            Dropout(settings.dropout),
            nn.Linear(1600, 1000),
            nn.ReLU(),
            Dropout(settings.dropout),
            nn.Linear(1000, settings.hidden),
            nn.ReLU(),
        )
        self.width = settings.hidden

    def forward(self, output_BKL: Tensor, weight_BK: Tensor, present_BK: Tensor) -> Tensor:
        """Compute the merged row (B, hidden)."""
        merged_BH: Tensor = self.layers(output_BKL * (weight_BK * present_BK)[:, :, None])
        return merged_BH


class AverageMerge(nn.Module):
    """The weighted mean of the links' outputs. With equal weights and a linear top it is AvgSim's mean of predictions."""

    def __init__(self, links: int, width: int, settings: AverageMergeConfig) -> None:  # noqa: ARG002
        super().__init__()
        self.width = width

    def forward(self, output_BKL: Tensor, weight_BK: Tensor, present_BK: Tensor) -> Tensor:
        """Compute the mean (B, L), with zeros for an example without any link."""
        present = present_BK.to(output_BKL.dtype)
        total_B1 = (weight_BK * present).sum(dim=1, keepdim=True)
        share_BK = weight_BK * present / torch.where(total_B1.abs() > torch.finfo(total_B1.dtype).tiny, total_B1, 1.0)
        return (output_BKL * share_BK[:, :, None]).sum(dim=1)


class Top1Merge(nn.Module):
    """The most similar link alone (Top1Sim). Links are read in ascending order, so it is the last."""

    def __init__(self, links: int, width: int, settings: Top1MergeConfig) -> None:  # noqa: ARG002
        super().__init__()
        self.width = width

    def forward(self, output_BKL: Tensor, weight_BK: Tensor, present_BK: Tensor) -> Tensor:  # noqa: ARG002
        """Merge the links (B, L)."""
        return output_BKL[:, -1] * present_BK[:, -1:]


class AttentionMerge(nn.Module):
    """Attention over the links: each head distributes its attention by the links' outputs, times their weights.

    It is not in FedSim. The order of the links makes no difference, and padding has no effect. A head's scores come from the
    link's own output, which includes the example's own columns. Weights enter as their logarithm, so attention with equal scores
    is the weighted mean.
    """

    def __init__(self, links: int, width: int, settings: AttentionMergeConfig) -> None:  # noqa: ARG002
        super().__init__()
        self.heads = settings.heads
        self.score = nn.Linear(width, settings.heads)
        self.value = nn.Linear(width, settings.heads * width)
        self.dropout = Dropout(settings.dropout)
        self.width = settings.heads * width

    def forward(self, output_BKL: Tensor, weight_BK: Tensor, present_BK: Tensor) -> Tensor:
        """Compute the heads' outputs (B, H L), with zeros for an example without any link."""
        batch, links, width = output_BKL.shape
        score_BKH = self.score(output_BKL) + weight_BK.log()[:, :, None]
        score_BKH = score_BKH.masked_fill(~present_BK[:, :, None], -torch.inf)
        none_B = ~present_BK.any(dim=1)
        attention_BKH = torch.softmax(score_BKH.masked_fill(none_B[:, None, None], 0.0), dim=1)
        attention_BKH = attention_BKH * present_BK[:, :, None]
        value_BKHL = self.value(output_BKL).view(batch, links, self.heads, width)
        seen_BHL = torch.einsum("bkh,bkhl->bhl", attention_BKH, value_BKHL)
        merged: Tensor = self.dropout(seen_BHL.flatten(1))
        return merged


class MakesMerge(Protocol):
    """A class of merges, as a label model builds them."""

    def __call__(self, links: int, width: int, settings: Any) -> nn.Module:
        """Make a merge for this many links with outputs of this width, by the settings of its own method."""
        ...


MERGES: Mapping[str, MakesMerge] = {
    "attention": AttentionMerge,
    "cnn": CNNMerge,
    "mlp": MLPMerge,
    "average": AverageMerge,
    "top1": Top1Merge,
}
"""Each name of the contract's model.merge.method, and its module."""

WEIGHTS: Mapping[str, Callable[[], nn.Module]] = {
    "learnt": LearntWeight,
    "similarity": SimilarityWeight,
    "equal": EqualWeight,
}
"""Each name of the contract's model.merge.weight, and its module."""

ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "none": nn.Identity}
"""Each name of the contract's model.merge.activation, and its module."""
