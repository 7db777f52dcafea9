"""Link similar keys through a helper: each row of the label party with the K most similar rows of each feature party.

    label party  <->  feature party     the keys' dimensions, how many rows, a secret that the helper never has
    each party    ->  helper            its keys, encoded under the secret, in random order
    helper        ->  both parties      how distances became similarities
    helper        ->  feature party     a number for each of its rows; which numbers are linked to each position, in no order
    helper        ->  label party       the same numbers by noisy similarity, and the noisy similarities
    label party  <->  feature party     a digest of the links: the helper told both the same

FedSim (Wu, Li and He 2022, section 4.1); docs/explanation/alignments.md says what each side learns.

Shapes: N positions (rows of the label party), M rows of a feature party, K neighbours.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b

import numpy as np

from tallystick.alignment.distances import alike_enough, nearest_keys
from tallystick.alignment.encoding import (
    encode_keys,
    most_encoded_rows,
    receive_array,
    receive_keys,
    require_one_secret,
    send_array,
    send_keys,
)
from tallystick.alignment.exchange import (
    MAX_ROWS,
    REMEDY,
    exchange_sizes,
    notify_peers,
    receive_list,
    receive_size,
    send_list,
    send_size,
)
from tallystick.alignment.matching import are_distinct_indices
from tallystick.alignment.nearest import PAD
from tallystick.alignment.outcome import Alignment, Candidates, Rows, Similarities, SimilarityScale
from tallystick.alignment.psu_helper import HelperOutcome, agree_on_key
from tallystick.alignment.randomness import SecureRandom
from tallystick.alignment.similar_keys import SimilarKeys
from tallystick.alignment.similarity_noise import farthest, fit, is_possible, noisy_similarities, scale_of
from tallystick.alignment.terms import SimilarityConfig
from tallystick.errors import DataError, ProtocolError, SharedDataError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

_METHOD = "similarity"
MAX_SIMILARITY = 1e12
"""In deviations. Among this many links that are not all equally far, the largest is below the square root of their number."""

_KEYS = "encoded keys"
_NUMBERS = "numbers of the rows"
_LINKS = "links"
_SIMILARITIES = "similarities"


class KeyShape(Message, frozen=True):
    """Shape of a side's keys: name, kind and unit of each dimension. Both sides must have the same."""

    dimensions: list[str]


class Scale(Message, frozen=True):
    """Sent by the helper to both parties: mean and deviation of the negative distances. Sent by the label party to the helper:
    those of an earlier run, if any.
    """

    mean: float
    deviation: float


class LinksDigest(Message, frozen=True):
    """A digest of all links. It is the same on both sides if the helper sent both the same links."""

    digest: bytes


