"""Windows: which rows are always asked for together. Shapes: N rows.

A hash of the keys cuts windows and batches, whatever the contract's text, run or day. What makes them tell more:

- A partner may leave out half of its rows of a window and see whether its window is still asked for. A window of 32 is down to
  one row in six alignments. Nothing prevents this.
- A union whose keys or contract change gets new positions, batches and stand-ins. A row that is asked for before and after stands
  in two batches that can be compared, and one whose embedding or score changed is likely to be made up. Budgets count positions,
  so a new alignment renews none.
- Another ``runs`` folder, or a contract of another name, has another secret of its windows and budgets of its own. A row that is
  asked for from two such folders is in two windows that have little else in common.
- By ``position`` a row is named, and whoever then sees its window can guess which row is wanted: a contract should allow one way.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import DataError

BITS = 64


def windows(names_N: Sequence[bytes], *, size: int, key: bytes) -> list[NDArray[np.int64]]:
    """Cut rows into windows of at least ``size``, no row in two: the places of each window's rows.

    A name's hash under the key settles its window. The names are cut in two by the first bit of their hashes, each part by the
    next bit, and so on, as long as both parts have ``size`` rows. So to compare windows of several days tells no more of the row
    than the smallest of them does, but that it is none of those who came or went between.

    No formal guarantee: what else is known of these rows can tell which one is wanted.

    Args:
        names_N: of the rows, each once.
        size: at least 1.
        key: of the hash, 64 bytes at most: a secret where nobody else is to know which rows share a window, else empty.

    Raises DataError for fewer rows than one window needs.
    """
    if len(names_N) < size:
        raise DataError(
            f"serving.window: {len(names_N)} rows are common, and the contract hides each among {size}; bring larger tables or "
            "agree on smaller windows"
        )
    digests = [hashlib.blake2b(name, key=key, digest_size=BITS // 8, person=b"serving window").digest() for name in names_N]
    hash_N = np.frombuffer(b"".join(digests), dtype=">u8").astype(np.uint64)
    order_N = np.argsort(hash_N, kind="stable")
    hash_N = hash_N[order_N]
    windows, waiting = [], [(0, len(hash_N), 0)]
    while waiting:
        first, behind, bit = waiting.pop()
        # The highest bits are alike in a part: its middle is the first hash with the next bit set.
        is_set = hash_N[first:behind] >> np.uint64(BITS - 1 - bit) & np.uint64(1) if bit < BITS else np.ones(0, dtype=np.uint64)
        middle = behind - int(is_set.sum())
        if bit < BITS and middle - first >= size and behind - middle >= size:
            waiting += [(middle, behind, bit + 1), (first, middle, bit + 1)]
        else:
            windows.append((first, behind))
    return [order_N[first:behind] for first, behind in windows]
