"""Look at the answers that a server has kept."""

import json
import shutil

import pytest
from serving_job import Served
from tiny import OnDisk
from typer.testing import CliRunner

from tallystick.cli.app import app


@pytest.fixture(scope="module")
def answered(trained, tmp_path_factory):
    """Serve a job whose label party keeps its answers, with every row's own columns. Return also what was answered."""
    job, expected = trained
    root = tmp_path_factory.mktemp("answered")
    for name in job.parties:
        shutil.copytree(job.home(name), root / name)
    served = Served(OnDisk(root, job.parties), way="key", answers={"columns": 1.0})
    try:
        served.start().until_ready()
        rows = expected["id"].to_list()
        got = [served.ask(*({"id": key} for key in rows[start : start + 40])).json() for start in range(0, len(rows), 40)]
        assert served.ask({"id": "nobody"}).status_code == 404
    finally:
        served.close()
    return served.job, expected, [row for each in got for row in each["scores"]]


def test_every_answer_is_kept_and_a_look_finds_that_nothing_moved(answered):
    """The rows are those of the run. Any of four is called moved with a chance of 0.001 at most; with this seed none is."""
    job, _, got = answered
    label = job.parties[0]
    labels = job.home(label) / "table.parquet"
    own, contract = job.home(label) / "party.yaml", job.home(label) / "contract.yaml"
    command = ["monitor", str(contract), "--party", str(own), "--json", "--served", "--labels", str(labels)]
    found = json.loads(CliRunner().invoke(app, command).stdout.splitlines()[-1])
    assert found["rows"] == len(got) + 1
    (period,) = found["served"]
    by = [row["scored_by"] for row in got]
    assert period["scored_by"] == {name: by.count(name) for name in set(by)}
    assert period["why"]["unknown"] == 1
    assert period["why"]["joint"] == by.count("joint model")
    assert [part["part"] for part in period["latency"]] == ["all", "waiting", "partners", "scoring"]
    assert found["drifted"] == []
    assert len(found["columns"]) == 3
    assert found["periods"][0]["rows"] == len(got)
    assert found["periods"][0]["auc"] > 0.7


def test_no_key_stands_in_what_is_kept(answered):
    job, expected, _ = answered
    (path,) = job.runs(job.parties[0])[0].glob("served-*.jsonl")
    text = path.read_text()
    assert not [key for key in expected["id"] if key in text]
