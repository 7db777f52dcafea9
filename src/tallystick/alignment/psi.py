"""Private set intersection by Diffie-Hellman on ristretto255: which ids do all parties have?

The label party runs one exchange with each feature party; a row takes part when all of them have it.

    label party, key a                     feature party, key b
    H(x)^a of its ids          ->          H(y)^b of its ids, in random order
                               <-
    (H(y)^b)^a, cut to tags                (H(x)^a)^b, cut to tags
                               <-          a digest of its tags                         } with one feature party only:
    its tags, in the order of the y  ->    where they equal own ones: the common ids    } neither can add a match
                               <-          the tags, in the order of the x
    equal tags: same id; rows that all have
    where these stand among the y  ->      own rows, in the common order

Shapes: N rows of a list; K rows of the intersection; B rows of a chunk.
"""

import functools
from collections.abc import Sequence
from concurrent.futures import Future
from hashlib import blake2b
from itertools import repeat

import numpy as np

from tallystick.alignment.exchange import (
    MAX_ROWS,
    attribute_errors,
    check_ids,
    exchange,
    exchange_sizes,
    notify_peers,
    receive_list,
    receive_size,
    require_distinct,
    send_list,
    send_size,
    spans,
)
from tallystick.alignment.group import ELEMENT_BYTES, Elements
from tallystick.alignment.matching import TAG_BYTES, Index, Tags, are_distinct_indices, match, sorted_order, tags_of
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.workers import Workers, gathered, results
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel, Progress, no_progress
from tallystick.network.messages import Message

_LABEL_IDS = "label party's blinded ids"
_FEATURE_IDS = "feature party's blinded ids"
_TAGS = "label party's tags"
_RETURNED = "feature party's tags"
_PLACES = "places of the joint rows"
_WHAT = "private set intersection"


class TagsDigest(Message, frozen=True):
    """The only feature party to the label party: a digest of the tags that it is going to send, before it sees the other's."""

    digest: bytes