def link_label_party(
    keys: SimilarKeys,
    peers: Sequence[Channel],
    helper: Channel,
    *,
    terms: SimilarityConfig,
    rng: SecureRandom,
    scales: Mapping[str, SimilarityScale] | None = None,
    max_rows: int = MAX_ROWS,
) -> Alignment:
    """Learn from a helper which rows of each feature party are most similar to this party's, as the label party.

    It is FedSim, section 4.1, with three changes: the order of the links is hidden from the feature party, both sides compare
    their links, and noise on keys may be chosen in addition to the published noise on similarities.

    Threat model: honest-but-curious peers and helper, and the helper colludes with neither. Guarantee: none for similarities with
    noise from tau (``sigma_of_tau``); that of noise on keys, if the contract asks for it (``key_noise.py``). Not protected:
    everything from a helper that sees keys in the clear, or ranks, from which keys can nearly be read; the places of either
    side's keys from the other if there are many similarities (``attacks/linkage``).

    Args:
        keys: of this party's rows, already with noise if the contract asks for it.
        peers: channels to the feature parties.
        helper: channel to the helper.
        terms: the contract's terms of similarity.
        rng: draws the order of the positions and the halves of the secrets.
        scales: for new rows, those of an earlier run, by feature party; by default the helper fits them.
        max_rows: most rows to accept from a peer, and to have.

    Raises DataError, on every side, for a side without rows or a tau that is not feasible; ProtocolError, which names peer and
    step, if a peer breaks the protocol.
    """
    with notify_peers([*peers, helper]):
        sizes = _meet(keys, peers, terms, max_rows=max_rows)
        for peer, rows in zip(peers, sizes, strict=True):
            _require_enough(rows, peer.peer, terms)
        order_N = rng.permutation(len(keys))
        candidates = {}
        for peer, rows in zip(peers, sizes, strict=True):
            scale_before = (scales or {}).get(peer.peer)
            secret = agree_on_key(peer, rng)
            helper.send(
                Scale(mean=scale_before.mean if scale_before else 0.0, deviation=scale_before.deviation if scale_before else 0.0)
            )
            _send_encoded(helper, keys, order_N, terms, secret)
            scale_message = _receive_scale(helper, terms)
            scale = scale_of(scale_message.mean, scale_message.deviation, terms)
            numbers_NK, similarity_NK = _receive_links(helper, len(keys), rows, terms)
            _compare(peer, helper, numbers_NK)
            candidates[peer.peer] = Candidates(numbers_NK=numbers_NK, rows=rows, similarity_NK=similarity_NK, scale=scale)
    linked = int(np.logical_and.reduce([c.numbers_NK[:, 0] != PAD for c in candidates.values()]).sum())
    return Alignment(
        method=_METHOD,
        rows_N=order_N,
        sizes={"own": len(keys), **{name: c.rows for name, c in candidates.items()}, "intersection": linked},
        learnt=[*_learnt_of(candidates, terms, own=len(keys)), _said_of_helper(helper.peer, terms)],
        candidates=candidates,
    )


def _learnt_of(candidates: Mapping[str, Candidates], terms: SimilarityConfig, *, own: int) -> list[str]:
    """Say what the label party learnt about each feature party from the candidates for its own rows."""
    sentences = [f"{name} has {c.rows} rows." for name, c in candidates.items()]
    for name, c in candidates.items():
        pairs = int((c.numbers_NK != PAD).sum())
        noise = "with exact similarities" if terms.noise.keys == "none" else "with similarities of keys under noise"
        if c.scale is not None and c.scale.sigma:
            noise = f"with similarities under noise of {c.scale.sigma:.3g} standard deviations"
        sentences.append(
            f"{pairs} links of own rows to numbered rows of {name}, at most {terms.links} each, {noise}: from these, the "
            "places of its keys relative to own keys can be estimated."
        )
    if terms.least_similarity is not None:
        some = int(np.logical_or.reduce([c.numbers_NK[:, 0] != PAD for c in candidates.values()]).sum())
        sentences.append(_said_of_floor(terms, f"{own - some} of this side's {own} rows have none"))
    return sentences


