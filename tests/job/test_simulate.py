"""simulate: all kinds of jobs in one process, through the job's own code."""

import io
import os
import pty
import sys
import threading
from pathlib import Path

import duckdb
import msgspec
import numpy as np
import polars as pl
import pytest
import torch
from lanes import short_lane_of
from rich.console import Console
from tiny import PATIENCE_S, columns, contract_values, tables, weights

from tallystick.cli.jobs import key_figures, show_headline
from tallystick.config.contract import parse_contract
from tallystick.errors import ConfigError, DataError, IdError, LabelError
from tallystick.job.phases import evaluate
from tallystick.report.page import to_html
from tallystick.simulation import simulate
from tallystick.tables import encoder
from tallystick.tables.split import TEST, split_by_hash

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
    result = run(("bank", "club", "shop"), party_changes={"bank": {"weight": "weight"}}, evaluation__own_columns_baseline=True)
    assert value(result, "auc") > value(result, "auc", "local_baseline") + 0.05


def test_a_run_against_cheaters_trains_on_the_same_rows_and_says_what_it_rests_on():
    plain, secure = run(rows=300, training__epochs=1), run(rows=300, training__epochs=1, alignment__security="malicious")
    assert secure.evaluation == plain.evaluation
    assert "a protocol that nobody outside has reviewed" in secure.learnt[0].guarantee
    assert any("it cannot add, move or leave out matches" in note for note in secure.sections.notes)


def test_the_result_names_the_positive_class():
    frames = tables(PARTIES, rows=300)
    label = columns(PARTIES)["bank"]["label"]
    words = pl.col(label).cast(pl.Int64).replace_strict({0: "nein", 1: "ja"})
    frames["bank"] = frames["bank"].with_columns(words.alias(label))
    notes = run(frames=frames, training__epochs=1).data.notes
    assert f"the positive class of {label!r} is 'nein'; a score is its probability" in notes


def test_multiclass():
    assert value(run(target="multiclass"), "accuracy") > 0.5


def test_regression_is_measured_in_the_labels_units():
    result = run(target="regression", training__epochs=15, evaluation__own_columns_baseline=True)
    assert 5 < value(result, "rmse") < value(result, "rmse", "local_baseline")


def test_split_by_time():
    result = run(split__method="time", party_changes={"bank": {"time": "day"}})
    assert result.data.rows["test"] > 0
    assert value(result, "auc") > 0.6
    assert [each.party for each in result.learnt if "order in time" in each.what] == ["shop"]


def test_pipelined():
    assert value(run(training__mode="pipelined"), "auc") > 0.75


def test_label_party_without_columns_has_no_baseline():
    result = run(party_changes={"bank": {"features": {"numeric": [], "categorical": []}}}, evaluation__own_columns_baseline=True)
    assert result.evaluation["local_baseline"] is None


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
        run(folder=tmp_path / name, rows=400, training__epochs=2)
    one, two = ([weights(path) for path in sorted((tmp_path / name).glob("*/*/model.safetensors"))] for name in ("one", "two"))
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


def test_modules_of_a_wrong_width_are_refused_by_party_and_module():
    class Shape:
        numeric = 2

    wrong = Bottom(Shape)
    wrong.width = 9
    with pytest.raises(ConfigError, match=r"simulate: the bottom of shop \(Bottom\): gives .* of \(2, 4\) for 2 rows; expected"):
        run(rows=200, bottoms={"shop": wrong})
    top = torch.nn.Linear(5, 1)
    with pytest.raises(ConfigError, match=r"simulate: the top of bank \(Linear\), for cuts of shop 4: failed with RuntimeError"):
        run(rows=200, bottoms={"shop": Bottom(Shape)}, top=top)
    with pytest.raises(ConfigError, match=r"the top of bank \(Linear\).*gives .* of \(8, 2\) for 8 rows; expected"):
        run(rows=200, bottoms={"shop": Bottom(Shape)}, top=torch.nn.Linear(4, 2))


def test_what_is_wrong_with_keys_names_the_party():
    frames = tables(PARTIES, rows=100)
    frames["shop"] = frames["shop"].with_columns(id=pl.lit(None, dtype=pl.String))
    with pytest.raises(IdError, match=r"party shop: key \(id\): all 95 rows are null or empty"):
        run(frames=frames)


def test_rows_that_take_no_part_are_in_the_report():
    frames = tables(PARTIES, rows=300)
    frames["shop"] = pl.concat([frames["shop"], frames["shop"][:2], frames["shop"][:1].with_columns(id=None)])
    notes = run(frames=frames, training__epochs=1).data.notes
    assert f"shop: 1 of {frames['shop'].height} rows have no key" in notes
    assert any(note.startswith("shop: 2 keys occur in more than one row; 2 of ") and "are left out" in note for note in notes)
    assert not [note for note in notes if note.startswith("bank:")]


