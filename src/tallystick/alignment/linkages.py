"""List the contract's methods of linking rows by name, one row each. No other module compares the names.

A row holds what a contract's checks ask about it, its roles, and its guarantees. The contract's ``alignment.method`` is one of
these names (config/contract.py), and ``dataset/datasets.py`` uses the facts to choose what training reads. The protocols are
loaded when they run, because writing a contract needs none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tallystick.alignment.key_ids import KeyIds
    from tallystick.alignment.outcome import Alignment, SimilarityScale
    from tallystick.alignment.pairwise import LocalOptions
    from tallystick.alignment.psi import Protocol, Security
    from tallystick.alignment.psu_helper import HelperOutcome
    from tallystick.alignment.randomness import SecureRandom
    from tallystick.alignment.similar_keys import SimilarKeys
    from tallystick.alignment.terms import SimilarityConfig
    from tallystick.network.channel import Channel


@dataclass(frozen=True, kw_only=True)
class AlignmentInput:
    """Inputs that a party brings to an alignment.

    Args:
        ids: its unique ids; if any of several keys may link rows, one id for each row that takes part.
        by_key: ids by each of these keys; empty if there is one key.
        peers: the feature parties for the label party; the label party for a feature party.
        rng: draws keys, shuffles and dummies.
        max_rows: most ids to accept from a peer, and to have.
        name: of the party.
        similar: its keys, if rows are linked by similarity.
        terms: the contract's terms of similarity.
        scales: for new rows, the scaling of similarities in an earlier run, by feature party.
        helper: channel to the helper, if there is one.
        several: whether there are several feature parties.
        protocol: how an intersection finds common ids, or how a union names its members.
        dummies: most made-up ids that hide the exact sizes.
        local: threads, the callback of progress, and the folder of finished buckets.
    """

    ids: Sequence[bytes]
    peers: Sequence[Channel]
    rng: SecureRandom
    max_rows: int
    local: LocalOptions
    name: str = ""
    by_key: Sequence[KeyIds] = ()
    similar: SimilarKeys | None = None
    terms: SimilarityConfig | None = None
    scales: Mapping[str, SimilarityScale] = field(default_factory=dict)
    helper: Channel | None = None
    several: bool = False
    protocol: Protocol = "auto"
    dummies: int = 0


@dataclass(frozen=True, kw_only=True)
class HelperInput:
    """Inputs that a helper brings to an alignment: channels to the parties, the contract's terms, and randomness."""

    label: Channel
    features: Sequence[Channel]
    rng: SecureRandom
    max_rows: int
    terms: SimilarityConfig | None = None


@dataclass(frozen=True, kw_only=True)
class Linkage:
    """One way to link rows.

    Args:
        what: which rows it gives, in words.
        label_party: the label party's role in the alignment.
        feature_party: a feature party's role.
        helper_party: the role of a third party without rows, if one takes part.
        several: whether there may be more than one feature party.
        imputes: whether a position may lack a party's row, so that synthetic labels or features stand in for it.
        protocols: whether ``alignment.protocol`` chooses between protocols.
        similar: whether keys are compared by similarity, so that a position has several candidate rows of a feature party.
        guarantee: the alignment's guarantee, and its assumptions.
        deviation: what a peer gains if it does not follow the protocol (docs/results/deviations.md).
        deviation_of_several: the same for several feature parties, if it differs.
        against_cheaters: the linkage under ``alignment.security: malicious``, if there is one.
    """

    what: str
    label_party: Callable[[AlignmentInput], Alignment]
    feature_party: Callable[[AlignmentInput], Alignment]
    helper_party: Callable[[HelperInput], HelperOutcome] | None = None
    several: bool
    imputes: bool
    protocols: bool = False
    similar: bool = False
    guarantee: str
    deviation: str
    deviation_of_several: str | None = None
    against_cheaters: Linkage | None = None

    @property
    def helper(self) -> bool:
        """Tell whether a third party without rows takes part."""
        return self.helper_party is not None

    @property
    def shares_scores(self) -> bool:
        """Tell whether the label party sends back a score for every position, so that it does not learn whose score is wanted."""
        return self.imputes


def _intersect_label(inputs: AlignmentInput, *, security: Security = "semi-honest") -> Alignment:
    if inputs.by_key:
        from tallystick.alignment.any_key import link_by_any_key_label_party

        return _link_by_any_key(link_by_any_key_label_party, inputs, security)
    from tallystick.alignment.psi import intersect_label_party

    return intersect_label_party(
        inputs.ids,
        inputs.peers,
        rng=inputs.rng,
        protocol=inputs.protocol,
        security=security,
        max_rows=inputs.max_rows,
        local=inputs.local,
    )


def _intersect_feature(inputs: AlignmentInput, *, security: Security = "semi-honest") -> Alignment:
    if inputs.by_key:
        from tallystick.alignment.any_key import link_by_any_key_feature_party

        return _link_by_any_key(link_by_any_key_feature_party, inputs, security)
    from tallystick.alignment.psi import intersect_feature_party

    return intersect_feature_party(
        inputs.ids,
        inputs.peers[0],
        rng=inputs.rng,
        protocol=inputs.protocol,
        security=security,
        one_of_several=inputs.several,
        max_rows=inputs.max_rows,
        local=inputs.local,
    )


def _link_by_any_key(role: Callable[..., Alignment], inputs: AlignmentInput, security: Security) -> Alignment:
    return role(
        inputs.by_key,
        len(inputs.ids),
        inputs.peers[0],
        rng=inputs.rng,
        protocol=inputs.protocol,
        security=security,
        max_rows=inputs.max_rows,
        local=inputs.local,
    )