def link_feature_party(
    keys: SimilarKeys,
    peer: Channel,
    helper: Channel,
    *,
    name: str,
    terms: SimilarityConfig,
    rng: SecureRandom,
    max_rows: int = MAX_ROWS,
) -> Alignment:
    """Learn from a helper which of this party's rows are linked to each position. This is a feature party's side.

    Threat model, guarantee, arguments and errors as for link_label_party. This side learns which of its rows are linked to a
    position, without their order. It also learns the mean and the standard deviation of all linked distances. Both are exact,
    even with noise on similarities: if the label party has one row and two links, these two numbers give both distances.
    """
    with notify_peers([peer, helper]):
        (positions,) = _meet(keys, [peer], terms, max_rows=max_rows)
        _require_enough(len(keys), name, terms)
        secret = agree_on_key(peer, rng)
        order_M = rng.permutation(len(keys))
        _send_encoded(helper, keys, order_M, terms, secret)
        scale_message = _receive_scale(helper, terms)
        scale = scale_of(scale_message.mean, scale_message.deviation, terms)
        number_M = receive_list(helper, _NUMBERS, len(keys), dtype=np.int64)
        if not are_distinct_indices(number_M, len(keys)):
            raise ProtocolError(helper.peer, f"{helper.peer} sent {_NUMBERS!r} that repeat or lie outside 0 to {len(keys) - 1}")
        own_rows = np.empty(len(keys), dtype=np.int64)
        own_rows[number_M] = order_M
        numbers_NK = receive_array(helper, _LINKS, (positions, terms.links), np.int32).astype(np.int64)
        _check_numbers(helper, numbers_NK, len(keys))
        if not np.array_equal(numbers_NK, _by_number(numbers_NK)):
            raise ProtocolError(helper.peer, f"{helper.peer} sent {_LINKS!r} that are not in the order of their numbers")
        _compare(peer, helper, numbers_NK)
    linked, used = int((numbers_NK[:, 0] != PAD).sum()), len(np.unique(numbers_NK[numbers_NK != PAD]))
    sentences = [
        f"{peer.peer} has {positions} rows.",
        f"Which own rows are linked to each of {peer.peer}'s rows, at most {terms.links}, in no order: {used} of the "
        f"{len(keys)} own "
        "rows are; own rows that share links show where rows of the other side lie.",
        f"The mean ({-scale.mean:.6g}) and the standard deviation ({scale.deviation:.6g}) of the distances of all links, without "
        "noise from tau: if links are few, they nearly give each distance.",
        _said_of_helper(helper.peer, terms),
    ]
    if terms.least_similarity is not None:
        sentences.append(
            _said_of_floor(terms, f"{positions - linked} of {peer.peer}'s {positions} rows have none here, and which ones")
        )
    return Alignment(
        method=_METHOD,
        rows_N=np.full(positions, -1, dtype=np.int64),
        sizes={"own": len(keys), peer.peer: positions, "intersection": linked},
        learnt=sentences,
        candidates={name: Candidates(numbers_NK=numbers_NK, rows=len(keys), own_rows=own_rows, scale=scale)},
    )


def link_helper(
    label: Channel, features: Sequence[Channel], *, terms: SimilarityConfig, rng: SecureRandom, max_rows: int = MAX_ROWS
) -> HelperOutcome:
    """Link the label party's rows to the most similar rows of each feature party, from encoded keys, as the helper.

    Threat model and guarantee as for link_label_party; the contract's ``helper_sees`` says what this side sees. Ties are broken
    by distance, then by number. Numbers are drawn at random.

    Raises DataError, on every side, for links that are all equally far or a tau that is not feasible; ProtocolError, which names
    side and step, if a side breaks the protocol; PeerStopped if a party ended the job.
    """
    sizes: dict[str, int] = {}
    sentences = []
    with notify_peers([label, *features]):
        for feature in features:
            scale_before = _receive_scale(label, terms)
            parties, most = (label, feature), min(max_rows, most_encoded_rows(terms))
            remedy = REMEDY if most == max_rows else "; the filters of more take too much memory"
            rows = [
                receive_size(party, _KEYS, at_least=least, at_most=most, remedy=remedy)
                for party, least in zip(parties, (1, terms.neighbors), strict=True)
            ]
            own, other_keys = (receive_keys(party, count, terms) for party, count in zip(parties, rows, strict=True))
            require_one_secret(own, other_keys, parties, terms)
            number_M = rng.permutation(other_keys.rows)
            by_number = np.empty_like(number_M)
            by_number[number_M] = np.arange(len(number_M))
            links = nearest_keys(own, other_keys.gather(by_number), terms)
            mean, deviation = (scale_before.mean, scale_before.deviation) if scale_before.deviation else fit(links)
            distance_L = links.distance_NK[links.numbers_NK != PAD]
            if len(distance_L) and max(-mean, float(distance_L.max())) > MAX_SIMILARITY * deviation > 0:
                raise ProtocolError(
                    label.peer,
                    f"{label.peer} sent the scale of similarities with deviation {deviation!r}, far too small for these links",
                )
            links = alike_enough(links, own, other_keys.gather(by_number), terms)
            for party in parties:
                party.send(Scale(mean=mean, deviation=deviation))
            scale = scale_of(mean, deviation, terms)
            numbers_NK, similarity_NK = noisy_similarities(links, scale, keep=terms.links, rng=rng)
            send_list(feature, _NUMBERS, number_M)
            send_array(feature, _LINKS, _by_number(numbers_NK).astype(np.int32))
            send_array(label, _LINKS, numbers_NK.astype(np.int32))
            send_array(label, _SIMILARITIES, similarity_NK)
            sizes |= {label.peer: own.rows, feature.peer: other_keys.rows}
            sentences.append(
                f"{label.peer} has {own.rows} rows and {feature.peer} {other_keys.rows}; their keys as {seen_by_helper(terms)}."
            )
    return HelperOutcome(sizes=sizes, learnt=sentences)


