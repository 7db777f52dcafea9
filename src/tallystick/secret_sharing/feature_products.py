"""Products of a column of one party and a column of the other: further columns of a head, which both parties hold shares of.

Beaver 1991, once a row. For columns a of the label party and b of the feature party and masks u and v, the parties show each
other a - u and b - v, and a b = a (b - v) + (a - u) v + u v. The label party computes the first term, the feature party the
second, and the helper deals u v. So each party has a matrix of its own, whose sum is the products: from here on it masks that
matrix once and multiplies it like its own features, with the same secret weights at both.

Both factors have 8 binary places, so a product has the 16 of a feature without cutting any. Within -1.5 to 1.5 they have products
within 2.25, which is in the range of features.

Shapes: N rows, R rows of a message, A factors of the label party, B of the feature party, P = A B products, by A first.
"""

import math

import numpy as np
from numpy.typing import NDArray

from tallystick.secret_sharing.matrix_products import row_parts
from tallystick.secret_sharing.ring import Words, to_words
from tallystick.secret_sharing.share_messages import MaskedFeatures
from tallystick.secret_sharing.sides import Dealer, ShareHolder, deal, draw_dealt

FACTORS = (8, 32)
"""Columns of the label party and of the feature party that are multiplied, each with each: a party's last ones."""
_FACTOR_BITS = 8
_SCALE = 0.5
"""What a feature is multiplied by before it is a factor: a product counts for a quarter of a feature, as there are many."""
_LARGEST_FACTOR = 1.5


def factor_counts(columns: tuple[int, int]) -> tuple[int, int]:
    """Return how many factors the label party and the feature party have, of so many columns."""
    return min(FACTORS[0], columns[0]), min(FACTORS[1], columns[1])


def product_count(columns: tuple[int, int]) -> int:
    """Return how many products there are of so many columns."""
    return math.prod(factor_counts(columns))


def factors_of(features_ND: NDArray[np.float64], count: int) -> Words:
    """Return a party's factors: its last columns, the label party's own network and each party's strongest axes.

    Which columns these are is a party's own choice. How many there are follows from how many columns it has.
    """
    chosen_NK = features_ND[:, features_ND.shape[1] - count :] * _SCALE
    return to_words(chosen_NK, bits=_FACTOR_BITS, limit=_LARGEST_FACTOR, what="factors of a head on shares")


def share_products(side: ShareHolder, own_NK: Words, others: int) -> Words:
    """Return this party's shares of the products of its factors and the other's, (N, P)."""
    parts = []
    for rows in row_parts(len(own_NK), own_NK.shape[1] * others):
        own_RK = own_NK[rows]
        mask_RK = side.masks.draw(*own_RK.shape)
        masked_RK = side.exchange(MaskedFeatures, own_RK - mask_RK, (len(own_RK), others))
        term_RP = _outer(own_RK, masked_RK) if side.is_label else _outer(masked_RK, mask_RK)
        parts.append(term_RP + draw_dealt(side, *term_RP.shape))
    return np.concatenate([np.empty((0, own_NK.shape[1] * others), dtype=np.uint64), *parts])


def deal_products(dealer: Dealer, rows: int, factors: tuple[int, int]) -> None:
    """Deal what one call of ``share_products`` takes."""
    for part in row_parts(rows, factors[0] * factors[1]):
        count = part.stop - part.start
        deal(dealer, _outer(dealer.label.masks.draw(count, factors[0]), dealer.feature.masks.draw(count, factors[1])))


def _outer(first_RA: Words, second_RB: Words) -> Words:
    product_RAB: Words = first_RA[:, :, None] * second_RB[:, None, :]
    return product_RAB.reshape(len(first_RA), -1)
