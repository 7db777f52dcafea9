"""Forward passes without training: validation, evaluation and prediction, per role. Shapes: B batch, D cut width."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor, nn

from tallystick.cut.messages import receive_embedding, send_embedding
from tallystick.data.features import Features
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel

Source = Callable[[Tensor], Features]
"""Gives a party's features for a batch of aligned positions; where rows may be absent, it is what imputes them."""


Part = Literal["training", "validation", "test", "prediction"]

Sending = Callable[[Part, int], None]
"""Called before each row of a part is embedded and sent so many times more; if it raises, nothing is."""


def uncounted(part: Part, times: int) -> None:
    """A Sending that counts nothing."""


def no_columns(index_B: Tensor) -> Features:
    """The Source of a label party without columns: rows of nothing."""
    rows, device = len(index_B), index_B.device
    return Features(
        numeric_NF=torch.empty(rows, 0, device=device), categorical_NG=torch.empty(rows, 0, dtype=torch.int64, device=device)
    )


CutRows = Callable[[Tensor, int], int]
"""Says how many rows of a cut embedding cross for a batch's positions, by the feature party's place in the contract's order."""


def a_row_each(index_B: Tensor, peer: int) -> int:  # noqa: ARG001
    """The usual CutRows: one for each position."""
    return len(index_B)


@torch.no_grad()
def send_embeddings(bottom: nn.Module, source: Source, batches: Sequence[Tensor], channel: Channel) -> None:
    """Feature party: embed batch after batch; nothing comes back, so they stream."""
    bottom.eval()
    for number, index_B in enumerate(batches):
        send_embedding(channel, number, bottom(source(index_B)))
    bottom.train()


def receive_cuts(batches: Sequence[Tensor], channels: Sequence[Channel], widths: Sequence[int]) -> Tensor:
    """Label party: the cut embeddings of all batches, a row each, the feature parties' side by side: (rows, sum of widths)."""
    parts = []
    for number, index_B in enumerate(batches):
        cuts_BD = [
            receive_embedding(channel, number, len(index_B), width).to(index_B.device)
            for channel, width in zip(channels, widths, strict=True)
        ]
        parts.append(torch.cat(cuts_BD, dim=1))
    return torch.cat(parts)


@torch.no_grad()
def receive_logits(
    model: LabelModel,
    own: Source,
    batches: Sequence[Tensor],
    channels: Sequence[Channel],
    widths: Sequence[int],
    *,
    cut_rows: CutRows = a_row_each,
) -> Tensor:
    """Label party: finish the forward pass for every batch and give all logits in the order of the batches."""
    model.eval()
    logits: list[Tensor] = []
    for number, index_B in enumerate(batches):
        cuts_BD = [
            receive_embedding(channel, number, cut_rows(index_B, peer), width).to(index_B.device)
            for peer, (channel, width) in enumerate(zip(channels, widths, strict=True))
        ]
        logits.append(model(cuts_BD, own(index_B)))
    model.train()
    return torch.cat(logits) if logits else torch.empty(0)
