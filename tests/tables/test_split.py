"""The split is the same on both sides, with the requested shares."""

import datetime
import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.config.sections import SplitConfig
from tallystick.errors import DataError
from tallystick.tables.split import TEST, TRAINING, VALIDATION, parts_of_other_times, split_by_hash, split_by_time


@given(st.lists(st.binary(max_size=8), unique=True, max_size=50), st.integers(0, 2**63 - 1), st.randoms())
def test_an_ids_part_depends_on_nothing_else(ids: list[bytes], seed: int, random: object) -> None:
    split = SplitConfig(validation=0.3, test=0.3)
    parts = dict(zip(ids, split_by_hash(ids, split, seed=seed).tolist(), strict=True))
    shuffled = sorted(ids, key=lambda _: random.random())[: len(ids) // 2]  # type: ignore[attr-defined]
    assert split_by_hash(shuffled, split, seed=seed).tolist() == [parts[uid] for uid in shuffled]


def test_shares_are_as_asked() -> None:
    rows, split = 50_000, SplitConfig(validation=0.1, test=0.2)
    ids = [f"customer-{number}".encode() for number in range(rows)]
    counts = np.bincount(split_by_hash(ids, split, seed=7), minlength=3)
    for part, share in ((TRAINING, 0.7), (VALIDATION, 0.1), (TEST, 0.2)):
        # Six standard deviations of a binomial: chance of failing below 1e-8 for another seed or set of ids.
        assert abs(counts[part] - rows * share) < 6 * math.sqrt(rows * share * (1 - share))


def test_the_seed_gives_another_split() -> None:
    ids = [bytes([number]) for number in range(200)]
    assert (split_by_hash(ids, SplitConfig(), seed=1) != split_by_hash(ids, SplitConfig(), seed=2)).any()
    assert set(split_by_hash(ids, SplitConfig(validation=0, test=0), seed=1).tolist()) == {TRAINING}


def test_known_answer() -> None:
    # Pinned: two versions of tallystick must split alike, or one side trains on the other's test rows.
    parts = split_by_hash([b"a", b"b", b"c", b"d", b"e", b"f"], SplitConfig(validation=0.3, test=0.3), seed=1)
    assert parts.tolist() == [VALIDATION, VALIDATION, TEST, VALIDATION, TEST, TEST]


@given(st.lists(st.integers(0, 1000), unique=True, min_size=20, max_size=100))
def test_latest_rows_are_test(times: list[int]) -> None:
    parts = split_by_time(pl.Series("t", times), SplitConfig(validation=0.2, test=0.3))
    in_order = parts[np.argsort(times)]
    rows = len(times)
    test = round(0.3 * rows)
    held_out = test + round(0.2 * rows)
    assert in_order.tolist() == [TRAINING] * (rows - held_out) + [VALIDATION] * (held_out - test) + [TEST] * test


@pytest.mark.parametrize(
    "times",
    [
        pl.Series([datetime.date(2024, 1, day) for day in range(1, 11)]),
        pl.Series([f"2024-01-{day:02d}" for day in range(1, 11)]),
        pl.Series([day / 7 for day in range(10)]),
    ],
)
def test_types_of_time(times: pl.Series) -> None:
    assert split_by_time(times, SplitConfig(validation=0.1, test=0.2)).tolist() == [0] * 7 + [1] + [2] * 2


def test_rows_of_one_time_stay_together() -> None:
    times = pl.Series([3, 1, 1, 1, 2, 2, 1, 3, 3, 3])
    assert split_by_time(times, SplitConfig(validation=0.1, test=0.2)).tolist() == [2, 0, 0, 0, 1, 1, 0, 2, 2, 2]


def test_rows_that_came_later_fall_into_the_parts_of_the_first_ones() -> None:
    first, others = [10, 11, 12, 13, 14, 15], [3, 12, 13, 14, 9, 99, 15]
    parts = np.array([TRAINING, TRAINING, TRAINING, VALIDATION, TEST, TEST], dtype=np.uint8)
    found = parts_of_other_times(pl.Series("t", first + others), parts)
    assert found.tolist() == [TRAINING, TRAINING, VALIDATION, TEST, TRAINING, TEST, TEST]
    # between two of the first rows' times a row belongs to the earlier part, and a part without rows takes none
    parts = np.array([TRAINING, TEST], dtype=np.uint8)
    assert parts_of_other_times(pl.Series("t", [1.0, 2.0, 1.5, 2.0]), parts).tolist() == [TRAINING, TEST]
    with pytest.raises(DataError, match="time column 't': missing in 1"):
        parts_of_other_times(pl.Series("t", [1, 2, None]), parts)


@pytest.mark.parametrize(
    ("times", "message"),
    [
        ([1, None, 3], r"missing in 1 \(row 1, counted"),
        ([5, 5, 5, 5, 5, 5], "1 distinct times in 6 rows: no rows are left for one of training, validation"),
    ],
)
def test_unusable_times(times: list[int | None], message: str) -> None:
    with pytest.raises(DataError, match=message):
        split_by_time(pl.Series("t", times), SplitConfig())
