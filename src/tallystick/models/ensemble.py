"""Build several small networks side by side above the cut. Their mean predicts.

Shapes: B batch, D all embeddings side by side, M members, W width of a member's layer, C outputs.
"""

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

NARROWER = 4  # ratio of a single network's layer width to a member's


class EnsembleTop(nn.Module):
    """Networks that read the same embeddings. Each learns from the labels separately, and the mean of their logits predicts.

    It follows Laurent et al. (2023), "Packed-Ensembles for efficient uncertainty estimation", and Gorishniy, Kotelnikov and
    Babenko (2024), "TabM", whose packed variant it is. The bottom models are shared: no more crosses the cut than with one
    network, and a cut gradient is the mean of the members'. A member's layers are a quarter as wide as ``hidden``, in multiples
    of four. Threat model: a feature party can infer labels from the mean gradient as well as from a single network's, or better
    (docs/results/quality.md). No formal guarantee.

    Args:
        width: D.
        hidden: widths of a single network's layers, at least one.
        outputs: C.
        members: M.
    """

    def __init__(self, width: int, *, hidden: Sequence[int], outputs: int, members: int) -> None:
        super().__init__()
        first, *others = [4 * math.ceil(each / (4 * NARROWER)) for each in hidden]
        self.members = members
        self.first = nn.Linear(width, members * first)
        self.layers = nn.ModuleList(SideBySide(before, after, members) for before, after in pairwise([first, *others]))
        self.output = SideBySide([first, *others][-1], outputs, members)

    def forward(self, joined_BD: Tensor) -> Tensor:
        """Return the logits of each member (B, M, C) in training, otherwise their mean (B, C)."""
        hidden_BX = torch.relu(self.first(joined_BD))
        hidden_MBW = hidden_BX.view(-1, self.members, hidden_BX.shape[1] // self.members).transpose(0, 1)
        for layer in self.layers:
            hidden_MBW = torch.relu(layer(hidden_MBW))
        if self.training:
            logits: Tensor = self.output(hidden_MBW).transpose(0, 1)
            return logits
        # One matrix product for all members, so that a row's bits depend only on the row, as in any other layer.
        weight_CX = self.output.weight.permute(2, 0, 1).flatten(1) / self.members
        return nn.functional.linear(hidden_MBW.transpose(0, 1).flatten(1), weight_CX, self.output.bias.mean(dim=(0, 1)))


class SideBySide(nn.Module):
    """One linear layer for each member, on the member's own values: (M, B, before) in, (M, B, after) out."""

    def __init__(self, before: int, after: int, members: int) -> None:
        super().__init__()
        bound = 1 / math.sqrt(before)  # the initialisation of torch.nn.Linear
        self.weight = nn.Parameter(torch.empty(members, before, after).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(members, 1, after).uniform_(-bound, bound))

    def forward(self, values_MBW: Tensor) -> Tensor:
        """Apply each member's layer."""
        return torch.baddbmm(self.bias, values_MBW, self.weight)
