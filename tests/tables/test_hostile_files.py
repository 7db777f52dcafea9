"""Files that never end or fill the memory: pipes and devices as inputs, and compressed tables of one line or of many."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import PATIENCE_S
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.table import TableConfig
from tallystick.errors import DataError
from tallystick.tables.table import read_table

PACKED = """
import resource, sys
from pathlib import Path
from tallystick.config.table import TableConfig
from tallystick.tables import rows
from tallystick.tables.table import read_table
from tallystick.errors import DataError
rows.machine_memory = lambda: 4 << 32
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    read_table(TableConfig.model_validate({"path": sys.argv[1]}, context={"folder": Path("/")}))
except DataError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.mark.parametrize("what", ["contract.yaml", "party.yaml", "table.parquet", "own.pem", "ca.pem", "own.key"])
def test_a_pipe_in_the_place_of_an_input_is_refused_at_once(lay_out_job, what):
    home = lay_out_job(rows=50).home("bank")
    (home / what).unlink()
    os.mkfifo(home / what)
    done = CliRunner().invoke(app, ["check", str(home / "party.yaml"), str(home / "contract.yaml")])
    assert done.exit_code == 2, done.output
    assert f"{what}: is a pipe or a device" in "".join(done.output.split("\n"))


@pytest.mark.parametrize("path", ["fifo", "/dev/zero"])
def test_a_pipe_or_a_device_is_no_result(tmp_path, path):
    os.mkfifo(tmp_path / "fifo")
    done = CliRunner().invoke(app, ["compare", str(tmp_path / path), str(tmp_path / path)])
    assert done.exit_code == 2
    assert "is a pipe or a device" in done.stderr


@pytest.mark.parametrize("head", [b"", b"id,x\n"])
def test_a_packed_line_without_an_end_is_refused_in_little_memory(tmp_path, head):
    """64 MiB of one line in 60 KB; earlier gigabytes were read for it."""
    with gzip.open(tmp_path / "table.csv.gz", "wb", compresslevel=1) as file:
        file.write(head)
        for _ in range(64):
            file.write(b"a," * (1 << 19))
    done = subprocess.run(
        [sys.executable, "-c", PACKED, str(tmp_path / "table.csv.gz")], capture_output=True, text=True, timeout=PATIENCE_S
    )
    said, grown_mib = done.stdout.splitlines()
    assert "has a line of more than 4,194,304 characters" in said
    assert int(grown_mib) < 100


def _read(path, **limits):
    return read_table(TableConfig.model_validate({"path": str(path), **limits}, context={"folder": Path("/")}))


def _announcing(path, rows):
    """Make a Parquet file of 1,000 rows whose footer claims ``rows``."""
    pl.DataFrame({"id": range(1000)}).write_parquet(path)
    packed = path.read_bytes()
    length = int.from_bytes(packed[-8:-4], "little")
    body, footer = packed[: -8 - length], packed[-8 - length : -8]
    footer = footer.replace(b"\x16" + _varint(1000), b"\x16" + _varint(rows), 1)  # field 3 of FileMetaData, an i64
    path.write_bytes(body + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert pq.read_metadata(path).num_rows == rows
    return path


def _varint(number):
    """Write a number as Thrift's compact protocol does: zigzag, seven bits a byte."""
    zigzag, coded = 2 * number, b""
    while zigzag >= 128:
        zigzag, coded = zigzag >> 7, coded + bytes([zigzag & 127 | 128])
    return coded + bytes([zigzag])


def test_a_footer_that_announces_more_rows_than_fit_is_refused_before_one_is_read(tmp_path):
    """Earlier 336 million rows were read, to 2.8 GiB in 73 seconds."""
    with pytest.raises(DataError, match=r"announces 1,099,511,627,776 rows, over the .* that fit into this machine's memory"):
        _read(_announcing(tmp_path / "table.parquet", 2**40))


def test_rows_beyond_those_that_a_footer_announces_are_counted(tmp_path):
    with pytest.raises(DataError, match=r"announces fewer rows and holds at least 1,000 rows, over table.max_rows = 999"):
        _read(_announcing(tmp_path / "table.parquet", 5), max_rows=999)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".csv.gz"])
def test_no_more_rows_are_read_than_the_party_file_allows(tmp_path, ending):
    """The two files of a table together."""
    for name in ("first", "second"):
        path = tmp_path / f"{name}{ending}"
        rows = pl.DataFrame({"id": range(500)})
        if ending == ".parquet":
            rows.write_parquet(path)
        else:
            path.write_bytes(gzip.compress(rows.write_csv().encode()) if ending == ".csv.gz" else rows.write_csv().encode())
    assert _read(tmp_path, max_rows=1000).height == 1000
    with pytest.raises(DataError, match=r"1,000 rows, over table.max_rows = 999; to read them"):
        _read(tmp_path, max_rows=999)


