"""Two processes with only the packages of requirements-align.txt align CSV files over TLS. What needs more says so in a line."""

import json
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
from lanes import short_lane_of
from tiny import contract_values, lay_out

PARTIES = ("bank", "shop")
WITHOUT = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
from tallystick.cli.main import main

for command in sys.argv[1:]:
    sys.argv = ["tallystick", *command.split(), "contract.yaml", "--party", "party.yaml", "--json"]
    try:
        main()
    except SystemExit as end:
        print(end.code or 0)
    assert "torch" not in sys.modules
"""
"""One command after the other, each with its exit code on the line after its output."""
HIDDEN = ("torch", "pyarrow", "scipy", "opendp", "dp_accounting", "duckdb", "rapidfuzz")
"""The packages that requirements-align.txt leaves out."""


def test_the_list_of_packages_leaves_them_out():
    lines = (Path(__file__).parents[2] / "requirements-align.txt").read_text().splitlines()
    packages = {line.partition("==")[0].replace("-", "_") for line in lines if "==" in line}
    assert "polars" in packages
    assert packages.isdisjoint(HIDDEN)


def of_csv(job):
    """Let both parties of a job read their tables from CSV files, and return it."""
    for party in PARTIES:
        table = job.home(party) / "table.parquet"
        pl.read_parquet(table).write_csv(table.with_suffix(".csv"))
        job.change(party, table={"path": "table.csv"})
    return job


def start(job, party, *commands):
    """Start one party's process, which loads modules once for all of its commands."""
    line = [sys.executable, "-c", WITHOUT.format(hidden=HIDDEN), *commands]
    return subprocess.Popen(line, cwd=job.home(party), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ends_of(process):
    """Return the exit code and the JSON of each command, and what all of them say on standard error."""
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    lines = out.splitlines()
    return [(int(code), json.loads(facts)) for facts, code in zip(lines[::2], lines[1::2], strict=True)], err


def both(job, *commands):
    """Return for each command each party's exit code, its JSON, and its process's standard error."""
    running = {party: start(job, party, *commands) for party in PARTIES}
    ends = {party: ends_of(one) for party, one in running.items()}
    return [{party: (*each[place], err) for party, (each, err) in ends.items()} for place in range(len(commands))]


@pytest.mark.parametrize(
    "alignment",
    short_lane_of(
        [
            {"method": "intersection", "security": "malicious"},
            {"method": "intersection", "protocol": "diffie-hellman"},
            {"method": "intersection", "protocol": "oblivious-transfer"},
            {"method": "intersection", "duplicates": "all"},
            {"method": "union"},
        ],
        1,
    ),
    ids=lambda values: "-".join(map(str, values.values())),
)
def test_two_processes_align_without_it(tmp_path, alignment):
    values = contract_values(PARTIES, alignment={**alignment, "keys": [{"name": "id"}]})
    if alignment["method"] != "union":
        values |= {"defense": [{"method": "label-dp", "epsilon": 1}]}
    job = of_csv(lay_out(tmp_path, PARTIES, values, rows=300))
    ids = [set(pl.read_parquet(job.home(party) / "table.parquet")["id"]) for party in PARTIES]
    resumes = alignment["method"] != "union"
    ends, *again = both(job, "align", *["align --resume"] * resumes)
    assert [code for code, _, _ in ends.values()] == [0, 0], [error for *_, error in ends.values()]
    for party, (_, facts, _) in ends.items():
        assert len(ids[0] & ids[1]) in facts["rows"].values() or alignment["method"] == "union"
        assert "What each side learnt" in (job.home(party) / facts["report"]).read_text()
    if not resumes:
        return
    assert [code for code, _, _ in again[0].values()] == [0, 0], [error for *_, error in again[0].values()]
    assert {facts["run_id"] for _, facts, _ in again[0].values()} == {facts["run_id"] for _, facts, _ in ends.values()}
    job.run_all("train")  # a run that was aligned without it is a run like any other
    for party in PARTIES:
        assert (job.home(party) / ends[party][1]["folder"] / "model.safetensors").exists()


def test_a_command_that_trains_says_what_is_missing(tmp_path):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES), rows=60)
    ends, err = ends_of(start(job, "bank", "run", "predict"))
    for code, facts in ends:
        assert code == 2
        assert "PyTorch is not installed" in facts["error"]["message"]
    assert len(err.strip().splitlines()) == 2


def test_they_count_the_overlap(tmp_path):
    job = of_csv(lay_out(tmp_path, PARTIES, contract_values(PARTIES, overlap={"least": 1}), rows=300))
    ids = [set(pl.read_csv(job.home(party) / "table.csv")["id"]) for party in PARTIES]
    (ends,) = both(job, "overlap")
    for code, facts, err in ends.values():
        assert (code, facts.get("common")) == (0, len(ids[0] & ids[1])), err


@pytest.mark.parametrize("source", [{"path": "table.parquet"}, {"path": "s3://bucket/table.csv"}], ids=["parquet", "store"])
def test_a_source_that_pyarrow_reads_says_that_it_is_missing(tmp_path, source):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES), rows=60)
    job.change("bank", table=source)
    ((code, facts),), _ = ends_of(start(job, "bank", "align"))
    assert code == 2
    assert "pip install pyarrow" in facts["error"]["message"]


def test_a_table_by_query_says_that_duckdb_is_missing(tmp_path):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES), rows=60)
    job.change("bank", table={"query": "SELECT * FROM 'table.parquet'"})
    ((_, facts),), _ = ends_of(start(job, "bank", "align"))
    assert "pip install duckdb" in facts["error"]["message"]
