"""A run folder that a version kept is read to the same scores, or refused with one line."""

import shutil
from pathlib import Path

import polars as pl
import pytest
from make_formats import HERE, PARTIES, scores
from tiny import contract_values, error_of, lay_out, tables

from tallystick.config.contract import parse_contract
from tallystick.config.party import load_party
from tallystick.errors import ConfigError
from tallystick.job.start_from import run_to_start_from
from tallystick.reading import read_yaml
from tallystick.report.compare import read_run
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.listing import FORMAT, contract_of

WRITTEN = sorted(int(path.name) for path in HERE.iterdir() if path.name.isdigit())


@pytest.fixture
def laid_out(tmp_path):
    """Put what a version kept into new homes. Return their place."""

    def lay(version: int) -> Path:
        kept = HERE / str(version)
        lay_out(tmp_path, PARTIES, contract_values(PARTIES), tables(PARTIES, rows=20))
        for name in PARTIES:
            shutil.copy(kept / "contract.yaml", tmp_path / name)
            shutil.copytree(kept / name, tmp_path / name / "runs")
            shutil.move(tmp_path / name / "runs" / "table.parquet", tmp_path / name / "table.parquet")
        return tmp_path

    return lay


def test_todays_format_has_its_folder():
    assert WRITTEN[-1] == FORMAT, "run tests/formats/make_formats.py, and commit what it writes"


def test_a_model_of_todays_format_scores_as_it_did(laid_out):
    root = laid_out(FORMAT)
    scores(root, root / "scores.csv")
    before, after = (pl.read_csv(path).sort("id") for path in (HERE / str(FORMAT) / "scores.csv", root / "scores.csv"))
    assert before.drop("score").equals(after.drop("score"))
    assert (before["score"] - after["score"]).abs().max() < 1e-6
    for name in PARTIES:
        (folder,) = (root / name / "runs").iterdir()
        assert contract_of(folder).name == "tiny"
        assert read_run(folder).party == name


@pytest.mark.parametrize("version", [FORMAT - 1, FORMAT + 1])
def test_another_format_is_refused_with_one_line(laid_out, version):
    root = laid_out(FORMAT)
    for folder in root.glob("*/runs/*"):
        (folder / "format").write_text(f"{version}\n")
    error = error_of(scores, root, root / "scores.csv")
    assert isinstance(error, ConfigError)
    (line,) = str(error).splitlines()
    assert f"(format '{version}'; this one reads {FORMAT})" in line
    assert not (root / "scores.csv").exists()


def test_a_default_that_has_changed_since_is_named_and_its_former_value_finds_the_run_again(laid_out):
    root = laid_out(5)
    kept = read_yaml(root / "bank" / "contract.yaml")
    assert RunFolder.latest(root / "bank" / "runs", parse_contract(kept), "bank").path.name.startswith("tiny-")
    del kept["model"]["embedding_scale"]
    error = str(error_of(RunFolder.latest, root / "bank" / "runs", parse_contract(kept), "bank"))
    assert 'by a version\'s default: model.embedding_scale: ours "auto", theirs 0.1)' in error


def test_a_run_starts_from_one_whose_embeddings_began_otherwise(laid_out):
    root = laid_out(5)
    kept = read_yaml(root / "bank" / "contract.yaml")
    (before,) = (root / "bank" / "runs").iterdir()
    del kept["model"]["embedding_scale"]
    party = load_party(root / "bank" / "party.yaml")
    assert run_to_start_from(parse_contract(kept), party, before.name).path == before
    kept["model"]["embedding_width"] = 3
    assert "model.embedding_width = 2" in str(error_of(run_to_start_from, parse_contract(kept), party, before.name))
