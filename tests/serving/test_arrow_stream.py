"""Arrow streams from clients: what is no plain table is refused before it costs memory, and damage is a Problem."""

import contextlib
import io
import tracemalloc

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallystick.serving.arrow_stream import read_stream
from tallystick.serving.problem_details import Problem

MOST_ROWS, MOST_BYTES = 50, 1 << 20
KEYS = pa.array(["id-1", "id-2"])


def stream(table, **options):
    out = io.BytesIO()
    with pa.ipc.new_stream(out, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return out.getvalue()


def read(body):
    return read_stream(body, most_rows=MOST_ROWS, most_bytes=MOST_BYTES)


def of(column):
    return stream(pa.table({"who": column}))


def shared(rows):
    """Texts at one place of the stream, which Polars' views can share."""
    out = io.BytesIO()
    frame = pl.DataFrame({"who": pl.Series(["x" * 900_000]).gather([0] * rows)})
    frame.write_ipc_stream(out, compat_level=pl.CompatLevel.newest())
    return out.getvalue()


def test_plain_tables_are_read_whoever_wrote_them():
    frame = pl.DataFrame({"who": ["a", "a longer text than a view holds", None], "x": [1.5, None, 2.0], "l": [["a"], [], None]})
    for level in (pl.CompatLevel.oldest(), pl.CompatLevel.newest()):
        out = io.BytesIO()
        frame.write_ipc_stream(out, compat_level=level)
        assert read(out.getvalue()).equals(frame)
    batches = pa.Table.from_batches(pa.table({"who": KEYS}).to_batches(max_chunksize=1))
    assert read(stream(batches)).to_dict(as_series=False) == {"who": ["id-1", "id-2"]}


BOMBS = {
    "compressed": (400, lambda: stream(pa.table({"who": np.zeros(1_000_000)}), compression="zstd")),
    "a little compressed": (400, lambda: stream(pa.table({"who": KEYS}), compression="lz4")),
    "a dictionary": (400, lambda: of(pa.array(["x" * 900_000]).dictionary_encode().take(pa.array([0] * MOST_ROWS)))),
    "rows of nothing": (413, lambda: of(pa.nulls(10**9))),
    "lists of nothing": (422, lambda: of(pa.ListArray.from_arrays(pa.array([0, 2**31 - 1], pa.int32()), pa.nulls(2**31 - 1)))),
    "wide lists of nothing": (422, lambda: of(pa.FixedSizeListArray.from_arrays(pa.nulls(2**30), 2**30))),
    "one text for all rows": (413, lambda: shared(MOST_ROWS)),
}


@pytest.mark.parametrize("what", BOMBS)
def test_what_holds_more_than_its_bytes_is_refused_before_it_costs(what):
    status, made = BOMBS[what]
    body = made()
    assert len(body) < 2_000_000
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    try:
        with pytest.raises(Problem) as refused:
            read(body)
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < 16 << 20
    assert refused.value.status == status


ODD = {
    "two columns of one name": stream(pa.Table.from_arrays([KEYS, KEYS], names=["who", "who"])),
    "structs": of(pa.array([{"a": 1}])),
    "maps": of(pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64()))),
    "lists of lists": of(pa.array([[["a"]]])),
    "a union": of(pa.UnionArray.from_dense(pa.array([0], pa.int8()), pa.array([0], pa.int32()), [pa.array([1])])),
    "runs": of(pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"]))),
    "no UTF-8": of(pa.array([b"\xff"]).view(pa.string())),
    "no stream": b"ARROW1\0\0",
    "nothing": b"",
    "cut short": of(KEYS)[:-20],
}


@pytest.mark.parametrize("what", ODD)
def test_types_that_no_column_has_and_broken_streams_are_problems(what):
    with pytest.raises(Problem) as refused:
        read(ODD[what])
    assert refused.value.status in (400, 422)


WHOLE = stream(pa.table({"who": KEYS, "x": [1.0, None], "l": [["a"], []]}))


def test_the_name_of_a_lists_items_that_is_no_utf8_is_a_problem_and_nothing_is_printed(capfd):
    with pytest.raises(Problem) as refused:
        read(WHOLE.replace(b"item", b"\x80tem", 1))
    assert refused.value.status == 400
    assert capfd.readouterr().err == ""


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # look at what all examples print
@given(
    cut=st.none() | st.integers(0, len(WHOLE)),
    changes=st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.integers(0, 255)), max_size=4),
)
def test_any_damage_is_read_or_a_problem_and_nothing_is_printed(capfd, cut, changes):
    body = bytearray(WHOLE)
    for place, byte in changes:
        body[place] = byte
    with contextlib.suppress(Problem):
        assert read(bytes(body[:cut])).height <= MOST_ROWS
    assert capfd.readouterr().err == ""
