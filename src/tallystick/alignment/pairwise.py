"""Define what all protocols of one label party and one feature party share.

Shapes: N ids of this side; K common ids.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.alignment.buckets import BucketStore, Nowhere
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import Index, Tags
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import Channel, Progress, no_progress

PLACES = "places of the joint rows"


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """Options of an alignment that a side chooses for itself. No peer sees them.

    Args:
        threads: how many threads compute; all cores if None.
        progress: called during the alignment.
        stored: returns, for a peer, the store that keeps finished buckets for a later process; by default nothing is kept.
        say: called with a line that says whether an earlier alignment is resumed.
    """

    threads: int | None = None
    progress: Progress = no_progress
    stored: Callable[[str], BucketStore] = field(default=lambda _: Nowhere(), repr=False)
    say: Callable[[str], None] = field(default=lambda _: None, repr=False)


LOCAL = LocalOptions()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side's ids (N) in the order ``row_N`` of their public hashes, these hashes, its randomness, and its own options."""

    unsorted: Ids = field(repr=False)
    row_N: Index = field(repr=False)
    prints_N16: Tags = field(repr=False)
    rng: SecureRandom
    local: LocalOptions = LOCAL

    def __len__(self) -> int:
        return len(self.unsorted)

    @property
    def ids(self) -> Ids:
        """Gather the ids in their order. A protocol that only needs hashes spares their memory."""
        return self.unsorted.gather(self.row_N)


@dataclass(frozen=True, kw_only=True)
class Match:
    """The label party's matches with one feature party.

    Args:
        own_K: own rows whose ids are common.
        place_K: the place of each in the feature party's secret order.
        prove: proves to the feature party that this side has the ids of these own rows, by the protocol's means.
    """

    own_K: Index
    place_K: Index
    prove: Callable[[Index], None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The feature party's state after it answered.

    Args:
        order_N: own row at each place of the secret order; -1 for a place that only fills a bucket.
        check: refuses places that the label party cannot know to be common; raises ProtocolError.
    """

    order_N: Index
    check: Callable[[Index], None]


class LabelRole(Protocol):
    """A role that finds the common ids with each feature party. ``sizes`` are theirs. It also counts scalar multiplications."""

    def __call__(self, side: Side, channels: Sequence[Channel], sizes: Sequence[int]) -> tuple[list[Match], int]:
        """Run the label party's role."""
        ...


class FeatureRole(Protocol):
    """A role that lets the label party, which has ``size`` ids, find the common ones. It also counts scalar multiplications."""

    def __call__(self, side: Side, channel: Channel, size: int, *, one_of_several: bool) -> tuple[Answer, int]:
        """Run the feature party's role."""
        ...
