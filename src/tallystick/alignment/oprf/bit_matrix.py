"""Transpose bit matrices by 64-bit words: columns of bits become rows of bytes, and rows become columns.

Shapes: C columns, a multiple of 64; W words per column, so 64 W rows.
"""

from typing import Any

import numpy as np

Words = np.ndarray[Any, np.dtype[np.uint64]]
Rows = np.ndarray[Any, np.dtype[np.uint8]]

_HALVES = tuple(
    (half, np.uint64(sum(((1 << half) - 1) << start for start in range(0, 64, 2 * half)))) for half in (32, 16, 8, 4, 2, 1)
)
"""Half a block's width, and the mask that selects, in a word, the lower half of every block of twice that width."""


def turned(columns_CW: Words) -> Rows:
    """Return the rows (64 W, C / 8): bit c of row r, from the lowest, is bit r of column c."""
    columns, words = columns_CW.shape
    assert columns % 64 == 0
    blocks = columns_CW.astype("<u8").reshape(columns // 64, 64, words)
    _turn_blocks(blocks)
    return np.ascontiguousarray(blocks.transpose(2, 1, 0)).reshape(64 * words, columns // 64).view(np.uint8)


def turned_back(rows: Rows) -> Words:
    """Return the columns (C, W) of rows (64 W, C / 8)."""
    words, width = len(rows) // 64, rows.shape[1] // 8
    blocks = np.ascontiguousarray(np.ascontiguousarray(rows).view("<u8").reshape(words, 64, width).transpose(2, 1, 0))
    _turn_blocks(blocks)
    return blocks.reshape(64 * width, words)


def _turn_blocks(blocks: Words) -> None:
    """Transpose blocks (., 64, W) of 64 x 64 bits in place: exchange halves, then halves of halves.

    Warren, Hacker's Delight, section 7-3.
    """
    count, _, words = blocks.shape
    for half, lower in _HALVES:
        pairs = blocks.reshape(count, 32 // half, 2, half, words)
        first, second = pairs[:, :, 0], pairs[:, :, 1]
        swapped = first >> np.uint64(half)
        swapped ^= second
        swapped &= lower
        second ^= swapped
        swapped <<= np.uint64(half)
        first ^= swapped
