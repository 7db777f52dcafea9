"""Every reader accepts Arrow's types as Polars has them, or refuses the column by name."""

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path
from uuid import UUID

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.reading import validate
from tallystick.serving.arrow_stream import read_stream
from tallystick.serving.problem_details import Problem
from tallystick.tables.arrow import as_polars
from tallystick.tables.frame import as_frame
from tallystick.tables.table import read_table

NOON = datetime(2024, 1, 3, 12, tzinfo=UTC)


def offset(zone: str) -> pa.Array:
    return pa.array([NOON, None], pa.timestamp("us", tz=zone))


TAKEN = {
    "offset": (offset("+05:30"), [NOON, None]),
    "negative offset": (offset("-08:00"), [NOON, None]),
    "view": (pa.array(["01067", None], pa.string_view()), ["01067", None]),
    "decimal of 256 bits": (pa.array([Decimal("1.10"), None], pa.decimal256(50, 2)), [Decimal("1.10"), None]),
    "half": (pa.array([1.5, None], pa.float16()), [1.5, None]),
    "run ends": (pa.compute.run_end_encode(pa.array([5, 5])), [5, 5]),
    "true and false in bytes": (pa.array([1, None], pa.int8()).cast(pa.bool8()), [True, None]),
    "list view": (pa.array([[1, 2], None, [], [3]], pa.list_view(pa.int64()))[1:], [None, [], [3]]),
    "large list view": (pa.array([None, ["a"], ["b", None]], pa.large_list_view(pa.string())), [None, ["a"], ["b", None]]),
    "shared list view": (
        pa.ListViewArray.from_arrays(pa.array([1, 0], pa.int32()), pa.array([1, 1], pa.int32()), pa.array([5, 6])),
        [[6], [5]],
    ),
    "fixed-size list": (pa.array([None, [1.0, 2.0]], pa.list_(pa.float32(), 2)), [None, [1.0, 2.0]]),
    "uuid": (pa.array([UUID(int=7), None], pa.uuid()), ["00000000-0000-0000-0000-000000000007", None]),
    "day": (pa.array([date(2024, 1, 3), None]), [date(2024, 1, 3), None]),
    "time": (pa.array([time(1, 2), None]), [time(1, 2), None]),
    "duration": (pa.array([timedelta(hours=1), None]), [timedelta(hours=1), None]),
}
REFUSED = {
    "seconds beyond 64 bits of milliseconds": pa.array([2**62, None], pa.timestamp("s")),
    "a time after midnight": pa.array([86_400, None], pa.time32("s")),
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None], pa.month_day_nano_interval()),
    "long decimal": pa.array([Decimal(10) ** 60, None], pa.decimal256(70, 0)),
}


def by_frame(column: pa.Array, _: Path) -> pl.Series:
    return as_frame(pa.table({"x": column}), source="bank").get_column("x")


def by_parquet(column: pa.Array, folder: Path) -> pl.Series:
    try:
        pq.write_table(pa.table({"x": column}), folder / "t.parquet")
    except pa.ArrowNotImplementedError:
        pytest.skip("Parquet has no such type")
    return read_table(TableConfig(path=folder / "t.parquet")).get_column("x")


def by_stream(column: pa.Array, _: Path) -> pl.Series:
    sink = pa.BufferOutputStream()
    table = pa.table({"x": column})
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return read_stream(sink.getvalue().to_pybytes(), most_rows=10, most_bytes=1 << 20).get_column("x")


