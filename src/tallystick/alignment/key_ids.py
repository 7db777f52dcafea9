"""Hold the ids of a side's rows by several keys, any of which may link a row. Shapes: R rows with a key, U ids of one key."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from tallystick.alignment.ids import Ids
from tallystick.alignment.outcome import Rows

MOST_KEYS = 4
"""A label party's row may bring 2^(k - 1) ids of the k-th key: 8 of the fourth."""


@dataclass(frozen=True, kw_only=True)
class KeyIds:
    """Ids of a side's rows by one of the keys.

    Args:
        name: of the key.
        ids: distinct ids (U).
        row_U: the row of each id, among the R rows.
        earlier_U: the earlier keys that each row has, one bit per key, the first key in the lowest bit.
    """

    name: str
    ids: Ids = field(repr=False)
    row_U: Rows = field(repr=False)
    earlier_U: Rows = field(repr=False)


def first_key(by_key: Sequence[KeyIds], rows: int) -> Rows:
    """Return for each row the number of the first key by which it has an id (R,)."""
    number_R = np.zeros(rows, dtype=np.int64)
    for number in reversed(range(len(by_key))):
        number_R[by_key[number].row_U] = number
    return number_R


def key_prefix(number: int) -> bytes:
    """Return the prefix of ids by the key of this number."""
    return b"%d:" % number


def ids_by_key(by_key: Sequence[KeyIds], number_R: Rows) -> Ids:
    """Return an id for each row (R,), by the key with the number ``number_R`` gives. Ids of different keys differ."""
    ids, rows = [], []
    for number, key in enumerate(by_key):
        place_M = np.flatnonzero(number_R[key.row_U] == number)
        ids.append(key.ids.gather(place_M).prefixed(key_prefix(number)))
        rows.append(key.row_U[place_M])
    return Ids.joined(ids).gather(np.argsort(np.concatenate(rows)))
