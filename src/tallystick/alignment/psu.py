"""Unite sets of ids privately: all ids get pseudonyms, and neither side learns which ids both have.

How two parties do it is a separate protocol: ``psu_diffie_hellman.py`` for few ids or a slow line, ``psu_switching.py`` for many
ids.

    label party                                    feature party
    how many ids it has                    <->     how many ids it has
                       a protocol, with a role for the side that has fewer ids and one for the other
    universal ids, sorted                          the same

The label party has the first role if both have equally many ids. Each side first sorts its ids, so no message depends on the
order of a table. Shapes: N ids of the union; M own ids, dummies included.
"""

from collections.abc import Mapping, Sequence

from tallystick.alignment import union
from tallystick.alignment.exchange import MAX_ROWS, check_ids, exchange_sizes, notify_peers
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import FEW_IDS, Protocol
from tallystick.alignment.psu_diffie_hellman import merge_by_diffie_hellman, name_by_diffie_hellman
from tallystick.alignment.psu_switching import merge_by_switching, permute_by_switching
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.union import UnionRole, UnionSide
from tallystick.network.channel import Channel, Progress, no_progress

_ROLES: Mapping[str, tuple[UnionRole, UnionRole]] = {
    "diffie-hellman": (merge_by_diffie_hellman, name_by_diffie_hellman),
    "oblivious-transfer": (permute_by_switching, merge_by_switching),
}
"""The role of the side with fewer ids, and the role of the other."""


def union_label_party(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    dummies: int = 0,
    max_rows: int = MAX_ROWS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Alignment:
    """Assign every id of the union, as the label party, a universal id that does not reveal who has it.

    Threat model: an honest-but-curious peer. Guarantee: that of the protocol; a side learns the sizes of both sets and of the
    intersection and the positions of its own ids, nothing more. Not protected: the sizes (``dummies`` blur them, without a formal
    guarantee); a peer that lies about its ids or deviates; and what training on the union reveals about membership, which attacks
    measure after the run.

    Args:
        ids: this party's ids, unique.
        channel: to the one other party.
        rng: draws keys, shuffles and dummies.
        protocol: ``diffie-hellman``, ``oblivious-transfer``, or ``auto`` by the sizes; the same for both parties.
        dummies: most made-up ids that are added to blur the sizes.
        max_rows: most ids to accept from the peer, and to have.
        threads: how many threads compute for Diffie-Hellman; all cores by default.
        progress: called with how far this side is.

    Raises DataError if a side has no ids or ids repeat, and if no id is common or one set contains the other; ProtocolError,
    which names peer and step, if the peer breaks the protocol.
    """
    side = UnionSide(label=True, rng=rng, threads=threads, progress=progress)
    return _unite(ids, channel, side, protocol=protocol, dummies=dummies, max_rows=max_rows)


def union_feature_party(
    ids: Sequence[bytes],
    channel: Channel,
    *,
    rng: SecureRandom,
    protocol: Protocol = "auto",
    dummies: int = 0,
    max_rows: int = MAX_ROWS,
    threads: int | None = None,
    progress: Progress = no_progress,
) -> Alignment:
    """Assign every id of the union a universal id, as the feature party. The rest is as for union_label_party."""
    side = UnionSide(label=False, rng=rng, threads=threads, progress=progress)
    return _unite(ids, channel, side, protocol=protocol, dummies=dummies, max_rows=max_rows)


def chosen(protocol: Protocol, ids: int) -> Protocol:
    """Return the protocol that runs if both sides together have this many ids."""
    if protocol != "auto":
        return protocol
    return "diffie-hellman" if ids <= FEW_IDS else "oblivious-transfer"


def _unite(
    ids: Sequence[bytes], channel: Channel, side: UnionSide, *, protocol: Protocol, dummies: int, max_rows: int
) -> Alignment:
    with notify_peers([channel]):
        own_ids, row_M = check_ids(ids, max_rows=max_rows).sorted()
        members = union.with_dummies(own_ids, dummies, rng=side.rng)
        (other_members,) = exchange_sizes(len(members), [channel], max_rows=max_rows)
        of_fewer, of_more = _ROLES[chosen(protocol, len(members) + other_members)]
        fewer = len(members) < other_members or (len(members) == other_members and side.label)
        names = (of_fewer if fewer else of_more)(members, other_members, channel, side)
    return union.outcome(
        method="union",
        position_M=names.position_M,
        row_M=row_M,
        sizes=union.UnionSizes(members=len(members), others=other_members, union=len(names.uids_N16)),
        peer=channel.peer,
        learnt=(),
        uids_N16=names.uids_N16,
        multiplications=names.multiplications,
    )
