"""Jobs with networks side by side (``training.folds``): which rows train each, what it measures, and all later steps."""

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from tiny import columns, contract_values, tables

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import ConfigError, DataError
from tallystick.export.half import half_of
from tallystick.models.tabular import TabularBottom
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.row_recorder import RowStore
from tallystick.simulation import simulate
from tallystick.tables.features import FeatureShape
from tallystick.tables.keys import keys_of
from tallystick.tables.split import TEST, TRAINING, VALIDATION, split_by_hash
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
QUICKLY = {"calibration_bins": 5, "bootstrap": 0, "own_columns_boosting": False}


def run(folder, frames, parties=PARTIES, **changes):
    """Simulate with three folds. Return the result and each party's run folder."""
    values = contract_values(parties, **{"training__folds": 3, "evaluation": QUICKLY, **changes})
    result = simulate(values, frames, columns(parties), folder=folder, watcher=Silent(), secret_seed=1)
    return result, {name: RunFolder.open(sorted((folder / name).glob("tiny-*"))[-1]) for name in parties}


def part_of(frame, part):
    """Return which of a party's rows the contract of ``run`` puts into this part."""
    contract = parse_contract(contract_values(PARTIES))
    party = parse_party({"party": "bank", "table": {"path": "a.csv"}, "runs": "r", **columns(PARTIES)["bank"]}, folder=".")
    keys = keys_of(frame, party, contract.alignment)
    return frame[np.flatnonzero(split_by_hash(list(keys.ids), contract.split, seed=contract.seed) == part)]


@pytest.fixture(scope="module")
def frames():
    return tables(PARTIES, rows=400)


@pytest.fixture(scope="module")
def done(frames, tmp_path_factory):
    """Make a run of three networks that was audited."""
    return run(tmp_path_factory.mktemp("run"), frames, audit="quick", training__epochs=4)


def logits_of(found, frames, rows):
    """Return what the exported halves compute for common rows: the mean, and the first network's output."""
    bank, shop = half_of(found["bank"]), half_of(found["shop"])
    encoded = [
        half.encoder.encode(frames[name].join(rows.select("id"), on="id", how="right")).unpacked()
        for name, half in (("bank", bank), ("shop", shop))
    ]
    (own, theirs), given = encoded, lambda each: (each.numeric_NF, each.categorical_NG)
    with torch.no_grad():
        cut_BD = shop.half(*given(theirs))
        mean = bank.half(*given(own), cut_BD)
        with bank.half.module.first_alone():
            return mean.numpy(), bank.half(*given(own), cut_BD).numpy()


def common(frames, part):
    return part_of(frames["bank"], part).join(frames["shop"].select("id"), on="id", how="semi")


def test_the_mean_of_all_scores_test_rows_and_the_first_measures_columns(done, frames):
    result, found = done
    assert result.training.folds == 3
    test, validation = common(frames, TEST), common(frames, VALIDATION)
    mean, first = logits_of(found, frames, test)
    assert roc_auc_score(test["y"], mean) == pytest.approx(result.joint["auc"]["value"], abs=1e-6)
    assert np.abs(mean - first).max() > 0.01
    _, alone = logits_of(found, frames, validation)
    (measured,) = result.sections.importance
    assert measured.rows == len(validation)
    assert roc_auc_score(validation["y"], alone) == pytest.approx(measured.before, abs=1e-6)


def test_the_report_says_it(done, frames):
    result, found = done
    rows = len(common(frames, TRAINING)) + len(common(frames, VALIDATION))
    (theirs,) = [each.what for each in result.learnt if each.party == "shop" and "labels can be estimated" in each.what]
    assert f"3 cut gradients for each row and epoch, one from each network ({rows} training and validation rows" in theirs
    (ours,) = [each.what for each in result.learnt if each.step == "training" and each.party == "bank"]
    assert f"{rows} training and validation rows, up to 2 times in each of 4 epochs" in ours
    assert "which networks have their best weights so far" in theirs
    page = found["bank"].path.joinpath("report.html").read_text(encoding="utf-8")
    last = f"the last of them after step {result.training.best_step}"
    assert f"3 networks, each at its own best step, {last}" in page


def test_the_audit_reads_all_rows_that_trained(done, frames):
    result, found = done
    assert result.label_audit.attacks
    bank, rows = found["bank"], result.data.rows
    store = RowStore(folder=bank.views / "shop", contract=result.contract.hash, received="cut_gradient", origin=bank.origin)
    assert len(store.load(store.epochs()[-1]).seen_rows) == rows["train"] + rows["validation"]


def test_the_first_network_learns_nothing_from_the_validation_rows_labels(frames, tmp_path):
    """If these rows' labels are turned, this network is the same to the bit; the others, which learn from these rows, are not."""
    held = part_of(frames["bank"], VALIDATION)["id"]
    turned = frames["bank"].with_columns(
        y=pl.when(pl.col("id").is_in(held.implode())).then(1 - pl.col("y")).otherwise(pl.col("y"))
    )
    once = {"training__epochs": 1, "evaluation": QUICKLY | {"own_columns_baseline": False}}
    found = [run(tmp_path / name, {**frames, "bank": bank}, **once)[1] for name, bank in (("a", frames["bank"]), ("b", turned))]
    for party, first in (("bank", "top.0."), ("shop", "members.0.")):
        before, after = (load_file(folders[party].model) for folders in found)
        same = {name for name in before if torch.equal(before[name], after[name])}
        assert {name for name in before if name.startswith(first)} <= same
        assert {name for name in before if not name.startswith(first) and "weight" in name} - same


