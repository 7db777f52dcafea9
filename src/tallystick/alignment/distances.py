"""Compute distances between encoded keys, and find the K nearest keys.

In the clear a distance is the Euclidean distance of the numbers (divided by ``scale``, times ``weight``), plus, for each text,
its weight times one minus the normalised Levenshtein similarity. Otherwise it is the weighted number of differing bits of
FEDERAL's filters.

Shapes: N rows of the label party, M of a feature party, B of a block, P bits.
"""

import numpy as np
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist

from tallystick.alignment.encoding import EncodedKeys
from tallystick.alignment.federal import Packed
from tallystick.alignment.nearest import (
    PAD,
    SLACK,
    Floats,
    Neighbors,
    euclidean,
    nearest,
    nearest_by_ranks,
    nearest_of_all,
    rank_distance,
)
from tallystick.alignment.terms import SimilarityConfig

UNPACKED_BYTES = 1 << 28
"""Memory for the bits of filters as floats. Their products are exact up to 2^24 bits."""


def nearest_keys(own: EncodedKeys, others: EncodedKeys, terms: SimilarityConfig) -> Neighbors:
    """Return the K nearest rows by encoded keys: by a tree if keys have only numbers, else by comparing all pairs."""
    if not own.filters and not own.texts:
        if terms.helper_sees == "clear":
            return nearest(own.numbers_ND, others.numbers_ND, neighbors=terms.neighbors)
        weights_D = np.array([dimension.weight for dimension in terms.numbers])
        return nearest_by_ranks(own.ranks_ND2, others.ranks_ND2, neighbors=terms.neighbors, weights_D=weights_D)
    return nearest_of_all(
        own.rows, others.rows, neighbors=terms.neighbors, block=lambda rows: block_distance(own, others, terms, rows)
    )


def alike_enough(links: Neighbors, own: EncodedKeys, others: EncodedKeys, terms: SimilarityConfig) -> Neighbors:
    """Drop the links whose keys are less similar than the contract's ``least_similarity``.

    The similarity of two keys is 1 minus their distance divided by the distance of keys that have nothing in common. For one text
    filter it is Dice's coefficient of the bits (Christen, Ranbaduge and Schnell 2020, section 7). For a text in the clear it is
    the normalised Levenshtein similarity. For a number it is 1 if the two are the same, and 0 if they are twice the window apart
    or more.
    """
    if terms.least_similarity is None:
        return links
    # The distance that the keys of each link would have if they had nothing in common (N, K)
    total_NK, number_NK = np.zeros(links.numbers_NK.shape), np.maximum(links.numbers_NK, 0)
    if own.ranks_ND2.shape[1]:
        weights_D = np.array([dimension.weight for dimension in terms.numbers])
        bits_N, bits_M = (np.diff(side.ranks_ND2, axis=2)[..., 0] @ weights_D for side in (own, others))
        total_NK += bits_N[:, None] + bits_M[number_NK]
    if own.numbers_ND.shape[1]:
        total_NK += 2 * terms.window * float(np.sqrt(sum(dimension.weight**2 for dimension in terms.numbers)))
    for dimension in terms.dimensions:
        if dimension.name in own.filters:
            ones_N, ones_M = (np.bitwise_count(side.filters[dimension.name]).sum(axis=1) for side in (own, others))
            total_NK += dimension.weight * (ones_N[:, None] + ones_M[number_NK])
        if dimension.name in own.texts:
            total_NK += dimension.weight
    apart_NK = (1 - terms.least_similarity) * total_NK
    below_NK = links.distance_NK > apart_NK * (1 + SLACK)
    return Neighbors(
        numbers_NK=np.where(below_NK, PAD, links.numbers_NK), distance_NK=np.where(below_NK, np.inf, links.distance_NK)
    )


def block_distance(own: EncodedKeys, others: EncodedKeys, terms: SimilarityConfig, rows: slice) -> Floats:
    """Return the distances (B, M) of some rows to all others. They are infinite between different blocks.

    A distance is the sum over dimensions of weight times distance: differing bits of filters, or in the clear the Euclidean
    distance of all numbers together and, for each text, one minus the normalised Levenshtein similarity.
    """
    total_BM = np.zeros((rows.stop - rows.start, others.rows))
    if own.ranks_ND2.shape[1]:
        weights_D = np.array([dimension.weight for dimension in terms.numbers])
        total_BM += rank_distance(own.ranks_ND2[rows, None], others.ranks_ND2[None], weights_D=weights_D)
    if own.numbers_ND.shape[1]:
        total_BM += euclidean(own.numbers_ND[rows, None], others.numbers_ND[None])
    for dimension in terms.dimensions:
        if dimension.name in own.filters:
            total_BM += dimension.weight * hamming(own.filters[dimension.name][rows], others.filters[dimension.name])
        if dimension.name in own.texts:
            texts = own.texts[dimension.name][rows]
            total_BM += dimension.weight * cdist(
                texts, others.texts[dimension.name], scorer=Levenshtein.normalized_distance, dtype=np.float64
            )
    if own.blocks_N16 is not None and others.blocks_N16 is not None:
        tags_B, tags_M = (
            blocks.view("V16").ravel() for blocks in (np.ascontiguousarray(own.blocks_N16[rows]), others.blocks_N16)
        )
        total_BM[tags_B[:, None] != tags_M[None]] = np.inf
    return total_BM


def hamming(first_BW: Packed, second_MW: Packed) -> Floats:
    """Count the differing bits of every pair as |a| + |b| - 2 ab. The products are of bits as floats, which is exact."""
    distance_BM = np.empty((len(first_BW), len(second_MW)))
    height = max(UNPACKED_BYTES // (32 * first_BW.shape[1]), 1)
    for top in range(0, len(first_BW), height):
        first_CP = np.unpackbits(first_BW[top : top + height], axis=1).astype(np.float32)
        ones_C1 = first_CP.sum(axis=1, dtype=np.float64)[:, None]
        for left in range(0, len(second_MW), height):
            second_CP = np.unpackbits(second_MW[left : left + height], axis=1).astype(np.float32)
            ones_C = second_CP.sum(axis=1, dtype=np.float64)
            distance_BM[top : top + height, left : left + height] = ones_C1 + ones_C - 2.0 * (first_CP @ second_CP.T)
    return distance_BM
