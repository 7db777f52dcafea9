"""Columns that summarise the rows of one key are compared with plain Python, for tables in memory and in files."""

import math
import statistics
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.config.alignment import IntersectionConfig
from tallystick.config.party import PartyFile, parse_party
from tallystick.errors import ConfigError, DataError
from tallystick.tables.keys import keys_of
from tallystick.tables.lazy_table import LazyTable
from tallystick.tables.repeats import with_summaries

LOWER = IntersectionConfig.model_validate({"keys": [{"name": "id", "normalise": ["lower"]}]})
ORACLES = {
    "mean": statistics.fmean,
    "median": statistics.median,
    "sum": math.fsum,
    "min": min,
    "max": max,
    "std": statistics.stdev,
    "count": len,
    "distinct": lambda values: len(set(values)),
    "first": lambda values: values[0],
    "last": lambda values: values[-1],
}
CELL = st.tuples(st.sampled_from(["a", "A", "b", None]), st.integers(0, 3), st.none() | st.integers(-50, 50))


def party(**repeats: object) -> PartyFile:
    return parse_party({"party": "shop", "keys": {"id": "k"}, "repeats": repeats}, folder=Path())


@settings(max_examples=40, deadline=None)
@given(st.lists(CELL, min_size=1, max_size=12))
def test_every_statistic_is_that_of_the_keys_rows_in_order(cells: list[tuple[str | None, int, int | None]]) -> None:
    frame = pl.DataFrame(cells, schema={"k": pl.String, "day": pl.Int64, "v": pl.Int64}, orient="row")
    asked = party(latest="day", aggregate={"v": list(ORACLES)}, count="rows")
    found = with_summaries(frame, asked, LOWER)
    in_file = with_summaries(LazyTable.of(frame), asked, LOWER)
    assert found.columns == ["k", "day", *(f"v_{name}" for name in ORACLES), "rows"]
    assert isinstance(in_file, LazyTable)
    assert in_file.collect().equals(found)
    for row in found.iter_rows(named=True):
        if row["k"] is None:
            assert row["rows"] is None
            continue
        mine = sorted(
            (index for index, (key, _, _) in enumerate(cells) if (key or "").lower() == row["k"].lower()),
            key=lambda index: (cells[index][1], index),
        )
        assert row["rows"] == len(mine)
        values = [value for index in mine if (value := cells[index][2]) is not None]
        for name, oracle in ORACLES.items():
            least = {"count": 0, "distinct": 0, "sum": 0, "std": 2}.get(name, 1)
            wanted = oracle(values) if len(values) >= least else None
            assert row[f"v_{name}"] == (None if wanted is None else pytest.approx(wanted)), name
    if any(key is not None for key, _, _ in cells):
        keys = keys_of(frame, asked, LOWER)
        latest = {
            key.lower(): index for _, index, key in sorted((c[1], i, c[0]) for i, c in enumerate(cells) if c[0] is not None)
        }
        assert dict(zip(keys.ids, keys.rows_R.tolist(), strict=True)) == {key.encode(): row for key, row in latest.items()}


def test_a_number_that_is_none_is_missing_among_values_and_times() -> None:
    """A CSV has an empty cell there. NaN in Parquet was the latest of all times, and made a key's mean and maximum missing."""
    asked = party(latest="day", aggregate={"v": list(ORACLES)}, count="rows")
    found = []
    for none in (None, float("nan")):
        cells = {"k": ["a", "a", "a", "b"], "day": [2.0, none, 1.0, none], "v": [3.0, 5.0, none, none]}
        frame = pl.DataFrame(cells, schema={"k": pl.String, "day": pl.Float64, "v": pl.Float64})
        summed = with_summaries(frame, asked, LOWER)
        found.append((summed.drop("day").rows(), keys_of(frame, asked, LOWER).rows_R.tolist()))
    assert found[0] == found[1]
    assert found[0][1] == [0, 3]


def test_one_statistic_takes_the_columns_place() -> None:
    frame = pl.DataFrame({"k": ["a", "a", "b"], "v": [1, 3, 5], "w": ["x", "y", "z"]})
    found = with_summaries(frame, party(aggregate={"v": "mean"}), LOWER)
    assert found.select("k", "v", "w").rows() == [("a", 2.0, "x"), ("a", 2.0, "y"), ("b", 5.0, "z")]
    assert keys_of(found, party(aggregate={"v": "mean"}), LOWER).rows_R.tolist() == [1, 2], "the last in the table counts"


@pytest.mark.parametrize(
    ("repeats", "message"),
    [
        ({"aggregate": {"w": "mean"}}, r"repeats.aggregate.w: mean is for numbers, and the column has type String; take min"),
        ({"aggregate": {"x": "mean"}}, "repeats.aggregate column 'x' is not in the table"),
        ({"aggregate": {"v": ["min", "max"]}}, "would make a column 'v_max', which the table has already"),
        ({"count": "w"}, "would make a column 'w', which the table has already"),
        ({"latest": "day", "count": "n"}, "repeats.latest column 'day' is not in the table"),
    ],
)
def test_what_cannot_be_made_is_refused(repeats: dict[str, object], message: str) -> None:
    frame = pl.DataFrame({"k": ["a", "a"], "v": [1, 3], "w": ["x", "y"], "v_max": [0, 0]})
    with pytest.raises(DataError, match=message):
        with_summaries(frame, party(**repeats), LOWER)


def test_keys_labels_and_unknown_statistics_are_no_aggregates() -> None:
    with pytest.raises(ConfigError, match=r"repeats.aggregate.k: is the key"):
        party(aggregate={"k": "last"})
    with pytest.raises(ConfigError, match="mode"):
        party(aggregate={"v": "mode"})
