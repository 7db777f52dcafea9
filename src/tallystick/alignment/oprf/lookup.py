"""Find which of many outputs are among one's own. A bitmap rejects most of the others first.

Shapes: K own outputs or matches; B outputs of a piece; S bytes of an output.
"""

from typing import Any

import numpy as np

from tallystick.alignment.oprf.bit_matrix import Rows
from tallystick.alignment.oprf.codes import Places

_WORD_BYTES = 8
_BITMAP_BYTES = 8
"""Bytes of the bitmap for each own output, at least."""

Index = np.ndarray[Any, np.dtype[np.int64]]


class Lookup:
    """Own outputs of ``width`` bytes (8 or more), and the row of each. Add all outputs before the first search."""

    def __init__(self, width: int) -> None:
        assert width >= _WORD_BYTES
        self._outputs: list[Rows] = [np.empty((0, width), dtype=np.uint8)]
        self._rows: list[Places] = [np.empty(0, dtype=np.int32)]
        self._sorted: tuple[Any, Rows, Places] | None = None

    def add(self, output_KS: Rows, rows_K: Places) -> None:
        """Add own outputs."""
        self._outputs.append(output_KS)
        self._rows.append(rows_K)

    def find(self, output_BS: Rows) -> tuple[Places, Index]:
        """Return, for outputs that are among the own ones, the row of each and its position in ``output_BS``."""
        if self._sorted is None:
            output_KS, rows_K = np.concatenate(self._outputs), np.concatenate(self._rows)
            self._outputs, self._rows = [], []
            words_K = _first_words(output_KS)
            order = np.argsort(words_K)
            self._sorted = words_K[order], output_KS.take(order, axis=0), rows_K[order]
            bits = (_BITMAP_BYTES * len(words_K)).bit_length()
            self._low = np.uint64((1 << bits) - 1)
            self._bitmap = np.zeros(1 << bits, dtype=bool)
            self._bitmap[words_K & self._low] = True
        assert self._sorted is not None
        word_K, own_KS, rows_K = self._sorted
        word_B = _first_words(output_BS)
        likely = np.flatnonzero(self._bitmap[word_B & self._low])
        likely = likely[np.argsort(word_B[likely])]  # a search in order stays in the processor's cache
        at = np.searchsorted(word_K, word_B[likely])
        found_rows, found_at = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int64)]
        while len(likely):
            inside = at < len(word_K)
            at, likely = at[inside], likely[inside]
            same_word = word_K[at] == word_B[likely]
            at, likely = at[same_word], likely[same_word]
            same = (own_KS.take(at, axis=0) == output_BS.take(likely, axis=0)).all(axis=1)
            found_rows.append(rows_K[at[same]])
            found_at.append(likely[same])
            at = at + 1  # own outputs may share their first 8 bytes
        return np.concatenate(found_rows), np.concatenate(found_at)


def _first_words(output_BS: Rows) -> Any:
    return np.ascontiguousarray(output_BS[:, :_WORD_BYTES]).view("<u8").ravel()
