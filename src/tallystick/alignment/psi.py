"""Intersect sets of ids privately, to learn which ids all parties have.

The label party runs one exchange with each feature party. A row takes part if all parties have it. How two parties find their
common ids is a separate protocol: ``psi_diffie_hellman.py`` for few ids, ``psi_oprf.py`` for many, ``psi_malicious.py`` against a
peer that does not follow the protocol. ``choice.py`` chooses between the first two.

    label party                                    feature party
    how many ids it has                    <->     how many ids it has
                       a protocol: places of common ids in the feature party's secret order
    where the rows stand that all have     ->      own rows, in the common order

Each side first sorts its ids by a public hash, which gives the common order. So no message depends on the order of a table, which
often says something about labels, times or other ids. Shapes: N ids of a side; K rows of the intersection.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from tallystick.alignment.choice import be_told, by_sizes, choose_protocol
from tallystick.alignment.exchange import (
    MAX_ROWS,
    check_ids,
    exchange_sizes,
    notify_peers,
    receive_list,
    receive_size,
    send_list,
    send_size,
)
from tallystick.alignment.ids import Ids
from tallystick.alignment.matching import are_distinct_indices, sorted_order
from tallystick.alignment.oprf.codes import fingerprints
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.pairwise import LOCAL, PLACES, FeatureRole, LabelRole, LocalOptions, Side
from tallystick.alignment.psi_diffie_hellman import answer_by_diffie_hellman, match_by_diffie_hellman
from tallystick.alignment.psi_malicious import answer_against_cheaters, match_against_cheaters, most_ids
from tallystick.alignment.psi_oprf import answer_by_oprf, match_by_oprf
from tallystick.alignment.randomness import SecureRandom
from tallystick.errors import IdError, ProtocolError
from tallystick.network.channel import Channel

Protocol = Literal["auto", "diffie-hellman", "oblivious-transfer"]
Security = Literal["semi-honest", "malicious"]

FEW_IDS = 5_000
"""Up to this many ids of both sides together a union uses Diffie-Hellman, which is about as fast there and assumes less."""

_ROLES: Mapping[str, tuple[LabelRole, FeatureRole]] = {
    "diffie-hellman": (match_by_diffie_hellman, answer_by_diffie_hellman),
    "oblivious-transfer": (match_by_oprf, answer_by_oprf),
    "malicious": (match_against_cheaters, answer_against_cheaters),
}


def intersect_label_party(
    ids: Sequence[bytes],
    channels: Sequence[Channel],
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    security: Security = "semi-honest",
    may_be_empty: bool = False,
    max_rows: int = MAX_ROWS,
    local: LocalOptions = LOCAL,
) -> Alignment:
    """Align with one or more feature parties on the ids that all have, as the label party.

    Threat model: honest-but-curious peers, alone or together; with ``security`` "malicious" peers that deviate as they like.
    Guarantee: that of the protocol; nothing is learnt beyond ``learnt``. Not protected: with several feature parties this side
    learns its intersection with each of them, not only the joint one. Any side may lie about its ids, and so ask whether the
    others have them. docs/results/deviations.md lists what else a deviating peer gains.

    Args:
        ids: this party's ids, unique.
        channels: one per feature party.
        rng: draws this run's keys and shuffles.
        protocol: ``diffie-hellman``, ``oblivious-transfer``, or ``auto`` by the sizes and the network; the same for all parties.
        security: ``semi-honest``, or ``malicious``, which uses oblivious transfer; the same for all parties.
        may_be_empty: whether an empty intersection is allowed.
        max_rows: most ids to accept from a peer, and to have.
        local: threads, the callback of progress, and the folder of finished buckets.

    Raises DataError if a side has no ids or if ids repeat, IdError if no id is common to all, and ProtocolError, which names peer
    and step, if a peer breaks the protocol.
    """
    with notify_peers(channels):
        checked = check_ids(ids, max_rows=max_rows)
        sizes = exchange_sizes(len(ids), channels, max_rows=max_rows)
        protocol_used = by_rule(protocol, security, len(ids) + sizes[0], several=len(channels) > 1)
        if protocol_used is None:
            protocol_used, line = choose_protocol(channels[0], len(ids), sizes[0])
            local.say(f"the line to {channels[0].peer} has {line}; the alignment uses {protocol_used}")
        match_with, _ = _ROLES[protocol_used]
        side = _sorted_side(checked, rng, local)
        matches, multiplications = match_with(side, channels, sizes)
        common_K = np.sort(functools.reduce(np.intersect1d, (match.own_K for match in matches)))
        for channel, match in zip(channels, matches, strict=True):
            place_of_id_N = np.full(len(ids), -1, dtype=np.int32)
            place_of_id_N[match.own_K] = match.place_K
            send_size(channel, PLACES, len(common_K))
            send_list(channel, PLACES, place_of_id_N[common_K])
            match.prove(common_K)
        if not may_be_empty:
            require_some(len(common_K), len(ids), [f"{c.peer} {size}" for c, size in zip(channels, sizes, strict=True)])
    pairwise = [len(match.own_K) for match in matches]
    rows_K, own = side.row_N[common_K], len(ids)
    sentences = [f"{channel.peer} has {size:,} ids." for channel, size in zip(channels, sizes, strict=True)]
    sizes_by_name = {"own": own, **{channel.peer: size for channel, size in zip(channels, sizes, strict=True)}}
    if len(channels) > 1:
        for channel, both in zip(channels, pairwise, strict=True):
            sizes_by_name[f"intersection with {channel.peer}"] = both
            sentences.append(f"which {both:,} of this side's {own:,} ids {channel.peer} holds, too.")
    sizes_by_name["intersection"] = len(rows_K)
    sentences.append(f"which {len(rows_K):,} of this side's {own:,} ids all parties hold.")
    outcome = Alignment(
        method="intersection", rows_N=rows_K, sizes=sizes_by_name, learnt=sentences, multiplications=multiplications
    )
    if security == "malicious":
        outcome.learnt.extend(
            cheaters_room(channel.peer, size, own=len(ids)) for channel, size in zip(channels, sizes, strict=True)
        )
    return outcome


def intersect_feature_party(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    security: Security = "semi-honest",
    one_of_several: bool = False,
    may_be_empty: bool = False,
    max_rows: int = MAX_ROWS,
    local: LocalOptions = LOCAL,
) -> Alignment:
    """Align with the label party on the ids that all parties have. This is a feature party's side.

    Threat model, guarantee, arguments and errors as for intersect_label_party. This side learns which of its rows all parties
    have. As ``one_of_several`` feature parties it does not learn its intersection with the label party alone.
    """
    with notify_peers([channel]):
        checked = check_ids(ids, max_rows=max_rows)
        (size,) = exchange_sizes(len(ids), [channel], max_rows=max_rows)
        protocol_used = by_rule(protocol, security, len(ids) + size, several=one_of_several) or be_told(channel)
        _, answer_to = _ROLES[protocol_used]
        side = _sorted_side(checked, rng, local)
        answer, multiplications = answer_to(side, channel, size, one_of_several=one_of_several)
        count = receive_size(channel, PLACES, at_most=min(len(ids), size))
        place_K = receive_list(channel, PLACES, count, dtype=np.int32)
        places = len(answer.order_N)
        if not are_distinct_indices(place_K, places):
            raise ProtocolError(channel.peer, f"{channel.peer} sent {PLACES!r} that repeat or lie outside 0 to {places - 1}")
        common_K = answer.order_N[place_K].astype(np.int64)
        if (common_K < 0).any():
            raise ProtocolError(channel.peer, f"{channel.peer} sent {PLACES!r} at which this side has no id: they fill a bucket")
        answer.check(place_K)
        if (common_K[1:] < common_K[:-1]).any():
            raise ProtocolError(
                channel.peer, f"{channel.peer} sent {PLACES!r} in an order that a side with these ids cannot have"
            )
        if not may_be_empty:
            require_some(count, len(ids), [f"{channel.peer} {size}"])
    return Alignment(
        method="intersection",
        rows_N=side.row_N[common_K],
        sizes={"own": len(ids), channel.peer: size, "intersection": count},
        learnt=learnt_of(channel.peer, size, own=len(ids), common=count)
        + ([cheaters_room(channel.peer, size, own=len(ids))] if security == "malicious" else []),
        multiplications=multiplications,
    )


def cheaters_room(peer: str, size: int, *, own: int) -> str:
    """Say how many ids a cheating peer could have asked for."""
    return f"{peer} announced {size} ids; by cheating it could have asked for {most_ids(size, own)}."


def learnt_of(peer: str, size: int, *, own: int, common: int) -> list[str]:
    """Say what an intersection reveals to a side with ``own`` ids about one peer and its ``size`` ids."""
    return [f"{peer} has {size:,} ids.", f"which {common:,} of this side's {own:,} ids all parties hold."]


def by_rule(protocol: Protocol, security: Security, ids: int, *, several: bool) -> str | None:
    """Return the protocol's name, or None if the label party is to measure the network line and choose.

    Several feature parties always use oblivious transfer, because by Diffie-Hellman the label party could invent matches there.
    """
    if security == "malicious":
        return security
    if protocol != "auto":
        return protocol
    return "oblivious-transfer" if several else by_sizes(ids)


def _sorted_side(ids: Ids, rng: SecureRandom, local: LocalOptions) -> Side:
    """Return the side with its ids in the order of a public hash.

    All parties hold the common ids, so their order reveals nothing new. The rank of a common id among a side's other ids would,
    so a protocol that shows places still shuffles.
    """
    prints_N16 = fingerprints(ids)
    row_N = sorted_order(prints_N16)
    return Side(unsorted=ids, row_N=row_N, prints_N16=prints_N16.take(row_N, axis=0), rng=rng, local=local)


def require_some(count: int, own: int, others: Sequence[str]) -> None:
    """Raise IdError if no id is common."""
    if count == 0:
        raise IdError(
            f"no id is common to all parties (this side has {own} ids, {', '.join(others)}); "
            "check that the key columns mean the same and are normalised alike in the contract"
        )
