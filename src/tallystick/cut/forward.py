"""Run forward passes without training: validation, evaluation and prediction, per role. Shapes: B batch, D cut width."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor, nn

from tallystick.cut.cut_messages import receive_embedding, send_embedding
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.tables.features import Features

FeatureSource = Callable[[Tensor], Features]
"""Gives a party's features for a batch of aligned positions. If rows may be absent, it imputes them."""
Announce = Callable[[Tensor], None]
"""Gets the positions that a FeatureSource will be asked for soon, so that it can read them ahead."""


SCORED_AT_A_TIME = 1024
"""Rows that are scored at a time. A batch of training has fewer, and takes a third longer for the same scores."""

TILE = 32
"""A score is computed for a multiple of this many rows. With other numbers, a row's bits depend on the number of rows.

So a row has the same bits in any batch and at any place in it, in layers of at least 16 outputs, or with a multiple of four
inputs. In narrower ones MKL's kernels treat some rows of a batch differently, and the last bit may differ.
"""


def whole_tiles(index_B: Tensor) -> Tensor:
    """Repeat the index's last entry until its length is a multiple of TILE."""
    missing = -len(index_B) % TILE
    return torch.cat([index_B, index_B[-1:].expand(missing)]) if missing and len(index_B) else index_B


def tiled_batches(rows: int, batch_size: int) -> list[Tensor]:
    """Split all positions into batches of whole tiles. The scores after the last position must be dropped."""
    index_N = torch.arange(rows)
    return [whole_tiles(index_B) for index_B in torch.split(index_N, batch_size + -batch_size % TILE)] if rows else []


Part = Literal["training", "validation", "test", "prediction"]

Sending = Callable[[Part, int], None]
"""Called before each row of a part is embedded and sent ``times`` more times. If it raises, nothing is sent."""


def uncounted(part: Part, times: int) -> None:
    """Count nothing. It is a Sending."""


def ignore_rows(index_B: Tensor) -> None:
    """Ignore rows that are in memory. It is an Announce."""


def no_columns(index_B: Tensor) -> Features:
    """Return rows without columns. It is the FeatureSource of a label party without columns."""
    rows, device = len(index_B), index_B.device
    return Features(
        numeric_NF=torch.empty(rows, 0, device=device), categorical_NG=torch.empty(rows, 0, dtype=torch.int64, device=device)
    )


CutRows = Callable[[Tensor, int], int]
"""Says how many rows of a cut embedding cross for a batch's positions, by the feature party's place in the contract's order."""


def a_row_each(index_B: Tensor, peer: int) -> int:  # noqa: ARG001
    """Return one row for each position. It is the usual CutRows."""
    return len(index_B)


Cuts = Callable[[int, Tensor], Tensor]
"""Gives the rows of a feature party's cut embedding for a batch's positions, by the batch's number."""


def crossing(channel: Channel, width: int, peer: int, *, cut_rows: CutRows = a_row_each) -> Cuts:
    """Return the Cuts that the feature party sends, batch after batch. ``peer`` is its place in the contract's order."""

    def receive(number: int, index_B: Tensor) -> Tensor:
        return receive_embedding(channel, number, cut_rows(index_B, peer), width).to(index_B.device)

    return receive


@dataclass(frozen=True, kw_only=True)
class KeptCuts:
    """Give the Cuts of a feature party whose embeddings crossed before, once per row. Nothing is sent or received for a batch.

    Args:
        numbers_R: the rows that crossed, in ascending order.
        embedding_RD: their cut embeddings.
        numbers: gives the rows for a batch's positions, in the order in which they would cross.
    """

    numbers_R: Tensor
    embedding_RD: Tensor
    numbers: Callable[[Tensor], Tensor]

    @property
    def width(self) -> int:
        """Return D."""
        return self.embedding_RD.shape[1]

    def __call__(self, number: int, index_B: Tensor) -> Tensor:  # noqa: ARG002
        """Return the rows of these positions."""
        return self.embedding_RD[torch.searchsorted(self.numbers_R, self.numbers(index_B))]


Watch = Callable[[Tensor, Tensor], None]
"""Called after a batch is sent that gets no gradient back, with its positions and its embeddings as they crossed."""


class PassObserver(Protocol):
    """Keep embeddings that cross without a gradient coming back, as an audit's recorder does."""

    def sent(self, part: Part, index_B: Tensor, cut_BD: Tensor) -> None:
        """Take in a batch of a part of the split that crossed."""
        ...

    def pass_ended(self, part: Part) -> None:
        """Note that all batches of one pass over a part crossed, by the same weights."""
        ...

    def epoch_ended(self) -> None:
        """Note that nothing more crosses before the next epoch, or at all."""
        ...


def unwatched(index_B: Tensor, cut_BD: Tensor) -> None:
    """Watch nothing. It is the Watch of no observer."""


@torch.no_grad()
def send_embeddings(
    bottom: nn.Module, source: FeatureSource, batches: Sequence[Tensor], channel: Channel, *, watch: Watch = unwatched
) -> None:
    """Embed batch after batch, as the feature party. Nothing comes back, so they stream."""
    bottom.eval()
    for number, index_B in enumerate(batches):
        cut_BD = bottom(source(index_B))
        send_embedding(channel, number, cut_BD)
        watch(index_B, cut_BD)
    bottom.train()


def side_by_side(batches: Sequence[Tensor], cuts: Sequence[Cuts]) -> Tensor:
    """Receive the cut embeddings of all batches, as the label party.

    Each row joins the feature parties' embeddings: (rows, sum of widths).
    """
    return torch.cat([torch.cat([each(number, index_B) for each in cuts], dim=1) for number, index_B in enumerate(batches)])


@torch.no_grad()
def logits_over(model: LabelModel, own: FeatureSource, batches: Sequence[Tensor], cuts: Sequence[Cuts]) -> Tensor:
    """Finish the forward pass, as the label party, for cut embeddings from any source."""
    model.eval()
    logits = [model([each(number, index_B) for each in cuts], own(index_B)) for number, index_B in enumerate(batches)]
    model.train()
    return torch.cat(logits) if logits else torch.empty(0)
