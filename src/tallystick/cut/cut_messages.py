"""Define the two messages of a split network. Shapes: B batch, D cut width.

Numbers that are not finite are neither sent nor accepted, because a single NaN would be in all weights one step later.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tallystick.config.sections import CompressionName
from tallystick.cut.compression import COMPRESSIONS, Compression
from tallystick.errors import Diverged, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message


class CutEmbedding(Message, frozen=True):
    """Sent by the feature party: the bottom model's output for the rows of one step, float32 (B, D), or compressed."""

    limit = MAX_MESSAGE_BYTES
    step: int
    values: Array


class CutGradient(Message, frozen=True):
    """Sent by the label party: the loss's gradient by that output, float32 (B, D), or compressed."""

    limit = MAX_MESSAGE_BYTES
    step: int
    values: Array


def send_embedding(channel: Channel, step: int, *cuts_BD: Tensor, compression: CompressionName = "none") -> list[Tensor]:
    """Send the cut embeddings of one or more steps from ``step`` on. Nothing may change them from then on.

    Return what the peer reads, step by step. Raises Diverged if a number is not finite, also after compression.
    """
    values, read_BD = _written(cuts_BD, compression, f"cut embedding of step {step}", channel.peer)
    channel.send(CutEmbedding(step=step, values=values))
    return read_BD


def receive_embedding(channel: Channel, step: int, rows: int, width: int, *, compression: CompressionName = "none") -> Tensor:
    """Receive the cut embedding of a step. Raises ProtocolError for another step, shape or type, or a number that is
    not finite.
    """
    message = channel.receive(CutEmbedding)
    return _open(channel, message, step, rows, width, COMPRESSIONS[compression])


def send_gradient(channel: Channel, step: int, *grads_BD: Tensor, compression: CompressionName = "none") -> list[Tensor]:
    """Send the cut gradients of one or more steps from ``step`` on. Nothing may change them from then on.

    Return what the peer reads, step by step. Raises Diverged if a number is not finite, also after compression.
    """
    values, read_BD = _written(grads_BD, compression, f"cut gradient of step {step}", channel.peer)
    channel.send(CutGradient(step=step, values=values))
    return read_BD


def receive_gradient(channel: Channel, step: int, rows: int, width: int, *, compression: CompressionName = "none") -> Tensor:
    """Receive the cut gradient of a step. Raises ProtocolError for another step, shape or type, or a number that is
    not finite.
    """
    message = channel.receive(CutGradient)
    return _open(channel, message, step, rows, width, COMPRESSIONS[compression])


def _written(parts_BD: Sequence[Tensor], name: CompressionName, what: str, peer: str) -> tuple[Array, list[Tensor]]:
    """Return the content of the message, and what its reader gets."""
    for part_BD in parts_BD:
        if not all_finite(part_BD.detach()):
            raise Diverged(
                f"the {what}, about to be sent to {peer}, is {_where_not_finite(part_BD.detach())}; it was not sent: lower "
                "training.learning_rate, or look for extreme values among the columns"
            )
    compression = COMPRESSIONS[name]
    if compression is None:
        return Array.lend(*parts_BD), list(parts_BD)
    values_BD = torch.cat([part_BD.detach().cpu() for part_BD in parts_BD])
    packed_BR = compression.packed(values_BD)
    read_BD = compression.unpacked(packed_BR, values_BD.shape[1])
    if not all_finite(read_BD):
        raise Diverged(
            f"the {what}, about to be sent to {peer}, has numbers beyond what training.compression = {name} can write; "
            "agree on none"
        )
    return Array.lend(packed_BR), list(torch.split(read_BD.to(parts_BD[0].device), [len(part_BD) for part_BD in parts_BD]))


def _open(
    channel: Channel,
    message: CutEmbedding | CutGradient,
    step: int,
    rows: int,
    width: int,
    compression: Compression | None,
) -> Tensor:
    what = f"{channel.peer}: {type(message).__name__}"
    if message.step != step:
        raise ProtocolError(channel.peer, f"{what} is of step {message.step}, expected {step}; the two sides are out of step")
    dtype = "float32" if compression is None else "uint8"
    if message.values.dtype != dtype:
        raise ProtocolError(channel.peer, f"{what} of step {step} has type {message.values.dtype}, expected {dtype}")
    try:
        if compression is None:
            values_BD = message.values.tensor(rows, width)
        else:
            values_BD = compression.unpacked(message.values.tensor(rows, compression.row_bytes(width)), width)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{what} of step {step}: {error}") from None
    if not all_finite(values_BD):
        raise ProtocolError(
            channel.peer,
            f"{what} of step {step} is {_where_not_finite(values_BD)}; it was not used, and no checkpoint contains it: ask "
            f"{channel.peer} for its log and, if its training diverged, agree on a lower training.learning_rate",
        )
    return values_BD


def all_finite(values: Tensor) -> bool:
    """Tell whether all numbers are finite, in one pass that allocates nothing."""
    # A sum is finite only if all terms are, except for an overflow, which the slow check rules out.
    return math.isfinite(values.sum().item()) or bool(values.isfinite().all())


def _where_not_finite(values_BD: Tensor) -> str:
    wrong_B = ~values_BD.isfinite().all(dim=1)
    return f"NaN or infinite in {int(wrong_B.sum())} of {len(values_BD)} rows, the first is row {int(wrong_B.nonzero()[0])}"
