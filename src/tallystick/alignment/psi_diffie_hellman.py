"""Find two sides' common ids by Diffie-Hellman on ristretto255.

    label party, key a                     feature party, key b
    H(x)^a, in random order    <->         H(y)^b of its ids, in random order
                               <-
    (H(y)^b)^a, cut to tags                (H(x)^a)^b, cut to tags
                               <-          a digest of its tags                         } with one feature party only:
    its tags, in the order of the y  ->    where they equal own ones: the common ids    } neither can add a match
                               <-          the tags, in the order of the x
    equal tags: same id

Each side learns the positions of its own ids in the other's list. So both lists are sent in a random order: in any other order,
such as that of a table or of a hash, the positions of matches would reveal something about the ids between them, and often about
labels. A tag that the other side will also find can only be made with an id that both have (under computational Diffie-Hellman),
or copied. So the only feature party commits to its tags by a digest before it sees the label party's. This does not prove which
row a tag belongs to: a side that shuffles its tags moves its matches to other rows, and then labels and columns of different
people are joined. Several feature parties that combine their views see the same random list, in one order.

Cost: 2 (|A| + |B|) scalar multiplications with one feature party, and |A| + 2 |B| more with each further one.

Shapes: N rows of a list; K common ids; B rows of a chunk.
"""

from collections.abc import Sequence
from concurrent.futures import Future
from functools import partial
from hashlib import blake2b

import numpy as np

from tallystick.alignment.exchange import attribute_errors, exchange, receive_list, require_distinct, send_list, spans
from tallystick.alignment.group import ELEMENT_BYTES, Elements
from tallystick.alignment.matching import TAG_BYTES, Index, Tags, match, tags_of
from tallystick.alignment.pairwise import PLACES, Answer, Match, Side
from tallystick.alignment.workers import Workers, gathered, results
from tallystick.errors import ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

_LABEL_IDS = "label party's blinded ids"
_FEATURE_IDS = "feature party's blinded ids"
_TAGS = "label party's tags"
_RETURNED = "feature party's tags"
_WHAT = "private set intersection"


class TagsDigest(Message, frozen=True):
    """Sent by the only feature party before it sees the label party's tags: a digest of the tags that it will send."""

    digest: bytes


def match_by_diffie_hellman(side: Side, channels: Sequence[Channel], sizes: Sequence[int]) -> tuple[list[Match], int]:
    """Find the common ids with each feature party, as the label party.

    Diffie-Hellman private set intersection (Meadows 1986; Huberman, Franklin and Hogg 1999) on ristretto255 (RFC 9496).

    Threat model: honest-but-curious peers, alone or together. Guarantee: under the decisional Diffie-Hellman assumption, with the
    hash as a random oracle, nothing is learnt beyond the common ids. Not protected: any side may lie about its ids. With one
    feature party neither side can add a match, though it may move one to another row; with several the label party may claim
    single rows that do not match.

    Raises ProtocolError, which names peer and step, if a peer breaks the protocol.

    Returns:
        The matches, and the number of scalar multiplications.
    """
    ids, key = side.ids, side.rng.scalar()
    total = len(ids) + sum(sizes)
    # The only feature party learns which positions of this list match.
    order_N = side.rng.permutation(len(ids))
    with Workers(threads=side.local.threads, what=_WHAT, total=total, progress=side.local.progress) as workers:
        blinded = [workers.blind(ids.gather(order_N[span]), key) for span in spans(len(ids))]
        their_rows: list[list[Future[Elements]]] = [[] for _ in channels]
        arriving = exchange(
            channels,
            sends=_LABEL_IDS,
            outgoing=results(blinded),
            receives=_FEATURE_IDS,
            incoming=sizes,
            shape=(ELEMENT_BYTES,),
        )
        for index, elements_B32 in arriving:
            their_rows[index].append(workers.multiply(elements_B32, key, keep=tags_of))
        matches = []
        for channel, peer_tags, size in zip(channels, their_rows, sizes, strict=True):
            with attribute_errors(channel, _FEATURE_IDS):
                their_tags_N16 = gathered(peer_tags, size, width=TAG_BYTES)
            require_distinct(channel, _FEATURE_IDS, their_tags_N16)
            promised = None
            if len(channels) == 1:  # prove it to the only feature party
                promised = channel.receive(TagsDigest).digest
                send_list(channel, _RETURNED, their_tags_N16)
            own_tags_N16 = receive_list(channel, _TAGS, len(ids), shape=(TAG_BYTES,))
            if promised is not None and _digest(own_tags_N16) != promised:
                raise ProtocolError(
                    channel.peer, f"{channel.peer} sent other {_TAGS!r} than it had committed to before it saw this side's"
                )
            with attribute_errors(channel, f"{_FEATURE_IDS} and {_TAGS}"):
                index_K, place_K = match(own_tags_N16, their_tags_N16)
            # The proof of a match has already crossed: tags that only both keys together make.
            matches.append(Match(own_K=order_N[index_K], place_K=place_K, prove=lambda _: None))
    return matches, workers.multiplications


