"""`--start-from`: a new run begins where a finished one ended, on all sides or on none, and has the same bits in every way of
running.
"""

import json
from threading import Thread

import numpy as np
import polars as pl
import pytest
import tiny
import torch
from lanes import short_lane_of
from safetensors.torch import load_file
from tiny import columns, contract_values, error_of, tables

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party
from tallystick.errors import ConfigError, DataError, LabelError, TallystickError
from tallystick.job.handshake import ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.start_from import run_to_start_from
from tallystick.network.channel import memory_channels
from tallystick.run_folder.folder import STARTING_POINT, RunFolder
from tallystick.run_folder.initial_weights import put_starting_weights
from tallystick.simulation import simulate
from tallystick.tables.categories import UNSEEN
from tallystick.watcher import Silent

PARTIES = ("bank", "shop")
CHANGES = {
    "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
    "training__starts": "public",
}


def next_month(frames):
    """Make other rows of the same kind: every third has a new category, and numbers have a wider range."""
    kind = pl.when(pl.int_range(pl.len()) % 3 == 0).then(pl.lit("mauve")).otherwise(pl.col("kind"))
    return {name: frame.with_columns(kind=kind, x=pl.col("x") * 1.5) for name, frame in frames.items()}


def simulated(folder, contract, frames, **more):
    parties = columns(tuple(contract["parties"]))
    return simulate(contract, frames, parties, folder=folder, watcher=Silent(), **more)


def models(folder, name):
    """Return the weights of each run of a party, oldest first."""
    return [tiny.weights(path) for path in sorted(folder.glob(f"{name}/*/model.safetensors"))]


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """Make a finished run of last month, and this month's tables."""
    contract = contract_values(PARTIES, **CHANGES)
    folder, frames = tmp_path_factory.mktemp("months"), tables(PARTIES, rows=600)
    return folder, contract, simulated(folder, contract, frames), next_month(frames)


def test_a_run_starts_where_the_other_ended_and_its_new_categories_as_unseen_ones(first):
    folder, contract, last_month, frames = first
    slow = {**contract, "training": {**contract["training"], "learning_rate": 1e-9, "epochs": 1}}
    found = simulated(folder, slow, frames, start_from=last_month.run_id)
    (before,) = folder.glob(f"shop/*{parse_contract(contract).hash[:8]}-1/model.safetensors")
    (after,) = folder.glob(f"shop/*{found.contract.hash[:8]}-*/model.safetensors")
    then, now = load_file(before), load_file(after)
    table = "columns.embeddings.0.weight"
    assert now[table].shape[0] == then[table].shape[0] + 1
    for name, weight in then.items():
        assert torch.allclose(now[name][: len(weight)] if name == table else now[name], weight, atol=1e-5)
    assert torch.allclose(now[table][-1], then[table][UNSEEN], atol=1e-5)
    assert any(f"began with the weights of run {last_month.run_id}" in note for note in found.sections.notes)


@pytest.mark.long
def test_processes_that_are_killed_and_resumed_end_with_the_bits_of_a_simulation(lay_out_job, tmp_path):
    changes = {**CHANGES, "training__epochs": 3, "training__batch_size": 16, "training__checkpoint_every": 20}
    frames = tables(PARTIES, rows=400)
    job = lay_out_job(PARTIES, frames=frames, **changes)
    run_id = job.run_all()["bank"].found["run_id"]
    for name, frame in next_month(frames).items():
        frame.write_parquet(job.home(name) / "table.parquet")
    running = job.start_all("run", "--start-from", run_id)
    running["shop"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 22)
    running["shop"].kill()
    assert running["bank"].end() == 3
    for name in PARTIES:  # the run's own copy is enough
        job.runs(name)[0].rename(job.home(name) / "moved-away")
    again = job.run_all("run", "--resume")
    assert f"began with the weights of run {run_id}" in (job.runs("shop")[-1] / "run.log").read_text()
    assert again["bank"].found["started_from"] == again["shop"].found["started_from"] == run_id

    contract = contract_values(PARTIES, **changes)
    one = simulated(tmp_path, contract, frames)
    simulated(tmp_path, contract, next_month(frames), start_from=one.run_id)
    for name in PARTIES:
        assert job.models(name)[-1] == models(tmp_path, name)[-1]


