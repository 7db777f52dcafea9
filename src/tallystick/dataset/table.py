"""Ways of linking rows by name: a row each, and nobody else compares the names.

A row says how the rows are aligned, in each role, and which dataset the outcome makes. What a contract's checks ask is in
``config/linkage.py``, below the config that asks it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.alignment.exchange import MAX_ROWS
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import HelperOutcome, union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.data.encoder import Encoder
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.union import UnionDataset
from tallystick.network.channel import Channel, Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a party brings to an alignment.

    Args:
        ids: its unique ids.
        peers: the feature parties for the label party, the label party for a feature party.
        helper: to the helper, if there is one.
        several: whether there are several feature parties.
        rng: of keys, shuffles and dummies.
        dummies: most made-up ids to blur the sizes.
        max_rows: most ids to accept from a peer, and to have.
        threads: of arithmetic; all cores if None.
        progress: called as it goes.
    """

    ids: Sequence[bytes]
    peers: Sequence[Channel]
    helper: Channel | None = None
    several: bool = False
    rng: SecureRandom
    dummies: int = 0
    max_rows: int = MAX_ROWS
    threads: int | None = None
    progress: Progress = no_progress


def _intersect_label(meeting: Meeting) -> Alignment:
    return intersect_label_party(
        meeting.ids,
        meeting.peers,
        rng=meeting.rng,
        max_rows=meeting.max_rows,
        threads=meeting.threads,
        progress=meeting.progress,
    )


def _intersect_feature(meeting: Meeting) -> Alignment:
    return intersect_feature_party(
        meeting.ids,
        meeting.peers[0],
        rng=meeting.rng,
        one_of_several=meeting.several,
        max_rows=meeting.max_rows,
        threads=meeting.threads,
        progress=meeting.progress,
    )


def _unite(role: Callable[..., Alignment]) -> Callable[[Meeting], Alignment]:
    def unite(meeting: Meeting) -> Alignment:
        return role(
            meeting.ids,
            meeting.peers[0],
            rng=meeting.rng,
            dummies=meeting.dummies,
            max_rows=meeting.max_rows,
            threads=meeting.threads,
            progress=meeting.progress,
        )

    return unite


def _unite_with_helper(meeting: Meeting) -> Alignment:
    assert meeting.helper is not None, "the contract names a helper"
    return union_with_helper_party(
        meeting.ids, meeting.peers[0], meeting.helper, rng=meeting.rng, dummies=meeting.dummies, max_rows=meeting.max_rows
    )


class DatasetKind(Protocol):
    """A class of datasets, as the job makes them."""

    def of(self, contract: Contract, own: OwnRows, channels: Sequence[Channel], *, secret_seed: Callable[[], int]) -> Dataset:
        """Encode a party's aligned rows for training and evaluation; ``secret_seed`` is asked for if something is drawn."""
        ...

    def to_score(self, contract: Contract, own: OwnRows, encoder: Encoder | None, *, secret_seed: Callable[[], int]) -> Dataset:
        """Encode new aligned rows by the encoder of a trained party."""
        ...


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """One way of linking rows.

    Args:
        label_party: the label party's role in the alignment.
        feature_party: a feature party's role.
        helper: the helper's role, where there is one.
        guarantee: what the alignment rests on.
        deviation: what a peer gains that does not follow the protocol (docs/alignment.md).
        deviation_of_several: the same where there are several feature parties, if it differs.
        dataset: what training, evaluation and prediction read.
        shares_scores: whether the label party sends back a score for every position, so that it does not learn whose is wanted.
    """

    label_party: Callable[[Meeting], Alignment]
    feature_party: Callable[[Meeting], Alignment]
    helper: Callable[..., HelperOutcome] | None = None
    guarantee: str
    deviation: str
    deviation_of_several: str | None = None
    dataset: DatasetKind = field(repr=False)
    shares_scores: bool


LINKAGES: Mapping[str, Linkage] = {
    "intersection": Linkage(
        label_party=_intersect_label,
        feature_party=_intersect_feature,
        guarantee="honest-but-curious peers; decisional Diffie-Hellman on ristretto255",
        deviation="may ask for ids that it does not hold, and put a match that it has on another row; it cannot add matches",
        deviation_of_several="may ask for ids that it does not hold; the label party may claim single rows that do not match",
        dataset=IntersectionDataset,
        shares_scores=False,
    ),
    "union": Linkage(
        label_party=_unite(union_label_party),
        feature_party=_unite(union_feature_party),
        guarantee="honest-but-curious peers; decisional Diffie-Hellman on ristretto255",
        deviation="learns which ids are common, unnoticed; choose it only for peers that a contract in law binds",
        dataset=UnionDataset,
        shares_scores=True,
    ),
    "union-with-helper": Linkage(
        label_party=_unite_with_helper,
        feature_party=_unite_with_helper,
        helper=union_helper,
        guarantee="a helper that colludes with nobody; keyed BLAKE2b",
        deviation="may ask for ids that it does not hold; with the helper it learns all that it can guess",
        dataset=UnionDataset,
        shares_scores=True,
    ),
}
"""The contract's alignment.method to what it does."""


def linkage_of(contract: Contract) -> Linkage:
    """The contract's way of linking rows."""
    return LINKAGES[contract.alignment.method]