def seen_by_helper(terms: SimilarityConfig) -> str:
    """Say in which form the helper sees keys. With ``block`` it also sees which rows begin in the same way."""
    if not terms.block:
        return _encoded(terms)
    letters = "character" if terms.block == 1 else f"{terms.block} characters"
    tags = f"tags under a secret, equal for rows whose {terms.texts[0].name} has the same first {letters}"
    return f"{_encoded(terms)}; and {tags}, so which rows of both sides these are and how often each beginning occurs"


def _encoded(terms: SimilarityConfig) -> str:
    if terms.helper_sees == "clear":
        return "they are, in the clear, as the contract says"
    if terms.helper_sees == "filters":
        return "filters under a secret, from which their geometry can be recovered"
    ranks = "ranks among secret pivots, from which numbers can nearly be read"
    texts = "filters of text under a secret, from which texts can be read with a list of texts, without knowing a key"
    return " and ".join([ranks] * bool(terms.numbers) + [texts] * (len(terms.numbers) < len(terms.dimensions)))


def _said_of_helper(helper: str, terms: SimilarityConfig) -> str:
    return f"{helper} saw how many rows there are, and the keys as {seen_by_helper(terms)}."


def _said_of_floor(terms: SimilarityConfig, none: str) -> str:
    exact = ", whatever noise is on similarities" if terms.noise.tau not in (None, 1) else ""
    return f"That the keys of every link are alike by {terms.least_similarity:g} or more{exact}; {none}."


def _meet(keys: SimilarKeys, peers: Sequence[Channel], terms: SimilarityConfig, *, max_rows: int) -> list[int]:
    """Compare the kinds of keys and the numbers of rows. Every side finds the same problems."""
    if len(keys) > max_rows:
        raise DataError(f"this side has {len(keys)} rows, over alignment.max_rows = {max_rows} in the contract; raise it")
    shape = [f"{d.name}: {d.kind}{f' in {d.unit}' if d.unit else ''}" for d in terms.dimensions]
    for peer in peers:
        peer.send(KeyShape(dimensions=shape))
    for peer in peers:
        their_shape = peer.receive(KeyShape).dimensions
        if their_shape != shape:
            raise ProtocolError(
                peer.peer,
                f"{peer.peer} links by other keys: {'; '.join(their_shape)[:300]!r}; this side by {'; '.join(shape)!r}. Kinds, "
                f"units and "
                "order of alignment.similarity.dimensions must be the same",
            )
    return exchange_sizes(len(keys), peers, max_rows=max_rows)


def _require_enough(rows: int, whose: str, terms: SimilarityConfig) -> None:
    if rows < terms.neighbors:
        key = f"alignment.similarity.neighbors = {terms.neighbors}"
        raise SharedDataError(
            f"{key}: {whose} has {rows} rows to link to; agree on at most that many, or bring more rows",
            told=f"{key}: {whose} has fewer rows to link to; agree on fewer neighbours, or bring more rows there",
        )


