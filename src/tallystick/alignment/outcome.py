"""Hold the result of an alignment for training: the own row at each common position, and what this side learnt.

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
    """Scale by which a helper turned distances into similarities: ``((-distance - mean) / deviation + noise) / sqrt(1 +
    sigma^2)``.

    It is fitted to the links of training. New rows use the same scale.
    """

    mean: float
    """Mean of the negative distances of all links."""
    deviation: float
    """Standard deviation of the negative distances, above 0."""
    sigma: float
    """Standard deviation of the noise, in units of ``deviation``; 0 means no noise."""


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The K rows of one feature party that are most similar to each position's row.

    At the label party the most similar row is first, noise included. The feature party does not learn which row is more similar,
    so its rows are sorted by number. Padding is last.

    Both sides number the feature party's rows in the same way, from 0 to ``rows`` - 1, in an order that the helper drew. Only the
    feature party knows which of its rows has which number.
    """

    numbers_NK: Rows
    """Numbers of candidate rows, padded with -1 if fewer were linked."""
    rows: int
    """How many rows of the feature party have numbers."""
    own_rows: Rows | None = None
    """The feature party's own row for each number (rows,); None at the label party."""
    similarity_NK: Similarities | None = field(default=None, repr=False)
    """How similar each candidate is, with noise, mean 0 and variance 1 over all; 0 in padding; None at the feature party."""
    scale: SimilarityScale | None = None
    """How distances became similarities."""

    def __post_init__(self) -> None:
        if self.numbers_NK.ndim != 2 or self.numbers_NK.dtype != np.int64:
            raise ValueError(f"numbers_NK must be int64 of shape (N, K), got {self.numbers_NK.dtype} of {self.numbers_NK.shape}")


@dataclass(frozen=True, kw_only=True)
class Alignment:
    """One party's side of an alignment. Position n means the same id for every party.

    The order of the positions is the same for all parties and reveals nothing beyond what the method reveals anyway.
    Intersection: sorted by a public hash of the id. Every party holds every id, so two runs on the same tables train in the same
    order. With several keys, the rows of one key follow those of the one before. Union: sorted by universal id, a group element
    under both sides' secret keys, which looks random to each side. New keys give a new order. Union with a helper: drawn by the
    helper.

    Similarity: one position for each row of the label party. ``candidates`` holds the rows of a feature party that are linked to
    it, and the feature party's own ``rows_N`` are -1.
    """

    method: str
    """The contract's name of the method: intersection, union, union-with-helper or similarity."""
    rows_N: Rows
    """Own row at each position, int64; -1 if this party lacks the id (union only)."""
    sizes: dict[str, int]
    """Set sizes that this side learnt: ``own``, each peer by its name, ``intersection``, ``union`` for a union, and
    ``intersection by KEY`` if any of several keys links rows.
    """
    learnt: list[str]
    """Everything that this side learnt, one plain sentence each, for the terminal and the report."""
    uids_N16: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, repr=False)
    """Universal ids, the same bytes on both sides (union only)."""
    key_N: np.ndarray[Any, np.dtype[np.uint8]] | None = field(default=None, repr=False)
    """The number of the key that linked each position (intersection by several keys only)."""
    candidates: Mapping[str, Candidates] = field(default_factory=dict, repr=False)
    """Candidates by feature party; a feature party has only its own (similarity only)."""
    multiplications: int = 0
    """Number of scalar multiplications that this side computed."""

    def __post_init__(self) -> None:
        if self.rows_N.ndim != 1 or self.rows_N.dtype != np.int64:
            raise ValueError(f"rows_N must be int64 of shape (N,), got {self.rows_N.dtype} of {self.rows_N.shape}")
        self.rows_N.flags.writeable = False

    def __len__(self) -> int:
        return len(self.rows_N)

    @property
    def own_rows(self) -> Rows:
        """Return the own rows in the order that links use: by number if there are candidates, else by position."""
        return next((found.own_rows for found in self.candidates.values() if found.own_rows is not None), self.rows_N)
