"""Compare packed rows in a file with the same in memory."""

import mmap
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tallystick.config.party import EncodingConfig, FeatureColumns, SequenceConfig
from tallystick.errors import DataError, StorageError
from tallystick.run_folder.profile import profile_of
from tallystick.tables import columns, records
from tallystick.tables.encoder import Encoder
from tallystick.tables.lazy_table import Frame, LazyTable, in_order, slices_of, store
from tallystick.tables.records import RowFile

ROWS = 700
_RNG = np.random.default_rng(4)
FRAME = pl.DataFrame(
    {
        "amount": [None if row % 9 == 0 else float(value) for row, value in enumerate(_RNG.lognormal(size=ROWS))],
        "count": _RNG.integers(0, 50, ROWS),
        "code": [f"c{value}" for value in _RNG.integers(0, 400, ROWS)],
        "town": [None if value == 3 else f"t{value}" for value in _RNG.integers(0, 9, ROWS)],
        "seen": [" ".join(f"i{item}" for item in _RNG.integers(0, 20, value)) for value in _RNG.integers(0, 6, ROWS)],
    }
)
ENCODER = Encoder.fit(
    FRAME,
    FeatureColumns(numeric=("amount", "count"), categorical=("code", "town")),
    np.arange(ROWS),
    encoding=EncodingConfig(min_count=1),
    sequences={"seen": SequenceConfig(length=3, separator=" ")},
)
STORED = store(FRAME.lazy())
SUMMED = STORED.beside(["amount", "code", "town", "seen"], FRAME.select("count"))
MANY_ROWS = st.lists(st.integers(0, ROWS - 1), min_size=1, max_size=60)


