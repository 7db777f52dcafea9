"""Define what every store of rows gives: the encoded columns of the keys that it has. Shapes: B keys, E found ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tallystick.tables.features import Features


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """Rows that a store has for keys: which keys have one, and the columns of these in their order.

    The columns are None where there are none.
    """

    is_found_B: NDArray[np.bool_]
    features_E: Features | None


class KeyedRows(Protocol):
    """Rows by key. Several threads may ask."""

    blocks: bool
    """Whether to find a row takes a call to somewhere else."""

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look the keys up, as the contract normalises them. Raises StoreError where that cannot be done."""
        ...

    def close(self) -> None:
        """Let go of what the store holds."""
        ...
