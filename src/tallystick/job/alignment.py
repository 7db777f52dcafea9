"""Which alignment a contract asks for, and this party's role in it."""

from collections.abc import Mapping, Sequence

from tallystick.alignment.exchange import MAX_ROWS, usual_max_rows
from tallystick.alignment.outcome import DEVIATIONS, Alignment
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import MAX_IDS, Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DataError
from tallystick.network.channel import Channel, Progress

LOW_MATCH = 0.5


def align(
    contract: Contract,
    party: PartyFile,
    ids: Sequence[bytes],
    channels: Mapping[str, Channel],
    *,
    progress: Progress,
    expected: int = 0,
) -> Alignment:
    """Align this party's ids with the others' by the contract's method; a peer may always bring ``expected`` ids."""
    rng, limit, threads = SecureRandom(), max_rows(contract, len(ids), expected=expected), party.threads
    is_label = contract.role_of(party.party) == "label"
    peers = [channels[name] for name in (contract.feature_parties if is_label else (contract.label_party,))]
    dummies = contract.union.label_dummies if is_label else contract.union.feature_dummies
    if contract.alignment.method == "intersection":
        if is_label:
            return intersect_label_party(ids, peers, rng=rng, max_rows=limit, threads=threads, progress=progress)
        several = len(contract.feature_parties) > 1
        return intersect_feature_party(
            ids, peers[0], rng=rng, one_of_several=several, max_rows=limit, threads=threads, progress=progress
        )
    if contract.alignment.method == "union":
        unite = union_label_party if is_label else union_feature_party
        return unite(ids, peers[0], rng=rng, dummies=dummies, max_rows=limit, threads=threads, progress=progress)
    assert contract.helper is not None
    return union_with_helper_party(ids, peers[0], channels[contract.helper], rng=rng, dummies=dummies, max_rows=limit)


def max_rows(contract: Contract, own: int, *, expected: int = 0) -> int:
    """Most ids that a party with ``own`` ids takes part with, or accepts."""
    if contract.alignment.max_rows is not None:
        return contract.alignment.max_rows
    return min(max(usual_max_rows(own), expected), MAX_IDS)


def deviation_of(contract: Contract) -> str:
    """Say what a peer gains that does not follow the protocol of this contract's alignment."""
    several = contract.alignment.method == "intersection" and len(contract.feature_parties) > 1
    return DEVIATIONS["intersection of several" if several else contract.alignment.method]


def helpers_max_rows(contract: Contract) -> int:
    """Most ids that a helper accepts: it has none of its own to go by, and what it sees tells of none."""
    return contract.alignment.max_rows or MAX_ROWS


def require_match_rate(contract: Contract, party: str, alignment: Alignment) -> None:
    """End the run, on every side alike, where fewer of the label party's ids matched than the contract wants.

    All parties know the two counts from the alignment, so this discloses nothing further. Raises DataError.
    """
    least = contract.alignment.min_match_rate
    both, rate = alignment.sizes["intersection"], match_rate(contract, party, alignment)
    if rate < least:
        raise DataError(
            f"alignment.min_match_rate = {least:g}: only {both} of the {_label_ids(contract, party, alignment)} ids of "
            f"{contract.label_party} ({rate:.1%}) are common; agree on other alignment.keys.normalise, or on a smaller rate"
        )


def match_rate(contract: Contract, party: str, alignment: Alignment) -> float:
    """Share of the label party's ids that all parties have; on a union of announced ids, dummies included."""
    return alignment.sizes["intersection"] / _label_ids(contract, party, alignment)


def low_match(alignment: Alignment) -> str | None:
    """Say so if fewer than half of the ids of the side with the fewest are common; None if not."""
    sizes = {name: size for name, size in alignment.sizes.items() if not name.startswith("intersection") and name != "union"}
    both, fewest = alignment.sizes["intersection"], min(sizes.values())
    if both >= LOW_MATCH * fewest:
        return None
    return f"only {both} ids are common, {both / fewest:.1%} of the {fewest} of the side that has the fewest"


def _label_ids(contract: Contract, party: str, alignment: Alignment) -> int:
    return alignment.sizes["own" if party == contract.label_party else contract.label_party]