@pytest.fixture
def on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use pieces of so few rows that each test has many."""
    monkeypatch.setattr(records, "IN_MEMORY_BYTES", 0)
    monkeypatch.setattr(records, "PIECE_BYTES", 1)
    monkeypatch.setattr(records, "LEAST_ROWS", 64)


def _same(frame: Frame, index: list[int]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "IN_MEMORY_BYTES", 2**28)
        held = ENCODER.encode(frame)
        patch.setattr(records, "IN_MEMORY_BYTES", 0)
        patch.setattr(records, "LEAST_ROWS", 64)
        patch.setattr(records, "PIECE_BYTES", 1)
        mapped = ENCODER.encode(frame)
    assert len(mapped) == len(held) == frame.height
    index_B = torch.tensor(index, dtype=torch.int64) % frame.height
    for mine, theirs in ((mapped, held), (mapped.picked(index_B), held.picked(index_B))):
        left, right = mine.rows(index_B % len(mine)), theirs.rows(index_B % len(theirs))
        assert torch.equal(left.numeric_NF, right.numeric_NF)
        assert torch.equal(left.categorical_NG, right.categorical_NG)
        assert left.who_N is not None
        assert right.who_N is not None
        assert torch.equal(left.who_N, right.who_N)


@pytest.mark.parametrize("frame", [FRAME, STORED, SUMMED], ids=["in memory", "stored", "beside summaries"])
def test_rows_have_the_same_bits_wherever_they_lie(frame: Frame) -> None:
    _same(frame, list(range(ROWS)))


@settings(max_examples=25)
@given(rows=MANY_ROWS, index=MANY_ROWS)
def test_so_have_rows_in_any_order_that_repeat(rows: list[int], index: list[int]) -> None:
    for table in (FRAME, STORED):
        _same(table[np.array(rows)], index)


@given(rows=MANY_ROWS, size=st.integers(1, 300))
def test_a_table_is_taken_apart_in_the_order_in_which_it_lies(rows: list[int], size: int) -> None:
    ordered, place = in_order(STORED[np.array(rows)])
    pieces = [piece.select(["code", "count"]) for piece in slices_of(ordered, size)]
    whole = pl.concat(pieces)
    expected = FRAME[np.array(rows)].select("code", "count")
    assert (whole if place is None else whole[place]).equals(expected)
    assert all(piece.height <= size for piece in pieces)


@pytest.mark.long
@settings(max_examples=25)
@given(
    rows=MANY_ROWS,
    taught=MANY_ROWS,
    numeric=st.sampled_from(["auto", "standard", "log", "rank"]),
    numbers=st.sampled_from(["plain", "piecewise-linear"]),
)
def test_an_encoder_of_a_large_table_is_that_of_the_same_in_memory(
    rows: list[int], taught: list[int], numeric: Any, numbers: Any
) -> None:
    features = FeatureColumns(numeric=("amount", "count"), categorical=("code", "town"))
    rows_N, rows_M = np.array(rows), np.array(taught) % len(rows)
    encoding = EncodingConfig(min_count=1, numeric=numeric)
    held = Encoder.fit(FRAME[rows_N], features, rows_M, encoding=encoding, numbers=numbers)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(columns, "CELLS_HELD", 16)
        read = Encoder.fit(STORED[rows_N], features, rows_M, encoding=encoding, numbers=numbers)
        profile = profile_of(STORED[rows_N], read, rows_M)
    assert read.to_json() == held.to_json()
    assert profile == profile_of(FRAME[rows_N], held, rows_M)


def test_what_is_wrong_with_a_large_table_is_counted_over_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columns, "CELLS_HELD", 16)
    values = [float(row) if row % 100 else np.inf for row in range(ROWS)]
    table = store(pl.DataFrame({"x": values, "text": [str(row) if row % 10 else "none" for row in range(ROWS)]}).lazy())
    for name, message in (("x", "has 7 infinite numbers"), ("text", f"70 of {ROWS} cells are text")):
        with pytest.raises(DataError, match=message):
            Encoder.fit(table, FeatureColumns(numeric=(name,)), np.arange(9, 20))


def test_records_lie_in_a_file_once_they_are_many(on_disk: None) -> None:
    file = records.mapped([np.ones((2, 3), np.uint8), np.zeros((1, 3), np.uint8)], row_bytes=3)
    assert file.records_NR.tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 0]]
    packed = ENCODER.encode(STORED[np.arange(ROWS)[::-1]])
    assert packed.place_M is not None
    assert packed.place_M.dtype == torch.int32


class Pages(mmap.mmap):
    """A mapping that records which of its pages were asked for."""

    read: ClassVar[list[int]] = []

    def madvise(self, option: int, start: int = 0, length: int = 0) -> None:
        if option == mmap.MADV_WILLNEED:
            assert (start % mmap.PAGESIZE, length) == (0, mmap.PAGESIZE)
            self.read.append(start // mmap.PAGESIZE)
            super().madvise(option, start, length)


def test_rows_are_read_ahead_by_their_pages_and_once() -> None:
    rows, row_bytes = 20_000, 7
    pages = Pages(-1, rows * row_bytes)
    file, rng = RowFile(pages, row_bytes=row_bytes), np.random.default_rng(1)
    batches_BN = [rng.integers(rows, size=40) for _ in range(3)]
    for place_B in batches_BN:
        file.announce(place_B)
        spanned = {byte // mmap.PAGESIZE for row in place_B.tolist() for byte in range(row * row_bytes, (row + 1) * row_bytes)}
        assert pages.read == sorted(spanned)
        pages.read.clear()
    for place_B in reversed(batches_BN):
        file.require(place_B)
    assert pages.read == []
    file.require(np.array([rows - 1, mmap.PAGESIZE // row_bytes]))  # the last one, and one on two pages
    assert pages.read == [0, 1, (rows * row_bytes - 1) // mmap.PAGESIZE]


def test_a_full_disk_says_what_to_do(on_disk: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        name = ""

        def __enter__(self) -> "Full":
            return self

        def __exit__(self, *_: object) -> None: ...
        def write(self, _: bytes) -> int:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(StorageError, match="TMPDIR"):
        ENCODER.encode(STORED)


def test_check_refuses_what_encode_would() -> None:
    ENCODER.check(STORED)
    wrong = FRAME.with_columns(amount=pl.when(pl.int_range(pl.len()) == 5).then(np.inf).otherwise("amount"))
    for each in (wrong, FRAME.drop("town"), FRAME.with_columns(code=pl.lit([1])), FRAME.with_columns(count=pl.lit("many"))):
        for refuses in (ENCODER.check, ENCODER.encode):
            with pytest.raises(DataError):
                refuses(LazyTable.of(each))


def test_a_kill_leaves_no_file_behind(tmp_path: Path) -> None:
    code = (
        "import numpy as np, sys; from tallystick.tables.records import mapped\n"
        "def pieces():\n"
        "    yield np.ones((9, 4), np.uint8); print('half', flush=True); sys.stdin.read()\n"
        "mapped(pieces(), row_bytes=4)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"TMPDIR": str(tmp_path), "PATH": ""},
    )
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"half\n"
    process.kill()
    process.wait()
    process.stdout.close()
    process.stdin.close()
    assert list(tmp_path.iterdir()) == []
