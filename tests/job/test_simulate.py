"""simulate: all kinds of jobs in one process, through the job's own code."""

import threading
from pathlib import Path

import polars as pl
import pytest
import torch
from tiny import columns, contract_values, tables

from tallystick.errors import ConfigError, DataError
from tallystick.simulate import simulate

PARTIES = ("bank", "shop")


class Bottom(torch.nn.Module):
    """A user's module, found by its import path or given as an object."""

    def __init__(self, shape):
        super().__init__()
        self.layer = torch.nn.Linear(shape.numeric, 4)
        self.width = 4

    def forward(self, features):
        return torch.tanh(self.layer(features.numeric_NF))


def run(parties=PARTIES, *, target="binary", rows=800, party_changes=None, frames=None, **changes):
    classes = {"type": target, **({"classes": 3} if target == "multiclass" else {})}
    given = columns(parties)
    for name, more in (party_changes or {}).items():
        given[name] |= more
    extra = {key: changes.pop(key) for key in ("bottoms", "top", "folder") if key in changes}
    contract = contract_values(parties, **{"target": classes, "training__epochs": 6, **changes})
    return simulate(contract, frames or tables(parties, rows=rows, target=target), given, **extra)


def value(result, metric, whose="joint"):
    return result.evaluation[whose][metric]["value"]


def test_binary_with_weights_and_two_feature_parties():
    result = run(("bank", "club", "shop"), party_changes={"bank": {"weight": "weight"}})
    assert value(result, "auc") > value(result, "auc", "own_only") + 0.05


def test_multiclass():
    assert value(run(target="multiclass"), "accuracy") > 0.5


def test_regression_is_measured_in_the_labels_units():
    result = run(target="regression", training__epochs=15)
    assert 5 < value(result, "rmse") < value(result, "rmse", "own_only")


def test_split_by_time():
    result = run(split__method="time", party_changes={"bank": {"time": "day"}})
    assert result.data.rows["test"] > 0
    assert value(result, "auc") > 0.6
    assert [each.party for each in result.learnt if "order in time" in each.what] == ["shop"]


def test_pipelined():
    assert value(run(training__mode="pipelined"), "auc") > 0.75


def test_label_party_without_columns_has_no_baseline():
    result = run(party_changes={"bank": {"features": {"numeric": [], "categorical": []}}})
    assert result.evaluation["own_only"] is None


def test_a_users_module_by_import_path_and_as_an_object(tmp_path):
    by_path = run(model__bottoms={"shop": "test_simulate:Bottom"}, folder=tmp_path / "path")
    assert value(by_path, "auc") > 0.7

    class Shape:
        numeric = 2

    by_object = run(bottoms={"shop": Bottom(Shape)}, folder=tmp_path / "object")
    assert value(by_object, "auc") > 0.7
    (model,) = (tmp_path / "path" / "shop").glob("*/model.safetensors")
    assert b"layer.weight" in model.read_bytes()


def test_two_simulations_give_the_same_bits(tmp_path):
    for name in ("one", "two"):
        run(folder=tmp_path / name)
    one, two = (
        [path.read_bytes() for path in sorted((tmp_path / name).glob("*/*/model.safetensors"))] for name in ("one", "two")
    )
    assert len(one) == 2
    assert one == two


def test_a_relative_folder_holds_a_folder_per_party(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(folder=Path("kept"), rows=300, training__epochs=1)
    assert {path.name for path in tmp_path.iterdir()} == {"kept"}
    for name in PARTIES:
        (folder,) = (tmp_path / "kept" / name).iterdir()
        assert (folder / "model.safetensors").exists()


def test_a_failing_party_ends_all_with_its_own_error():
    frames = tables(PARTIES, rows=300)
    frames["bank"] = frames["bank"].with_columns(y=pl.lit(0))
    with pytest.raises(DataError, match="y"):
        run(frames=frames)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("simulate-")]


def test_a_module_that_would_not_be_used_is_refused():
    with pytest.raises(ConfigError, match="bottoms has bank, the label party, and there is no top"):
        run(rows=100, bottoms={"bank": torch.nn.Identity()})


def test_rows_that_take_no_part_are_in_the_report():
    frames = tables(PARTIES, rows=300)
    frames["shop"] = pl.concat([frames["shop"], frames["shop"][:2], frames["shop"][:1].with_columns(id=None)])
    notes = run(frames=frames, training__epochs=1).data.notes
    assert f"shop: 1 of {frames['shop'].height} rows have no key" in notes
    assert "shop: 2 keys stand in more than one row; 2 rows are left out" in notes
    assert not [note for note in notes if note.startswith("bank:")]


def test_a_missing_table_is_named():
    with pytest.raises(ConfigError, match="no table or no columns for shop"):
        simulate(contract_values(PARTIES), {"bank": tables(PARTIES, rows=10)["bank"]}, columns(PARTIES))


def test_a_party_that_starts_after_an_interrupt_writes_nothing(tmp_path, monkeypatch):
    started, late = threading.Thread.start, []

    def interrupted(thread):
        late.append(thread)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            run(folder=tmp_path)
    (thread,) = late
    started(thread)  # as the operating system may do while start() is interrupted
    thread.join()
    assert list(tmp_path.iterdir()) == []
