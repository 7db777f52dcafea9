"""Products of a matrix that one party holds with numbers that both hold shares of.

Beaver 1991, with a mask that outlives a product: a party shows the other its matrix X less a mask U once, and each product takes
a fresh mask of the shared numbers. For w = w_i + w_j, where party i holds X, party j draws v, shows f = w_j - v, and
X w = X (w_i + f) + (X - U) v + U v. Party i computes the first term, party j the second. The helper knows U and v and deals U v.

Where the parties hold shares of further columns (feature_products.py), each has its shares as its last columns, and both
matrices' copies of such a column have the same weight.

Shapes: N rows, B rows of a batch, D columns of one party, E of the other, P columns that both hold shares of, C outputs.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallystick.secret_sharing.ring import Words, product, transposed_product
from tallystick.secret_sharing.share_messages import (
    MaskedErrors,
    MaskedFeatures,
    MaskedWeights,
    WordsMessage,
    receive_words,
    send_words,
)
from tallystick.secret_sharing.sides import Dealer, Dealt, ShareHolder, deal, draw_dealt

Index = NDArray[np.int64]
_WORDS_AT_A_TIME = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Both parties' features as one party has them: its own, and the other's less the other's mask.

    Args:
        own_NX: D features, and P shares of common columns.
        masked_NY: E features and P shares of the other party's, less its mask.
        common: P.
    """

    own_NX: Words
    masked_NY: Words
    common: int

    @classmethod
    def exchange(cls, side: ShareHolder, own_NX: Words, others: int, *, common: int) -> "Matrices":
        """Show the other party own columns less a mask, and receive its ``others`` columns, less its mask."""
        masked_NY = np.empty((len(own_NX), others), dtype=np.uint64)
        for rows in row_parts(len(own_NX), max(own_NX.shape[1], others)):
            send_words(side.peer, MaskedFeatures, own_NX[rows] - side.masks.draw(rows.stop - rows.start, own_NX.shape[1]))
            masked_NY[rows] = receive_words(side.peer, MaskedFeatures, rows.stop - rows.start, others)
        return cls(own_NX=own_NX, masked_NY=masked_NY, common=common)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """This party's shares of numbers by column: of its own columns, of the other's, and of those that both hold shares of."""

    own_DC: Words
    others_EC: Words
    common_PC: Words

    def __add__(self, steps: "Shares") -> "Shares":
        return Shares(
            own_DC=self.own_DC + steps.own_DC,
            others_EC=self.others_EC + steps.others_EC,
            common_PC=self.common_PC + steps.common_PC,
        )

    @property
    def of_own_matrix(self) -> Words:
        """Stack those of the columns of this party's matrix."""
        return np.concatenate([self.own_DC, self.common_PC])

    @property
    def of_others_matrix(self) -> Words:
        """Stack those of the columns of the other party's matrix."""
        return np.concatenate([self.others_EC, self.common_PC])


def scores(side: ShareHolder, matrices: Matrices, rows_B: Index, weights: Shares) -> Words:
    """Return this party's shares of the scores of some rows, (B, C). It takes one exchange."""
    own_XC, others_YC = weights.of_own_matrix, weights.of_others_matrix
    outputs = own_XC.shape[1]
    mask_YC, mask_BC = side.masks.draw(len(others_YC), outputs), side.masks.draw(len(rows_B), outputs)
    masked_XC = side.exchange(MaskedWeights, others_YC - mask_YC, own_XC.shape)
    own_BC = product(matrices.own_NX[rows_B], own_XC + masked_XC) + mask_BC
    return own_BC + product(matrices.masked_NY[rows_B], mask_YC) + side.correction(len(rows_B), outputs)


