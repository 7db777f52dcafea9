"""Control messages of a training run; the tensors are in tallystick.cut."""

from tallystick.network.messages import Message


class CutWidth(Message, frozen=True):
    """Feature party to label party, before the first step: the width D of its cut embedding."""

    width: int


class EpochVerdict(Message, frozen=True):
    """Label party to feature parties, after each epoch's validation: keep these weights as the best, and go on or stop."""

    epoch: int
    improved: bool
    stop: bool