def intersect_label_party(
    ids: Sequence[bytes],
    channels: Sequence[Channel],
    *,
    rng: SecureRandom,
    max_rows: int = MAX_ROWS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Alignment:
    """Align with one or more feature parties on the ids that all have: the label party's side.

    Diffie-Hellman private set intersection (Meadows 1986; Huberman, Franklin and Hogg 1999) on ristretto255 (RFC 9496).

    Threat model: peers that follow the protocol and may study all they received (honest but curious), alone or together.
    Guarantee: under the decisional Diffie-Hellman assumption, with the hash as a random oracle, nothing is learnt
    beyond ``learnt``. Not protected: with several feature parties this side learns its intersection with each of
    them, not only the joint one; any side may lie about its ids, and so ask whether the others have them. With one feature
    party neither side can add a match, though it may move one to another row; docs/alignment.md says what remains.

    Args:
        ids: this party's ids, unique.
        channels: one per feature party.
        rng: draws this run's key.
        max_rows: most ids to accept from a peer (and to have).
        threads: threads of arithmetic; all cores by default.
        progress: told of scalar multiplications.

    Raises DataError if a side has no ids, if ids repeat or if no id is common to all; ProtocolError, naming peer
    and step, for what the protocol does not allow.
    """
    with notify_peers(channels):
        check_ids(ids, max_rows=max_rows)
        sizes = exchange_sizes(len(ids), channels, max_rows=max_rows)
        key = rng.scalar()
        with Workers(threads=threads, what=_WHAT, total=len(ids) + sum(sizes), progress=progress) as workers:
            # The order of these may be the table's: they are random to the peers, who never learn which is which.
            blinded = [workers.blind(ids[span], key) for span in spans(len(ids))]
            theirs: list[list[Future[Elements]]] = [[] for _ in channels]
            arriving = exchange(
                channels,
                sends=_LABEL_IDS,
                outgoing=results(blinded),
                receives=_FEATURE_IDS,
                incoming=sizes,
                shape=(ELEMENT_BYTES,),
            )
            for index, elements_B32 in arriving:
                theirs[index].append(workers.multiply(elements_B32, key, keep=tags_of))
            one = len(channels) == 1
            pairs = [_match_with(*exchange, proves=one) for exchange in zip(channels, theirs, sizes, repeat(len(ids)))]
        rows_K = _in_common_order(ids, functools.reduce(np.intersect1d, (own_K for own_K, _ in pairs)))
        for channel, (own_K, place_K) in zip(channels, pairs, strict=True):
            place_of_row_N = np.full(len(ids), -1, dtype=np.int64)
            place_of_row_N[own_K] = place_K
            send_size(channel, _PLACES, len(rows_K))
            send_list(channel, _PLACES, place_of_row_N[rows_K])
        _require_some(len(rows_K), len(ids), [f"{c.peer} {size}" for c, size in zip(channels, sizes, strict=True)])
    pairwise = [len(own_K) for own_K, _ in pairs]
    return _label_outcome(rows_K, len(ids), channels, sizes, pairwise, workers.multiplications)


def intersect_feature_party(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    one_of_several: bool = False,
    max_rows: int = MAX_ROWS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Alignment:
    """Align with the label party on the ids that all parties have: a feature party's side.

    Threat model, guarantee, arguments and errors as for intersect_label_party. This side learns which of its rows
    all parties have; as ``one_of_several`` feature parties it does not learn its intersection with the label party alone,
    and cannot tell a made-up match where only few are claimed.
    """
    with notify_peers([channel]):
        check_ids(ids, max_rows=max_rows)
        (size,) = exchange_sizes(len(ids), [channel], max_rows=max_rows)
        key = rng.scalar()
        # The label party learns which places of this list match: in table order these would tell of the rows between.
        order_N = rng.permutation(len(ids))
        with Workers(threads=threads, what=_WHAT, total=len(ids) + size, progress=progress) as workers:
            blinded = [workers.blind([ids[row] for row in order_N[span]], key) for span in spans(len(ids))]
            arriving = exchange(
                [channel],
                sends=_FEATURE_IDS,
                outgoing=results(blinded),
                receives=_LABEL_IDS,
                incoming=[size],
                shape=(ELEMENT_BYTES,),
            )
            with attribute_errors(channel, _LABEL_IDS):
                tags = [workers.multiply(elements_B32, key, keep=tags_of) for _, elements_B32 in arriving]
                tags_16 = gathered(tags, size, width=TAG_BYTES)
            require_distinct(channel, _LABEL_IDS, tags_16)
            common_K = None if one_of_several else _own_common(channel, tags_16, len(ids))
            send_list(channel, _TAGS, tags_16)
        count = receive_size(channel, _PLACES, at_most=min(len(ids), size))
        place_K = receive_list(channel, _PLACES, count, dtype=np.int64)
        if not are_distinct_indices(place_K, len(ids)):
            raise ProtocolError(channel.peer, f"{channel.peer} sent {_PLACES!r} that repeat or lie outside 0 to {len(ids) - 1}")
        rows_K = order_N[place_K]
        if common_K is not None and not np.array_equal(np.sort(place_K), np.sort(common_K)):
            wrong = "that are not those whose tags match" if count == len(common_K) else f"for the {len(common_K)} that match"
            raise ProtocolError(channel.peer, f"{channel.peer} sent {count} {_PLACES!r} {wrong}")
        if not np.array_equal(rows_K, _in_common_order(ids, rows_K)):
            raise ProtocolError(
                channel.peer, f"{channel.peer} sent {_PLACES!r} in an order that nobody who has these ids would choose"
            )
        _require_some(count, len(ids), [f"{channel.peer} {size}"])
    return Alignment(
        method="intersection",
        rows_N=rows_K,
        sizes={"own": len(ids), channel.peer: size, "intersection": count},
        learnt=learnt_of(channel.peer, size, own=len(ids), common=count),
        multiplications=workers.multiplications,
    )


def _match_with(channel: Channel, theirs: "list[Future[Elements]]", size: int, own: int, *, proves: bool) -> tuple[Index, Index]:
    """Give the own rows that a feature party has too, and their places in its list; ``proves``: show it how one knows."""
    with attribute_errors(channel, _FEATURE_IDS):
        their_tags_N16 = gathered(theirs, size, width=TAG_BYTES)
    require_distinct(channel, _FEATURE_IDS, their_tags_N16)
    promised = None
    if proves:
        promised = channel.receive(TagsDigest).digest
        send_list(channel, _RETURNED, their_tags_N16)
    own_tags_N16 = receive_list(channel, _TAGS, own, shape=(TAG_BYTES,))
    if promised is not None and _digest(own_tags_N16) != promised:
        raise ProtocolError(channel.peer, f"{channel.peer} sent other {_TAGS!r} than it had settled on before it saw this side's")
    with attribute_errors(channel, f"{_FEATURE_IDS} and {_TAGS}"):
        return match(own_tags_N16, their_tags_N16)


def _own_common(channel: Channel, tags_M16: Tags, own: int) -> Index:
    """Give the places of this feature party's ids that the label party has too.

    Each side's tags of the other's ids prove that it knows its key: a tag that matches cannot be made up before one has seen
    it. So this side settles on its tags by their digest, sees the label party's, and only then shows its own.
    """
    channel.send(TagsDigest(digest=_digest(tags_M16)))
    returned_N16 = receive_list(channel, _RETURNED, own, shape=(TAG_BYTES,))
    with attribute_errors(channel, f"{_RETURNED} and {_LABEL_IDS}"):
        common_K, _ = match(returned_N16, tags_M16)
    return common_K


def _digest(tags_N16: Tags) -> bytes:
    return blake2b(np.ascontiguousarray(tags_N16).tobytes(), digest_size=32, person=b"tallystick tags").digest()


def _in_common_order(ids: Sequence[bytes], rows_K: Index) -> Index:
    """Sort rows by a public hash of their ids: all parties hold these ids, so the order tells them nothing new."""
    hashes = b"".join(blake2b(ids[row], digest_size=TAG_BYTES, person=b"tallystick order").digest() for row in rows_K)
    return rows_K[sorted_order(np.frombuffer(hashes, dtype=np.uint8).reshape(-1, TAG_BYTES))]


def learnt_of(peer: str, size: int, *, own: int, common: int) -> list[str]:
    """What an intersection tells a side that has ``own`` ids of one peer and its ``size`` ids, in plain sentences."""
    return [f"{peer} has {size} ids.", f"{common} of this side's {own} ids are held by all parties, and which ones."]


def _require_some(count: int, own: int, others: Sequence[str]) -> None:
    if count == 0:
        raise DataError(
            f"no id is common to all parties (this side has {own} ids, {', '.join(others)}); "
            "check that the key columns mean the same and are normalised alike in the contract"
        )


def _label_outcome(
    rows_K: Index, own: int, channels: Sequence[Channel], sizes: list[int], pairwise: list[int], multiplications: int
) -> Alignment:
    learnt = [f"{channel.peer} has {size} ids." for channel, size in zip(channels, sizes, strict=True)]
    known = {"own": own, **{channel.peer: size for channel, size in zip(channels, sizes, strict=True)}}
    if len(channels) > 1:
        for channel, both in zip(channels, pairwise, strict=True):
            known[f"intersection with {channel.peer}"] = both
            learnt.append(f"{both} of this side's {own} ids are held by {channel.peer} too, and which ones.")
    known["intersection"] = len(rows_K)
    learnt.append(f"{len(rows_K)} of this side's {own} ids are held by all parties, and which ones.")
    return Alignment(method="intersection", rows_N=rows_K, sizes=known, learnt=learnt, multiplications=multiplications)
