"""Embed numbers: a bottom model adds these to plain numbers, so that its first layer can learn non-linear functions.

Gorishniy, Rubachev and Babenko (2022), "On embeddings for numerical features in tabular deep learning". Shapes: B batch, F
numeric columns that are embedded, T bins, W embedding width, K frequencies.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tallystick.tables.features import FeatureShape

_WIDTH = 12
FREQUENCIES, SCALE = 24, 0.3


class PiecewiseLinear(nn.Module):
    """A continuous function of each number, linear between the edges of its bins, with W outputs, plus a linear term.

    Section 3.2.1. The weights of the bins start at zero, so training starts with the linear terms (as the same authors do in
    "TabM", 2024). A number's sum over the bins below it is one row of the running sums of its column's weights, so no (B, F, T)
    tensor is made.

    Args:
        places: the F columns of the encoded numbers.
        edges: edges of each column, at least two, ascending.
    """

    edges: Tensor
    last: Tensor
    first: Tensor

    def __init__(self, places: Sequence[int], edges: Sequence[Sequence[float]]) -> None:
        super().__init__()
        self.places = list(places)
        most = max(map(len, edges))
        padded_FT = torch.tensor([[*each, *[math.inf] * (most - len(each))] for each in edges], dtype=torch.float32)
        # The edges belong to the encoder, which the party keeps; files of weights hold only weights.
        self.register_buffer("edges", padded_FT, persistent=False)
        self.register_buffer("last", torch.tensor([len(each) - 2 for each in edges])[:, None], persistent=False)
        self.register_buffer("first", torch.arange(len(edges))[:, None] * most, persistent=False)
        self.bins = nn.Parameter(torch.zeros(len(edges), most - 1, _WIDTH))
        self.slope = nn.Parameter(torch.empty(len(edges), _WIDTH).uniform_(-1, 1))
        self.offset = nn.Parameter(torch.empty(len(edges), _WIDTH).uniform_(-1, 1))
        self.width = len(edges) * _WIDTH

    def forward(self, numbers_BF: Tensor) -> Tensor:
        """Embed a batch of encoded numbers (B, F W)."""
        number_FB = numbers_BF[:, self.places].t().contiguous()
        bin_FB = torch.minimum(self.bins_of(number_FB).clamp(min=0), self.last)
        left_FB, right_FB = self.edges.gather(1, bin_FB), self.edges.gather(1, bin_FB + 1)
        share_FB = ((number_FB - left_FB) / (right_FB - left_FB)).clamp(0, 1)
        below_FTW = torch.nn.functional.pad(self.bins.cumsum(dim=1), (0, 0, 1, 0))
        row_B = (bin_FB + self.first).t().reshape(-1)
        lower_BW = below_FTW.flatten(0, 1).index_select(0, row_B)
        upper_BW = below_FTW.flatten(0, 1).index_select(0, row_B + 1)
        bent_BFW = torch.lerp(lower_BW, upper_BW, share_FB.t().reshape(-1, 1)).view(numbers_BF.shape[0], *self.slope.shape)
        return torch.addcmul(bent_BFW + self.offset, number_FB.t()[:, :, None], self.slope).flatten(1)

    def bins_of(self, number_FB: Tensor) -> Tensor:
        """Return the place of the last edge at or below each number, or -1 if there is none."""
        return torch.searchsorted(self.edges, number_FB, right=True) - 1


class Periodic(nn.Module):
    """Sines and cosines of each number at learnt frequencies, followed by a layer that all columns share.

    Section 3.2.2, equation 3, with the shared layer of the "lite" variant.
    """

    def __init__(self, places: Sequence[int]) -> None:
        super().__init__()
        self.places = list(places)
        self.frequency = nn.Parameter(torch.randn(len(places), FREQUENCIES) * SCALE)
        self.layer = nn.Linear(2 * FREQUENCIES, _WIDTH)
        self.width = len(places) * _WIDTH

    def forward(self, numbers_BF: Tensor) -> Tensor:
        """Embed a batch of encoded numbers (B, F W)."""
        angle_BFK = 2 * math.pi * self.frequency * numbers_BF[:, self.places, None]
        waves_BFK = torch.cat([torch.cos(angle_BFK), torch.sin(angle_BFK)], dim=2)
        return torch.relu(self.layer(waves_BFK)).flatten(1)


def embed_numbers(shape: FeatureShape) -> PiecewiseLinear | Periodic | None:
    """Build the embedding for a party's columns, or None if all stay plain numbers."""
    places = [place for place, edges in enumerate(shape.edges) if edges]
    if not places or shape.numbers == "plain":
        return None
    if shape.numbers == "periodic":
        return Periodic(places)
    return PiecewiseLinear(places, [shape.edges[place] for place in places])
