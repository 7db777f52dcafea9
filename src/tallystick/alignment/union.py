"""Define what all unions share: dummy ids, the checks on sizes and universal ids, and the outcome.

Shapes: N positions of the union; M own ids, dummies included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tallystick.alignment.exchange import RESERVED, attribute_errors, receive_list, receive_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import TAG_BYTES, Index, Tags, match, sorted_order
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import DataError, IdError, ProtocolError
from tallystick.network.channel import Channel, Progress

WHAT = "private set union"
UIDS = "universal ids"


@dataclass(frozen=True, kw_only=True)
class UnionSide:
    """A side of a union: its role, randomness, threads (all cores if None), and the callback of progress."""

    label: bool
    rng: SecureRandom
    threads: int | None
    progress: Progress


@dataclass(frozen=True, kw_only=True)
class Named:
    """Universal ids in their order, and the positions of a side's own ids among them."""

    uids_N16: Tags
    position_M: Index
    multiplications: int


class UnionRole(Protocol):
    """One side's role. The side has ``members``, dummies included, and the other side has ``others``."""

    def __call__(self, members: Sequence[bytes], others: int, channel: Channel, side: UnionSide) -> Named:
        """Run the role."""
        ...


def with_dummies(ids: Ids, dummies: int, *, rng: SecureRandom) -> Sequence[bytes]:
    """Append a secret number, from 0 to ``dummies``, of ids drawn from a public pool of ``dummies`` ids that no row has.

    Both sides draw from one pool, so the dummies that they happen to share also blur the size of the intersection. No formal
    guarantee: each size that the peer sees is known to be at most ``dummies`` too high.
    """
    if dummies < 0:
        raise DataError(f"dummies = {dummies}: expected 0 or more ids that blur the sizes")
    numbers = rng.permutation(dummies)[: rng.below(dummies + 1)] if len(ids) else ()
    return [*ids, *(RESERVED + b"dummy/%d" % number for number in numbers)] if len(numbers) else ids


def receive_union(channel: Channel, of: str, own: int, others: int) -> int:
    """Receive the size of the union. Raises ProtocolError if two sets of these sizes cannot have it."""
    size = receive_size(channel, of, at_most=own + others)
    if size < max(own, others):
        raise ProtocolError(
            channel.peer, f"{channel.peer} announced {size} rows of {of!r}, fewer than the {max(own, others)} of one side"
        )
    return size


def check_union(union: int, own: int, others: int, peer: str) -> int:
    """Return the size of the intersection. Raises DataError if the sizes alone show who is in it, or that no id is.

    Both sides see the same sizes at the same step and stop there, before either has learnt any position.
    """
    intersection = own + others - union
    sizes = f"this side has {own} ids, {peer} {others}, the union {union}"
    if intersection == 0:
        raise IdError(
            f"no id is common to both parties ({sizes}), so there is nothing to train together; "
            "check that the key columns mean the same and are normalised alike in the contract"
        )
    if union in (own, others):
        within = "both sides hold the same ids" if own == others else "every id of one side is held by the other"
        raise DataError(
            f"{within} ({sizes}): the sizes alone show who is in the intersection, so the union protects nobody; "
            "use alignment.method: intersection, or blur the sizes (union.label_dummies, union.feature_dummies)"
        )
    return intersection


def receive_uids(channel: Channel, count: int) -> Tags:
    """Receive the universal ids (N, 16), sorted, so that their order reveals nothing."""
    uids_N16 = receive_list(channel, UIDS, count, shape=(TAG_BYTES,))
    if not np.array_equal(sorted_order(uids_N16), np.arange(len(uids_N16))):
        raise ProtocolError(channel.peer, f"{channel.peer} sent {UIDS!r} that are not sorted")
    return uids_N16


def places(own_M16: Tags, all_N16: Tags, channel: Channel, of: str) -> Index:
    """Return the place of each own tag among all. Blame the peer if one is missing."""
    with attribute_errors(channel, of):
        own, place = match(own_M16, all_N16)
    if len(own) != len(own_M16):
        raise ProtocolError(channel.peer, f"{channel.peer} left {len(own_M16) - len(own)} of this side's ids out of {of!r}")
    place_M = np.empty(len(own_M16), dtype=np.int64)
    place_M[own] = place
    return place_M


@dataclass(frozen=True, kw_only=True)
class UnionSizes:
    """Public sizes of a union: this side's announced ids, dummies included, the other side's, and the union's."""

    members: int
    others: int
    union: int

    @property
    def intersection(self) -> int:
        """Return how many ids both sides have."""
        return self.members + self.others - self.union


def outcome(
    *,
    method: str,
    position_M: Index,
    row_M: Index,
    sizes: UnionSizes,
    peer: str,
    learnt: Sequence[str],
    uids_N16: Tags | None = None,
    multiplications: int = 0,
) -> Alignment:
    """Turn the positions of this side's ids, with dummies last, into an Alignment. ``row_M`` is the row of each id."""
    rows_N = np.full(sizes.union, -1, dtype=np.int64)
    rows_N[position_M[: len(row_M)]] = row_M
    dummies = "" if sizes.members == len(row_M) else f" ({sizes.members - len(row_M)} of its own are dummies)"
    return Alignment(
        method=method,
        rows_N=rows_N,
        sizes={"own": sizes.members, peer: sizes.others, "intersection": sizes.intersection, "union": sizes.union},
        learnt=[
            f"{peer} announced {sizes.others} ids and this side {sizes.members}{dummies}.",
            f"The union has {sizes.union} ids and the intersection {sizes.intersection}, but not which.",
            "The position of each of this side's own ids in the union.",
            *learnt,
        ],
        uids_N16=uids_N16,
        multiplications=multiplications,
    )