def _unite(inputs: AlignmentInput, *, is_label: bool) -> Alignment:
    from tallystick.alignment.psu import union_feature_party, union_label_party

    role = union_label_party if is_label else union_feature_party
    return role(
        inputs.ids,
        inputs.peers[0],
        rng=inputs.rng,
        protocol=inputs.protocol,
        dummies=inputs.dummies,
        max_rows=inputs.max_rows,
        threads=inputs.local.threads,
        progress=inputs.local.progress,
    )


def _unite_with_helper(inputs: AlignmentInput) -> Alignment:
    from tallystick.alignment.psu_helper import union_with_helper_party

    assert inputs.helper is not None, "the contract names a helper"
    return union_with_helper_party(
        inputs.ids, inputs.peers[0], inputs.helper, rng=inputs.rng, dummies=inputs.dummies, max_rows=inputs.max_rows
    )


def _help_unite(inputs: HelperInput) -> HelperOutcome:
    from tallystick.alignment.psu_helper import union_helper

    return union_helper(inputs.label, inputs.features[0], rng=inputs.rng, max_rows=inputs.max_rows)


def _link(inputs: AlignmentInput, *, is_label: bool) -> Alignment:
    from tallystick.alignment.similarity import link_feature_party, link_label_party

    assert inputs.helper is not None, "the contract names a helper"
    assert inputs.similar is not None, "keys were read as the contract says"
    assert inputs.terms is not None, "the contract has terms"
    if is_label:
        return link_label_party(
            inputs.similar,
            inputs.peers,
            inputs.helper,
            terms=inputs.terms,
            rng=inputs.rng,
            scales=inputs.scales,
            max_rows=inputs.max_rows,
        )
    return link_feature_party(
        inputs.similar,
        inputs.peers[0],
        inputs.helper,
        name=inputs.name,
        terms=inputs.terms,
        rng=inputs.rng,
        max_rows=inputs.max_rows,
    )


def _help_link(inputs: HelperInput) -> HelperOutcome:
    from tallystick.alignment.similarity import link_helper

    assert inputs.terms is not None, "the contract has terms"
    return link_helper(inputs.label, inputs.features, terms=inputs.terms, rng=inputs.rng, max_rows=inputs.max_rows)


_MORE = ", up to 50 more than it announces, or 1.36 times as many if it announces more than 4,096"
"""A test compares these figures with ``psi_malicious.most_ids`` for all sizes."""

_INTERSECTION_AGAINST_CHEATERS = Linkage(
    what="rows that all parties have",
    label_party=partial(_intersect_label, security="malicious"),
    feature_party=partial(_intersect_feature, security="malicious"),
    several=True,
    imputes=False,
    protocols=True,
    guarantee="peers that deviate, by a protocol that nobody outside has reviewed; computational Diffie-Hellman on ristretto255, "
    "AES-128 and BLAKE2b",
    deviation=f"can test ids of its choice{_MORE}, and end the run; it cannot add, move or leave out matches of the ids "
    "that it brought",
    deviation_of_several=f"can test ids of its choice{_MORE}, and end the run; the label party can leave out matches, "
    "but cannot add or move any",
)

LINKAGES: Mapping[str, Linkage] = MappingProxyType(
    {
        "intersection": Linkage(
            what="rows that all parties have",
            label_party=_intersect_label,
            feature_party=_intersect_feature,
            several=True,
            imputes=False,
            protocols=True,
            guarantee="honest-but-curious peers; Diffie-Hellman on ristretto255, and for more than a few ids AES-128 and BLAKE2b",
            deviation="can test ids of its choice, and move one of its matches to another row; with oblivious transfer a feature "
            "party can test three ids for each id that it announced; it cannot add matches",
            deviation_of_several="can test ids of its choice; with oblivious transfer a feature party can test three ids for "
            "each id that it announced; with Diffie-Hellman the label party can claim single rows that do not match",
            against_cheaters=_INTERSECTION_AGAINST_CHEATERS,
        ),
        "union": Linkage(
            what="every row that any of two has",
            label_party=partial(_unite, is_label=True),
            feature_party=partial(_unite, is_label=False),
            several=False,
            imputes=True,
            protocols=True,
            guarantee="honest-but-curious peers; decisional Diffie-Hellman on ristretto255, or for more than a few ids "
            "computational Diffie-Hellman, AES-128 as an ideal cipher and BLAKE2b",
            deviation="learns unnoticed which ids are common; choose a union only with peers whom a legal contract binds",
        ),
        "union-with-helper": Linkage(
            what="the same by way of a helper",
            label_party=_unite_with_helper,
            feature_party=_unite_with_helper,
            helper_party=_help_unite,
            several=False,
            imputes=True,
            guarantee="a helper that colludes with nobody; keyed BLAKE2b",
            deviation="can test ids of its choice; together with the helper it learns every id that it can guess",
        ),
        "similarity": Linkage(
            what="rows linked by similar keys, by way of a helper",
            label_party=partial(_link, is_label=True),
            feature_party=partial(_link, is_label=False),
            helper_party=_help_link,
            several=True,
            imputes=False,
            similar=True,
            guarantee="honest-but-curious parties and a helper that colludes with nobody; no formal guarantee for similarities",
            deviation="can invent keys at places of its choice, and so ask what lies there; together with the helper "
            "it learns all keys",
        ),
    }
)
"""Each name of the contract's alignment.method, and the linkage that it selects."""
