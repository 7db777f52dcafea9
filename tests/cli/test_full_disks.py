"""On a full disk, and where no folder can be made, every command that writes a file says which path it is and what helps.

Existing files stay, and nothing half made is in the way when the same command is tried again.
"""

import contextlib
import resource
import shutil
import tempfile

import pytest
from tiny import OnDisk, contract_values, lay_out, tables
from typer.testing import CliRunner

from tallystick.cli.app import app

PARTIES = ("bank", "shop")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Make a run of both parties that recorded its views, and the scores of its rows."""
    values = contract_values(PARTIES, training__epochs=2, audit=True)
    job = lay_out(tmp_path_factory.mktemp("full"), PARTIES, values, tables(PARTIES, rows=300))
    job.run_all()
    predicting = [job.start("bank", "predict", "--output", "scores.csv"), job.start("shop", "predict")]
    assert [process.end() for process in predicting] == [0, 0]
    return job


@contextlib.contextmanager
def full_disk():
    """No file of this process may grow by a byte."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def files_of(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


def party_of(job, name="bank"):
    return str(job.home(name) / "party.yaml")


def contract_of(job):
    return str(job.home("bank") / "contract.yaml")


def run_of(job, name="bank"):
    return str(job.runs(name)[0])


COMMANDS = {
    "init of a label party": lambda _, place: ["init", f"{place}/new", "--role", "label"],
    "init of a feature party": lambda _, place: ["init", f"{place}/new", "--role", "feature"],
    "cert": lambda _, place: ["cert", f"{place}/new", "bank", "shop"],
    "ledger --create": lambda _, place: ["ledger", f"{place}/party.yaml", "--create"],
    "ledger --html": lambda job, place: ["ledger", party_of(job), "--html", f"{place}/new"],
    "compare --html": lambda job, place: ["compare", run_of(job), run_of(job), "--html", f"{place}/new"],
    "runs promote": lambda job, _: ["runs", contract_of(job), "promote", run_of(job), "--party", party_of(job)],
    "monitor --html": lambda job, place: ["monitor", contract_of(job), "--party", party_of(job), "--html", f"{place}/new"],
    "monitor --prometheus": lambda job, place: [
        *("monitor", contract_of(job), "--party", party_of(job), "--prometheus", f"{place}/new")
    ],
    "export": lambda job, place: ["export", run_of(job, "shop"), "--to", f"{place}/new", "--no-onnx"],
    "student": lambda job, place: [
        *("student", contract_of(job), "--party", party_of(job), "--scores", str(job.home("bank") / "scores.csv")),
        *("--to", f"{place}/new", "--no-onnx", "--progress", "none"),
    ],
    "audit": lambda job, _: ["audit", run_of(job), "--progress", "none"],
    "forget": lambda job, _: ["forget", "--party", party_of(job), "--yes", "id7"],
}
IN_A_PLACE = [name for name in COMMANDS if name not in ("ledger --create", "runs promote", "audit", "forget")]


@pytest.fixture
def job(trained, tmp_path):
    return OnDisk(shutil.copytree(trained.root, tmp_path / "job"), PARTIES)


def said_by(arguments):
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code in (2, 3), (done.exit_code, done.output, done.exception)
    (line,) = [each for each in done.stderr.splitlines() if each.startswith("error: ")]
    return line


@pytest.mark.parametrize(
    "command", [pytest.param(each, marks=pytest.mark.long) if each == "audit" else each for each in COMMANDS]
)
def test_a_full_disk_is_named_with_the_path_and_the_command_can_be_tried_again(command, job, tmp_path, monkeypatch):
    place = tmp_path / "place"
    place.mkdir()
    arguments = COMMANDS[command](job, place)
    (place / "party.yaml").write_text("party: bank\n")
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    before = files_of(tmp_path)
    with full_disk():
        line = said_by(arguments)
    assert str(tmp_path) in line
    assert "free some space" in line or "the disk has no space for a copy of the table; free some" in line
    assert files_of(tmp_path) == before
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 0, again.output


@pytest.mark.parametrize("command", IN_A_PLACE)
def test_a_file_in_the_place_of_a_folder_is_named_with_the_path(command, job, tmp_path):
    (tmp_path / "place").write_text("a file")
    before = files_of(tmp_path)
    line = said_by(COMMANDS[command](job, tmp_path / "place"))
    assert str(tmp_path / "place") in line
    assert "a file stands where a folder should be" in line
    assert files_of(tmp_path) == before
