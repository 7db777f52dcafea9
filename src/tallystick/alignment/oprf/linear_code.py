"""Encode 162 bits as 638 by a binary linear code whose words differ in 128 places or more, many words at a time by columns.

It is a Reed-Solomon code over 64 elements, 27 symbols in 58, whose words differ in 58 - 27 + 1 = 32 symbols or more (two
polynomials of degree 26 agree in 26 points at most). Each symbol of 6 bits is then encoded as 11 bits that differ in 4 or more
(an extended Hamming code, shortened). Concatenation multiplies the two distances (Forney 1966): 32 x 4 = 128.

Shapes: D bits of data; C bits of a code word, whose last two are always 0; W words of 64 rows.
"""

from functools import cache
from typing import Any

import numpy as np

from tallystick.alignment.oprf.bit_matrix import Words

SYMBOL_BITS = 6
DATA_SYMBOLS, CODE_SYMBOLS = 27, 58
DATA_BITS = SYMBOL_BITS * DATA_SYMBOLS
COLUMNS = 640
DISTANCE = 128
_INNER_BITS = 11
_PARITY_6 = (0b00111, 0b01011, 0b01101, 0b01110, 0b10011, 0b10101)
"""One per bit of a symbol. They are different and have three bits each, so no three columns of the parity-check
matrix sum to 0.
"""
_FIELD = 0b1000011
"""x^6 + x + 1; x is a primitive root of it."""
_GROUP = 8
_PIECE_WORDS = 128

Bits = np.ndarray[Any, np.dtype[np.bool_]]


def code_words(data_DW: Words) -> Words:
    """Return the code words (C, W) of the rows whose bits are the columns ``data_DW``.

    Columns are added in groups of eight: all 256 sums of a group are computed first (the method of the four Russians).
    """
    words = data_DW.shape[1]
    code_CW = np.zeros((COLUMNS, words), dtype=np.uint64)
    for start in range(0, words, _PIECE_WORDS):
        piece_DW = data_DW[:, start : start + _PIECE_WORDS]
        sum_CW = np.zeros((COLUMNS, piece_DW.shape[1]), dtype=np.uint64)
        chosen_CW = np.empty_like(sum_CW)
        sums_SW = np.zeros((1 << _GROUP, piece_DW.shape[1]), dtype=np.uint64)
        for group, which_C in enumerate(_groups()):
            for place, column_W in enumerate(piece_DW[group * _GROUP : (group + 1) * _GROUP]):
                np.bitwise_xor(sums_SW[: 1 << place], column_W, out=sums_SW[1 << place : 2 << place])
            np.take(sums_SW, which_C, axis=0, out=chosen_CW, mode="clip")
            sum_CW ^= chosen_CW
        code_CW[:, start : start + _PIECE_WORDS] = sum_CW
    return code_CW


@cache
def generator() -> Bits:
    """Return the generator matrix (D, C): row d is the code word of the single bit d."""
    power = [1]
    for _ in range(62):
        doubled = power[-1] << 1
        power.append(doubled ^ _FIELD if doubled >> SYMBOL_BITS else doubled)
    logarithm = {element: exponent for exponent, element in enumerate(power)}
    matrix_DC = np.zeros((DATA_BITS, COLUMNS), dtype=bool)
    for row in range(DATA_BITS):
        degree, bit = divmod(row, SYMBOL_BITS)
        for point in range(CODE_SYMBOLS):
            # The polynomial's coefficient 2^bit at the point x^point: the logarithm of the product is the sum of logarithms.
            symbol = power[(logarithm[1 << bit] + degree * point) % 63]
            parity = 0
            for check, checks in enumerate(_PARITY_6):
                if symbol >> check & 1:
                    parity ^= checks
            word = symbol | parity << SYMBOL_BITS
            for place in range(_INNER_BITS):
                matrix_DC[row, point * _INNER_BITS + place] = word >> place & 1
    return matrix_DC


@cache
def _groups() -> tuple[np.ndarray[Any, np.dtype[np.intp]], ...]:
    """Tabulate, for each group of eight data bits, which of their 256 sums every column uses."""
    padded_DC = np.zeros((-(-DATA_BITS // _GROUP) * _GROUP, COLUMNS), dtype=bool)
    padded_DC[:DATA_BITS] = generator()
    return tuple(np.packbits(padded_DC, axis=0, bitorder="little").astype(np.intp))