WAYS = {"frame": by_frame, "parquet": by_parquet, "stream": by_stream}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", TAKEN)
def test_types_are_taken_alike_by_every_reader(tmp_path, kind, way):
    column, wanted = TAKEN[kind]
    if (kind, way) == ("run ends", "stream"):
        pytest.skip("a stream's body is refused where it is not written plainly")
    if (kind, way) == ("large list view", "parquet"):
        pytest.skip("Arrow writes it and does not read it")
    assert WAYS[way](column, tmp_path).to_list() == wanted


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", REFUSED)
def test_what_has_no_like_is_refused_by_name(tmp_path, kind, way):
    if kind == "a time after midnight" and way != "frame":
        pytest.skip("Arrow's own reader refuses such a file or stream")
    if kind.startswith("seconds") and way == "parquet":
        pytest.skip("Arrow refuses to write it")
    with pytest.raises((DataError, Problem)) as refusal:
        WAYS[way](REFUSED[kind], tmp_path)
    assert "column 'x' has Arrow type" in str(getattr(refusal.value, "detail", refusal.value))


@pytest.mark.parametrize(
    ("cell", "kind"),
    [
        ("INTERVAL 3 DAY", "Arrow type month_day_nano_interval"),
        ("'10:00+02'::TIMETZ", "DuckDB type TIME WITH TIME ZONE"),  # its Arrow has no place for the zone
        ("300000000000000000000000000000000000000::UHUGEINT", "DuckDB type UHUGEINT"),  # its Arrow gave a negative number
    ],
)
def test_a_type_of_duckdb_that_arrow_does_not_hold_is_refused_by_name(tmp_path, cell, kind):
    with pytest.raises(DataError, match=f"column 'x' has {kind}"):
        read_table(validate(TableConfig, {"query": f"SELECT 1 AS id, {cell} AS x"}, source="table", context={"folder": tmp_path}))


PANDAS_REFUSED = {
    "whole numbers beyond 64 bits": (lambda pd: pd.DataFrame({"x": [2**70, 1]}), "column 'x' has type object; convert it"),
    "dates beside time stamps": (
        lambda pd: pd.DataFrame({"x": pd.Series([date(2024, 1, 1), datetime(2024, 1, 1, 3)], dtype=object)}),
        "column 'x' holds dates beside time stamps, which would lose their time of day",
    ),
    "an index called as a column": (
        lambda pd: pd.DataFrame({"x": [1, 2]}, index=pd.Index([1, 2], name="x")),
        "its index and a column are both named 'x'",
    ),
    "a column alone": (lambda pd: pd.Series([1, 2], name="x"), "the table is a Series; give a DataFrame"),
    "a column of Polars": (lambda _: pl.Series("x", [1, 2]), "the table is a Series; give a DataFrame"),
}


@pytest.mark.parametrize("kind", PANDAS_REFUSED)
def test_a_table_of_pandas_that_arrow_does_not_take_is_refused_in_a_line(kind):
    make, said = PANDAS_REFUSED[kind]
    with pytest.raises(DataError, match=f"bank: .*{said}"):
        as_frame(make(pytest.importorskip("pandas")), source="bank")


def test_a_missing_date_of_pandas_is_missing():
    """NaT, which is a datetime to Python, was taken for a time stamp beside dates."""
    pd = pytest.importorskip("pandas")
    table = pd.DataFrame({"x": pd.Series(pd.to_datetime(["2024-01-01", None])).dt.date})
    assert as_frame(table, source="bank").get_column("x").to_list() == [date(2024, 1, 1), None]


def test_a_uuid_that_duckdb_wrote_is_the_text_that_its_query_gives(tmp_path):
    """A key of such bytes was refused in Parquet."""
    duckdb = pytest.importorskip("duckdb")
    duckdb.sql(f"COPY (SELECT uuid() AS x FROM range(3)) TO '{tmp_path}/t.parquet'")
    query = {"query": "SELECT * FROM 't.parquet'"}
    asked = read_table(validate(TableConfig, query, source="table", context={"folder": tmp_path})).get_column("x")
    assert read_table(TableConfig(path=tmp_path / "t.parquet")).get_column("x").to_list() == asked.to_list()


def test_a_table_without_rows_keeps_its_columns():
    table = pa.table({"x": pa.array([], pa.timestamp("us", tz="+05:30")), "y": pa.array([], pa.int8())})
    assert as_polars(table).schema == {"x": pl.Datetime("us", "UTC"), "y": pl.Int8()}
