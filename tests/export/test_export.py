"""Exported halves: ONNX Runtime gives what PyTorch gives, weights are the run's, and the card has the run's findings."""

import json
import sys

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import columns, contract_values, tables
from typer.testing import CliRunner

from tallystick import simulate
from tallystick.cli.app import app
from tallystick.errors import ConfigError, DamagedFile, DataError
from tallystick.export.card import card_of
from tallystick.export.half import half_of
from tallystick.export.write import CARD, ENCODER, INPUTS, ONNX, WEIGHTS, write_half
from tallystick.run_folder.folder import RunFolder
from tallystick.tables.encoder import Encoder

PARTIES = ("bank", "shop")


def trained(folder, frames=None, parties=PARTIES, **changes):
    """Return run folders of a simulated job, by party."""
    values = contract_values(parties, **{"training__epochs": 1, "evaluation__own_columns_baseline": False, **changes})
    simulate(values, frames or tables(parties, rows=200, target=values["target"]["type"]), columns(parties), folder=folder)
    return {name: RunFolder.open(next(folder.rglob(f"{name}/**/format")).parent) for name in parties}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Make a run with numbers that are embedded by bins; return also its training tables."""
    frames = tables(PARTIES, rows=200)
    found = trained(tmp_path_factory.mktemp("runs"), frames, model__numeric="piecewise-linear", audit="quick")
    return found, frames


@pytest.fixture(scope="module")
def halves(runs, tmp_path_factory):
    """Return both exported halves of it: folders, by party."""
    found, _ = runs
    folder = tmp_path_factory.mktemp("halves")
    for name in PARTIES:
        write_half(found[name], folder / name)
    return folder


def encoded(folder, frame):
    """Return real rows as the exported encoder has them, and as the two inputs."""
    encoder = Encoder.from_json((folder / ENCODER).read_bytes())
    rows = encoder.encode(frame).unpacked()
    return rows, {"numeric_BF": rows.numeric_NF.numpy(), "codes_BG": rows.categorical_NG.numpy()}


def session(path):
    runtime = pytest.importorskip("onnxruntime", reason="no ONNX Runtime (pip install 'tallystick[onnx]')")
    return runtime.InferenceSession(path, providers=["CPUExecutionProvider"])


@pytest.mark.long
def test_onnx_gives_what_pytorch_gives_on_real_rows(runs, halves):
    found, frames = runs
    rows, shop = encoded(halves / "shop", frames["shop"])
    (embedding_BD,) = session(halves / "shop" / ONNX).run(None, shop)
    with torch.no_grad():
        expected_BD = half_of(found["shop"]).half.module(rows)
    assert np.abs(embedding_BD - expected_BD.numpy()).max() < 1e-5

    own, bank = encoded(halves / "bank", frames["bank"][: len(rows)])
    (logit_B,) = session(halves / "bank" / ONNX).run(None, bank | {"embedding_BD_shop": embedding_BD})
    with torch.no_grad():
        expected_B = half_of(found["bank"]).half.module([expected_BD], own)
    assert logit_B.shape == (len(rows),)
    assert np.abs(logit_B - expected_B.numpy()).max() < 1e-5
    assert np.ptp(logit_B) > 0.01
    one = {name: value[:1] for name, value in (bank | {"embedding_BD_shop": embedding_BD}).items()}
    assert np.allclose(session(halves / "bank" / ONNX).run(None, one)[0], logit_B[:1], atol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize(
    "changes",
    [
        {"target": {"type": "multiclass", "classes": 3}},
        {"target": {"type": "regression"}},
        {"target": {"type": "quantile"}},
        {"model__numeric": "periodic"},
        {"model__ensemble": 3},
    ],
)
def test_other_targets_and_numbers_have_a_way_to_onnx(tmp_path, changes):
    kind = changes.get("target", {}).get("type", "binary")
    frames = tables(PARTIES, rows=200, target="regression" if kind == "quantile" else kind)
    found = trained(tmp_path / "runs", frames, **changes)
    write_half(found["bank"], tmp_path / "bank")
    own, bank = encoded(tmp_path / "bank", frames["bank"])
    cut_BD = torch.randn(len(own), half_of(found["bank"]).widths["shop"])
    got = session(tmp_path / "bank" / ONNX).run(None, bank | {"embedding_BD_shop": cut_BD.numpy()})[0]
    with torch.no_grad():
        expected = half_of(found["bank"]).half.module([cut_BD], own).numpy()
    assert got.shape == expected.shape
    assert np.abs(got - expected).max() < 1e-5


def test_weights_are_the_runs_and_inputs_are_named(runs, halves):
    found, _ = runs
    kept, given = load_file(found["bank"].model), load_file(halves / "bank" / WEIGHTS)
    assert {name: each.tolist() for name, each in given.items()} == {name: each.tolist() for name, each in kept.items()}
    facts = json.loads((halves / "bank" / INPUTS).read_text())
    places = [(each["name"], each["numeric_BF"], each["codes_BG"]) for each in facts["columns"]]
    assert places == [("x", [0], []), ("noise", [1], []), ("kind", [], [0])]
    assert facts["embeddings"] == {"embedding_BD_shop": half_of(found["bank"]).widths["shop"]}
    assert "sigmoid" in facts["meaning"]["output"]
    assert (halves / "bank" / ENCODER).stat().st_mode & 0o077 == 0


def test_no_file_but_the_encoder_holds_a_category_a_key_or_where_it_was_made(runs, halves):
    """PyTorch's exporter records the places of the code that it ran, in a home folder that may name somebody."""
    _, frames = runs
    for name in PARTIES:
        words = {"green", "blue", *frames[name]["id"], "site-packages", 'File "', ".py"}
        for path in (halves / name).iterdir():
            content = path.read_bytes()
            if path.name == ENCODER:
                assert b"green" in content
                continue
            assert not [word for word in words if word.encode() in _text_of(path, content)], path.name


