"""Share between protocols of one label party and one feature party: what each brings to an intersection.

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
    """Settings of an alignment that a side makes for itself. No peer sees anything of them.

    Args:
        threads: of arithmetic; all cores if None.
        progress: called as it goes.
        stored: gives, for a peer, where finished buckets of an intersection are kept for a later process; none are by default.
        say: told in a line whether an alignment goes on that was begun before.
    """

    threads: int | None = None
    progress: Progress = no_progress
    stored: Callable[[str], BucketStore] = field(default=lambda _: Nowhere(), repr=False)
    say: Callable[[str], None] = field(default=lambda _: None, repr=False)


LOCAL = LocalOptions()


@dataclass(frozen=True, kw_only=True)
class Side:
    """One side's ids (N), a public hash of each, randomness, and its own options."""

    ids: Ids = field(repr=False)
    prints_N16: Tags = field(repr=False)
    rng: SecureRandom
    local: LocalOptions = LOCAL


@dataclass(frozen=True, kw_only=True)
class Match:
    """Matches that the label party found with one feature party.

    Args:
        own_K: own rows whose ids are common.
        place_K: where each stands in the feature party's secret order.
        prove: shows the feature party that this side has the ids of these own rows, by the protocol's means.
    """

    own_K: Index
    place_K: Index
    prove: Callable[[Index], None]


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Answer that the feature party has given.

    Args:
        order_N: own row at each place of the secret order; -1 where a place is made up to fill a bucket.
        check: refuses places that the label party cannot know to be common; raises ProtocolError.
    """

    order_N: Index
    check: Callable[[Index], None]


class LabelRole(Protocol):
    """Finds the common ids with each feature party. ``sizes`` are theirs. It also counts scalar multiplications."""

    def __call__(self, side: Side, channels: Sequence[Channel], sizes: Sequence[int]) -> tuple[list[Match], int]:
        """Run the label party's role."""
        ...


class FeatureRole(Protocol):
    """Lets the label party, which has ``size`` ids, find the common ones. Gives scalar multiplications, too."""

    def __call__(self, side: Side, channel: Channel, size: int, *, one_of_several: bool) -> tuple[Answer, int]:
        """Run the feature party's role."""
        ...