@pytest.mark.parametrize(
    "library",
    short_lane_of(["pandas", "pandas with a named index", "pandas that counts", "pandas, shuffled", "pyarrow", "duckdb"], 3),
)
def test_tables_of_other_libraries_give_the_same_run(library):
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frames = tables(PARTIES, rows=300)
    turned = {
        "pandas": lambda frame: pandas.DataFrame(frame.to_dict(as_series=False)),
        "pandas with a named index": lambda frame: pandas.DataFrame(frame.to_dict(as_series=False)).set_index("id"),
        "pandas that counts": lambda frame: pandas.DataFrame(frame.drop("id").to_dict(as_series=False)).rename_axis("id"),
        "pandas, shuffled": lambda frame: pandas.DataFrame(frame.to_dict(as_series=False)).sample(frac=1, random_state=1),
        "pyarrow": pl.DataFrame.to_arrow,
        "duckdb": lambda frame: duckdb.from_arrow(frame.to_arrow()),
    }[library]
    if library == "pandas that counts":
        frames = {name: frame.drop("id").with_row_index("id") for name, frame in frames.items()}
    features = {name: {"features": None} for name in PARTIES}  # auto: an index must not become a feature
    found = [
        run(frames=each, party_changes=features, training__epochs=1)
        for each in (frames, {name: turned(frame) for name, frame in frames.items()})
    ]
    assert found[0].evaluation["joint"]["auc"]["value"] == pytest.approx(found[1].evaluation["joint"]["auc"]["value"], abs=1e-6)
    assert found[0].data.columns == found[1].data.columns


def test_tables_that_are_none_are_named():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frames = tables(PARTIES, rows=10)
    for table, message in (
        (frames["bank"].lazy(), "bank: the table is a LazyFrame; give a DataFrame"),
        ({"id": [1]}, "bank: the table is a dict; give a DataFrame"),
        (pandas.DataFrame({"id": [1, "secret"]}), "bank: the table cannot be read as columns of one type each: .*column id"),
        (
            pandas.DataFrame({"id": [1], "y": pandas.arrays.SparseArray([0])}),
            r"each: column 'y' has type Sparse\[int64, 0\]; conv",
        ),
        (pandas.DataFrame([[1, 2]], columns=["a", "a"]), "bank: more than one column is called 'a'"),
    ):
        with pytest.raises(DataError, match=message) as caught:
            run(frames=frames | {"bank": table})
        assert "secret" not in str(caught.value)


def test_a_result_is_short_to_look_at():
    frames = tables(PARTIES, rows=300)
    result = run(frames=frames, training__epochs=1, party_changes={"bank": {"weight": "weight"}}, name="a-b")
    lines = repr(result).splitlines()
    assert lines[0].startswith(f"Result of 'a-b', run {result.run_id}: bank (label), shop (feature); ")
    assert "metrics weighted by the sample weights" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == list(result.evaluation["joint"])
    auc = result.evaluation["joint"]["auc"]
    assert f"joint {auc['value']:.4f} [{auc['low']:.4f}, {auc['high']:.4f}]" in repr(result)
    assert len(repr(result)) < 1000
    page = msgspec.structs.replace(result, run_id="<script>")._repr_html_()
    assert page.count("<tr>") == len(result.evaluation["joint"])
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_metrics_weighted_by_sample_weights_say_so():
    frames = tables(PARTIES, rows=300)
    for weight, weighted in (("weight", True), (None, False)):
        result = run(frames=frames, training__epochs=1, party_changes={"bank": {"weight": weight}})
        assert result.to_dict()["evaluation"]["weighted"] is weighted
        assert ("each counted by its sample weight" in to_html(result)) is weighted
        assert key_figures(result).get("weighted", False) is weighted
        console = Console(record=True, file=io.StringIO())
        show_headline(console, result)
        assert ("each test row counts by its sample weight" in console.export_text()) is weighted


CELL = """
import polars as pl, sys
from tallystick.simulation import simulate
ids = [str(number) for number in range(300)]
x = [float(number * 37 % 300) for number in range(300)]
tables = {"bank": pl.DataFrame({"id": ids, "y": [int(v > 150) for v in x]}), "shop": pl.DataFrame({"id": ids, "x": x})}
contract = {"name": "cells", "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
            "alignment": {"keys": [{"name": "id"}]}, "training": {"epochs": 2, "batch_size": 64}}
simulate(contract, tables, {"bank": {"keys": {"id": "id"}, "label": "y"}, "shop": {"keys": {"id": "id"}}})
"""


def test_a_notebook_shows_progress_in_one_line_and_the_result_as_a_table(tmp_path):
    pytest.importorskip("ipykernel", reason="ipykernel is not installed")
    manager = pytest.importorskip("jupyter_client", reason="jupyter_client is not installed").KernelManager()
    manager.kernel_cmd = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    manager.start_kernel(cwd=str(tmp_path))
    client, messages = manager.client(), []
    try:
        client.start_channels()
        client.wait_for_ready(timeout=PATIENCE_S)
        reply = client.execute_interactive(CELL, timeout=PATIENCE_S, output_hook=messages.append)
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    assert reply["content"]["status"] == "ok", reply["content"]
    shown = [message for message in messages if message["msg_type"] in ("display_data", "update_display_data")]
    # One display, then only updates of it.
    assert [message["msg_type"] for message in shown].count("display_data") == 1
    assert len(shown) > 3
    assert len({message["content"]["transient"]["display_id"] for message in shown}) == 1
    texts = [message["content"]["data"]["text/plain"] for message in shown]
    assert any(text.startswith("training") for text in texts)
    (result,) = [message for message in messages if message["msg_type"] == "execute_result"]
    assert "<table>" in result["content"]["data"]["text/html"]
    assert result["content"]["data"]["text/plain"].startswith("Result of 'cells'")


