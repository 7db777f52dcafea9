"""Agree on the alignment when the parties meet again: keep the former one, if all have saved it for their present keys.

A new alignment reveals more than the former one: a row's windows and batches may change, and on a union all rows get new
positions and new stand-ins, which a peer can compare with the former ones.
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
    """Return the name of the alignment to use, and whether it is ``kept_name``, which is empty if none was saved.

    Each side learns whether another side's keys have changed. The new alignment would show that, too. The order of keys in a
    table does not count.
    """
    their_names = [channel.receive(AlignmentKept).name for channel in channels]
    again = bool(kept_name) and all(name == kept_name for name in their_names)
    name = kept_name if again else draw(NAME_BYTES).hex()
    for channel in channels:
        channel.send(AlignmentNext(name=name, again=again))
    return name, again


def meet_feature_party(kept_name: str, channel: Channel) -> tuple[str, bool]:
    """Return the same at a feature party. Raises ProtocolError if the label party chooses one that was not saved here."""
    channel.send(AlignmentKept(name=kept_name))
    following = channel.receive(AlignmentNext)
    if following.again and (following.name != kept_name or not kept_name):
        raise ProtocolError(channel.peer, f"{channel.peer}: AlignmentNext: goes on with an alignment that this side has not kept")
    return following.name, following.again


FILE = "alignment-of-serving.safetensors"


class KeptFacts(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Facts saved with the rows: the alignment's name, which all sides know, and its contract and keys."""

    name: str
    keys: str
    method: str
    sizes: dict[str, int]
    learnt: list[str]


@dataclass(frozen=True, kw_only=True)
class KeptAlignment:
    """A side's file of an alignment.

    Args:
        folder: the file's folder.
        origin: the file's owner.
        keys: digests of the contract and of this side's present keys.
        say: called if the file is damaged and a new alignment replaces it.
    """

    folder: Path
    origin: Origin
    keys: str
    say: Callable[[str], None]

    def load(self) -> tuple[str, Alignment] | None:
        """Load the alignment and its name, if there is one for these keys."""
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
        """Save a new alignment."""
        facts = KeptFacts(
            name=name, keys=self.keys, method=alignment.method, sizes=alignment.sizes, learnt=list(alignment.learnt)
        )
        arrays: dict[str, AnyArray] = {"rows": alignment.rows_N}
        if alignment.uids_N16 is not None:
            arrays["uids"] = alignment.uids_N16
        write_arrays(self.folder / FILE, arrays, {"facts": msgspec.json.encode(facts).decode()}, origin=self.origin, private=True)
