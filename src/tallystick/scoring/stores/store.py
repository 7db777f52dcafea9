"""Define the result of every store of rows: the encoded columns of the keys that it has. Shapes: B keys, E found ones."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tallystick.tables.features import Features


@dataclass(frozen=True, kw_only=True)
class StoredRows:
    """The rows of a store for some keys: which keys have a row, and the columns of these rows in order.

    The columns are None if the store has none.
    """

    is_found_B: NDArray[np.bool_]
    features_E: Features | None


class KeyedRows(Protocol):
    """A store of rows by key. Several threads may ask."""

    blocks: bool
    """Whether a lookup needs a call to another process."""

    def find(self, keys: Sequence[bytes]) -> StoredRows:
        """Look up keys in the contract's normal form. Raises StoreError if that fails."""
        ...

    def close(self) -> None:
        """Release what the store holds."""
        ...