def test_a_terminal_shows_progress(monkeypatch, capfd):
    """On a terminal, which this test opens, simulate writes its phases to standard error."""
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        run(rows=100, training__epochs=1)
        said = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert capfd.readouterr().out == ""
    assert "alignment" in said
    assert "training" in said


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


@pytest.mark.long
def test_parties_whose_auto_comes_to_different_embeddings_train_together(monkeypatch):
    """On a union each party fits its encoder on its own rows, and the shop has few of them."""
    monkeypatch.setattr(encoder, "ENOUGH_ROWS", 150)
    frames = tables(PARTIES, rows=300)
    frames["shop"] = frames["shop"][:120]
    result = run(
        frames=frames,
        alignment__method="union",
        union__audit=False,
        model__numeric="auto",
        training__epochs="auto",
        training__batch_size="auto",
    )
    notes = " ".join(result.data.notes)
    assert "2 numeric columns get piecewise-linear embeddings" in notes
    assert "numeric columns stay plain numbers" in notes
    assert "training.batch_size = auto: 16" in notes
    assert "training.epochs = auto: 60" in notes
    assert value(result, "auc") > 0.6


def test_a_table_of_fifty_rows_trains_by_the_defaults():
    result = run(rows=56, training={"patience": 3}, model={}, evaluation={"bootstrap": 0})
    assert result.evaluation["rows"] >= 5
    assert result.training.history[-1].epoch <= 60


@pytest.mark.long
def test_the_baseline_is_boosting_where_that_validates_better(monkeypatch):
    """The own column determines the label by a step function that two epochs of a small network do not find."""
    settings = {"model__numeric": "plain", "evaluation__bootstrap": 0, "evaluation__own_columns_baseline": True}
    frames = tables(PARTIES, rows=900)
    frames["bank"] = frames["bank"].with_columns(y=(pl.col("noise") * 3).floor().cast(pl.Int64) % 2)
    boosted = run(frames=frames, evaluation__own_columns_boosting=True, **settings)
    plain = run(frames=frames, evaluation__own_columns_boosting=False, **settings)
    assert value(boosted, "auc", "local_baseline") > 0.9 > value(plain, "auc", "local_baseline")
    assert value(boosted, "auc") == value(plain, "auc")
    assert "own columns only: gradient boosting is the baseline" in " ".join(boosted.data.notes)
    monkeypatch.setattr(evaluate, "MOST_ROWS", 300)
    drawn = run(frames=frames, evaluation__own_columns_boosting=True, **settings)
    assert value(drawn, "auc", "local_baseline") > 0.9
    assert "boosting was fitted on 300 of 579 training rows" in " ".join(drawn.data.notes)
    monkeypatch.setattr(evaluate, "can_boost", lambda: False)
    without = run(frames=frames, evaluation__own_columns_boosting=True, **settings)
    assert value(without, "auc", "local_baseline") == value(plain, "auc", "local_baseline")
    assert "gradient boosting was not tried; install scikit-learn" in " ".join(without.data.notes)


@pytest.mark.parametrize("gradients", ["sent", "none"])
def test_weights_that_are_all_nought_on_the_training_rows_are_named(gradients):
    frames = tables(PARTIES, rows=200)
    given = columns(PARTIES) | {"bank": columns(PARTIES)["bank"] | {"weight": "weight"}}
    ids = frames["bank"].get_column("id").to_list()
    parts = split_by_hash([each.encode() for each in ids], parse_contract(contract_values(PARTIES)).split, seed=1)
    weights = pl.Series("weight", np.where(parts == TEST, 1.0, 0.0))
    frames = {**frames, "bank": frames["bank"].with_columns(weights)}
    with pytest.raises(LabelError, match="weight column 'weight': every weight is 0 on the"):
        simulate(contract_values(PARTIES, training__gradients=gradients), frames, given)


def test_scalars_of_numpy_are_the_plain_values_that_they_are():
    more = {"training__learning_rate": 0.5, "evaluation__own_columns_baseline": True}
    plain = contract_values(PARTIES, training__epochs=3, **more)
    given = contract_values(PARTIES, training__epochs=np.int64(3), training__learning_rate=np.float32(0.5), seed=np.uint8(1))
    given["evaluation"]["own_columns_baseline"] = np.bool_(True)
    assert parse_contract(given).hash == parse_contract(plain).hash


def test_another_default_precision_is_refused_by_name():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ConfigError, match=r"torch.set_default_dtype\(torch.float64\) is in force"):
            simulate(contract_values(PARTIES), tables(PARTIES, rows=50), columns(PARTIES))
    finally:
        torch.set_default_dtype(before)
