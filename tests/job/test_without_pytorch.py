"""Tables are aligned by two processes over TLS that cannot import PyTorch, and whatever else needs it says so in a line."""

import json
import subprocess
import sys

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

try:
    main()
finally:
    assert "torch" not in sys.modules
"""
HIDDEN = ("torch", "scipy", "opendp", "dp_accounting", "duckdb", "rapidfuzz")
"""What requirements-align.txt leaves out."""


def start(job, party, command, *arguments):
    line = [sys.executable, "-c", WITHOUT.format(hidden=HIDDEN), command, "contract.yaml", "--party", "party.yaml", "--json"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*line, *arguments], cwd=job.home(party), **pipes)


def both(job, command, *arguments):
    """Each party's exit code, its JSON and its standard error."""
    running = {party: start(job, party, command, *arguments) for party in PARTIES}
    ends = {party: (*one.communicate(timeout=240), one.returncode) for party, one in running.items()}
    return {party: (code, json.loads(out.splitlines()[-1]) if out else {}, err) for party, (out, err, code) in ends.items()}


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
    job = lay_out(tmp_path, PARTIES, values, rows=300)
    ids = [set(pl.read_parquet(job.home(party) / "table.parquet")["id"]) for party in PARTIES]
    ends = both(job, "align")
    assert [code for code, _, _ in ends.values()] == [0, 0], [error for *_, error in ends.values()]
    for party, (_, facts, _) in ends.items():
        assert len(ids[0] & ids[1]) in facts["rows"].values() or alignment["method"] == "union"
        assert "What each side learnt" in (job.home(party) / facts["report"]).read_text()
    if alignment["method"] == "union":
        return
    again = both(job, "align", "--resume")
    assert [code for code, _, _ in again.values()] == [0, 0], [error for *_, error in again.values()]
    assert {facts["run_id"] for _, facts, _ in again.values()} == {facts["run_id"] for _, facts, _ in ends.values()}
    job.run_all("train")  # what was aligned without it is a run like any other
    for party in PARTIES:
        assert (job.home(party) / ends[party][1]["folder"] / "model.safetensors").exists()


def test_a_command_that_trains_says_what_is_missing(tmp_path):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES), rows=60)
    for command in ("run", "predict"):
        one = start(job, "bank", command)
        out, err = one.communicate(timeout=240)
        assert one.returncode == 2
        assert "PyTorch is not installed" in json.loads(out)["error"]["message"]
        assert len(err.strip().splitlines()) == 1


def test_a_table_by_query_says_that_duckdb_is_missing(tmp_path):
    job = lay_out(tmp_path, PARTIES, contract_values(PARTIES), rows=60)
    job.change("bank", table={"query": "SELECT * FROM 'table.parquet'"})
    out, _ = start(job, "bank", "align").communicate(timeout=240)
    assert "pip install duckdb" in json.loads(out)["error"]["message"]
