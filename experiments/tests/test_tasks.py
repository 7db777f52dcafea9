"""A sweep as tasks: the same rows and log whichever process makes them, also with killed workers and stopped sweeps."""

import json
import os

import numpy as np
import pytest
from small_sweep import app
from typer.testing import CliRunner

from tallystick.errors import DataError
from tallystick.watcher import Silent
from tallystick_experiments import command
from tallystick_experiments.tasks import prepare_case


@pytest.fixture
def data(tmp_path):
    np.savetxt(tmp_path / "rows.csv", np.arange(7.0))
    return tmp_path


def swept(data, out, *options):
    """Return a sweep's result, and the lines of its log, without the process that made each."""
    done = CliRunner().invoke(app, ["--data", str(data), "--out", str(data / out), "--json", *options])
    assert done.exit_code == 0, done.output
    return kept(data, out)


def kept(data, out):
    lines = [json.loads(line) for line in (data / out / "runs.jsonl").read_text().splitlines()]
    processes = {line.pop("process") for line in lines[1:]}
    rows = json.loads((data / out / "result.json").read_text())["rows"] if (data / out / "result.json").exists() else []
    rows = [{name: value for name, value in row.items() if name != "process"} for row in rows]
    return rows, lines, processes


def sorted_lines(lines):
    return sorted(lines, key=json.dumps)


@pytest.mark.long
def test_rows_and_log_are_the_same_whoever_makes_them_killed_workers_included(data):
    rows, lines, processes = swept(data, "alone")
    assert processes == {os.getpid()}
    assert [(row["seed"], row["scale"]) for row in rows] == [(seed, scale) for seed in range(6) for scale in (1.0, 0.1)]
    (data / "kill-3").touch()
    shared_rows, shared_lines, workers = swept(data, "shared", "--workers", "2")
    assert not list(data.glob("kill-*"))
    assert os.getpid() not in workers
    assert len(workers) >= 2
    assert shared_rows == rows
    assert sorted_lines(shared_lines) == sorted_lines(lines)


class Impatient(Silent):
    """Interrupts after three cases, as Ctrl-C does."""

    def progress(self, _what, done, _total):
        if done == 3:
            raise KeyboardInterrupt


@pytest.mark.long
def test_a_sweep_that_was_stopped_goes_on_alone_with_what_its_log_has(data, monkeypatch):
    rows, lines, _ = swept(data, "alone")
    with monkeypatch.context() as patched:
        patched.setattr(command, "automatic_watcher", Impatient)
        stopped = CliRunner().invoke(app, ["--data", str(data), "--out", str(data / "stopped"), "--workers", "1"])
    assert stopped.exit_code == 130
    _, over, (worker,) = kept(data, "stopped")
    assert worker != os.getpid()
    assert len(over) == 1 + 3
    gone_on, all_lines, makers = swept(data, "stopped", "--resume")
    assert gone_on == rows
    assert sorted_lines(all_lines) == sorted_lines(lines)
    assert makers == {worker, os.getpid()}


def test_what_is_wrong_with_a_case_is_said_and_the_log_keeps_the_others(data):
    (data / "wrong-2").touch()
    done = CliRunner().invoke(app, ["--data", str(data), "--out", str(data / "out"), "--workers", "1"])
    assert (done.exit_code, done.stderr.splitlines()[-1]) == (2, "error: seed 2 has no rows")  # below progress, if it takes long
    _, lines, _ = kept(data, "out")
    assert [line["seed"] for line in lines[1:]] == [0, 0, 1, 1]


def test_a_worker_that_finds_other_data_refuses_it(data):
    shared = {"command": "small_sweep:small", "options": {"data": str(data), "seeds": 2}, "setting": {"rows": 8}}
    with pytest.raises(DataError, match="a worker has read another sweep: rows differ; each machine needs the same files"):
        prepare_case(json.dumps(shared).encode())
    make = prepare_case(json.dumps(shared | {"setting": {"rows": 7}}).encode())
    assert json.loads(make(b'[3, "[1, 0.1]"]'))["process"] == os.getpid()
    for other in (b'[3, "[1, 0.5]"]', b'[9, "[1, 0.1]"]'):
        with pytest.raises(DataError, match="a worker finds other cases"):
            make(other)