def test_a_packed_table_of_too_many_rows_is_unpacked_no_further(tmp_path):
    """Four million rows in 8 KB; only the first lines are unpacked."""
    with gzip.open(tmp_path / "table.csv.gz", "wb", compresslevel=9) as file:
        file.write(b"id\n" + b"1\n" * (1 << 22))
    with pytest.raises(DataError, match=r"table.csv.gz: unpacks into at least \d{3},\d{3} rows, over table.max_rows = 100,000"):
        _read(tmp_path / "table.csv.gz", max_rows=100_000)


MEBIBYTE = "x" * 2**20


def _repeated(rows):
    """Repeat the same mebibyte, as a dictionary of one."""
    return pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array([MEBIBYTE]))


@pytest.mark.parametrize("nested", [False, True])
def test_a_dictionary_of_long_text_is_not_written_out_row_by_row(tmp_path, nested):
    """40 GiB of text in 200 KB; earlier over 4 GiB were requested, until the machine had no more."""
    rows, path = 40_000, tmp_path / "table.parquet"
    text = _repeated(rows)
    if nested:
        text = pa.ListArray.from_arrays(pa.array(range(rows + 1), pa.int32()), text)
    table = pa.table({"id": range(rows), "text": text})
    pq.write_table(table, path, compression="zstd", store_schema=False, dictionary_pagesize_limit=2**30)
    assert path.stat().st_size < 400_000
    done = subprocess.run([sys.executable, "-c", PACKED, str(path)], capture_output=True, text=True, timeout=PATIENCE_S)
    said, grown_mib = done.stdout.splitlines()
    assert "column 'text' unpacks into at least 41,943,040,000 bytes, over the 4,294,967,296 bytes" in said
    assert int(grown_mib) < 250


@pytest.mark.long
def test_prefixes_that_repeat_are_unpacked_a_few_rows_at_a_time(tmp_path):
    """Each value says that it begins like the one before it: 1.6 GiB in 10 KB, which Arrow would unpack together."""
    path = tmp_path / "table.parquet"
    one = pa.table({"text": [MEBIBYTE] * 200})
    with pq.ParquetWriter(path, one.schema, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY", compression="zstd") as file:
        for _ in range(8):
            file.write_table(one)
    assert path.stat().st_size < 20_000
    done = subprocess.run(
        [sys.executable, "-c", PACKED.replace("<< 32", "<< 30"), str(path)], capture_output=True, text=True, timeout=PATIENCE_S
    )
    said, grown_mib = done.stdout.splitlines()
    assert re.search(r"column 'text' unpacks into at least 1,\d{3},\d{3},\d{3} bytes, over the 1,073,741,824", said)
    assert int(grown_mib) < 1000


def test_a_list_of_more_values_than_fit_is_refused_by_the_footer(tmp_path, monkeypatch):
    """One row, a million values."""
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"id": [1], "seen": [[0] * 1_000_000]}), path)
    assert _read(path).height == 1
    monkeypatch.setattr("tallystick.tables.rows.machine_memory", lambda: 4 << 22)
    with pytest.raises(DataError, match=r"column 'seen.list.element' announces 1,000,000 values, over the 4,194,304 bytes"):
        _read(path)


def test_text_is_copied_as_it_was_however_it_is_encoded(tmp_path, monkeypatch):
    """In pieces of a few rows, too."""
    words = [None, "", "é", *map(str, range(300))]
    table = pa.table(
        {
            "plain": words,
            "large": pa.array(words, pa.large_string()),
            "bytes": [None if each is None else each.encode() for each in words],
            "kind": pa.array(words).dictionary_encode(),
            "list": [None, [], *[[each, None] for each in words[2:]]],
            "both": [{"a": each, "b": 1} for each in words],
            "none": pa.nulls(len(words)),
        }
    )
    for options in ({}, {"use_dictionary": False}, {"use_dictionary": False, "column_encoding": {"plain": "DELTA_BYTE_ARRAY"}}):
        pq.write_table(table, tmp_path / "table.parquet", row_group_size=100, **options)
        expected = pl.DataFrame(pl.from_arrow(pq.read_table(tmp_path / "table.parquet")))
        for room in (2**27, 200):
            monkeypatch.setattr("tallystick.tables.parquet.TEXT_AT_A_TIME", room)
            assert _read(tmp_path / "table.parquet").collect().equals(expected)
