"""Vectors and other lists in a request are read as in every table, with any kind of list of Arrow or JSON, or refused
by column.
"""

import io

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from tiny import contract_values

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.serving.arrow_stream import read_stream
from tallystick.serving.problem_details import Problem
from tallystick.serving.requests import Reader, ScoreRequest
from tallystick.tables.encoder import Encoder
from tallystick.tables.vectors import with_vectors

WIDTH, ROWS = 3, 6
CELLS = [None, *np.random.default_rng(0).normal(size=(ROWS - 1, WIDTH)).astype(np.float32).tolist()]
KEYS = [f"k{row}" for row in range(ROWS)]
CONTRACT = parse_contract(contract_values(("bank", "shop")))
LISTS = {
    "list": pa.list_(pa.float32()),
    "large list": pa.large_list(pa.float64()),
    "fixed-size list": pa.list_(pa.float32(), WIDTH),
    "list view": pa.list_view(pa.float32()),
    "large list view": pa.large_list_view(pa.float64()),
}


@pytest.fixture
def trained(tmp_path):
    """Return a reader of requests, and the encoded rows of the table."""
    tls = {"ca": "ca.pem", "certificate": "c.pem", "key": "k.pem"}
    party = parse_party(
        {"party": "bank", "table": {"path": "t.parquet"}, "keys": {"id": "id"}, "vectors": ["v"], "tls": tls}, folder=tmp_path
    )
    table = pl.DataFrame({"id": KEYS, "x": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], "v": CELLS})
    frame = with_vectors(table, ["v"])
    encoder = Encoder.of_party(frame, party, np.arange(ROWS), numbers="plain")
    return Reader.of(CONTRACT, party, encoder, frame), encoder.encode(frame).unpacked().numeric_NF.tolist()


def stream(**columns):
    table, out = pa.table(columns), io.BytesIO()
    with pa.ipc.new_stream(out, table.schema) as writer:
        writer.write_table(table)
    return out.getvalue()


def asked(reader, cells, rows=range(ROWS)):
    """Send rows with these cells of the vector, as an Arrow stream or as JSON."""
    x = [float(row + 1) for row in rows]
    keys = [KEYS[row] for row in rows]
    if isinstance(cells, pa.Array):
        return reader.arrow(stream(id=pa.array(keys), x=pa.array(x), v=cells)).own.numeric_NF.tolist()
    brought = [{"id": key, "x": number, "v": cell} for key, number, cell in zip(keys, x, cells, strict=True)]
    return reader.json(ScoreRequest(rows=brought)).own.numeric_NF.tolist()


def refusal(*args, **options):
    with pytest.raises(Problem) as refused:
        asked(*args, **options)
    assert refused.value.status == 422
    return refused.value.detail


@pytest.mark.parametrize("kind", LISTS)
def test_every_list_of_arrow_is_read_as_a_vector(kind, trained):
    reader, wanted = trained
    assert reader.columns == ["id", "x", "v"]
    assert asked(reader, pa.array(CELLS, LISTS[kind])) == wanted
    assert asked(reader, pa.array(CELLS[1:2], LISTS[kind]), rows=[1]) == wanted[1:2]
    assert asked(reader, pa.array([None], LISTS[kind]), rows=[0]) == wanted[:1]


def test_json_brings_a_vector_as_a_list_or_as_text_and_a_missing_one_as_null(trained):
    reader, wanted = trained
    assert asked(reader, CELLS) == wanted
    assert asked(reader, [None if cell is None else str(cell) for cell in CELLS]) == wanted
    assert asked(reader, [None], rows=[0]) == wanted[:1]
    assert asked(reader, pa.nulls(1), rows=[0]) == wanted[:1]
    whole = asked(reader, [[1, 2.0, 3]], rows=[1])
    assert whole == asked(reader, [[1.0, 2.0, 3.0]], rows=[1])


@pytest.mark.parametrize(
    "cells",
    [
        [[1.0, 2.0]],
        [[1.0, 2.0, None]],
        [[1.0, 2.0, float("inf")]],
        [["a", "b", "c"]],
        ["[1, 2"],
        [1.0],
        pa.array([[1.0, 2.0]], pa.list_(pa.float32(), 2)),
        pa.array([["a", "b", "c"]], pa.list_(pa.string(), 3)),
        pa.array([1.0]),
        pa.array([[[1.0]]], pa.list_(pa.list_(pa.float32(), 1), 1)),
        pa.array([{"a": 1}]),
    ],
)
def test_what_is_no_such_vector_is_refused_by_its_column(cells, trained):
    reader, _ = trained
    assert "column 'v'" in refusal(reader, cells, rows=[1])


@pytest.mark.parametrize("kind", [pa.list_(pa.float64(), 1), pa.list_view(pa.float64()), pa.list_(pa.float64())])
def test_a_list_where_a_number_or_a_key_is_due_is_refused_by_its_column(kind, trained):
    reader, _ = trained
    for name in ("x", "id"):
        columns = {"id": pa.array(["k1"]), "x": pa.array([2.0]), "v": pa.array([CELLS[1]])} | {name: pa.array([[1.0]], kind)}
        with pytest.raises(Problem) as refused:
            reader.arrow(stream(**columns))
        assert (refused.value.status, f"column {name!r}" in refused.value.detail) == (422, True)


def test_lists_that_share_their_items_are_refused_before_they_are_copied():
    """A list view may name the same items in every row: a small stream, and a large table."""
    items = pa.array(np.zeros(100_000, dtype=np.float32))
    shared = pa.ListViewArray.from_arrays(pa.array([0] * 50, pa.int32()), pa.array([100_000] * 50, pa.int32()), items)
    before = pa.total_allocated_bytes()
    with pytest.raises(Problem) as refused:
        read_stream(stream(v=shared), most_rows=50, most_bytes=1 << 20)
    assert (refused.value.status, "column 'v'" in refused.value.detail) == (422, True)
    assert pa.total_allocated_bytes() - before < 16 << 20
