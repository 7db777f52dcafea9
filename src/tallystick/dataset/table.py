"""Ways of linking rows by name: a row each, and nobody else compares the names.

A row says how the rows are aligned, in each role, and which dataset the outcome makes. What a contract's checks ask is in
``config/linkage.py``, below the config that asks it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from tallystick.alignment.exchange import MAX_ROWS
from tallystick.alignment.outcome import Alignment, SimilarityScale
from tallystick.alignment.psi import Protocol as IntersectionProtocol
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.psu import union_feature_party, union_label_party
from tallystick.alignment.psu_helper import HelperOutcome, union_helper, union_with_helper_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similarity import link_feature_party, link_helper, link_label_party
from tallystick.config.contract import Contract
from tallystick.config.similarity import SimilarityConfig
from tallystick.data.encoder import Encoder
from tallystick.data.similar_keys import SimilarKeys
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.intersection import IntersectionDataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.dataset.similarity import SimilarityDataset
from tallystick.dataset.union import UnionDataset
from tallystick.network.channel import Channel, Progress, no_progress


@dataclass(frozen=True, kw_only=True)
class Meeting:
    """What a party brings to an alignment.

    Args:
        ids: its unique ids.
        peers: the feature parties for the label party, the label party for a feature party.
        name: of the party.
        similar: its keys, where rows are linked by similarity.
        terms: what the contract says of similarity.
        scales: how an earlier run scaled similarities, by feature party, for new rows.
        helper: to the helper, if there is one.
        several: whether there are several feature parties.
        rng: of keys, shuffles and dummies.
        protocol: how an intersection finds common ids.
        dummies: most made-up ids to blur the sizes.
        max_rows: most ids to accept from a peer, and to have.
        threads: of arithmetic; all cores if None.
        progress: called as it goes.
    """

    ids: Sequence[bytes]
    peers: Sequence[Channel]
    name: str = ""
    similar: SimilarKeys | None = None
    terms: SimilarityConfig | None = None
    scales: Mapping[str, SimilarityScale] = field(default_factory=dict)
    helper: Channel | None = None
    several: bool = False
    rng: SecureRandom
    protocol: IntersectionProtocol = "auto"
    dummies: int = 0
    max_rows: int = MAX_ROWS
    threads: int | None = None
    progress: Progress = no_progress


@dataclass(frozen=True, kw_only=True)
class HelperMeeting:
    """What a helper brings to an alignment: channels to the parties, the contract's terms, and randomness."""

    label: Channel
    features: Sequence[Channel]
    terms: SimilarityConfig | None = None
    rng: SecureRandom
    max_rows: int = MAX_ROWS


def _intersect_label(meeting: Meeting) -> Alignment:
    return intersect_label_party(
        meeting.ids,
        meeting.peers,
        rng=meeting.rng,
        protocol=meeting.protocol,
        max_rows=meeting.max_rows,
        threads=meeting.threads,
        progress=meeting.progress,
    )


def _intersect_feature(meeting: Meeting) -> Alignment:
    return intersect_feature_party(
        meeting.ids,
        meeting.peers[0],
        rng=meeting.rng,
        protocol=meeting.protocol,
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


def _link_label(meeting: Meeting) -> Alignment:
    assert meeting.helper is not None, "the contract names a helper"
    assert meeting.similar is not None, "keys were read as the contract says"
    assert meeting.terms is not None, "the contract has terms"
    return link_label_party(
        meeting.similar,
        meeting.peers,
        meeting.helper,
        terms=meeting.terms,
        rng=meeting.rng,
        scales=meeting.scales,
        max_rows=meeting.max_rows,
    )


def _link_feature(meeting: Meeting) -> Alignment:
    assert meeting.helper is not None, "the contract names a helper"
    assert meeting.similar is not None, "keys were read as the contract says"
    assert meeting.terms is not None, "the contract has terms"
    return link_feature_party(
        meeting.similar,
        meeting.peers[0],
        meeting.helper,
        name=meeting.name,
        terms=meeting.terms,
        rng=meeting.rng,
        max_rows=meeting.max_rows,
    )


def _help_unite(meeting: HelperMeeting) -> HelperOutcome:
    return union_helper(meeting.label, meeting.features[0], rng=meeting.rng, max_rows=meeting.max_rows)


def _help_link(meeting: HelperMeeting) -> HelperOutcome:
    assert meeting.terms is not None, "the contract has terms"
    return link_helper(meeting.label, meeting.features, terms=meeting.terms, rng=meeting.rng, max_rows=meeting.max_rows)


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
    helper: Callable[[HelperMeeting], HelperOutcome] | None = None
    guarantee: str
    deviation: str
    deviation_of_several: str | None = None
    dataset: DatasetKind = field(repr=False)
    shares_scores: bool


LINKAGES: Mapping[str, Linkage] = {
    "intersection": Linkage(
        label_party=_intersect_label,
        feature_party=_intersect_feature,
        guarantee="honest-but-curious peers; Diffie-Hellman on ristretto255, and for more than a few ids AES-128 and BLAKE2b",
        deviation="may ask for ids that it does not hold (by oblivious transfer a feature party three for one), "
        "and put a match that it has on another row; it cannot add matches",
        deviation_of_several="may ask for ids that it does not hold (by oblivious transfer a feature party three for "
        "one); by Diffie-Hellman the label party may claim single rows that do not match",
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
        helper=_help_unite,
        guarantee="a helper that colludes with nobody; keyed BLAKE2b",
        deviation="may ask for ids that it does not hold; with the helper it learns all that it can guess",
        dataset=UnionDataset,
        shares_scores=True,
    ),
    "similarity": Linkage(
        label_party=_link_label,
        feature_party=_link_feature,
        helper=_help_link,
        guarantee="honest-but-curious parties and a helper that colludes with nobody; no formal guarantee for similarities",
        deviation="may place keys of its own where it likes and so ask what lies there; with the helper it learns all keys",
        dataset=SimilarityDataset,
        shares_scores=False,
    ),
}
"""The contract's alignment.method to what it does."""


def linkage_of(contract: Contract) -> Linkage:
    """The contract's way of linking rows."""
    return LINKAGES[contract.alignment.method]
