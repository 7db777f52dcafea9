"""What a run's evaluation sends and shows by contract and party file: columns, groups, costs, shared metrics."""

import json

import polars as pl
import pytest
from tiny import columns, contract_values, error_of, tables, weights

from tallystick.errors import DataError
from tallystick.job.watchers import Silent
from tallystick.privacy.ledger import Ledger
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate

PARTIES = ("bank", "shop")
OFF = {"own_columns": False}


def run(folder, *, target="binary", report=None, parties=PARTIES, rows=800, **changes):
    """Return all parties' results of a simulated run, by name."""
    given = columns(parties)
    given["bank"] |= {"report": report} if report else {}
    classes = {"type": target, **({"classes": 3} if target == "multiclass" else {})}
    measured = {"evaluation__importance": {}, "training__epochs": 4}
    contract = contract_values(parties, **{"target": classes, **measured, **changes})
    simulate(contract, tables(parties, rows=rows, target=target), given, folder=folder)
    return {name: read_result(next((folder / name).glob("*/result.json")).read_bytes()) for name in parties}


@pytest.mark.parametrize("defense", [[], [{"method": "label-dp", "epsilon": 1.0}]], ids=["exact labels", "label DP"])
def test_the_label_party_alone_is_told_which_own_column_tells_the_label(tmp_path, defense):
    frames, said = tables(PARTIES, rows=300), []
    order = pl.when(pl.col("y") == 1).then(pl.col("noise") + 50).otherwise(pl.col("noise"))
    frames["bank"] = frames["bank"].with_columns(noise=order.exp())

    class Hearing(Silent):
        def say(self, text):
            said.append(text)

    contract = contract_values(PARTIES, defense=defense)
    simulate(contract, frames, columns(PARTIES), folder=tmp_path, watcher=Hearing())
    warning = "own column 'noise' predicts the label by itself, with AUC 1.0000 on training rows"
    assert [text for text in said if "predicts the label" in text] == [text for text in said if warning in text] != []
    files = {name: [path.read_bytes() for path in (tmp_path / name).rglob("*") if path.is_file()] for name in PARTIES}
    assert any(warning.encode() in content for content in files["bank"])
    assert not any(b"predicts the label" in content for content in files["shop"])


def models(folder):
    return {name: weights(next((folder / name).glob("*/model.safetensors"))) for name in PARTIES}


def evaluation_bytes(results, party="shop"):
    return sum(phase.bytes_sent for phase in results[party].phases if phase.name == "evaluation")


def test_by_default_only_the_label_party_sees_figures_and_weights_do_not_change(tmp_path):
    shown = run(tmp_path / "on")
    without = run(tmp_path / "off", evaluation__importance=OFF)
    both = run(tmp_path / "both", evaluation__importance={"feature_columns": "both"}, evaluation__share_metrics=["auc"])
    bank, shop = shown["bank"].sections, shown["shop"].sections
    assert (shop.shared, shop.importance, shop.decisions, shop.groups) == (None, [], None, [])
    assert [(one.party, [fall.name for fall in one.columns]) for one in bank.importance] == [("bank", ["x", "noise", "kind"])]
    x, noise, _ = bank.importance[0].columns
    assert x.mean > 0.1 > abs(noise.mean)
    assert without["bank"].sections.importance == []
    assert models(tmp_path / "on") == models(tmp_path / "off") == models(tmp_path / "both")
    for other in (without, both):
        assert other["bank"].evaluation == shown["bank"].evaluation
    assert evaluation_bytes(without) < evaluation_bytes(shown) < evaluation_bytes(both)


@pytest.mark.parametrize(
    ("changes", "entries"),
    [
        ({"evaluation__share_metrics": ["auc"], "defense": [{"method": "label-dp", "epsilon": 1.0}]}, 1),
        ({"evaluation__importance": {"feature_columns": "both", "rows": 50}}, 2),  # training on exact labels is one
        ({"defense": [{"method": "label-dp", "epsilon": 1.0}]}, 0),
    ],
)
def test_exact_figures_that_leave_are_on_the_ledger_as_not_private(tmp_path, changes, entries):
    found = run(tmp_path, rows=300, **changes)
    (ledger,) = tmp_path.rglob("*.sqlite")
    not_private = [entry.what for entry in Ledger(ledger, party="bank").not_private()]
    assert len(not_private) == entries
    for name in PARTIES:
        assert len(found[name].sections.privacy.not_private) == entries
    if entries:
        assert not_private[-1].startswith("evaluation of ")
        assert "what the evaluation sent" in found["bank"].sections.privacy.not_private[-1]


def test_falls_of_a_feature_party_go_where_the_contract_says(tmp_path):
    found = run(tmp_path, evaluation__importance={"feature_columns": "label-party", "repeats": 2})
    of_shop = next(one for one in found["bank"].sections.importance if one.party == "shop")
    assert [(fall.number, fall.name) for fall in of_shop.columns] == [(1, None), (2, None), (3, None)]
    assert of_shop.columns[0].mean > 0.1
    assert found["shop"].sections.importance == []
    assert found["shop"].sections.shared is None
    assert any("with its cells shuffled" in each.what for each in found["bank"].learnt if each.party == "bank")


