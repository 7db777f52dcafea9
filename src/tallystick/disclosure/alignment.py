"""State what the handshake and the alignment disclose."""

from functools import partial

from tallystick.alignment.any_key import learnt_by_keys
from tallystick.alignment.psi import learnt_of
from tallystick.alignment.repeats import counts_learnt
from tallystick.config.contract import Contract
from tallystick.disclosure.disclosure import Disclosure, RunFacts, parties_of, stated
from tallystick.disclosure.protection import UNPROTECTED
from tallystick.results import Learnt


def _greeting(contract: Contract) -> list[str]:
    parties = " and ".join(contract.parties)
    progress = "; of a run that is resumed, the steps that they kept and whether its training ended"
    return [
        f"{parties} tell each other which program and contract they have, what they are about to do, and the names of the runs "
        f"that they keep{progress if contract.sends_gradients else ''}"
    ]


def _protocol_outcome(contract: Contract, facts: RunFacts, *, method: str) -> list[Learnt]:
    """Return what the protocol itself reports as learnt, without the counts of rows, which have no guarantee."""
    if contract.alignment.method != method:
        return []
    guarantee = contract.linkage.guarantee
    sentences = [*(facts.alignment.learnt if facts.alignment else []), *(facts.helper.learnt if facts.helper else [])]
    counts = _counts(contract, facts)
    return [
        Learnt(step="alignment", party=facts.party, what=sentence, guarantee=guarantee)
        for sentence in sentences
        if sentence not in counts
    ]


def _intersection(contract: Contract) -> list[str]:
    if contract.alignment.method != "intersection" or contract.alignment.any_of:
        return []
    label, several = contract.label_party, len(contract.feature_parties) > 1
    lines = [
        f"{label} learns how many ids {name} has, and which of its own ids {name} has too" for name in contract.feature_parties
    ]
    also = "; of the ids of another feature party it learns nothing else" if several else ""
    return lines + [
        f"{name} learns how many ids {label} has, and which of its own ids all parties have{also}"
        for name in contract.feature_parties
    ]


def _by_any_key(contract: Contract) -> list[str]:
    if not contract.alignment.any_of:
        return []
    label, (feature,) = contract.label_party, contract.feature_parties
    names = [key.name for key in contract.alignment.any_of]
    order = ", then ".join(names)
    each = "how many have a key, and for each key how many ids it brings of those that no earlier key linked"
    return [
        f"{label} and {feature} learn of each other's rows {each}; which of their own rows the other has too, and by which key "
        f"(in this order: {order})",
        f"if {' or '.join(names[1:])} links a row, {label} learns which of the earlier keys {feature}'s row has, and "
        f"{feature} that {label}'s row lacks the earlier keys that its own row has; of rows that share a later key and differ in "
        "an earlier one, neither learns anything",
        f"a party that deviates can bring ids of its choice for each of the {len(names)} keys (alignment.alternatives)",
    ]


def _intersection_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    """Add what the other side of an intersection learnt, which follows from what this side knows.

    A feature party knows nothing about another one, and not how many ids the label party shares with it.
    """
    items = _protocol_outcome(contract, facts, method="intersection")
    alignment, label = facts.alignment, contract.label_party
    if alignment is None or alignment.method != "intersection":
        return items
    peers = contract.feature_parties if facts.party == label else (label,) if len(contract.feature_parties) == 1 else ()
    own, sizes, any_of = alignment.sizes["own"], alignment.sizes, contract.alignment.any_of
    for peer in peers:
        if any_of:
            counts = {key.name: sizes[f"intersection by {key.name}"] for key in any_of}
            sentences = learnt_by_keys(facts.party, own, own=sizes[peer], counts=counts, finds=peer == label)
        else:
            sentences = learnt_of(facts.party, own, own=sizes[peer], common=sizes["intersection"])
        items += [Learnt(step="alignment", party=peer, what=what, guarantee=contract.linkage.guarantee) for what in sentences]
    return items


def repeats_lines(contract: Contract) -> list[str]:
    """Say what is disclosed if the label party has several rows for one id."""
    if contract.alignment.duplicates != "all":
        return []
    label, features = parties_of(contract)
    return [
        f"{features} learns how many rows {label} has for each common id, and which steps these are in, in a secret order "
        "(alignment.duplicates: all). A split by hash puts all rows of an id into one part; a split by time puts each row where "
        "its time says",
    ]


