"""Multiply matrices, each held by one party, with numbers of which all parties hold shares.

Beaver 1991, with a mask that serves several products: a party shows the others its matrix X minus a mask U once, and each
product uses a fresh mask of the shared numbers. Let w be the sum of the parties' shares, and let party i hold X. Each other
party j draws v_j and shows f_j = w_j - v_j. Then X w = X (w_i + sum f_j) + sum of (X - U) v_j + sum of U v_j. Party i computes
the first term, party j its part of the second. The helper knows U and v_j and deals the third.

All parties' matrices are multiplied in one exchange. A party sees the sum of the others' words, as if they were one party. If
the label party and a feature party hold shares of products (feature_products.py), each has its shares as its last columns, and
both copies of such a column have the same weight.

Shapes: N rows, B rows of a batch, W columns of all parties, X of a party's matrix, Y of which others have a part, C outputs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tallystick.secret_sharing.columns import HeadColumns, Index
from tallystick.secret_sharing.ring import Words, product, transposed_product
from tallystick.secret_sharing.share_messages import MaskedErrors, MaskedFeatures, MaskedWeights, WordsMessage
from tallystick.secret_sharing.sides import Dealer, ShareHolder, deal, draw_dealt

_WORDS_AT_A_TIME = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """All parties' features as one party has them: its own, and the sum of the others' minus their masks.

    Args:
        columns: of all parties.
        held_NX: its own features, and its shares of products.
        masked_NY: the others' features and shares of products, minus their masks.
    """

    columns: HeadColumns
    held_NX: Words
    masked_NY: Words

    @classmethod
    def exchange(cls, side: ShareHolder, held_NX: Words, columns: HeadColumns) -> "Matrices":
        """Send own columns minus a mask to the other parties, and receive theirs minus their masks."""
        masked_NY = np.empty((len(held_NX), len(columns.others[side.place])), dtype=np.uint64)
        for rows in row_parts(len(held_NX), columns.widest):
            mask_RX = side.masks.draw(rows.stop - rows.start, held_NX.shape[1])
            masked_NY[rows] = side.exchange(
                MaskedFeatures, held_NX[rows] - mask_RX, shown=columns.held, seen=columns.others, axis=1
            )
        return cls(columns=columns, held_NX=held_NX, masked_NY=masked_NY)


def scores(side: ShareHolder, matrices: Matrices, rows_B: Index, weights_WC: Words) -> Words:
    """Return this party's shares of the scores of some rows, (B, C). It takes one exchange."""
    columns, outputs = matrices.columns, weights_WC.shape[1]
    held_X, others_Y = columns.held[side.place], columns.others[side.place]
    mask_YC = side.masks.draw(len(others_Y), outputs)
    masked_XC = side.exchange(MaskedWeights, weights_WC[others_Y] - mask_YC, shown=columns.others, seen=columns.held)
    own_BC = product(matrices.held_NX[rows_B], weights_WC[held_X] + masked_XC) + product(matrices.masked_NY[rows_B], mask_YC)
    return own_BC + draw_dealt(side, len(rows_B), outputs)


def gradients(side: ShareHolder, matrices: Matrices, rows_B: Index, errors_BC: Words) -> Words:
    """Return this party's shares of the products of each column with the errors, (W, C). It takes one exchange."""
    columns = matrices.columns
    mask_BC = side.masks.draw(*errors_BC.shape)
    masked_BC = side.exchange(MaskedErrors, errors_BC - mask_BC)
    gradient_WC = draw_dealt(side, columns.all, errors_BC.shape[1]).copy()
    gradient_WC[columns.held[side.place]] += transposed_product(matrices.held_NX[rows_B], errors_BC + masked_BC)
    gradient_WC[columns.others[side.place]] += transposed_product(matrices.masked_NY[rows_B], mask_BC)
    return gradient_WC


