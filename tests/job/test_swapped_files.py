"""Sealed files of run folders in each other's place: a file of another run, party, step or kind is never used."""

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from tiny import columns, contract_values, few_column_attacks, tables

from tallystick.config.contract import parse_contract
from tallystick.errors import DamagedFile
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.training.checkpoint import read_tensors
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
VALUES = contract_values(
    PARTIES,
    training__epochs=2,
    training__checkpoint_every=3,
    evaluation={"calibration_bins": 5, "bootstrap": 0, "own_columns_baseline": True, "own_columns_boosting": False},
    audit=True,
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Make run folders of both parties, of two runs of one contract on other labels."""
    found = []
    for number in range(2):
        frames = tables(PARTIES, rows=200)
        if number:
            frames["bank"] = frames["bank"].with_columns(y=1 - pl.col("y"))
        root = tmp_path_factory.mktemp(f"run-{number}")
        with pytest.MonkeyPatch.context() as patch:
            few_column_attacks(patch)
            simulate(VALUES, frames, columns(PARTIES), watcher=Silent(), folder=root)
        found += [RunFolder.latest(root / party, parse_contract(VALUES), party) for party in PARTIES]
    return found


def sealed(folder):
    """Return the sealed files of a run folder, by their place in it."""
    found = [path for path in folder.path.rglob("*") if path.suffix in (".json", ".safetensors") and path.name != "contract.json"]
    return {path.relative_to(folder.path): path for path in found}


def read(folder, place):
    """Read a file as the product does."""
    path = folder.path / place
    if place.name == "origin.json":
        # another run's file itself says whose it is, which no other file here does
        return RunFolder.open(folder.path).load_alignment()
    if place == Path("alignment.safetensors"):
        return folder.load_alignment()
    if place.name.startswith("step-"):
        steps, damaged = folder.store(place.parent.name).intact()
        if damaged:
            raise damaged[0]
        return steps
    if place.suffix == ".safetensors":
        return read_tensors(path, origin=folder.origin)
    return json.loads(folder.read_json(path))


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.long)])
def test_no_file_is_taken_for_another(folders, tmp_path, every):
    """Put into each place of the first run's folders the file from the same place of the other folders, and every other file of
    the folder.

    The short lane tries one in five, others for each place.
    """
    files = [sealed(folder) for folder in folders]
    tried = 0
    for folder, own_files in zip(folders[:2], files, strict=False):
        for number, (place, path) in enumerate(own_files.items()):
            read(folder, place)
            shutil.copy(path, tmp_path / "kept")
            others = [*list(own_files.values())[number % every :: every], *(each[place] for each in files if place in each)]
            for other in others:
                if other == path:
                    continue
                shutil.copy(other, path)
                with pytest.raises(DamagedFile, match="it is another file, written as"):
                    read(folder, place)
                tried += 1
                shutil.copy(tmp_path / "kept", path)
    assert tried > 1000 // every
    assert all(len(sealed(folder)) > 8 for folder in folders)


def test_the_runs_are_others(folders):
    """A swap above would change something: the weights of the two runs differ."""
    for one, other in zip(folders[:2], folders[2:], strict=True):
        first, second = (read_tensors(folder.model, origin=folder.origin)[0] for folder in (one, other))
        assert any(not torch.equal(first[name], second[name]) for name in first)
        assert np.array_equal(one.load_alignment()[1].rows_N, other.load_alignment()[1].rows_N)
