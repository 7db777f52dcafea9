"""A command refuses a run folder with one line: one of another version, or one that another process uses. New folders
are complete.
"""

import json
import os
import signal
import stat

import pytest
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.contract import load_contract
from tallystick.errors import ConfigError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import FORMAT
from tallystick.storage import new_whole_folder


@pytest.fixture
def job(lay_out_job):
    return lay_out_job(rows=50, audit=True)


@pytest.fixture
def folder(job):
    """Make a run folder of the bank as format 1 had it: no file says its format."""
    made = RunFolder.new(job.home("bank") / "runs", load_contract(job.home("bank") / "contract.yaml"), "bank", key=None)
    (made.path / "format").unlink()
    (made.path / "fills.json").write_text('{"seed": 1}')
    (made.path / "model.safetensors").write_bytes(b"whatever it was")
    (made.path / "result.json").write_text(json.dumps({"version": 1, "run_id": "r", "own_only": None}))
    return made.path


def refused(*arguments):
    """Return the line with which a command ends."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    assert done.exit_code == 2, done.output
    (line,) = done.stderr.strip().splitlines()
    return line


@pytest.mark.parametrize("command", ["run --resume", "train", "evaluate", "predict"])
def test_jobs_refuse_it(job, folder, command):
    home, (name, *options) = job.home("bank"), command.split()
    output = ["--output", home / "scores.csv"] if name == "predict" else []
    line = refused(name, home / "contract.yaml", "--party", home / "party.yaml", *options, *output)
    assert f"{folder}: is a run folder of another version of tallystick (format 'none'; this one reads {FORMAT})" in line
    assert "start a new run on all sides" in line


def test_a_prediction_holds_the_run_folder(job):
    home = job.home("bank")
    made = RunFolder.new(home / "runs", load_contract(home / "contract.yaml"), "bank", key=None)
    arguments = ("predict", home / "contract.yaml", "--party", home / "party.yaml", "--output", home / "scores.csv")
    assert "holds no trained model" in refused(*arguments)
    (made.path / "model.safetensors").touch()
    with made.locked():
        assert f"{made.path}: another process (id " in refused(*arguments)


def test_an_audit_refuses_it(folder):
    assert f"{folder}: is a run folder of another version" in refused("audit", folder)


def test_a_comparison_refuses_its_result(folder):
    line = refused("compare", folder, folder)
    assert f"{folder / 'result.json'}: this is a result of an earlier version of tallystick (format 1; this one reads 2)" in line


@pytest.mark.parametrize("written", [f"{FORMAT + 1}", "\x00?", "1", ""])
def test_what_the_file_says_counts(job, folder, written):
    (folder / "format").write_text(written)
    contract = load_contract(job.home("bank") / "contract.yaml")
    with pytest.raises(ConfigError, match=r"of another version of .* its file `format` is damaged"):
        RunFolder.latest(folder.parent, contract, "bank")
    (folder / "format").write_text(f"{FORMAT}\n")
    assert RunFolder.latest(folder.parent, contract, "bank").path == folder


def test_a_new_folder_says_its_format(tmp_path, job):
    contract = load_contract(job.home("bank") / "contract.yaml")
    assert (RunFolder.new(tmp_path, contract, "bank", key=None).path / "format").read_text() == f"{FORMAT}\n"
    assert RunFolder.latest(tmp_path, contract, "bank").path.is_dir()


def test_a_kill_leaves_a_folder_that_is_made_at_once_whole_or_absent(tmp_path):
    """An audit of a contract left a folder without a result, or with a result and no report."""

    def fill(folder):
        (folder / "result.json").write_text("{}")
        if child == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    child = os.fork()
    if child == 0:
        new_whole_folder(tmp_path, "tiny", fill)
    os.waitpid(child, 0)
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith("tallystick-scratch-")] == []
    made = [new_whole_folder(tmp_path, "tiny", fill) for _ in range(2)]
    assert [path.name for path in made] == ["tiny-1", "tiny-2"]
    assert sorted(tmp_path.iterdir()) == made  # what was left after the kill is gone
    assert [path.name for path in made[0].iterdir()] == ["result.json"]
    assert stat.S_IMODE(made[0].stat().st_mode) == 0o700
