"""Find equal tags in two lists by sorting, in memory that is a small multiple of the tags themselves.

A tag is the first 16 bytes of a group element (or of a keyed hash). Among a million random elements on either side two
different ones share a tag with a chance of 10^12 / 2^128 < 10^-26.

Shapes: N, M tags of a side; K equal pairs.
"""

from typing import Any

import numpy as np

TAG_BYTES = 16

Tags = np.ndarray[Any, np.dtype[np.uint8]]
Words = np.ndarray[Any, np.dtype[np.uint64]]
Index = np.ndarray[Any, np.dtype[np.int64]]


class DuplicateTags(ValueError):
    """Raised if a list holds a tag twice. ``side`` is 0 for the first list and 1 for the second, ``count`` the number
    of repeats.
    """

    def __init__(self, side: int, count: int) -> None:
        super().__init__(f"list {side} holds {count} duplicates")
        self.side = side
        self.count = count


def tags_of(elements_N32: Tags) -> Tags:
    """Cut elements to tags (a copy)."""
    return np.ascontiguousarray(elements_N32[:, :TAG_BYTES])


def sorted_order(tags_N16: Tags) -> Index:
    """Return the order that sorts tags by their bytes read as two integers, the same on every machine."""
    words_N2 = np.ascontiguousarray(tags_N16).view("<u8")
    return order_of_pairs(words_N2[:, 0], words_N2[:, 1])


def order_of_pairs(first_N: Words, second_N: Words) -> Index:
    """Return the order that sorts by the first of two words, and by the second if the first are equal."""
    contiguous_N = np.ascontiguousarray(first_N)
    order = np.argsort(contiguous_N)
    ordered_N = contiguous_N[order]
    if (ordered_N[1:] == ordered_N[:-1]).any():  # this hardly ever happens to random words
        order = np.lexsort((second_N, first_N))
    return order.astype(np.int64, copy=False)


def repeated(tags_N16: Tags) -> int:
    """Count the tags that already occur earlier in the list."""
    words_N2 = np.ascontiguousarray(tags_N16).view("<u8")
    ordered_N2 = words_N2[sorted_order(tags_N16)]
    return int((ordered_N2[1:] == ordered_N2[:-1]).all(axis=1).sum())


def match(first_N16: Tags, second_M16: Tags) -> tuple[Index, Index]:
    """Return the indices of equal tags, first_K into the first list and second_K into the second, ordered by tag.

    Raises DuplicateTags if a list holds a tag twice.
    """
    tags = np.concatenate((first_N16, second_M16))
    words = tags.view("<u8")
    order = np.lexsort((words[:, 1], words[:, 0]))
    equal = np.ones(max(len(order) - 1, 0), dtype=bool)
    for word in (0, 1):
        ordered = words[order, word]
        equal &= ordered[1:] == ordered[:-1]
    before, after = order[:-1][equal], order[1:][equal]
    # The sort is stable: of two equal tags, the first list's comes first. Any other pair is a duplicate.
    limit = len(first_N16)
    for side, wrong in enumerate((after < limit, before >= limit)):
        if wrong.any():
            raise DuplicateTags(side, int(wrong.sum()))
    return before, after - limit


def are_distinct_indices(indices_K: Index, bound: int) -> bool:
    """Tell whether the indices are all different and lie in [0, bound)."""
    if len(indices_K) == 0:
        return True
    if indices_K.min() < 0 or indices_K.max() >= bound:
        return False
    is_present = np.zeros(bound, dtype=bool)
    is_present[indices_K] = True
    return int(is_present.sum()) == len(indices_K)