def gradients(side: ShareHolder, matrices: Matrices, rows_B: Index, errors_BC: Words) -> Shares:
    """Return this party's shares of the products of each column with the errors. It takes one exchange."""
    mask_BC = side.masks.draw(*errors_BC.shape)
    mask_XC = side.masks.draw(matrices.own_NX.shape[1], errors_BC.shape[1])
    masked_BC = side.exchange(MaskedErrors, errors_BC - mask_BC)
    own_XC = transposed_product(matrices.own_NX[rows_B], errors_BC + masked_BC) + mask_XC
    others_YC = transposed_product(matrices.masked_NY[rows_B], mask_BC) + side.correction(
        matrices.masked_NY.shape[1], errors_BC.shape[1]
    )
    own, others = len(own_XC) - matrices.common, len(others_YC) - matrices.common
    return Shares(own_DC=own_XC[:own], others_EC=others_YC[:others], common_PC=own_XC[own:] + others_YC[others:])


def scaled(side: ShareHolder, kind: type[WordsMessage], shared_WC: Words, factors: Words | None, *, count: int) -> Words:
    """Return this party's shares of shared numbers times whole numbers that the label party alone knows; one exchange.

    Args:
        side: this party.
        kind: message in which masked numbers and masked factors cross.
        shared_WC: this party's shares of W rows of numbers.
        factors: of the rows, (count, 1); None at the feature party.
        count: W, or 1 for one factor of all rows.
    """
    if factors is not None:
        masked_WC = side.exchange(kind, factors - side.masks.draw(count, 1), shared_WC.shape)
        return factors * (shared_WC + masked_WC) + draw_dealt(side, *shared_WC.shape)
    mask_WC = side.masks.draw(*shared_WC.shape)
    masked_factors = side.exchange(kind, shared_WC - mask_WC, (count, 1))
    return masked_factors * mask_WC + draw_dealt(side, *shared_WC.shape)


@dataclass(frozen=True, kw_only=True)
class MaskMatrix:
    """One party's mask of its features, as the helper has it."""

    dealt: Dealt
    mask_ND: Words

    @classmethod
    def draw(cls, dealt: Dealt, rows: int, columns: int, others: int) -> "MaskMatrix":
        """Draw it as the party does."""
        mask_ND = np.empty((rows, columns), dtype=np.uint64)
        for part in row_parts(rows, max(columns, others)):
            mask_ND[part] = dealt.masks.draw(part.stop - part.start, columns)
        return cls(dealt=dealt, mask_ND=mask_ND)


def draw_masks(dealer: Dealer, rows: int, label_columns: int, feature_columns: int) -> tuple[MaskMatrix, MaskMatrix]:
    """Draw both parties' masks of their features, as the helper. The label party's come first."""
    return (
        MaskMatrix.draw(dealer.label, rows, label_columns, feature_columns),
        MaskMatrix.draw(dealer.feature, rows, feature_columns, label_columns),
    )


def deal_scores(masks: tuple[MaskMatrix, MaskMatrix], rows_B: Index, outputs: int) -> None:
    """Deal what one call of ``scores`` takes."""
    drawn = [
        (each.dealt.masks.draw(other.mask_ND.shape[1], outputs), each.dealt.masks.draw(len(rows_B), outputs))
        for each, other in (masks, masks[::-1])
    ]
    for (each, other), (mask_EC, _), (_, mask_BC) in zip((masks, masks[::-1]), drawn, drawn[::-1], strict=True):
        each.dealt.correct(product(other.mask_ND[rows_B], mask_EC) - mask_BC)


def deal_gradients(masks: tuple[MaskMatrix, MaskMatrix], rows_B: Index, outputs: int) -> None:
    """Deal what one call of ``gradients`` takes."""
    drawn = [
        (each.dealt.masks.draw(len(rows_B), outputs), each.dealt.masks.draw(each.mask_ND.shape[1], outputs)) for each in masks
    ]
    for (each, other), (mask_BC, _), (_, mask_EC) in zip((masks, masks[::-1]), drawn, drawn[::-1], strict=True):
        each.dealt.correct(transposed_product(other.mask_ND[rows_B], mask_BC) - mask_EC)


def deal_scaled(dealer: Dealer, rows: int, outputs: int, *, count: int) -> None:
    """Deal what one call of ``scaled`` takes, of so many rows of numbers and ``count`` factors."""
    deal(dealer, dealer.label.masks.draw(count, 1) * dealer.feature.masks.draw(rows, outputs))


def row_parts(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows whose words fit one message."""
    size = max(_WORDS_AT_A_TIME // max(columns, 1), 1)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
