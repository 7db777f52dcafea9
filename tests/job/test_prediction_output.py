"""The file of scores: keys unchanged, nothing that a spreadsheet runs, readable by this user alone, complete or absent."""

import csv
import io
import re
import stat
import subprocess
import sys

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import PATIENCE_S, columns, contract_values

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import ConfigError
from tallystick.job.prediction_output import check_columns, write_scores

PARTIES = ("bank", "shop")
STARTS = "=+-@\t\r\n\uff1d\uff0b\uff0d\uff20"
HOSTILE = [
    "=1+1",
    "@SUM(A1)",
    "+cmd|' /C calc'!A0",
    "-2+3+cmd|' /C calc'!A0",
    "\t=1",
    "\r=1",
    '=HYPERLINK("http://x","y")',
    "\uff1d1+1",
    "--1",
    "+A1",
]
HARMLESS = ["id-1", "a=b", "+44 20 7946-0958", "-5", "-0.25", "+49(0)30/1234", "x@y.z", "'=1", "", " =1", "1e5"]


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    tls = {"ca": "ca.pem", "certificate": "own.pem", "key": "own.key"}
    values = {"party": "bank", "table": {"path": "t.parquet"}, "tls": tls, "listen": "127.0.0.1:1", **columns(PARTIES)["bank"]}
    folder = tmp_path_factory.mktemp("party")
    return parse_contract(contract_values(PARTIES)), parse_party(values, folder=folder), folder


@pytest.mark.parametrize("key", HOSTILE)
def test_a_key_that_a_spreadsheet_would_run_is_refused_in_csv_alone(sides, key):
    contract, party, folder = sides
    frame = pl.DataFrame({"id": ["a", key]})
    with pytest.raises(ConfigError, match=re.escape(f"({key!r} is the first); name a .parquet file")):
        check_columns(contract, party, frame, folder / "scores.csv")
    check_columns(contract, party, frame.cast(pl.Categorical), folder / "scores.parquet")


@given(st.lists(st.text() | st.sampled_from(HARMLESS)))
def test_every_key_in_a_csv_file_is_as_it_was(sides, keys):
    contract, party, folder = sides
    frame = pl.DataFrame({"id": pl.Series(keys, dtype=pl.String)})
    try:
        check_columns(contract, party, frame, folder / "scores.csv")
    except ConfigError:
        assert any(key.startswith(tuple(STARTS)) for key in keys)
        return
    assert not any(key.startswith(tuple(STARTS)) and re.search("[^-+0-9 .,()/]", key) for key in keys)
    read = list(csv.reader(io.StringIO(frame.with_columns(score=0.5).write_csv(), newline="")))
    assert [row[0] for row in read[1:]] == keys


@pytest.mark.parametrize("values", [[-1.5, -1e-30], [-3, 2], [None, None]])
def test_numbers_are_no_formulas(sides, values):
    contract, party, folder = sides
    check_columns(contract, party, pl.DataFrame({"id": values}), folder / "scores.csv")


def test_key_columns_that_the_scores_cannot_stand_beside_are_named(sides):
    contract, party, folder = sides
    renamed = party.model_copy(update={"keys": {"id": "score"}})
    with pytest.raises(ConfigError, match="column 'score' has a name that the file of scores needs itself"):
        check_columns(contract, renamed, pl.DataFrame({"score": ["a"]}), folder / "scores.parquet")
    hostile = party.model_copy(update={"keys": {"id": "=id"}})
    with pytest.raises(ConfigError, match="'=id' is the first"):
        check_columns(contract, hostile, pl.DataFrame({"=id": ["a"]}), folder / "scores.csv")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_scores_are_for_this_user_alone(tmp_path, suffix):
    path, frame = tmp_path / f"scores.{suffix}", pl.DataFrame({"id": ["a", "b"], "score": [0.1, 0.2]})
    write_scores(frame, path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert (pl.read_csv(path) if suffix == "csv" else pl.read_parquet(path)).equals(frame)


FULL_DISK = """
import resource, signal, sys
import polars as pl
from pathlib import Path
from tallystick.errors import StorageError
from tallystick.job.prediction_output import write_scores
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk, write() fails instead
ids = [f"{number * 7919 % 100003}" for number in range(20_000)]
frame = pl.DataFrame({"id": ids}).with_columns(score=pl.int_range(pl.len()) / 7)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
for suffix in ("csv", "parquet"):
    try:
        write_scores(frame, Path(sys.argv[1]) / f"scores.{suffix}")
    except StorageError as error:
        print(error)
"""


@pytest.mark.long
def test_a_full_disk_is_named_and_nothing_is_left(tmp_path):
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    lines = [
        f"cannot write {tmp_path / name}: File too large; the last good version is untouched; free some space" for name in NAMES
    ]
    assert done.stdout.splitlines() == lines
    assert list(tmp_path.iterdir()) == []


NAMES = ("scores.csv", "scores.parquet")
