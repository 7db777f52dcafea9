"""Compare tables that are read by column, and packed rows, with the same in memory."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import StorageError
from tallystick.tables.features import CODE_TYPES, Packing
from tallystick.tables.lazy_table import LazyTable, sample, store, store_batches, unpacked

FRAME = pl.DataFrame({"x": range(1000), "word": [f"w{row % 7}" if row % 5 else None for row in range(1000)], "y": [0.5] * 1000})


def test_a_stored_table_is_what_it_was_when_it_was_stored(tmp_path: Path) -> None:
    FRAME.write_csv(tmp_path / "t.csv")
    table = store(pl.scan_csv(tmp_path / "t.csv"))
    (tmp_path / "t.csv").write_text("x,word,y\n1,changed,1\n")
    assert (table.columns, table.width, table.height) == (["x", "word", "y"], 3, 1000)
    assert table.collect().equals(FRAME)
    assert table.get_column("word").equals(FRAME.get_column("word"))


@given(first=st.lists(st.integers(0, 999), max_size=30), seed=st.integers(0, 99))
def test_rows_are_picked_as_from_a_table_in_memory(first: list[int], seed: int) -> None:
    table, numbers = LazyTable.of(FRAME), np.array(first, dtype=np.int64)
    assert table[numbers].collect().equals(FRAME[numbers])
    again = np.random.default_rng(seed).permutation(len(numbers))[: len(numbers) // 2]
    assert table[numbers][again].collect().equals(FRAME[numbers][again])
    assert table[numbers][again].height == len(again)


def test_a_wide_table_is_not_looked_through_for_each_of_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """With 20,000 columns each such look took .07 s, so a check of them took an hour."""
    table = store(pl.DataFrame({f"x{index}": [index, index + 1] for index in range(500)}).lazy())
    reads, collect = [], pl.LazyFrame.collect

    def counted(frame: pl.LazyFrame, *args: Any, **keywords: Any) -> Any:
        reads.append(frame)
        return collect(frame, *args, **keywords)

    monkeypatch.setattr(pl.LazyFrame, "collect", counted)
    picked = table[np.array([1])]
    assert [picked.get_column(f"x{index}").item() for index in range(500)] == list(range(1, 501))
    assert len(reads) <= 2  # the rows, and the columns


def test_columns_of_a_tall_table_are_read_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tallystick.tables.lazy_table.CELLS_HELD", 1999)
    table = LazyTable.of(FRAME)
    assert [(table.get_column(name).equals(FRAME.get_column(name)), *table.block.columns) for name in table.columns] == [
        (True, name) for name in table.columns
    ]


def open_files() -> int:
    """Return how many files this process has open, including the one for this look."""
    return len(list(Path("/proc/self/fd").iterdir()))


def test_the_copy_has_no_name_and_goes_with_the_table() -> None:
    before = open_files()
    table = store(FRAME.lazy())
    assert open_files() == before + 1
    picked = table[np.arange(3)]
    del table
    assert picked.collect().equals(FRAME.head(3))  # the selection contains the copy, too
    del picked
    assert open_files() == before


def test_arrows_batches_keep_their_types() -> None:
    rows = pa.table(
        {"n": pa.array([1, None, 3], pa.int16()), "s": pa.array(["a", "b", "a"]).dictionary_encode(), "e": pa.nulls(3)}
    )
    batches = rows.to_batches(max_chunksize=2)
    assert len(batches) == 2
    assert store_batches(rows.schema, batches).collect().equals(pl.DataFrame(pl.from_arrow(rows)))
    assert store_batches(rows.schema, []).schema == pl.DataFrame(pl.from_arrow(rows)).schema


def test_a_sample_is_drawn_from_all_rows_and_keeps_their_order() -> None:
    drawn, count = sample(FRAME.lazy(), 100, seed=3)
    numbers = drawn.collect().get_column("x").to_list()
    assert (count, len(set(numbers)), numbers) == (100, 100, sorted(numbers))
    # The mean of 100 of 1,000 has a standard deviation of 27: five of them, where the first rows' mean would be 49.5.
    assert abs(np.mean(numbers) - 499.5) < 137
    assert sample(FRAME.lazy(), 100, seed=3)[0].collect().get_column("x").to_list() == numbers
    assert sample(FRAME.lazy(), 1000, seed=3)[0].collect().equals(FRAME)


def test_a_packed_file_is_known_by_its_first_bytes(tmp_path: Path) -> None:
    (tmp_path / "named.csv").write_bytes(gzip.compress(b"a,b\n1,2\n"))
    with unpacked(tmp_path / "named.csv") as path:
        assert Path(path).read_text() == "a,b\n1,2\n"


def test_a_full_disk_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pl.LazyFrame, "sink_parquet", full)
    with pytest.raises(StorageError, match=r"no space for a copy of the table.*TMPDIR"):
        store(FRAME.lazy())


SIZES = st.lists(st.sampled_from([1, 2, 255, 256, 257, 32_768, 32_769, 100_000]), max_size=5)


@given(numbers=st.integers(0, 3), indicators=st.integers(0, 3), sizes=SIZES, rows=st.integers(1, 20), seed=st.integers(0, 99))
def test_packed_rows_unpack_to_what_was_written(numbers: int, indicators: int, sizes: list[int], rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    packing = Packing(numbers=numbers, indicators=indicators, cardinalities=tuple(sizes))
    records = np.zeros((rows, packing.row_bytes), dtype=np.uint8)
    values, flags = rng.normal(size=(rows, numbers)), rng.random((rows, indicators)) < 0.5
    codes = np.array([rng.integers(0, size, rows) for size in sizes]).reshape(len(sizes), rows).T
    codes[0] = [size - 1 for size in sizes]  # the greatest code has to fit
    for column in range(numbers):
        packing.write_number(records, column, values[:, column])
    for column in range(indicators):
        packing.write_indicator(records, column, flags[:, column])
    for column in range(len(sizes)):
        packing.write_codes(records, column, codes[:, column])
    found = packing.unpack(torch.from_numpy(records))
    assert found.numeric_NF.tolist() == np.hstack([values.astype(np.float32), flags]).tolist()
    assert found.categorical_NG.tolist() == codes.tolist()
    least = sum(next(kind.itemsize for kind in CODE_TYPES if size <= torch.iinfo(kind).max + 1) for size in sizes)
    assert packing.row_bytes == 4 * numbers + indicators + least