def _send_encoded(helper: Channel, keys: SimilarKeys, order_N: Rows, terms: SimilarityConfig, secret: bytes) -> None:
    send_size(helper, _KEYS, len(keys))
    send_keys(helper, encode_keys(keys, terms, secret).gather(order_N), terms)


def _receive_scale(channel: Channel, terms: SimilarityConfig) -> Scale:
    """Receive a scale. Raises ProtocolError if the contract's distances cannot have it."""
    scale = channel.receive(Scale)
    if not is_possible(scale.mean, scale.deviation, terms):
        raise ProtocolError(
            channel.peer,
            f"{channel.peer} sent the scale of similarities with mean {scale.mean!r}, deviation {scale.deviation!r}, which minus "
            f"the distances of keys under this contract cannot have: at most {farthest(terms):.4g}",
        )
    return scale


def _receive_links(helper: Channel, positions: int, rows: int, terms: SimilarityConfig) -> tuple[Rows, Similarities]:
    numbers_NK = receive_array(helper, _LINKS, (positions, terms.links), np.int32).astype(np.int64)
    _check_numbers(helper, numbers_NK, rows)
    similarity_NK = receive_array(helper, _SIMILARITIES, (positions, terms.links), np.float32)
    pad_NK = numbers_NK == PAD
    if not (np.abs(similarity_NK) <= MAX_SIMILARITY).all() or (similarity_NK[pad_NK] != 0).any():
        raise ProtocolError(
            helper.peer,
            f"{helper.peer} sent {_SIMILARITIES!r} that are NaN, infinite or over {MAX_SIMILARITY:g}, or other than 0 at no link",
        )
    falls_NK = (similarity_NK[:, 1:] <= similarity_NK[:, :-1]) | pad_NK[:, 1:]
    if not falls_NK.all():
        raise ProtocolError(helper.peer, f"{helper.peer} sent {_SIMILARITIES!r} that are not sorted, the most similar first")
    return numbers_NK, similarity_NK


def _check_numbers(helper: Channel, numbers_NK: Rows, rows: int) -> None:
    if (numbers_NK < PAD).any() or (numbers_NK >= rows).any():
        raise ProtocolError(helper.peer, f"{helper.peer} sent {_LINKS!r} to numbers outside 0 to {rows - 1}")
    pad_NK = numbers_NK == PAD
    if (pad_NK[:, :-1] & ~pad_NK[:, 1:]).any():
        raise ProtocolError(helper.peer, f"{helper.peer} sent {_LINKS!r} behind one that is none")
    sorted_NK = np.sort(numbers_NK, axis=1)
    if ((sorted_NK[:, 1:] == sorted_NK[:, :-1]) & (sorted_NK[:, 1:] != PAD)).any():
        raise ProtocolError(helper.peer, f"{helper.peer} sent {_LINKS!r} that repeat a number at one position")


def _by_number(numbers_NK: Rows) -> Rows:
    """Sort each position's numbers, padding last."""
    last = np.iinfo(np.int64).max
    sorted_NK = np.sort(np.where(numbers_NK == PAD, last, numbers_NK), axis=1)
    return np.where(sorted_NK == last, PAD, sorted_NK)


def _compare(peer: Channel, helper: Channel, numbers_NK: Rows) -> None:
    """Check that both parties have the same links. If they differ, the helper sent them different ones."""
    digest = blake2b(_by_number(numbers_NK).astype("<i8").tobytes(), digest_size=32).digest()
    peer.send(LinksDigest(digest=digest))
    if peer.receive(LinksDigest).digest != digest:
        raise ProtocolError(helper.peer, f"{helper.peer} sent {_LINKS!r} that differ from those that it sent {peer.peer}")
