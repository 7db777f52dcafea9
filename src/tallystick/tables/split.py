"""Split rows into training, validation and test parts.

Shapes: N rows.
"""

import hashlib
from collections.abc import Iterator, Sequence
from functools import partial
from operator import methodcaller

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tallystick.config.sections import SplitConfig
from tallystick.errors import DataError
from tallystick.tables.text import rows_listed
from tallystick.tables.times import ordered_times

TRAINING, VALIDATION, TEST = 0, 1, 2
HASHED_AT_A_TIME = 2**16  # ids

Parts = NDArray[np.uint8]


def split_by_hash(ids: Sequence[bytes], split: SplitConfig, *, seed: int) -> Parts:
    """Assign each id to a part (N,) by a keyed hash. All parties get the same part, whatever else is in their tables.

    The key is the contract's public seed, so the split is reproducible but not secret. BLAKE2b, RFC 7693.
    """
    parts_N = np.full(len(ids), TRAINING, dtype=np.uint8)
    for piece, uniform_P in _uniform(ids, seed):
        parts_N[piece][uniform_P < split.test + split.validation] = VALIDATION
        parts_N[piece][uniform_P < split.test] = TEST
    return parts_N


def folds_by_hash(ids: Sequence[bytes], split: SplitConfig, *, count: int, seed: int) -> NDArray[np.int64]:
    """Assign each id to one of ``count`` folds (N,) by the hash of the split, so that an id is in the same fold in every run.

    Fold 0 has the validation rows, and some training rows if the validation rows are fewer than one fold's share. The other folds
    are equal shares of the rest. The fold of a test row has no meaning.
    """
    fold_N = np.zeros(len(ids), dtype=np.int64)
    first = max(split.validation, (1 - split.test) / count)
    other_share = (1 - split.test - first) / (count - 1)
    for piece, uniform_P in _uniform(ids, seed):
        beyond_P = (uniform_P - split.test - first) / other_share
        fold_N[piece] = np.clip(np.floor(beyond_P) + 1, 0, count - 1)
    return fold_N


def _uniform(ids: Sequence[bytes], seed: int) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """Yield a number in [0, 1) for each id, from a hash with the seed as its key, some ids at a time."""
    key = seed.to_bytes(8, "big")
    hashed = partial(hashlib.blake2b, digest_size=8, key=key, person=b"tallystick-split")
    for start in range(0, len(ids), HASHED_AT_A_TIME):
        piece = slice(start, start + HASHED_AT_A_TIME)
        hashes = b"".join(map(methodcaller("digest"), map(hashed, ids[piece])))
        yield piece, np.frombuffer(hashes, dtype=">u8").astype(np.uint64) / 2.0**64


def split_positions(count: int, split: SplitConfig, *, seed: int) -> Parts:
    """Assign each of ``count`` positions to a part (N,) by the hash of its number, if rows have no common ids."""
    return split_by_hash(ids_by_position(count), split, seed=seed)


def ids_by_position(count: int) -> list[bytes]:
    """Return substitutes for ids if rows have no common ids."""
    return [position.to_bytes(8, "big") for position in range(count)]


def split_by_time(times: pl.Series, split: SplitConfig) -> Parts:
    """Assign each row to a part (N,) by time: the latest rows are test, those before validation, the earliest training.

    Rows of the same time stay together, in the later part, so the shares are not exact if times repeat. Raises DataError for
    missing times, and if a part that should have rows gets none.
    """
    times = ordered_times(times, use="time")
    check_times(times, split)
    rank_N = times.rank("dense").to_numpy().astype(np.int64)
    parts_N = np.full(len(times), TRAINING, dtype=np.uint8)
    for part, share in ((TEST, split.test), (VALIDATION, split.validation)):
        training_ranks = np.sort(rank_N[parts_N == TRAINING])
        count = min(round(share * len(times)), len(training_ranks))
        if count:
            parts_N[(parts_N == TRAINING) & (rank_N >= training_ranks[len(training_ranks) - count])] = part
    empty = [name for name, part in _wanted(split).items() if not (parts_N == part).any()]
    if empty:
        raise _too_few_times(times, " and ".join(empty))
    return parts_N


def parts_of_other_times(times: pl.Series, parts_N: Parts) -> Parts:
    """Return the parts of rows that are added later to a split by time. The bounds between parts are those of the first rows.

    Args:
        times: times of the N rows that were split, then of the others.
        parts_N: parts of the first N rows.

    Raises DataError for missing times.
    """
    times = ordered_times(times, use="time")
    check_times(times, SplitConfig())
    rank = times.rank("dense").to_numpy().astype(np.int64)
    first, other_ranks = rank[: len(parts_N)], rank[len(parts_N) :]
    part_M = np.full(len(other_ranks), TRAINING, dtype=np.uint8)
    for part in (VALIDATION, TEST):
        if (parts_N == part).any():
            part_M[other_ranks >= first[parts_N == part].min()] = part
    return part_M


def check_times(times: pl.Series, split: SplitConfig) -> None:
    """Raise DataError for times that cannot split any choice of these rows: missing, without order, or too few distinct ones."""
    if (missing := times.is_null()).any():
        raise DataError(f"time column {times.name!r}: missing in {rows_listed(missing)} rows; leave these rows out of the table")
    if times.n_unique() < len(_wanted(split)):
        raise _too_few_times(times, "one of " + ", ".join(_wanted(split)))


def _wanted(split: SplitConfig) -> dict[str, int]:
    """List the parts that should have rows."""
    parts = (("training", TRAINING, 1.0), ("validation", VALIDATION, split.validation), ("test", TEST, split.test))
    return {name: part for name, part, share in parts if share}


def _too_few_times(times: pl.Series, parts: str) -> DataError:
    return DataError(
        f"time column {times.name!r} has {times.n_unique()} distinct times in {len(times)} rows: no rows are left for {parts}; "
        "use a finer time column or split.method = hash"
    )