def test_a_side_that_starts_from_another_run_or_from_scratch_is_refused_in_one_line_on_both(first):
    contract = parse_contract(first[1])
    label, feature = memory_channels("bank", "shop", timeout_s=30)
    errors = {}

    def shop():
        errors["shop"] = error_of(shake_hands, contract, ResumeState(start_from="b" * 16), feature)

    thread = Thread(target=shop)
    thread.start()
    errors["bank"] = error_of(shake_hands_label_party, contract, ResumeState(), {"shop": label})
    thread.join(30)
    assert str(errors["bank"]).startswith("shop starts from run bbbbbbbbbbbbbbbb and this side from scratch; give --start-from")
    assert str(errors["shop"]).startswith("bank starts from scratch and this side from run bbbbbbbbbbbbbbbb")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model__hidden": [8, 4]}, r"has model.hidden = .*the networks differ"),
        ({"target": {"type": "multiclass", "classes": 3}}, 'has target.type = "binary", this one "multiclass"'),
        ({"training__gradients": "none"}, 'training.gradients = "sent", this one "none"'),
        ({"defense": [{"method": "marvell", "power": 1.0}], "training__starts": "secret"}, "trained with other defences"),
        ({"alignment__method": "union", "training__starts": "secret"}, "on a union a row's embedding stays"),
    ],
)
def test_a_contract_of_another_network_or_another_promise_is_refused_before_anybody_is_called(first, changes, said):
    folder, _, last_month, _ = first
    contract = parse_contract(contract_values(PARTIES, **{**CHANGES, **changes}))
    values = {"party": "shop", "table": {"path": "t.parquet"}, **columns(PARTIES)["shop"], "runs": "shop"}
    party = parse_party(values, folder=folder, source="shop")
    with pytest.raises(ConfigError, match=said):
        run_to_start_from(contract, party, last_month.run_id)


def test_a_run_that_one_side_lacks_is_named(first):
    folder, contract, _, frames = first
    with pytest.raises(ConfigError, match=r"--start-from 0123456789abcdef: there is no such run in .*id of a finished run"):
        simulated(folder, contract, frames, start_from="0123456789abcdef")


def test_labels_keep_their_coding_and_a_new_class_is_refused(first, tmp_path):
    folder, contract, last_month, frames = first
    three = pl.when(pl.int_range(pl.len()) % 5 == 0).then(2).otherwise(pl.col("y"))
    with pytest.raises(LabelError, match=r"values never seen before in .* the run to start from knows 0, 1: start from scratch"):
        simulated(folder, contract, {**frames, "bank": frames["bank"].with_columns(y=three)}, start_from=last_month.run_id)
    regression = contract_values(PARTIES, **CHANGES, target={"type": "regression"})
    then = tables(PARTIES, rows=400, target="regression")
    one = simulated(tmp_path, regression, then)
    later = {**then, "bank": then["bank"].with_columns(y=pl.col("y") + 1000)}
    simulated(tmp_path, regression, later, start_from=one.run_id)
    coders = [json.loads(path.read_bytes()) for path in sorted(tmp_path.glob("bank/*/label.json"))]
    assert coders[0]["mean"] == coders[1]["mean"]


def test_what_a_run_started_from_is_read_from_its_own_folder_or_refused(first):
    folder, contract, last_month, frames = first
    simulated(folder, contract, frames, start_from=last_month.run_id)
    newest = RunFolder.open(sorted(folder.glob("shop/*"))[-1])
    with pytest.raises(DataError, match=r"of another network than .* \(these parts differ: bias, columns, layers, weight\)"):
        put_starting_weights(newest, torch.nn.Linear(1, 1))
    (newest.path / STARTING_POINT).write_bytes((newest.path / STARTING_POINT).read_bytes()[:-1] + b"x")
    with pytest.raises(TallystickError, match=r"starting-point.safetensors.*training would start from others"):
        put_starting_weights(newest, torch.nn.Linear(1, 1))


@pytest.mark.parametrize("method", short_lane_of(["average", "warm-start", "offset", "jpl"], 2))
def test_unaligned_rows_go_on_from_the_weights_of_the_earlier_run(method, tmp_path):
    contract = contract_values(PARTIES, **CHANGES, unaligned={"method": method})
    contract["training"]["epochs"] = 1
    frames = tables(PARTIES, rows=300)
    frames["shop"] = frames["shop"][:150]
    one = simulated(tmp_path, contract, frames)
    found = simulated(tmp_path, contract, next_month(frames), start_from=one.run_id)
    then, now = (load_file(path) for path in sorted(tmp_path.glob("bank/*/model.safetensors")))
    assert then.keys() == now.keys()
    pairs = [(then[key], now[key][: len(then[key])]) for key in then if then[key].is_floating_point() and then[key].ndim > 1]
    distance = np.mean([float((later - before).norm() / before.norm().clamp_min(1e-6)) for before, later in pairs])
    assert distance < 0.5  # newly drawn weights would be at about 1.4
    assert found.joint["auc"]["value"] is not None