def test_few_rows_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"training\.folds = 16: of \d+ training and validation rows none is in fold"):
        run(tmp_path, tables(PARTIES, rows=60), training__folds=16, evaluation=QUICKLY | {"own_columns_baseline": False})


@pytest.mark.parametrize(
    "changes",
    [
        {"target__type": "multiclass", "target__classes": 3, "model__ensemble": 2},
        {"target__type": "regression", "training__mode": "pipelined", "model__normalization": "batch"},
        {
            "alignment__duplicates": "all",
            "model__wide": True,
            "training__compression": "int8",
            "parties": ("bank", "club", "shop"),
        },
    ],
    ids=["classes, ensemble", "numbers, pipelined, normalised", "three parties, repeats, wide, int8"],
)
def test_it_goes_with(changes, tmp_path):
    parties = changes.pop("parties", PARTIES) if "parties" in changes else PARTIES
    given = tables(parties, rows=200, target=changes.get("target__type", "binary"))
    if "alignment__duplicates" in changes:
        given["bank"] = pl.concat([given["bank"], given["bank"].head(40)])
    result, _ = run(tmp_path, given, parties, **changes)
    assert result.training.folds == 3
    assert result.joint
    assert result.evaluation["difference"]


def test_a_party_with_several_processes_trains_them_in_one(frames):
    of, values = columns(PARTIES), contract_values(PARTIES, training__folds="auto", training__epochs=1, evaluation=QUICKLY)
    of["shop"]["training_workers"] = 2
    assert simulate(values, frames, of, watcher=Silent()).training.folds == 4


def test_a_class_that_a_network_does_not_meet_is_named(tmp_path):
    frames = tables(PARTIES, rows=200)
    held = common(frames, TRAINING)["id"][0]
    bank = frames["bank"].with_columns(y=(pl.col("id") == held).cast(pl.Int64))
    result, _ = run(tmp_path, {**frames, "bank": bank}, training__epochs=1, evaluation=QUICKLY | {"own_columns_baseline": False})
    assert any("has no training row of class" in note for note in result.data.notes)


def test_modules_that_are_given_are_of_one_network(frames):
    given = {"bottoms": {"shop": TabularBottom(FeatureShape(numeric=2, cardinalities=(6,)), embedding_width=2, hidden=[8])}}
    values = contract_values(PARTIES, training__folds=3, training__epochs=1, evaluation=QUICKLY)
    with pytest.raises(ConfigError, match=r"modules are given, but training\.folds = 3"):
        simulate(values, frames, columns(PARTIES), watcher=Silent(), **given)
    values["training"]["folds"] = "auto"
    assert simulate(values, frames, columns(PARTIES), watcher=Silent(), **given).training.folds == 1


def test_a_run_starts_from_one_with_as_many(done, frames, tmp_path):
    result, found = done
    folder = found["bank"].path.parent.parent
    changes = {"training__epochs": 1, "training__learning_rate": 1e-9, "audit": False}
    values = contract_values(PARTIES, evaluation=QUICKLY, training__folds="auto", **changes)
    again = simulate(values, frames, columns(PARTIES), folder=folder, watcher=Silent(), start_from=result.run_id)
    assert again.training.folds == 3, "and not the four that so many rows would have"
    assert again.joint["auc"]["value"] == pytest.approx(result.joint["auc"]["value"], abs=1e-3)
    values["training"]["folds"] = 2
    with pytest.raises(ConfigError, match=r"of 3 networks side by side, this contract's training\.folds = 2"):
        simulate(values, frames, columns(PARTIES), folder=folder, watcher=Silent(), start_from=result.run_id)


def test_a_run_of_several_networks_cannot_meet_unaligned_rows(frames, tmp_path):
    """With warm-start a run has folds if all ids are common, and one network if some are not."""
    values = contract_values(PARTIES, evaluation=QUICKLY, training__folds="auto", training__epochs=1, audit=False)
    values["unaligned"] = {"method": "warm-start"}
    partners = frames["bank"]["id"].implode()
    matched = {**frames, "bank": frames["bank"].filter(pl.col("id").is_in(frames["shop"]["id"].implode()))}
    result = simulate(values, matched, columns(PARTIES), folder=tmp_path, watcher=Silent())
    assert result.training.folds == 4
    again = simulate(values, matched, columns(PARTIES), folder=tmp_path, watcher=Silent(), start_from=result.run_id)
    assert again.training.folds == 4
    fewer = {**frames, "shop": frames["shop"].filter(pl.col("id").is_in(partners)).head(900)}
    with pytest.raises(DataError, match="the run to start from is 4 networks side by side"):
        simulate(values, fewer, columns(PARTIES), folder=tmp_path, watcher=Silent(), start_from=result.run_id)
