"""Intersect tables by any of several keys: two rows are linked by the first key that both have, if its values are equal.

The keys are ordered by trust. For each key in turn the two parties intersect the rows that are not linked yet:

    label party                                    feature party
    how many rows have a key at all        <->     how many rows have a key at all
    for each key, of the rows that no earlier key linked:
    how many ids it brings                 <->     how many ids it brings
                       an intersection (``psi.py``) of the ids, unless a side brings none

If a value is in several rows of a side, the contract's rule for duplicates gives it to one of them, or to none. So every key
links a row to at most one row, and a linked row takes no part in later keys.

The earlier keys that a row has are part of its id. A feature party's row brings one id: its value, and the set Q of its earlier
keys. A label party's row brings an id for every Q that shares none of its own earlier keys. So two rows that both have an earlier
key have no common id, and neither side learns that their later values are equal. The earlier key did not link them, so its values
differ, or one of them belongs to another row.

Shapes: R own rows with a key; U ids of one key; M ids that a side brings; K rows of the intersection.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypedDict

import numpy as np

from tallystick.alignment.buckets import BucketStore
from tallystick.alignment.exchange import MAX_ROWS, REMEDY, exchange_sizes, notify_peers, receive_size, send_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.key_ids import KeyIds
from tallystick.alignment.matching import Index, are_distinct_indices
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LOCAL, LocalOptions
from tallystick.alignment.psi import (
    Protocol,
    Security,
    cheaters_room,
    intersect_feature_party,
    intersect_label_party,
    require_some,
)
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel


def link_by_any_key_label_party(
    keys: Sequence[KeyIds],
    rows: int,
    channel: Channel,
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    security: Security = "semi-honest",
    max_rows: int = MAX_ROWS,
    local: LocalOptions = LOCAL,
) -> Alignment:
    """Align with a feature party by the first key that two rows have in common, as the label party.

    Threat model and guarantee for each key: those of ``intersect_label_party``; nothing is learnt beyond ``learnt``. Not
    protected: how many ids the other side brings by each key; which key linked each linked row, and which earlier keys the other
    side's row has. A peer that deviates can bring any ids for every key, and can bring a linked row once more.

    Args:
        keys: ids by each key, in order of trust; at most ``MOST_KEYS``.
        rows: how many own rows have a key (R).
        channel: to the feature party.
        rng: draws this run's keys and shuffles.
        protocol: as for ``intersect_label_party``.
        security: as for ``intersect_label_party``.
        max_rows: most rows to accept from the peer, and to have; for the k-th key 2^(k - 1) times as many ids.
        local: threads, the callback of progress, and the folder of finished buckets.

    Raises DataError if a side has no row with a key, IdError if no row is linked, and ProtocolError, which names peer and step,
    if the peer breaks the protocol.
    """
    common = _Common(rng=rng, protocol=protocol, security=security, local=local)
    return _link(keys, rows, channel, common, is_label=True, max_rows=max_rows)


def link_by_any_key_feature_party(
    keys: Sequence[KeyIds],
    rows: int,
    channel: Channel,
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    security: Security = "semi-honest",
    max_rows: int = MAX_ROWS,
    local: LocalOptions = LOCAL,
) -> Alignment:
    """Align with the label party by the first key that two rows have in common. This is a feature party's side.

    Threat model, guarantee, arguments and errors as for link_by_any_key_label_party. For a linked row, this side learns that the
    other row has none of the earlier keys that its own row has, and nothing about other keys.
    """
    common = _Common(rng=rng, protocol=protocol, security=security, local=local)
    return _link(keys, rows, channel, common, is_label=False, max_rows=max_rows)


def learnt_by_keys(peer: str, others: int, *, own: int, counts: Mapping[str, int], finds: bool) -> list[str]:
    """Say what an alignment by any of several keys reveals to a side that has ``own`` rows.

    ``finds`` says whether this side is the label party.
    """
    links_by_key = ", ".join(f"{count:,} by {name}" for name, count in counts.items())
    lines = [
        f"{peer} has {others:,} rows with a key.",
        f"of each key, how many ids {peer} brings of rows that no earlier key linked.",
        f"which {sum(counts.values()):,} of this side's {own:,} rows all parties hold, and which key links each: {links_by_key}.",
    ]
    if later := sum(list(counts.values())[1:]):
        which = (
            f"which earlier keys {peer}'s row has, of those that this side's lacks"
            if finds
            else f"that {peer}'s row has none of the earlier keys that this side's row has"
        )
        lines.append(f"of each of the {later:,} rows that a later key links: {which}.")
    return lines


class _Common(TypedDict):
    """Arguments that are the same for every key's intersection."""

    rng: SecureRandom
    protocol: Protocol
    security: Security
    local: LocalOptions


