"""Jobs that link by similar keys: the gain by linking, new rows, a killed party, defences, the audit and a private release."""

import numpy as np
import polars as pl
import pytest
from similar import PARTIES, columns, contract_values, lay_out_similar, tables

from tallystick.report.page import to_html
from tallystick.simulation import simulate


def run(*, frames=None, target="regression", **changes):
    return simulate(contract_values(target=target, **changes), frames or tables(target=target), columns())


def value(result, metric, whose="joint"):
    return result.evaluation[whose][metric]["value"]


@pytest.mark.long
def test_two_feature_parties_linked_by_place_tell_more_than_the_own_columns():
    measures = {
        "evaluation__importance": {"feature_columns": "label-party", "repeats": 2},
        "evaluation__own_columns_baseline": True,
    }
    result = run(training__epochs=8, **measures)
    assert value(result, "rmse") < 0.75 * value(result, "rmse", "local_baseline")
    assert sum(result.data.rows.values()) == 400
    assert result.alignment.method == "similarity"
    falls = {each.party: {column.number: column.mean for column in each.columns} for each in result.sections.importance}
    assert set(falls) == {"bank", "club", "shop"}
    assert falls["shop"][1] > 0  # its first column has the field's value at its places
    weights = {one.party: one.weights for one in result.sections.link_weights}
    assert set(weights) == {"club", "shop"}
    assert all(0 < weight <= 1 for each in weights.values() for weight in each)
    assert "and what they weigh" in to_html(result)


@pytest.mark.long
def test_three_classes_by_the_published_merge():
    merge = {"method": "cnn", "kernel": 3, "channels": 4, "hidden": 20, "activation": "sigmoid", "width": 4, "top": []}
    more = {"training__epochs": 15, "training__mode": "pipelined", "evaluation__own_columns_baseline": True}
    result = run(target="multiclass", model__merge=merge, **more)
    assert value(result, "accuracy") > value(result, "accuracy", "local_baseline") + 0.05


@pytest.mark.long
def test_defences_an_audit_and_a_private_release_go_with_links():
    result = run(
        target="binary",
        defense=[{"method": "label-dp", "epsilon": 3.0}, {"method": "isotropic", "power": 1.0}],
        audit=True,
        evaluation__privacy={"epsilon": 1.0},
        training__epochs=2,
    )
    assert {attack.view.split(",")[0] for attack in result.sections.leakage.attacks} == {"club", "shop"}
    assert len(result.sections.privacy.releases) == 2  # the labels, and the AUC


@pytest.mark.long
def test_time_splits_the_label_partys_rows():
    given = columns()
    given["bank"] = given["bank"] | {"time": "day"}
    result = simulate(contract_values(split__method="time", training__epochs=1), tables(), given)
    assert result.data.rows["test"] == pytest.approx(80, abs=10)
    assert {each.party for each in result.learnt if "order in time" in each.what} == {"club", "shop"}


@pytest.mark.long
def test_a_killed_party_is_resumed_and_new_rows_are_scored(tmp_path):
    """Run three parties and a helper as processes. Nothing is aligned or trained twice."""
    job = lay_out_similar(tmp_path, training__epochs=6, training__checkpoint_every=5)
    running = job.start_all()
    running["club"].wait_for(lambda event: event.get("what") == "training" and event["done"] > 5)
    running["club"].kill()
    for name in ("bank", "shop"):
        assert running[name].end() == 3, running[name].said
    assert running["helper"].end() in (0, 3)
    assert "club" in running["bank"].error
    again = job.run_all("run", "--resume")
    assert any("resuming after step" in event.get("say", "") for event in again["bank"].events)
    assert any("keeping the alignment" in event.get("say", "") for event in again["bank"].events)
    assert all(len(job.runs(name)) == 1 for name in PARTIES)

    frame = pl.read_parquet(job.home("bank") / "table.parquet")
    frame.head(50).write_parquet(job.home("bank") / "new.parquet")
    running = {name: job.start(name, "predict") for name in ("club", "shop", "helper")}
    running["bank"] = job.start("bank", "predict", "--table", "new.parquet", "--output", "scores.csv")
    for name, party in running.items():
        assert party.end() == 0, (name, party.said)
    scores = pl.read_csv(job.home("bank") / "scores.csv")
    assert scores["row"].to_list() == list(range(50))
    assert scores["lon"].to_list() == pytest.approx(frame.head(50)["lon"].to_list())
    matched = scores.join(frame.head(50), on=["lon", "lat"], how="inner")
    assert matched.height == scores.height == 50
    assert np.corrcoef(matched.get_column("score").to_numpy(), matched.get_column("y").to_numpy())[0, 1] > 0.7
