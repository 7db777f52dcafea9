"""What an alignment hands to training: which own row stands at which common position, and what this side learnt.

Shapes: N aligned positions.
"""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One party's side of an alignment; position n means the same id for every party.

    The order of the positions is common to all parties and tells nothing beyond what the method tells anyway.
    Intersection: sorted by a public hash of the id, which every party holds for every position, so two runs on the same
    tables train in the same order. Union: sorted by universal id, a group element under both sides' secret keys,
    which looks random to each; fresh keys give a fresh order. Union with a helper: drawn by the helper.

    A one-to-many method (fuzzy linkage: K candidate rows per position) keeps ``rows_N`` for the side that has one
    row per position, and for the other side adds ``rows_NK`` (-1 pads) with ``similarity_NK`` beside it in a type
    derived from this one; ``sizes`` and ``learnt`` mean the same there.
    """

    method: str
    """The contract's word for it: intersection, union or union-with-helper."""
    rows_N: Rows
    """Own row at each position, int64; -1 where this party lacks the id (union only)."""
    sizes: dict[str, int]
    """Set sizes this side learnt: ``own``, each peer by its name, ``intersection``, and ``union`` where there is one."""
    learnt: list[str]
    """All that this side learnt, one plain sentence each, for the terminal and the report."""
    uids_N16: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, repr=False)
    """Universal ids, the same bytes on both sides (union only)."""
    multiplications: int = 0
    """Scalar multiplications this side spent."""

    def __post_init__(self) -> None:
        if self.rows_N.ndim != 1 or self.rows_N.dtype != np.int64:
            raise ValueError(f"rows_N must be int64 of shape (N,), got {self.rows_N.dtype} of {self.rows_N.shape}")
        self.rows_N.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows_N)
