"""Hold what an alignment hands to training: which own row is at which common position, and what this side learnt.

Shapes: N aligned positions, K candidates.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Rows = np.ndarray[Any, np.dtype[np.int64]]
Similarities = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True, kw_only=True)
class SimilarityScale:
    """Scale by which a helper made distances similarities: ``((-distance - mean) / deviation + noise) / sqrt(1 + sigma^2)``.

    Fitted to the links of training; new rows are measured by the same.
    """

    mean: float
    """Of minus the distances of all links."""
    deviation: float
    """Of the same, above 0."""
    sigma: float
    """Standard deviation of the noise, in deviations; 0 is none."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The K rows of one feature party that are most similar to each position's row.

    At the label party the most similar first, noise included; at the feature party, which does not learn which is more
    similar, by number. Pads come last.

    Both sides number the feature party's rows alike, 0 to ``rows`` - 1, in an order that the helper drew; only the feature
    party can tell which of its rows a number is.
    """

    numbers_NK: Rows
    """Numbers of candidate rows; -1 pads where fewer were linked."""
    rows: int
    """How many rows of the feature party are numbered."""
    own_rows: Rows | None = None
    """The feature party's own row of each number (rows,); None at the label party."""
    similarity_NK: Similarities | None = field(default=None, repr=False)
    """How similar each is, with noise, mean 0 and variance 1 over all; 0 at pads; None at the feature party."""
    scale: SimilarityScale | None = None
    """How distances became similarities."""

    def __post_init__(self) -> None:
        if self.numbers_NK.ndim != 2 or self.numbers_NK.dtype != np.int64:
            raise ValueError(f"numbers_NK must be int64 of shape (N, K), got {self.numbers_NK.dtype} of {self.numbers_NK.shape}")


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One party's side of an alignment. Position n means the same id for every party.

    The order of the positions is common to all parties and tells nothing beyond what the method tells anyway.
    Intersection: sorted by a public hash of the id. Every party holds it for every position, so two runs on the same tables train
    in the same order. By any of several keys one key's rows come after the other's. Union: sorted by universal id, a group
    element under both sides' secret keys, which looks random to each. Fresh keys give a fresh order. Union with a helper: drawn
    by the helper.

    Similarity: a position for each row of the label party; ``candidates`` says which rows of a feature party are linked to it,
    whose own ``rows_N`` are then -1.
    """

    method: str
    """The contract's word for it: intersection, union, union-with-helper or similarity."""
    rows_N: Rows
    """Own row at each position, int64; -1 where this party lacks the id (union only)."""
    sizes: dict[str, int]
    """Set sizes this side learnt: ``own``, each peer by its name, ``intersection``, ``union`` where there is one, and
    ``intersection by KEY`` where any of several keys links rows."""
    learnt: list[str]
    """All that this side learnt, one plain sentence each, for the terminal and the report."""
    uids_N16: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, repr=False)
    """Universal ids, the same bytes on both sides (union only)."""
    key_N: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, repr=False)
    """Which of several keys linked each position (intersection by any of them only)."""
    candidates: Mapping[str, Candidates] = field(default_factory=dict, repr=False)
    """By feature party; a feature party has its own only (similarity only)."""
    multiplications: int = 0
    """Scalar multiplications this side spent."""

    def __post_init__(self) -> None:
        if self.rows_N.ndim != 1 or self.rows_N.dtype != np.int64:
            raise ValueError(f"rows_N must be int64 of shape (N,), got {self.rows_N.dtype} of {self.rows_N.shape}")
        self.rows_N.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows_N)

    @property
    def own_rows(self) -> Rows:
        """Return the own rows as links count them: by number where they are candidates, else by position."""
        return next((found.own_rows for found in self.candidates.values() if found.own_rows is not None), self.rows_N)
