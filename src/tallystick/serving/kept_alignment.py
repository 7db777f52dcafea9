"""Agree on the alignment of sides that meet again: the one of before, if all have kept it for the keys that they have now.

A new alignment tells more than an old one that is taken up: a row's windows and batches may change, and on a union all rows get
other positions and other stand-ins, so that whoever has seen both can compare them.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from tallystick.alignment.outcome import Alignment
from tallystick.array_files import AnyArray, read_arrays, write_arrays
from tallystick.errors import DamagedFile, ProtocolError
from tallystick.msgspec_threads import prepared
from tallystick.network.channel import Channel
from tallystick.scoring.scoring_messages import AlignmentKept, AlignmentNext
from tallystick.storage import Origin

NAME_BYTES = 8


def meet_label_party(kept_name: str, channels: Sequence[Channel], *, draw: Callable[[int], bytes]) -> tuple[str, bool]:
    """Return the name of the alignment to go on with, and whether it is ``kept_name``, which is empty if there is none.

    Each side learns whether another's keys have changed, as the alignment that follows tells too. Their order in a table is no
    part of it.
    """
    their_names = [channel.receive(AlignmentKept).name for channel in channels]
    again = bool(kept_name) and all(name == kept_name for name in their_names)
    name = kept_name if again else draw(NAME_BYTES).hex()
    for channel in channels:
        channel.send(AlignmentNext(name=name, again=again))
    return name, again


def meet_feature_party(kept_name: str, channel: Channel) -> tuple[str, bool]:
    """Return the same at a feature party. Raises ProtocolError if the label party goes on with one that was not kept here."""
    channel.send(AlignmentKept(name=kept_name))
    following = channel.receive(AlignmentNext)
    if following.again and (following.name != kept_name or not kept_name):
        raise ProtocolError(channel.peer, f"{channel.peer}: AlignmentNext: goes on with an alignment that this side has not kept")
    return following.name, following.again


FILE = "alignment-of-serving.safetensors"


class KeptFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts kept beside the rows: the name that all sides know the alignment by, and the contract and keys that it is of."""

    name: str
    keys: str
    method: str
    sizes: dict[str, int]
    learnt: list[str]


@dataclass(frozen=True, kw_only=True)
class KeptAlignment:
    """A side's file of it.

    Args:
        folder: where it lies.
        origin: whose it is.
        keys: digests of the contract and of the keys that this side has now.
        say: told of a file that is damaged, in whose place a new alignment is made.
    """

    folder: Path
    origin: Origin
    keys: str
    say: Callable[[str], None]

    def load(self) -> tuple[str, Alignment] | None:
        """Load the alignment and its name, if there is one of these keys."""
        path = self.folder / FILE
        if not path.exists():
            return None
        try:
            arrays, metadata = read_arrays(path, origin=self.origin)
        except DamagedFile as error:
            self.say(f"{error}; rows are aligned anew")
            return None
        facts = msgspec.json.decode(metadata["facts"], type=prepared(KeptFacts))
        if facts.keys != self.keys:
            return None
        uids = arrays.get("uids")
        return facts.name, Alignment(
            method=facts.method,
            rows_N=arrays["rows"].astype(np.int64),
            sizes=facts.sizes,
            learnt=facts.learnt,
            uids_N16=uids if uids is not None else None,
        )

    def save(self, name: str, alignment: Alignment) -> None:
        """Keep a new one."""
        facts = KeptFacts(
            name=name, keys=self.keys, method=alignment.method, sizes=alignment.sizes, learnt=list(alignment.learnt)
        )
        arrays: dict[str, AnyArray] = {"rows": alignment.rows_N}
        if alignment.uids_N16 is not None:
            arrays["uids"] = alignment.uids_N16
        write_arrays(self.folder / FILE, arrays, {"facts": msgspec.json.encode(facts).decode()}, origin=self.origin, private=True)
