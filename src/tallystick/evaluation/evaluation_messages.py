"""Define the control messages of an evaluation. The cut embeddings are in tallystick.cut."""

import math

import msgspec

from tallystick.errors import ProtocolError, printable
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

MOST_WORDS = 500


class Finished(Message, frozen=True):
    """Sent by the label party at the end, with the AUC if one was released privately.

    It is sent when the label party's report is written; without gradients it is sent before training.

    An ``epsilon`` without an ``auc`` was spent in vain: the noise left no AUC, and ``reveals`` says why.
    """

    rows: int
    auc: float | None = None
    low: float | None = None
    high: float | None = None
    epsilon: float | None = None
    mechanism: str = ""
    protects: str = ""
    reveals: str = ""


def receive_finished(channel: Channel, *, rows: int, epsilon: float | None) -> Finished:
    """Receive the end of a run over ``rows`` test rows. The contract releases an AUC at ``epsilon``, or none.

    Raises ProtocolError for another number of rows, for a release that the contract does not ask for or that lacks a part, and
    for numbers that cannot be an AUC or an interval. Its texts are made safe to show.
    """
    message = channel.receive(Finished)

    def refuse(what: str) -> ProtocolError:
        return ProtocolError(channel.peer, f"{channel.peer} ended the run with {what}")

    if message.rows != rows:
        raise refuse(f"{message.rows} test rows, where both sides have {rows}")
    if message.epsilon is not None and (epsilon is None or not math.isclose(message.epsilon, epsilon)):
        due = "none" if epsilon is None else f"one at epsilon {epsilon:g}"
        raise refuse(f"a release at epsilon {message.epsilon:g}, where the contract has {due}")
    if message.epsilon is None and rows and epsilon is not None:
        raise refuse(f"no release, where the contract has one at epsilon {epsilon:g}")
    numbers = (message.low, message.auc, message.high)
    if any(number is not None for number in numbers):
        if message.epsilon is None:
            raise refuse("an AUC and no epsilon for it")
        check_auc(channel, *numbers)
    words = {name: printable(getattr(message, name), most=MOST_WORDS) for name in ("mechanism", "protects", "reveals")}
    return msgspec.structs.replace(message, **words)


def check_auc(channel: Channel, low: float | None, auc: float | None, high: float | None) -> None:
    """Raise ProtocolError unless a peer's AUC is in its interval, and the interval in 0 to 1."""
    numbers = [number for number in (low, auc, high) if number is not None]
    if len(numbers) < 3 or not 0 <= numbers[0] <= numbers[1] <= numbers[2] <= 1:
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} sent an AUC of {auc} in the interval {low} to {high}; expected 0 <= low <= AUC <= high <= 1",
        )
