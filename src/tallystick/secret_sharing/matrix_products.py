"""Products of a matrix that one party holds with numbers that both hold shares of.

Beaver 1991, with a mask that outlives a product: a party shows the other its matrix X less a mask U once, and each product takes
a fresh mask of the shared numbers. For w = w_i + w_j, where party i holds X, party j draws v, shows f = w_j - v, and
X w = X (w_i + f) + (X - U) v + U v. Party i computes the first term, party j the second. The helper knows U and v and deals U v.

Shapes: N rows, B rows of a batch, D columns of one party, E of the other, C outputs.
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
    receive_words,
    send_words,
)
from tallystick.secret_sharing.sides import Dealer, Dealt, ShareHolder

Index = NDArray[np.int64]
_WORDS_AT_A_TIME = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Matrices:
    """Both parties' features as one party has them: its own, and the other's less the other's mask."""

    own_ND: Words
    masked_NE: Words

    @classmethod
    def exchange(cls, side: ShareHolder, own_ND: Words, others: int) -> "Matrices":
        """Show the other party own features less a mask, and receive its ``others`` columns, less its mask."""
        masked_NE = np.empty((len(own_ND), others), dtype=np.uint64)
        for rows in row_parts(len(own_ND), max(own_ND.shape[1], others)):
            send_words(side.peer, MaskedFeatures, own_ND[rows] - side.masks.draw(rows.stop - rows.start, own_ND.shape[1]))
            masked_NE[rows] = receive_words(side.peer, MaskedFeatures, rows.stop - rows.start, others)
        return cls(own_ND=own_ND, masked_NE=masked_NE)


@dataclass(frozen=True, kw_only=True)
class Shares:
    """This party's shares of numbers by column: of its own columns, and of the other's."""

    own_DC: Words
    others_EC: Words

    def __add__(self, steps: "Shares") -> "Shares":
        return Shares(own_DC=self.own_DC + steps.own_DC, others_EC=self.others_EC + steps.others_EC)


def scores(side: ShareHolder, matrices: Matrices, rows_B: Index, weights: Shares) -> Words:
    """Return this party's shares of the scores of some rows, (B, C); one exchange."""
    others, outputs = weights.others_EC.shape
    mask_EC, mask_BC = side.masks.draw(others, outputs), side.masks.draw(len(rows_B), outputs)
    masked_DC = side.exchange(MaskedWeights, weights.others_EC - mask_EC, weights.own_DC.shape)
    own_BC = product(matrices.own_ND[rows_B], weights.own_DC + masked_DC) + mask_BC
    return own_BC + product(matrices.masked_NE[rows_B], mask_EC) + side.correction(len(rows_B), outputs)


def gradients(side: ShareHolder, matrices: Matrices, rows_B: Index, errors_BC: Words) -> Shares:
    """Return this party's shares of the products of each column with the errors; one exchange."""
    mask_BC = side.masks.draw(*errors_BC.shape)
    mask_DC = side.masks.draw(matrices.own_ND.shape[1], errors_BC.shape[1])
    masked_BC = side.exchange(MaskedErrors, errors_BC - mask_BC)
    return Shares(
        own_DC=transposed_product(matrices.own_ND[rows_B], errors_BC + masked_BC) + mask_DC,
        others_EC=transposed_product(matrices.masked_NE[rows_B], mask_BC)
        + side.correction(matrices.masked_NE.shape[1], errors_BC.shape[1]),
    )


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
    """Draw both parties' masks of their features, as the helper; the label party's first."""
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


def row_parts(rows: int, columns: int) -> Iterator[slice]:
    """Yield slices of rows whose words fit one message."""
    size = max(_WORDS_AT_A_TIME // max(columns, 1), 1)
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))
