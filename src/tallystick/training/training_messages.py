"""Define the control messages of a training run, and check their content. The tensors are in tallystick.cut."""

from typing import Annotated

import msgspec

from tallystick.config.sections import MOST_FOLDS
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

MAX_CUT_WIDTH = 1 << 16
"""Largest cut width. The top model's first layer grows with it."""
MOST_IN_FLIGHT = 16
"""Greatest number of batches that ``training.mode: auto`` keeps in flight. More would be faster over a slow line, but reduce test
AUC (docs/results/far.md).
"""


class CutWidth(Message, frozen=True):
    """Sent by a feature party before the first step: the width D of its cut embedding."""

    width: int


class Pace(Message, frozen=True):
    """Sent by the label party if the line decides (``training.mode: auto``): batches in flight, 0 for synchronous."""

    staleness: Annotated[int, msgspec.Meta(ge=0, le=MOST_IN_FLIGHT)]


class ValidationDecision(Message, frozen=True):
    """Sent by the label party after each validation.

    It says for each network whether to keep the weights after this step as the best, and whether to go on or stop. Its length
    does not depend on its content.
    """

    step: int
    improved: Annotated[tuple[bool, ...], msgspec.Meta(max_length=MOST_FOLDS)]
    stop: bool


def receive_width(channel: Channel, *, rows: int, max_message_bytes: int, networks: int = 1) -> int:
    """Receive the cut width of a feature party, before anything is built for it.

    Raises ProtocolError for a width below 1 or over MAX_CUT_WIDTH, if a message of ``rows`` rows would be too large, or if the
    ``networks`` side by side cannot share it equally.
    """
    width = channel.receive(CutWidth).width
    most = max(1, min(MAX_CUT_WIDTH, max_message_bytes // (4 * max(1, rows))))
    if not 1 <= width <= most:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} announced a cut width of {width}; this side takes 1 to {most}, for which a message of {rows} rows "
            "still fits into network.max_message_mib",
        )
    if width % networks:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} announced a cut width of {width}, which {networks} networks side by side (training.folds) do not "
            "share equally",
        )
    return width


def receive_decision(channel: Channel, *, step: int, networks: int, first: bool, may_stop: bool) -> ValidationDecision:
    """Receive the decision on the weights after a step, for ``networks`` side by side. The ``first`` decision of a run keeps all.

    Raises ProtocolError for a decision on another step or another number of networks, for a first one that leaves some out, and
    for one that stops within an epoch.
    """
    decision = channel.receive(ValidationDecision)
    if decision.step != step:
        raise ProtocolError(channel.peer, f"{channel.peer} decided on step {decision.step} where {step} is due")
    if len(decision.improved) != networks:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} decided on the weights of {len(decision.improved)} networks; this side has {networks} side by side",
        )
    if first and not all(decision.improved):
        raise ProtocolError(
            channel.peer, f"{channel.peer} said that step {step}, its first decision, is not an improvement, which is impossible"
        )
    if decision.stop and not may_stop:
        raise ProtocolError(channel.peer, f"{channel.peer} ended training at step {step}, where no epoch ends")
    return decision