def test_what_is_shared_is_what_was_measured(tmp_path):
    agreed = {"evaluation__importance": {"feature_columns": "both", "rows": 50}, "evaluation__share_metrics": ["ks", "auc"]}
    found = run(tmp_path, parties=("bank", "club", "shop"), **agreed)
    joint = found["bank"].evaluation["joint"]
    for name in ("club", "shop"):
        sections = found[name].sections
        assert sections.shared.party == "bank"
        assert list(sections.shared.metrics) == ["ks", "auc"]
        for metric, value in sections.shared.metrics.items():
            assert value["value"] == pytest.approx(joint[metric]["value"], rel=1e-3)
        (own,) = sections.importance
        assert (own.party, own.rows, [fall.name for fall in own.columns]) == (name, 50, ["x", "noise", "kind"])
        seen = next(one for one in found["bank"].sections.importance if one.party == name)
        assert [fall.mean for fall in own.columns] == pytest.approx([fall.mean for fall in seen.columns], rel=1e-3)
        page = next((tmp_path / name).glob("*/report.html")).read_text()
        assert "and shared with" in page
        learnt = [each for each in found[name].learnt if each.party == name and each.step == "evaluation"]
        assert "the exact ks, auc" in learnt[0].what
        assert learnt[0].guarantee == "no formal guarantee"
        assert "Nothing but" not in learnt[0].what


@pytest.mark.parametrize(("target", "metric"), [("multiclass", "accuracy"), ("regression", "rmse")])
def test_other_targets(tmp_path, target, metric):
    found = run(
        tmp_path,
        target=target,
        report={"subgroups": ["kind"], "smallest_group": 20},
        evaluation__share_metrics=[metric],
        evaluation__importance={"feature_columns": "both"},
    )
    bank, shop = found["bank"].sections, found["shop"].sections
    assert bank.decisions is None
    assert [group["metric"]["value"] is not None for group in bank.groups[0]["groups"]] == [True] * 3
    assert shop.shared.metrics[metric]["value"] == pytest.approx(found["bank"].evaluation["joint"][metric]["value"], rel=1e-3)
    assert shop.importance[0].columns[0].mean > 0


def test_costs_and_groups_come_from_the_party_file(tmp_path):
    report = {"subgroups": ["kind", "day"], "smallest_group": 40, "cost_false_positive": 0.5, "cost_false_negative": 8}
    found = run(tmp_path, report=report, rows=900)
    decisions, (kind, day) = found["bank"].sections.decisions, found["bank"].sections.groups
    assert (decisions["cost_false_positive"], decisions["cost_false_negative"]) == (0.5, 8.0)
    assert decisions["chosen_on"] == "validation rows"
    assert decisions["flag_none"]["cost"] == pytest.approx(8 * found["bank"].evaluation["label_mean"])
    # Groups are made of the tested rows alone: their counts and rates add up to the whole.
    rows = [group["rows"] for group in kind["groups"]]
    assert sum(rows) == found["bank"].evaluation["rows"]
    rates = [group["label_mean"]["value"] for group in kind["groups"]]
    assert sum(n * rate for n, rate in zip(rows, rates, strict=True)) / sum(rows) == pytest.approx(
        found["bank"].evaluation["label_mean"]
    )
    assert len(day["groups"]) == 4
    frame = pl.read_parquet(RunFolder.open(next((tmp_path / "bank").glob("*"))).scores)
    assert frame.height == sum(rows)
    contract = json.dumps(found["shop"].contract.yaml)
    assert "cost" not in contract


def test_groups_hold_the_rows_of_their_own_values(tmp_path):
    """A column is the label in another spelling. Each group's rate is 0 or 1, so the groups have the right rows."""
    frames = tables(PARTIES, rows=800)
    frames["bank"] = frames["bank"].with_columns(said=pl.when(pl.col("y") == 1).then(pl.lit("yes")).otherwise(pl.lit("no")))
    given = columns(PARTIES)
    given["bank"]["report"] = {"subgroups": ["said"], "smallest_group": 20}
    result = simulate(contract_values(PARTIES), frames, given)
    (said,) = result.sections.groups
    assert [(group["name"], group["label_mean"]["value"]) for group in said["groups"]] == [("no", 0.0), ("yes", 1.0)]


def test_on_a_union_nothing_is_sent_twice(tmp_path):
    found = run(tmp_path, alignment__method="union", report={"subgroups": ["kind"], "smallest_group": 20})
    sections = found["bank"].sections
    assert sections.importance == []
    assert sections.decisions["chosen_on"] == "test rows"
    assert sum(group["rows"] for group in sections.groups[0]["groups"]) == found["bank"].evaluation["rows"]


def test_an_absent_group_column_is_refused_before_anything_is_sent():
    given = columns(PARTIES)
    given["bank"]["report"] = {"subgroups": ["knd"]}
    error = error_of(simulate, contract_values(PARTIES), tables(PARTIES, rows=200), given)
    assert isinstance(error, DataError)
    assert "'knd'" in str(error)
    assert "kind" in str(error)