def _counts(contract: Contract, facts: RunFacts) -> list[str]:
    """Return the alignment's sentence on several rows of one id."""
    if facts.alignment is None or contract.alignment.duplicates != "all":
        return []
    return [counts_learnt(contract.label_party, len(facts.alignment), facts.alignment.sizes["intersection"])]


def _counts_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    learners = contract.feature_parties if facts.party == contract.label_party else (facts.party,)
    counts = _counts(contract, facts)
    return [Learnt(step="alignment", party=name, what=what, guarantee=UNPROTECTED) for what in counts for name in learners]


def _similarity(contract: Contract) -> list[str]:
    if not contract.linkage.similar:
        return []
    label, features = parties_of(contract)
    terms = contract.alignment.similarity
    unlinked = terms is not None and terms.least_similarity is not None
    more = "; which own rows have no link" if unlinked else ""
    unlinked_there = f"; which of {label}'s positions have none of its rows" if unlinked else ""
    return [
        f"{label} learns how many rows {features} has, numbers of the rows that are most similar to each of its own, and how "
        f"similar they are{more}; if it knows a few keys it can locate rows of {features} by them",
        f"{features} learns how many rows {label} has, which of its own rows are linked to each of these, and the mean and the "
        f"deviation of all distances, without noise{unlinked_there}",
        f"{contract.helper} learns how many rows each side has, and the keys as alignment.similarity lets it see them; with a "
        "list of texts it can name texts behind filters, even if it knows no key; no formal guarantee",
    ]


def membership_lines(contract: Contract, *, own_columns: bool | None) -> list[str]:
    """Say what a label party with own columns learns about a union's rows, however they are filled
    (docs/explanation/unions.md).

    ``own_columns`` says whether it has useful columns; None if that is not known, as at its peers.
    """
    if not contract.linkage.imputes or own_columns is False:
        return []
    label, features = parties_of(contract)
    having = f"{label} has columns of its own, and" if own_columns else f"if {label} has columns of its own,"
    return [
        f"{having} it can tell most made-up rows from real ones, by whether a row's embedding fits these columns: assume that "
        f"{label} knows which rows of the union {features} has, however the others are filled "
        f"(union.features = {contract.union.features})"
    ]


def _split_learnt(contract: Contract, facts: RunFacts) -> list[Learnt]:
    if contract.split.method != "time" or facts.training is None or not contract.sends_gradients:
        return []
    by_time = "Each row's part of the split, and so the order in time of three groups of rows."
    return [Learnt(step="training", party=name, what=by_time, guarantee=UNPROTECTED) for name in contract.feature_parties]


_LISTS = ("Size.of", "Size.rows", "Chunk.of", "Chunk.rows")
"""The way in which every alignment sends its lists."""

_AGAINST_CHEATERS = (
    *("CoinCommitment.digest", "Coin.coin", "StoreSeed.bucket", "StoreSeed.seed", "CheckKey.key", "TagsCommitment.digest"),
    *("Standing.alignment", "Standing.done", "Standing.settled"),
)
"""Data that `security: malicious` and the stores of a union send in addition: random numbers, hashes, and how far kept buckets
go.
"""

