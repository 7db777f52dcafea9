"""Agree on the alignment of sides that meet again: the one of before, if all have kept it for the keys that they have now.

A new alignment tells more than an old one that is taken up: a row's windows and batches may change, and on a union all rows get
other positions and other stand-ins, so that whoever has seen both can compare them.
"""

from collections.abc import Callable, Sequence

from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.scoring.scoring_messages import AlignmentKept, AlignmentNext

NAME_BYTES = 8


def meet_label_party(kept: str, channels: Sequence[Channel], *, draw: Callable[[int], bytes]) -> tuple[str, bool]:
    """Return the name of the alignment to go on with, and whether it is the ``kept`` one, which is empty if there is none.

    Each side learns whether another's keys have changed, as the alignment that follows tells too. Their order in a table is no
    part of it.
    """
    their_names = [channel.receive(AlignmentKept).name for channel in channels]
    again = bool(kept) and all(name == kept for name in their_names)
    name = kept if again else draw(NAME_BYTES).hex()
    for channel in channels:
        channel.send(AlignmentNext(name=name, again=again))
    return name, again


def meet_feature_party(kept: str, channel: Channel) -> tuple[str, bool]:
    """Return the same at a feature party; raises ProtocolError if the label party goes on with one that was not kept here."""
    channel.send(AlignmentKept(name=kept))
    following = channel.receive(AlignmentNext)
    if following.again and (following.name != kept or not kept):
        raise ProtocolError(channel.peer, f"{channel.peer}: AlignmentNext: goes on with an alignment that this side has not kept")
    return following.name, following.again