def _text_of(path, content):
    """Return what can be read as words in a file; weights are bytes that may look like anything."""
    if path.suffix == ".safetensors":
        return content[8 : 8 + int.from_bytes(content[:8], "little")]
    if path.suffix != ".onnx":
        return content
    onnx = pytest.importorskip("onnx", reason="no ONNX (pip install 'tallystick[onnx]')")
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        tensor.ClearField("raw_data")
    for node in model.graph.node:
        for attribute in node.attribute:
            attribute.ClearField("t")
    return model.SerializeToString()


def test_the_card_says_how_good_what_leaked_and_what_not_to_do(runs, halves):
    found, _ = runs
    card = (halves / "bank" / CARD).read_text()
    result = json.loads(found["bank"].read_json(found["bank"].result))
    assert result["contract"]["hash"] in card
    assert f"{result['evaluation']['joint']['auc']['value']:.4f}" in card
    leaked = card.partition("## What leaked in training")[2].partition("## What it must not")[0]
    assert "labels" in leaked
    assert "floor" in leaked
    assert "Not to be given to a feature party" in card
    shop = card_of(half_of(found["shop"]), None)
    assert "Not known here: the run has no report." in shop
    assert "Not to be given to the label party" in shop


def test_the_command_writes_all_or_nothing(runs, tmp_path):
    found, _ = runs
    done = CliRunner().invoke(app, ["export", str(found["shop"].path), "--to", str(tmp_path / "out"), "--no-onnx", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["files"] == [CARD, ENCODER, INPUTS, WEIGHTS]
    again = CliRunner().invoke(app, ["export", str(found["shop"].path), "--to", str(tmp_path / "out")])
    assert (again.exit_code, again.stderr) == (
        2,
        f"error: --to {tmp_path / 'out'}: exists already; name a folder that is to be made\n",
    )
    nowhere = CliRunner().invoke(app, ["export", str(tmp_path), "--to", str(tmp_path / "other")])
    assert nowhere.exit_code == 2
    assert "is not a run folder" in nowhere.stderr


def test_without_the_library_nothing_is_written_and_a_line_says_what_to_install(runs, tmp_path, monkeypatch):
    found, _ = runs
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(DataError, match=r"pip install 'tallystick\[onnx\]'"):
        write_half(found["shop"], tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_a_half_that_is_not_the_whole_of_a_side_is_refused(tmp_path):
    noisy = [{"method": "gaussian-embeddings", "epsilon": 8, "delta": 1e-5, "clip": 1}]
    found = trained(tmp_path / "noisy", defense=noisy)
    with pytest.raises(ConfigError, match="adds noise to what this half sends"):
        half_of(found["shop"])
    assert half_of(found["bank"]).widths.keys() == {"shop"}


def test_a_damaged_model_is_not_exported(tmp_path):
    found = trained(tmp_path / "runs")
    content = bytearray(found["shop"].model.read_bytes())
    content[-1] ^= 1
    found["shop"].model.write_bytes(content)
    with pytest.raises(DamagedFile):
        write_half(found["shop"], tmp_path / "out", onnx=False)
    assert not (tmp_path / "out").exists()
