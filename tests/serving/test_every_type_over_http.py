"""Columns of every kind over real sockets: the score of a row is that of a prediction, whatever type a client uses for its cells.

Hypothesis draws which rows are asked for and the type of each column. A type that cannot hold a column is refused by the column's
name.
"""

import io
from datetime import date, datetime, timedelta

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving_job import Served, predicted
from tiny import contract_values, lay_out, tables

PARTIES = ("bank", "shop")
ARROW = "application/vnd.apache.arrow.stream"
WORDS = ["red", "green", "grün", "a b", None]
CODES = ["01067", "1067", "1.10", "12E4", "K1A"]
SPELT = {
    "whole": [pa.int64(), pa.float64(), pa.string(), pa.decimal128(20, 0), pa.decimal256(40, 2)],
    "real": [pa.float64(), pa.string()],
    "flag": [pa.bool_(), pa.int8(), pa.string(), pa.large_string()],
    "word": [pa.string(), pa.large_string(), pa.string_view()],
    "code": [pa.string(), pa.large_string(), pa.string_view()],
    "day": [pa.date32(), pa.date64(), pa.timestamp("s"), pa.timestamp("ns"), pa.string()],
    "moment": [pa.timestamp("s"), pa.timestamp("ms"), pa.timestamp("us"), pa.timestamp("ns"), pa.string()],
    "zoned": [pa.timestamp("us", tz="UTC"), pa.timestamp("ms", tz="+05:30"), pa.timestamp("us", tz="Asia/Kolkata")],
    "clock": [pa.time32("s"), pa.time64("us"), pa.time64("ns")],
}
"""Return the Arrow types in which a column's cells can be sent without loss."""
LOSSY = {
    "code": pa.int32(),
    "day": pa.float64(),
    "moment": pa.timestamp("us", tz="UTC"),
    "zoned": pa.timestamp("us"),
    "flag": pa.time32("s"),
}


def of_every_kind(frame):
    """Make a table with a column of every kind; some cells of each are missing."""
    rng, rows = np.random.default_rng(11), frame.height
    numbers = np.arange(rows)
    cells = {
        "whole": rng.integers(-(2**40), 2**40, rows).tolist(),
        "real": rng.normal(size=rows).round(4).tolist(),
        "flag": (rng.random(rows) < 0.5).tolist(),
        "word": [WORDS[each] for each in rng.integers(0, len(WORDS), rows)],
        "code": [CODES[each] for each in rng.integers(0, len(CODES), rows)],
        "day": [date(2020, 1, 1) + timedelta(days=int(each)) for each in rng.integers(0, 999, rows)],
        "moment": [datetime(2020, 1, 1) + timedelta(seconds=int(each)) for each in rng.integers(0, 10**8, rows)],
        "clock": [(datetime(2020, 1, 1) + timedelta(seconds=int(each))).time() for each in rng.integers(0, 86_400, rows)],
    }
    cells = {
        name: [None if place % 17 == 3 else cell for place, cell in zip(numbers, column, strict=True)]
        for name, column in cells.items()
    }
    columns = [pl.Series(name, column) for name, column in cells.items()]
    zoned = pl.Series("zoned", cells["moment"]).dt.replace_time_zone("UTC")
    return frame.select("id", "y").with_columns(*columns, zoned)


@pytest.fixture(scope="module")
def job(tmp_path_factory):
    """Serve a trained job. Return also the rows of the label party and the scores that `predict` gives them."""
    frames = tables(PARTIES, rows=300)
    frames["bank"] = of_every_kind(frames["bank"])
    values = contract_values(PARTIES, serving={"ways": ["key"]}, model__hidden=[16, 16])
    job = lay_out(tmp_path_factory.mktemp("kinds"), PARTIES, values, frames)
    job.change("bank", features=None, encoding={"min_count": 1})
    job.run_all()
    expected = predicted(job)
    served = Served(job, way="key")
    rows = frames["bank"].drop("y").join(expected.select("id", "score"), on="id", maintain_order="left")
    yield served.start().until_ready(), rows
    served.close()


def sent(served, rows, types):
    """Ask for rows as an Arrow stream, with each column in one of these types."""
    table = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    for name, kind in types.items():
        place = table.column_names.index(name)
        table = table.set_column(place, name, table.column(place).cast(kind))
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return served.client.post("/v1/score", content=sink.getvalue(), headers={"content-type": ARROW})


def cells_in_json(rows):
    return [
        {name: cell.isoformat() if hasattr(cell, "isoformat") else cell for name, cell in row.items()} for row in rows.to_dicts()
    ]


@pytest.mark.parametrize("examples", [15, pytest.param(300, marks=pytest.mark.long)])
def test_a_score_is_that_of_a_prediction_in_whatever_type_cells_are_sent(job, examples):
    served, table = job

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(data=st.data())
    def tried(data):
        asked = table[data.draw(st.lists(st.integers(0, table.height - 1), min_size=1, max_size=8, unique=True))]
        expected = asked["score"].to_numpy().astype(np.float32).tobytes()
        types = {name: data.draw(st.sampled_from(kinds), label=name) for name, kinds in SPELT.items()}
        answer = sent(served, asked.drop("score"), types)
        assert answer.status_code == 200, (types, answer.text)
        assert pl.read_ipc_stream(io.BytesIO(answer.content))["score"].to_numpy().tobytes() == expected, types
        answer = served.ask(*cells_in_json(asked.drop("score")))
        assert answer.status_code == 200, answer.text
        scores = np.array([row["score"] for row in answer.json()["scores"]], dtype=np.float32)
        assert scores.tobytes() == expected

    tried()


@pytest.mark.parametrize("name", LOSSY)
def test_a_type_that_does_not_hold_a_column_is_refused_by_the_columns_name(job, name):
    served, table = job
    rows = table.drop("score").with_columns(code=pl.lit("1067"), flag=pl.lit(None, dtype=pl.Boolean))[:5]
    cells = {"flag": pa.array([1, 2, 3, 4, 5], type=pa.int32())}.get(name)
    arrow = rows.to_arrow(compat_level=pl.CompatLevel.oldest())
    place = arrow.column_names.index(name)
    column = cells.cast(LOSSY[name]) if cells is not None else _lossy(arrow.column(place), LOSSY[name])
    sink = io.BytesIO()
    arrow = arrow.set_column(place, name, column)
    with pa.ipc.new_stream(sink, arrow.schema) as stream:
        stream.write_table(arrow)
    answer = served.client.post("/v1/score", content=sink.getvalue(), headers={"content-type": ARROW})
    assert answer.status_code == 422, answer.text
    assert f"column '{name}'" in answer.json()["detail"]


def _lossy(column, kind):
    return column.cast(pa.int32()).cast(pa.float64()) if pa.types.is_date32(column.type) else column.cast(kind)
