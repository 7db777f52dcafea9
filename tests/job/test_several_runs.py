"""Several trainings on the same rows, audited as one view: what they disclose together, and which runs are refused."""

import shutil
from dataclasses import replace

import pytest
import torch
from tiny import columns, contract_values, tables
from typer.testing import CliRunner

from tallystick.attacks.feature_inference.view import SentEmbeddings
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.several_runs import pooled_runs
from tallystick.attacks.view import StepView, View
from tallystick.audit.run import audit_recorded
from tallystick.cli.app import app
from tallystick.errors import ConfigError, DataError
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
NOISE = [{"method": "isotropic", "power": 3.0}]
NARROW = {"model__hidden": [8, 2, 8], "model__cut_after": 2}


def trained(folder, *, seed, rows=600, table_seed=1, **changes):
    """Return the run folders of a simulation, by party. Every seed draws its own starting weights and noise."""
    values = contract_values(PARTIES, **{"audit": "quick", "defense": NOISE, **NARROW, **changes})
    given = tables(PARTIES, rows=rows, seed=table_seed)
    simulate(values, given, columns(PARTIES), folder=folder, watcher=Silent(), secret_seed=seed)
    return {name: next((folder / name).glob("tiny-*")) for name in PARTIES}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return [trained(folder / str(seed), seed=seed) for seed in (1, 2)]


def audited(runs, party, folder):
    """Audit the first run together with the second one."""
    shutil.copytree(runs[0][party], folder / "copy")
    return audit_recorded(folder / "copy", watcher=Silent(), also=(runs[1][party],))


def test_two_runs_tell_more_of_labels_than_one(runs, tmp_path):
    """Seeded. The main direction of mean gradients finds .95; that of one run finds .87. Classes have equal sizes here."""
    found = audited(runs, "bank", tmp_path).leakage
    alone = {each.name: each for each in found.attacks if "in 2 runs" not in each.view}
    both = {each.name: each for each in found.attacks if "in 2 runs" in each.view}
    assert both.keys() == alone.keys()  # those of a quick audit, which all read one vector per row
    assert both["spectral-averaged"].symmetric_auc > alone["spectral-averaged"].symmetric_auc + 0.03
    assert both["spectral-averaged"].view == "shop, in 2 runs, from cut gradients, knowing no label"
    assert both["spectral-averaged"].reads == "cut gradients"
    assert found.summary.endswith("Beside this run alone, 2 runs on the same rows were attacked as one view.")


def test_two_runs_tell_more_of_columns_than_one(runs, tmp_path):
    """Seeded: two numbers for each row and run, from three columns."""
    both = audited(runs, "shop", tmp_path).features
    alone = audit_recorded(tmp_path / "copy", watcher=Silent()).features
    assert both.means[-1].known == alone.means[-1].known == 200
    assert both.means[-1].value > alone.means[-1].value + 0.05
    assert any(each.attack.endswith(", 2 runs") for each in both.columns)
    assert all(now.value >= before.value for now, before in zip(both.columns, alone.columns, strict=True))


def test_the_command_takes_other_runs(runs, tmp_path):
    shutil.copytree(runs[0]["shop"], tmp_path / "copy")
    shown = CliRunner().invoke(app, ["audit", str(tmp_path / "copy"), "--also", str(runs[1]["shop"]), "--progress", "none"])
    assert shown.exit_code == 0, shown.output
    assert ", 2 runs" in shown.output


def test_runs_that_do_not_belong_together_are_refused(runs, tmp_path):
    bank, shop = (runs[0][name] for name in PARTIES)
    with pytest.raises(ConfigError, match="is the run that is audited"):
        audit_recorded(bank, watcher=Silent(), also=(bank,))
    with pytest.raises(ConfigError, match="is of other ids of this party's table"):
        audit_recorded(bank, watcher=Silent(), also=(shop,))
    other = trained(tmp_path / "other", seed=3, rows=300, table_seed=2)
    with pytest.raises(ConfigError, match="is of other ids of this party's table"):
        audit_recorded(shop, watcher=Silent(), also=(other["shop"],))
    refused = CliRunner().invoke(app, ["audit", str(tmp_path), "--also", str(tmp_path / "nowhere")])
    assert refused.exit_code != 0


def planted(gap, *, seed, rows=2000, width=3):
    """Make a view of mean gradients in which a quarter of the rows are ``gap`` further along one axis."""
    source = torch.Generator().manual_seed(seed)
    label_N = (torch.arange(rows) % 4 == 0).long()
    noise_ND = torch.randn(rows, width, generator=source) * torch.tensor([1.0, 0.5, 0.5])
    mean_ND = noise_ND + gap * label_N[:, None] * torch.tensor([1.0, 0.0, 0.0])
    step = StepView(
        epoch=3,
        rows_B=torch.arange(rows),
        own_B=torch.ones(rows, dtype=torch.bool),
        received_BD=mean_ND,
        sent_BD=torch.randn(rows, width, generator=source),
        length_B=mean_ND.norm(dim=1),
        sightings_B=torch.full((rows,), 4),
    )
    return View(received="cut_gradient", steps=(step,)), label_N


@pytest.mark.parametrize("gap", [0.0, 1.5])
def test_planted_runs_pool_and_empty_ones_do_not(gap):
    """Binormal: .86 by one run, .93 by two. Without a leak an AUC has a deviation of .015, so .06 is 4 of them. Seeded."""
    (one, label_N), (other, _) = planted(gap, seed=1), planted(gap, seed=2)
    row = {"spectral-averaged": LABEL_INFERENCE_ATTACKS["spectral-averaged"]}
    views = (one, pooled_runs([one, other]))
    alone, both = (evaluate_label_inference(view, label_N, attacks=row)["spectral-averaged"].auc.mean for view in views)
    if gap:
        assert both > alone + 0.04
    else:
        assert abs(both - 0.5) < 0.06


def test_rows_are_those_of_all_runs():
    (one, _), (other, _) = planted(1.0, seed=1), planted(1.0, seed=2)
    turned = other.steps[0].only(torch.arange(1999, 999, -1))  # half of the rows, in another order
    (step,) = pooled_runs([one, replace(other, steps=(turned,))]).steps
    assert torch.equal(step.rows_B, torch.arange(1000, 2000))
    assert torch.equal(step.received_BD[:, 3:], other.steps[0].received_BD[1000:])
    assert step.sightings_B.tolist() == [8] * 1000
    with pytest.raises(DataError, match="none of the recorded rows is in all of them"):
        pooled_runs([replace(one, steps=(one.steps[0].only(torch.arange(10)),)), replace(other, steps=(turned,))])


def test_looks_at_other_steps_are_further_looks():
    sent = SentEmbeddings(
        last_BD=torch.ones(5, 2), mean_BD=torch.ones(5, 2), looks_BE=torch.ones(5, 6), looks_at_BL=torch.zeros(5, 3)
    )
    assert sent.beside(sent).looks_BE.shape == (5, 12)
    assert sent.beside(sent).looks_at_BL.shape == (5, 3)
    narrow = SentEmbeddings(
        last_BD=torch.ones(5, 1), mean_BD=torch.ones(5, 1), looks_BE=torch.ones(5, 2), looks_at_BL=torch.ones(5, 2)
    )
    both = sent.beside(narrow)
    assert both.looks_BE.shape == (5, 10)
    assert both.looks_BE[0].tolist() == [1, 1, 1, 1, 1, 1, 1, 0, 1, 0]
    assert both.looks_at_BL.shape == (5, 5)
