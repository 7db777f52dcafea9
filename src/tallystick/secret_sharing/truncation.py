"""Cut binary places off a shared number. The result is exact except for the last place, which is rounded up or down at random.

The helper deals shares of a uniform R, of R without its last m places, and of R's first bit (the dealt pair of Mohassel and
Zhang 2017, "SecureML", section 4.1, with the wrap-around of Escudero et al. 2020, "Improved primitives for MPC over mixed
arithmetic-binary circuits"). x + 2^62 + R is opened. R is uniform over the ring, so this reveals nothing about x.

With y = x + 2^62 in [0, 2^63) and c = y + R modulo 2^64: the sum wraps around exactly where R's first bit is 1 and c's is 0. So
y / 2^m = c / 2^m - R / 2^m + 2^(64 - m) [R >= 2^63 and c < 2^63], each quotient rounded down. The result may exceed the true
one, rounded down, by 1. The chance of that equals the fraction that was cut off, so the mean is right.

Range: |x| < 2^62. Beyond it the result is wrong by 2^(64 - m), and nothing shows that: the caller bounds x.
"""

import numpy as np

from tallystick.secret_sharing.ring import Words
from tallystick.secret_sharing.share_messages import WordsMessage
from tallystick.secret_sharing.sides import Dealer, ShareHolder, deal, draw_dealt

_HALF = np.uint64(1 << 62)
_FIRST = np.uint64(63)


def cut_places(side: ShareHolder, kind: type[WordsMessage], share: Words, *, bits: int) -> Words:
    """Return this party's share of x / 2^bits, from its share of x. It takes one exchange.

    Args:
        side: this party.
        kind: the message that carries the masked number.
        share: any shape.
        bits: m, the number of places to cut off.
    """
    mask = side.masks.draw(*share.shape)
    quotient, wrap = draw_dealt(side, 2, *share.shape)
    opened = side.open(kind, share + mask + (_HALF if side.is_label else np.uint64(0)))
    result: Words = (np.uint64(1) - (opened >> _FIRST)) * wrap - quotient
    if side.is_label:
        result = result + (opened >> np.uint64(bits)) - (_HALF >> np.uint64(bits))
    return result


def deal_truncation(dealer: Dealer, *shape: int, bits: int) -> None:
    """Deal, as the helper, the words that one truncation needs."""
    mask = sum((each.masks.draw(*shape) for each in dealer.parties), np.zeros(shape, dtype=np.uint64))
    deal(dealer, np.stack([mask >> np.uint64(bits), (mask >> _FIRST) << np.uint64(64 - bits)]))