def _link(keys: Sequence[KeyIds], rows: int, channel: Channel, common: _Common, *, is_label: bool, max_rows: int) -> Alignment:
    with notify_peers([channel]):
        (others,) = exchange_sizes(rows, [channel], max_rows=max_rows)
    peer, open_R = channel.peer, np.ones(rows, dtype=bool)
    linked: list[Index] = []
    rooms: list[str] = []
    multiplications = 0
    for number, key in enumerate(keys):
        # The ids that this side brings for the rows that are not linked yet (M), and the row of each
        parts, rows_of_parts = [], []
        for earlier in range(1 << number):
            has_id_U = key.earlier_U & earlier == 0 if is_label else key.earlier_U == earlier
            place_M = np.flatnonzero(has_id_U & open_R[key.row_U])
            parts.append(key.ids.gather(place_M).prefixed(b"%d:%d:" % (number, earlier)))
            rows_of_parts.append(key.row_U[place_M])
        # A key's ids are distinct, and each part has its own prefix
        ids, row_M = Ids.joined(parts, distinct=True), np.concatenate(rows_of_parts)
        most = max_rows << number
        with notify_peers([channel]):
            of = f"ids by {key.name}"
            send_size(channel, of, len(ids))
            their_ids = receive_size(channel, of, at_most=most, remedy=REMEDY)
        if not len(ids) or not their_ids:
            linked.append(np.empty(0, dtype=np.int64))
            continue
        local = common["local"]
        options: _Common = {**common, "local": replace(local, stored=partial(_store_of, local.stored, number))}
        if is_label:
            alignment = intersect_label_party(ids, [channel], may_be_empty=True, max_rows=most, **options)
        else:
            alignment = intersect_feature_party(ids, channel, may_be_empty=True, max_rows=most, **options)
        row_K = row_M[alignment.rows_N]
        with notify_peers([channel]):
            if not are_distinct_indices(row_K, rows):
                raise ProtocolError(peer, f"{peer} sent {of!r} that link a row twice; one row of a side has a value")
        open_R[row_K] = False
        linked.append(row_K)
        multiplications += alignment.multiplications
        if common["security"] == "malicious":
            rooms.append(f"by {key.name}: {cheaters_room(peer, their_ids, own=len(ids))}")
    counts = {key.name: len(row_K) for key, row_K in zip(keys, linked, strict=True)}
    with notify_peers([channel]):
        require_some(sum(counts.values()), rows, [f"{peer} {others}"])
    return Alignment(
        method="intersection",
        rows_N=np.concatenate(linked),
        key_N=np.repeat(np.arange(len(keys), dtype=np.uint8), list(counts.values())),
        sizes={
            "own": rows,
            peer: others,
            "intersection": sum(counts.values()),
            **{f"intersection by {name}": count for name, count in counts.items()},
        },
        learnt=learnt_by_keys(peer, others, own=rows, counts=counts, finds=is_label) + rooms,
        multiplications=multiplications,
    )


def _store_of(stored: Callable[[str], BucketStore], number: int, peer: str) -> BucketStore:
    """Return the store for one key's finished buckets. An alignment that is resumed goes through the earlier keys'
    stores first.
    """
    return stored(f"{peer}.key{number + 1}")
