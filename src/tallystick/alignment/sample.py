"""Let two parties draw samples of their ids by one rule, so that the ids common to both samples are a sample of the common ids.

    each party      how many ids it has              <->
    both            a salt, by a coin toss           <->
    each party      keeps the ids whose keyed hash under the salt is below a bound, the same on both sides

The bound follows from both sizes, so each party learns the other's size. The protocol that then aligns the samples reveals which
ids of the sample are common, and so the approximate share of common ids in the tables.

Guarantee: if a table has more ids than are drawn, its side cannot choose who is in the sample, because the table is read before
the salt is known, and neither side determines the salt (``coin_toss.py``). A smaller table is in the sample as a whole. With a
salt that one side knew in advance, such as a hash of the contract, that side could add the ids of people who are sure to be
drawn. Not protected: a side that ends a toss and starts again sees another sample.

Shapes: N ids.
"""

import math
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallystick.alignment.coin_toss import toss
from tallystick.alignment.exchange import receive_size, send_size
from tallystick.alignment.ids import Ids
from tallystick.alignment.randomness import SecureRandom
from tallystick.network.channel import Channel

WHOLE = "ids to draw a sample of"
_HASHES = 2**64


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A party's part of a sample.

    Args:
        is_in_N: whether each of its ids is in the sample.
        others: how many ids the other party has.
        share: share of all ids that are drawn.
    """

    is_in_N: NDArray[np.bool_]
    others: int
    share: float


def draw_sample(ids: Ids, channel: Channel, *, rows: int, rng: SecureRandom, leads: bool, max_rows: int) -> Sample:
    """Draw a sample with the other party.

    Args:
        ids: this party's ids, N.
        channel: channel to the other party.
        rows: approximate number of ids drawn from the smaller table.
        rng: draws this party's coin.
        leads: whether to act as the label party in the toss.
        max_rows: most ids that the other party may have.

    Raises ProtocolError if a peer announces too many ids, or shows another coin than it had committed to.
    """
    send_size(channel, WHOLE, len(ids))
    others = receive_size(channel, WHOLE, at_least=1, at_most=max_rows)
    salt = toss(channel, rng, leads=leads)
    share = min(1.0, rows / min(len(ids), others))
    return Sample(is_in_N=is_drawn(ids, salt, share=share), others=others, share=share)


def is_drawn(ids: Ids, salt: bytes, *, share: float) -> NDArray[np.bool_]:
    """Tell for each id whether it is drawn, (N). It depends only on the id, the salt and the share."""
    bound = math.floor(share * _HASHES)
    if bound >= _HASHES:
        return np.ones(len(ids), dtype=np.bool_)
    parts: list[NDArray[Any]] = [np.empty(0, dtype=np.uint64)]
    for piece in ids.pieces():
        digests = b"".join(blake2b(each, key=salt, digest_size=8, person=b"tally/sample").digest() for each in piece)
        parts.append(np.frombuffer(digests, dtype="<u8"))
    drawn_N: NDArray[np.bool_] = np.concatenate(parts) < np.uint64(bound)
    return drawn_N