ALIGNMENT = (
    Disclosure(
        name="handshake",
        label_party="version, contract, command; which runs the peer has and promoted; on a resume its steps, and whether its "
        "training ended (not with `gradients: none`)",
        feature_party="the same",
        guarantee="nothing private is sent",
        fields=(
            *("Hello.wire_version", "Hello.party", "Hello.process", "Hello.peer_process", "Hello.received"),
            *("Refusal.matter", "Refusal.reason"),
            *("Greeting.version", "Greeting.contract_hash", "Greeting.command", "Greeting.resume", "Greeting.run_id"),
            *("Greeting.checkpoints", "Greeting.trained", "Greeting.complete", "Greeting.start_from", "Greeting.promoted"),
            *("Greeting.torch", "Greeting.numpy", "ContractText.text"),
            *("Agreement.run_id", "Agreement.align", "Agreement.resume_from", "Agreement.train", "Agreement.version"),
            *("LineProbe.data", "ProbeAnswer", "Choice.protocol"),
        ),
        sentences=_greeting,
    ),
    Disclosure(
        name="`intersection`",
        label_party="how many ids each feature party has, and which of its own ids each has",
        feature_party="how many ids the label party has, and which of its own ids all have",
        guarantee="nothing else, if decisional Diffie-Hellman is hard and hashes are random oracles; for more than a few ids "
        "also by AES-128 and BLAKE2b ([why](../reference/alignment-protocols.md#intersection))",
        fields=(
            *_LISTS,
            *("Table.bucket", "Table.attempt", "Proof.digest", "TagsDigest.digest"),
            *_AGAINST_CHEATERS,
        ),
        sentences=_intersection,
        learnt=_intersection_learnt,
    ),
    Disclosure(
        name="with `alternatives`",
        label_party="for each key, how many ids the feature party brings; which key links a row, and which earlier keys the "
        "other's row has",
        feature_party="for each key, how many ids the label party brings; which key links a row, and that the other's row has "
        "none of the earlier keys that its own has",
        guarantee="as `intersection`, for each key; nothing of rows that have a later key in common and both have an earlier one",
        fields=_LISTS,
        sentences=_by_any_key,
    ),
    Disclosure(
        name="with `duplicates: all`",
        label_party="nothing more",
        feature_party="how many rows the label party has for each common id; their order is drawn in secret",
        guarantee="none",
        fields=("Chunk.rows",),
        sentences=repeats_lines,
        learnt=_counts_learnt,
    ),
    Disclosure(
        name="`union`",
        label_party="both sizes and that of the intersection, and where its own ids stand among pseudonyms",
        feature_party="the same",
        guarantee="nothing else, under the same assumptions; for more than a few ids AES-128 has to be an ideal cipher "
        "([why](../reference/alignment-protocols.md#union)); dummy ids blur the sizes, without a guarantee",
        fields=(*_LISTS, "ProgrammedTable.attempt", "ProgrammedStore.seed", *_AGAINST_CHEATERS),
        sentences=stated(
            lambda contract: contract.alignment.method == "union",
            "{label} and {features} learn how many ids each has (dummies included), how many both have, and where their own ids "
            "stand among the pseudonyms of the union; neither learns which ids both have",
        ),
        learnt=partial(_protocol_outcome, method="union"),
    ),
    Disclosure(
        name="`union-with-helper`",
        label_party="as `union`; the helper learns the three sizes",
        feature_party="the same",
        guarantee="nothing else, if a keyed hash (BLAKE2b) is a pseudorandom function and the helper works with nobody",
        fields=(*_LISTS, "KeyShare.share"),
        sentences=stated(
            lambda contract: contract.alignment.method == "union-with-helper",
            "{label} and {features} learn how many ids each has (dummies included), how many both have, and where their own ids "
            "stand in the union; {contract.helper} learns these numbers, and keyed hashes of all ids",
        ),
        learnt=partial(_protocol_outcome, method="union-with-helper"),
    ),
    Disclosure(
        name="`similarity`",
        label_party="row counts; numbers of the K most similar rows, and how similar they are; mean and deviation of distances; "
        "with `least_similarity`, that linked keys are at least so similar (exact, even with `tau`), and which own "
        "rows have no link",
        feature_party="row counts; which own rows are linked to each of the label party's; the same mean and deviation, without "
        "noise even with `tau`; with `least_similarity`, which rows of the label party have no link",
        guarantee="none; with `noise.keys` geo-indistinguishability or (ε, δ)-DP of keys within `radius`. Equal keys stay "
        "equal ([what attackers locate](../results/alignment.md#what-attackers-locate-measured))",
        fields=(
            *_LISTS,
            *("KeyShare.share", "KeyShape.dimensions", "Scale.mean", "Scale.deviation", "LinksDigest.digest"),
            *("Texts.of", "Texts.texts"),
        ),
        sentences=_similarity,
        learnt=partial(_protocol_outcome, method="similarity"),
    ),
    Disclosure(
        name="split",
        label_party="nothing",
        feature_party="by hash: nothing; by time: which of three groups in time each row is in",
        guarantee="none",
        fields=("SplitParts.parts",),
        sentences=stated(
            lambda contract: contract.split.method == "time",
            "{features} learns which of three groups in time each row of {label} is in (split.method: time)",
        ),
        learnt=_split_learnt,
    ),
)