def answer_by_diffie_hellman(side: Side, channel: Channel, size: int, *, one_of_several: bool) -> tuple[Answer, int]:
    """Let the label party find the common ids. This is a feature party's role.

    Threat model, guarantee and errors as for match_by_diffie_hellman. As ``one_of_several`` feature parties this side does not
    learn its intersection with the label party alone, and cannot detect an invented match if only few are claimed.

    Returns:
        The answer, and the number of scalar multiplications.
    """
    ids, key = side.ids, side.rng.scalar()
    # The label party learns which positions of this list match.
    order_N = side.rng.permutation(len(ids))
    with Workers(threads=side.local.threads, what=_WHAT, total=len(ids) + size, progress=side.local.progress) as workers:
        blinded = [workers.blind(ids.gather(order_N[span]), key) for span in spans(len(ids))]
        arriving = exchange(
            [channel],
            sends=_FEATURE_IDS,
            outgoing=results(blinded),
            receives=_LABEL_IDS,
            incoming=[size],
            shape=(ELEMENT_BYTES,),
        )
        with attribute_errors(channel, _LABEL_IDS):
            tags = [workers.multiply(elements_B32, key, keep=tags_of) for _, elements_B32 in arriving]
            tags_16 = gathered(tags, size, width=TAG_BYTES)
        require_distinct(channel, _LABEL_IDS, tags_16)
        common_K = None
        if not one_of_several:
            # Each side's tags of the other's ids prove that it knows its key: nobody can invent a matching tag before seeing it.
            # So this side commits to its tags by their digest, receives the label party's tags, and only then shows its own.
            channel.send(TagsDigest(digest=_digest(tags_16)))
            returned_N16 = receive_list(channel, _RETURNED, len(ids), shape=(TAG_BYTES,))
            with attribute_errors(channel, f"{_RETURNED} and {_LABEL_IDS}"):
                common_K, _ = match(returned_N16, tags_16)
        send_list(channel, _TAGS, tags_16)
    return Answer(order_N=order_N, check=partial(_check_places, channel, common_K)), workers.multiplications


def _check_places(channel: Channel, common_K: Index | None, place_K: Index) -> None:
    if common_K is None or np.array_equal(np.sort(place_K), np.sort(common_K)):
        return
    count = len(place_K)
    wrong = "that are not those whose tags match" if count == len(common_K) else f"for the {len(common_K)} that match"
    raise ProtocolError(channel.peer, f"{channel.peer} sent {count} {PLACES!r} {wrong}")


def _digest(tags_N16: Tags) -> bytes:
    return blake2b(np.ascontiguousarray(tags_N16).tobytes(), digest_size=32, person=b"tallystick tags").digest()