def scaled(side: ShareHolder, kind: type[WordsMessage], shared_WC: Words, factors: Words | None, *, count: int) -> Words:
    """Return this party's shares of shared numbers times whole numbers that only the label party knows. It takes one exchange.

    Args:
        side: this party.
        kind: the message that carries masked numbers and masked factors.
        shared_WC: this party's shares of W rows of numbers.
        factors: those of the rows, (count, 1); None at a feature party.
        count: W, or 1 for one common factor.
    """
    if factors is not None:
        masked = side.exchange_each(kind, factors - side.masks.draw(count, 1), [shared_WC.shape] * len(side.peers))
        return factors * sum(masked, shared_WC) + draw_dealt(side, *shared_WC.shape)
    mask_WC = side.masks.draw(*shared_WC.shape)
    (masked_factors,) = side.exchange_each(kind, shared_WC - mask_WC, [(count, 1)])
    return masked_factors * mask_WC + draw_dealt(side, *shared_WC.shape)


@dataclass(frozen=True, kw_only=True)
class MaskMatrices:
    """The masks of all parties' matrices, which the helper has.

    Args:
        dealer: the helper.
        columns: of all parties.
        masks: of each party, (N, X).
    """

    dealer: Dealer
    columns: HeadColumns
    masks: Sequence[Words]

    @classmethod
    def draw(cls, dealer: Dealer, rows: int, columns: HeadColumns) -> "MaskMatrices":
        """Draw the same masks as the parties."""
        masks = []
        for each, held_X in zip(dealer.parties, columns.held, strict=True):
            mask_NX = np.empty((rows, len(held_X)), dtype=np.uint64)
            for part in row_parts(rows, columns.widest):
                mask_NX[part] = each.masks.draw(part.stop - part.start, len(held_X))
            masks.append(mask_NX)
        return cls(dealer=dealer, columns=columns, masks=masks)


def deal_scores(matrices: MaskMatrices, rows_B: Index, outputs: int) -> None:
    """Deal the words that one call of ``scores`` needs."""
    dealer, columns = matrices.dealer, matrices.columns
    drawn = np.zeros((len(dealer.parties), columns.all, outputs), dtype=np.uint64)
    for mask_WC, each, others_Y in zip(drawn, dealer.parties, columns.others, strict=True):
        mask_WC[others_Y] = each.masks.draw(len(others_Y), outputs)
    total_WC, dealt_BC = drawn.sum(axis=0, dtype=np.uint64), np.zeros((len(rows_B), outputs), dtype=np.uint64)
    for mask_WC, mask_NX, held_X in zip(drawn, matrices.masks, columns.held, strict=True):
        dealt_BC += product(mask_NX[rows_B], (total_WC - mask_WC)[held_X])
    deal(dealer, dealt_BC)


def deal_gradients(matrices: MaskMatrices, rows_B: Index, outputs: int) -> None:
    """Deal the words that one call of ``gradients`` needs."""
    dealer, columns = matrices.dealer, matrices.columns
    drawn = np.stack([each.masks.draw(len(rows_B), outputs) for each in dealer.parties])
    total_BC, dealt_WC = drawn.sum(axis=0, dtype=np.uint64), np.zeros((columns.all, outputs), dtype=np.uint64)
    for mask_BC, mask_NX, held_X in zip(drawn, matrices.masks, columns.held, strict=True):
        dealt_WC[held_X] += transposed_product(mask_NX[rows_B], total_BC - mask_BC)
    deal(dealer, dealt_WC)


def deal_scaled(dealer: Dealer, rows: int, outputs: int, *, count: int) -> None:
    """Deal the words that one call of ``scaled`` needs, for this many rows of numbers and ``count`` factors."""
    factors = dealer.label.masks.draw(count, 1)
    deal(dealer, factors * sum((each.masks.draw(rows, outputs) for each in dealer.features), np.zeros(1, dtype=np.uint64)))


def row_parts(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows whose words fit one message."""
    size = max(_WORDS_AT_A_TIME // max(columns, 1), 1)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
