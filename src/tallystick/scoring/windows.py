"""Cut windows: groups of rows that are always asked for together. Shapes: N rows.

A hash of the keys cuts windows and batches, whatever the contract's text, run or day. These cases make them reveal more:

- A partner may leave out half of its rows of a window and observe whether the window is still asked for. A window of 32 shrinks
  to one row in six alignments. Nothing prevents this.
- A union whose keys or contract change gets new positions, batches and stand-ins. A row that is asked for before and after is in
  two batches that can be compared, and a row whose embedding or score changed is likely to be made up. Budgets count positions,
  so a new alignment renews none.
- Another ``runs`` folder, or a contract of another name, has another secret of its windows and separate budgets. A row that is
  asked for from two such folders is in two windows that have little else in common.
- By ``position`` a row is named, and a partner that then sees its window can guess which row is wanted: a contract should allow
  one way.
"""

import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tallystick.errors import DataError

BITS = 64


def windows(names_N: Sequence[bytes], *, size: int, key: bytes) -> list[NDArray[np.int64]]:
    """Cut rows into windows of at least ``size``, with every row in one window: return the places of each window's rows.

    A name's hash under the key determines its window. The names are split by the first bit of their hashes, each part by the next
    bit, and so on, as long as both parts have ``size`` rows. So comparing windows of several days reveals no more about the row
    than the smallest of them, except that it is none of those added or removed in between.

    No formal guarantee: other knowledge about these rows may reveal which one is wanted.

    Args:
        names_N: names of the rows, each once.
        size: at least 1.
        key: key of the hash, 64 bytes at most: a secret if no other party may know which rows share a window, else empty.

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
        # The highest bits are equal in a part, so its middle is the first hash with the next bit set.
        is_set = hash_N[first:behind] >> np.uint64(BITS - 1 - bit) & np.uint64(1) if bit < BITS else np.ones(0, dtype=np.uint64)
        middle = behind - int(is_set.sum())
        if bit < BITS and middle - first >= size and behind - middle >= size:
            waiting += [(middle, behind, bit + 1), (first, middle, bit + 1)]
        else:
            windows.append((first, behind))
    return [order_N[first:behind] for first, behind in windows]
