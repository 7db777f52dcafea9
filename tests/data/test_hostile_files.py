"""Files that never end or fill the memory: pipes and devices in the place of inputs, a packed table of one endless line."""

import gzip
import os
import subprocess
import sys

import pytest
from tiny import PATIENCE_S
from typer.testing import CliRunner

from tallystick.cli.app import app

PACKED = """
import resource, sys
from pathlib import Path
from tallystick.config.party import TableConfig
from tallystick.data.table import read_table
from tallystick.errors import DataError
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
    """64 MiB of one line in 60 KB; gigabytes were read for it before."""
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
