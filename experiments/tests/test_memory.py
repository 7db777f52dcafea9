"""The memory benchmark: its generated tables, and that it measures real processes."""

from pathlib import Path

import polars as pl
import pytest

from tallystick.errors import TallystickError
from tallystick_experiments.catalogue.clicks import read_clicks
from tallystick_experiments.speed import memory


def test_a_generated_file_is_criteos_shape(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GENERATED_ROWS", 800)
    memory.write_criteo(tmp_path / "train.txt", 2000, seed=1)
    table = read_clicks(tmp_path)
    rows = table.frame.collect()
    assert (table.name, rows.shape) == ("criteo", (2000, 40))
    assert rows.get_column("C1").drop_nulls().str.contains("^[0-9a-f]{8}$").all()
    assert 0.02 < rows.get_column("label").mean() < 0.98
    assert rows.get_column("C9").n_unique() == 4  # three values, and none
    assert rows.get_column("C3").n_unique() > 300
    assert 0.07 < rows.get_column("I5").null_count() / 2000 < 0.13  # four and a half standard errors


@pytest.mark.long
def test_tables_of_two_parties_share_the_stated_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "GENERATED_ROWS", 800)
    memory.write_criteo(tmp_path / "train.txt", 2000, seed=1)
    rows = read_clicks(tmp_path).frame.collect()
    homes = {name: tmp_path / name for name in (memory.LABEL, memory.FEATURE)}
    for home in homes.values():
        home.mkdir()
    memory.write_tables(homes, 2000, seed=1)
    ours, theirs = (pl.read_csv(home / "table.csv", infer_schema=False) for home in homes.values())
    assert set(ours.columns) & set(theirs.columns) == {"id"}
    assert ours["id"].n_unique() == theirs["id"].n_unique() == 2000
    common = ours.with_columns(rows.select(other=pl.col("C26"))).join(theirs, on="id", maintain_order="left")
    assert common.height == 2000 - 8 - 8 - 4  # of pieces of 800, 800 and 400 rows
    assert common["other"].equals(common["C26"])
    memory.write_tables(homes, 2000, aligned=0.2, seed=1)
    ours, theirs = (pl.read_csv(home / "table.csv", infer_schema=False) for home in homes.values())
    assert (ours.height, theirs.height) == (2000, 400)


def test_peaks_are_those_of_the_processes_and_a_failure_is_told(tmp_path: Path) -> None:
    found = memory.usages({"version": (["--version"], tmp_path)})
    assert 5 < found["version"].memory / 2**20 < 2000
    assert 0 < found["version"].processor_s < 60
    with pytest.raises(TallystickError, match=r"broken ended with 2: .*party"):
        memory.usages({"broken": (["run", "nothing"], tmp_path)})
