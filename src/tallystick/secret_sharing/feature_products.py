"""Multiply columns of the label party with columns of a feature party: the products are further columns, of which both hold
shares.

Beaver 1991, once a row. For columns a of the label party and b of the feature party and masks u and v, the parties show each
other a - u and b - v, and a b = a (b - v) + (a - u) v + u v. The label party computes the first term, the feature party the
second, and the helper deals u v. So each party has a matrix, and the sum of both is the products. Each masks its matrix once
and multiplies it like its own features; the secret weights are the same for both.

Both factors have 8 binary places, so a product has 16, like a feature, and none has to be cut. Factors lie within -1.5 to 1.5,
so products lie within 2.25, which is in the range of features.

With several feature parties the label party shows the same a - u to all, and has products with each.

Shapes: N rows, R rows of a message, A factors of the label party, B of a feature party, P = A B products, by A first.
"""

import numpy as np
from numpy.typing import NDArray

from tallystick.secret_sharing.columns import HeadColumns
from tallystick.secret_sharing.matrix_products import row_parts
from tallystick.secret_sharing.ring import Words, to_words
from tallystick.secret_sharing.share_messages import MaskedFeatures
from tallystick.secret_sharing.sides import Dealer, ShareHolder, deal, draw_dealt

_FACTOR_BITS = 8
_SCALE = 0.5
"""The multiplier of a feature that becomes a factor. A product counts for a quarter of a feature, because there are many."""
_LARGEST_FACTOR = 1.5


def factors_of(features_ND: NDArray[np.float64], count: int) -> Words:
    """Return a party's factors: its last columns, which are each party's strongest axes, and the label party's own network.

    A party chooses these columns itself. Their number follows from the number of its columns.
    """
    chosen_NK = features_ND[:, features_ND.shape[1] - count :] * _SCALE
    return to_words(chosen_NK, bits=_FACTOR_BITS, limit=_LARGEST_FACTOR, what="factors of a head on shares")


def share_products(side: ShareHolder, own_NK: Words, columns: HeadColumns) -> Words:
    """Return this party's shares of the products, (N, P): a feature party's of its own products, the label party's of all, in
    order.
    """
    parts = []
    for rows in row_parts(len(own_NK), columns.products_of_a_row):
        own_RK = own_NK[rows]
        mask_RK = side.masks.draw(*own_RK.shape)
        counts = columns.factors[1:] if side.is_label else columns.factors[:1]
        shapes = [(len(own_RK), count) for count in counts]
        masked = side.exchange_each(MaskedFeatures, own_RK - mask_RK, shapes)
        terms = [_outer(own_RK, masked_RB) if side.is_label else _outer(masked_RB, mask_RK) for masked_RB in masked]
        parts.append(np.concatenate([term_RP + draw_dealt(side, *term_RP.shape) for term_RP in terms], axis=1))
    width = sum(columns.products) if side.is_label else columns.products[side.place - 1]
    return np.concatenate([np.empty((0, width), dtype=np.uint64), *parts])


def deal_products(dealer: Dealer, rows: int, columns: HeadColumns) -> None:
    """Deal the words that one call of ``share_products`` needs."""
    for part in row_parts(rows, columns.products_of_a_row):
        count = part.stop - part.start
        of_label_RA = dealer.label.masks.draw(count, columns.factors[0])
        for each, factors in zip(dealer.features, columns.factors[1:], strict=True):
            deal(dealer, _outer(of_label_RA, each.masks.draw(count, factors)), among=[each])


def _outer(first_RA: Words, second_RB: Words) -> Words:
    product_RAB: Words = first_RA[:, :, None] * second_RB[:, None, :]
    return product_RAB.reshape(len(first_RA), -1)
