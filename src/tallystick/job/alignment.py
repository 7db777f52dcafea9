"""Which alignment a contract asks for, and this party's role in it."""

from collections.abc import Mapping, Sequence

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.network.channel import Channel, Progress


def align(
    contract: Contract, party: PartyFile, ids: Sequence[bytes], channels: Mapping[str, Channel], *, progress: Progress
) -> Alignment:
    """Align this party's ids with the others' by the contract's method."""
    rng, limit, threads = SecureRandom(), contract.alignment.max_rows, party.threads
    is_label = contract.role_of(party.party) == "label"
    peers = [channels[name] for name in (contract.feature_parties if is_label else (contract.label_party,))]
    dummies = contract.union.label_dummies if is_label else contract.union.feature_dummies
    if contract.alignment.method == "intersection":
        if is_label:
            return intersect_label_party(ids, peers, rng=rng, max_rows=limit, threads=threads, progress=progress)
        return intersect_feature_party(ids, peers[0], rng=rng, max_rows=limit, threads=threads, progress=progress)
    if contract.alignment.method == "union":
        unite = union_label_party if is_label else union_feature_party
        return unite(ids, peers[0], rng=rng, dummies=dummies, max_rows=limit, threads=threads, progress=progress)
    assert contract.helper is not None
    return union_with_helper_party(ids, peers[0], channels[contract.helper], rng=rng, dummies=dummies, max_rows=limit)
