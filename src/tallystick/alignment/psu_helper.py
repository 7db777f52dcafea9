"""Unite sets of ids through a helper that colludes with neither side: keyed hashes instead of public-key arithmetic.

    label party  <->  feature party     a key that the helper never has
    each party    ->  helper            keyed hashes of its ids, in random order
    helper        ->  each party        the union's size; for each hash, a position drawn at random

Shapes: N positions of the union; M own ids, dummies included.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b, sha256

import numpy as np

from tallystick.alignment import union
from tallystick.alignment.exchange import (
    MAX_ROWS,
    REMEDY,
    attribute_errors,
    check_ids,
    exchange_sizes,
    notify_peers,
    receive_list,
    receive_size,
    send_list,
    send_size,
)
from tallystick.alignment.hashing import hash_each
from tallystick.alignment.matching import TAG_BYTES, DuplicateTags, are_distinct_indices, match
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError, SharedDataError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

_KEY_BYTES = 32

_HASHES = "keyed hashes"
_POSITIONS = "positions in the union"


class KeyShare(Message, frozen=True):
    """One party's half of the key for the hashes, sent to the other party only."""

    share: bytes


@dataclass(frozen=True, kw_only=True)
class HelperOutcome:
    """What the helper learnt. It keeps nothing else."""

    sizes: dict[str, int]
    learnt: list[str]


def union_with_helper_party(
    ids: Sequence[bytes],
    peer: Channel,
    helper: Channel,
    *,
    rng: SecureRandom,
    dummies: int = 0,
    max_rows: int = MAX_ROWS,
) -> Alignment:
    """Learn from a helper the positions of this party's ids in the union, as either party.

    It is not in the papers. It is the usual server-aided protocol with a pseudorandom function (Kamara et al. 2014, section 3).

    Threat model: honest-but-curious peer and helper, and the helper colludes with neither. Guarantee: if BLAKE2b with a key is a
    pseudorandom function, the helper learns the sizes of both sets and of the intersection; each party learns these sizes and the
    positions of its own ids. Not protected: everything, if the helper colludes with a party (which then learns the other's ids
    that it can guess); the sizes, which ``dummies`` blur without a formal guarantee.

    Args:
        ids: this party's ids, unique.
        peer: channel to the other party.
        helper: channel to the helper.
        rng: draws the key's half, the order and the dummies.
        dummies: most made-up ids that are added to blur the sizes.
        max_rows: most ids to accept from the peer, and to have.

    Raises DataError if a side has no ids or ids repeat, and if no id is common or one set contains the other; ProtocolError,
    which names peer and step, if a peer breaks the protocol.
    """
    with notify_peers([peer, helper]):
        own_ids, row_M = check_ids(ids, max_rows=max_rows).sorted()
        members = union.with_dummies(own_ids, dummies, rng=rng)
        (other_members,) = exchange_sizes(len(members), [peer], max_rows=max_rows)
        key = agree_on_key(peer, rng)
        order_M = rng.permutation(len(members))
        send_size(helper, _HASHES, len(members))
        send_list(helper, _HASHES, hash_each(blake2b(key=key, digest_size=TAG_BYTES), (members[row] for row in order_M)))
        size = union.receive_union(helper, _POSITIONS, len(members), other_members)
        union.check_union(size, len(members), other_members, peer.peer)
        shuffled_M = receive_list(helper, _POSITIONS, len(members), dtype=np.int64)
        if not are_distinct_indices(shuffled_M, size):
            raise ProtocolError(helper.peer, f"{helper.peer} sent {_POSITIONS!r} that repeat or lie outside 0 to {size - 1}")
    position_M = np.empty(len(members), dtype=np.int64)
    position_M[order_M] = shuffled_M
    return union.outcome(
        method="union-with-helper",
        position_M=position_M,
        row_M=row_M,
        sizes=union.UnionSizes(members=len(members), others=other_members, union=size),
        peer=peer.peer,
        learnt=[f"{helper.peer} learnt these sizes, and no id unless it colludes with a party."],
    )


def union_helper(first: Channel, second: Channel, *, rng: SecureRandom, max_rows: int = MAX_ROWS) -> HelperOutcome:
    """Tell two parties the positions of their ids in the union, from keyed hashes, as the helper.

    Threat model and guarantee as for union_with_helper_party: this side learns only the sizes. Args: a channel to each party,
    ``rng`` for the positions, and the most ids to accept from a party.

    Raises DataError if no id is common or one set contains the other, ProtocolError if a party breaks the protocol, and
    PeerStopped if a party ended the job.
    """
    parties = [first, second]
    with notify_peers(parties):
        sizes = [receive_size(party, _HASHES, at_most=max_rows, remedy=REMEDY) for party in parties]
        hashes = [receive_list(party, _HASHES, size, shape=(TAG_BYTES,)) for party, size in zip(parties, sizes, strict=True)]
        first_M16, second_M16 = hashes
        try:
            of_first, of_second = match(first_M16, second_M16)
        except DuplicateTags as error:
            with attribute_errors(parties[error.side], _HASHES):
                raise
        member_of_second = np.full(len(second_M16), -1, dtype=np.int64)
        member_of_second[of_second] = of_first
        new = member_of_second < 0
        size = len(first_M16) + int(new.sum())
        member_of_second[new] = np.arange(len(first_M16), size)
        position_N = rng.permutation(size)  # random numbers for the union's members
        positions = [position_N[: len(first_M16)], position_N[member_of_second]]
        for party in parties:
            send_size(party, _POSITIONS, size)
        both = sum(sizes) - size
        if both == 0 or size in sizes:
            sentence = (
                f"{parties[0].peer} has {sizes[0]} ids, {parties[1].peer} {sizes[1]} and the union {size}: these sizes alone "
                "show who is in the intersection, or that it is empty, so both parties stop here"
            )
            raise SharedDataError(sentence, told=sentence)
        for party, position_M in zip(parties, positions, strict=True):
            send_list(party, _POSITIONS, position_M)
    sizes_by_name = {first.peer: sizes[0], second.peer: sizes[1], "intersection": both, "union": size}
    return HelperOutcome(
        sizes=sizes_by_name,
        learnt=[
            f"{first.peer} announced {sizes[0]} ids and {second.peer} {sizes[1]}.",
            f"{both} of them are common; neither which ones nor any id.",
        ],
    )


def agree_on_key(peer: Channel, rng: SecureRandom) -> bytes:
    """Combine both sides' halves, so that neither alone chooses the key. Their own channel hides it from the helper."""
    own = rng.bytes(_KEY_BYTES)
    peer.send(KeyShare(share=own))
    other = peer.receive(KeyShare).share
    if len(other) != _KEY_BYTES or other == own:
        raise ProtocolError(
            peer.peer, f"{peer.peer} sent a key share of {len(other)} bytes, or this side's own; expected {_KEY_BYTES} fresh ones"
        )
    return key_of_shares(own, other)


def key_of_shares(own: bytes, other: bytes) -> bytes:
    """Derive the key from two halves, in either order."""
    return sha256(b"tallystick/alignment/v1/helper\x00" + b"".join(sorted((own, other)))).digest()
