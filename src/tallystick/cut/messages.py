"""The two messages of a split network. Shapes: B batch, D cut width."""

from torch import Tensor

from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message


class CutEmbedding(Message, frozen=True):
    """Feature party to label party: the bottom model's output for the rows of one step, float32 (B, D)."""

    limit = MAX_MESSAGE_BYTES
    step: int
    values: Array


class CutGradient(Message, frozen=True):
    """Label party to feature party: the loss's gradient by that output, float32 (B, D)."""

    limit = MAX_MESSAGE_BYTES
    step: int
    values: Array


def send_embedding(channel: Channel, step: int, *cuts_BD: Tensor) -> None:
    """Send the cut embeddings of one or more steps from ``step`` on, which nobody may change from then on."""
    channel.send(CutEmbedding(step=step, values=Array.lend(*cuts_BD)))


def receive_embedding(channel: Channel, step: int, rows: int, width: int) -> Tensor:
    """Receive the cut embedding of a step; raises ProtocolError for another step, shape or element type."""
    message = channel.receive(CutEmbedding)
    return _open(channel, message, step, rows, width)


def send_gradient(channel: Channel, step: int, *grads_BD: Tensor) -> None:
    """Send the cut gradients of one or more steps from ``step`` on, which nobody may change from then on."""
    channel.send(CutGradient(step=step, values=Array.lend(*grads_BD)))


def receive_gradient(channel: Channel, step: int, rows: int, width: int) -> Tensor:
    """Receive the cut gradient of a step; raises ProtocolError for another step, shape or element type."""
    message = channel.receive(CutGradient)
    return _open(channel, message, step, rows, width)


def _open(channel: Channel, message: CutEmbedding | CutGradient, step: int, rows: int, width: int) -> Tensor:
    what = f"{channel.peer}: {type(message).__name__}"
    if message.step != step:
        raise ProtocolError(channel.peer, f"{what} is of step {message.step}, expected {step}; the two sides are out of step")
    if message.values.dtype != "float32":
        raise ProtocolError(channel.peer, f"{what} of step {step} has type {message.values.dtype}, expected float32")
    try:
        return message.values.tensor(rows, width)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{what} of step {step}: {error}") from None
