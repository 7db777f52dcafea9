"""Every label attack against every defence: one small table through the product, and the book-keeping on made-up runs."""

from pathlib import Path

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments.grid import Keeping
from tallystick_experiments.label_leakage import defended
from tallystick_experiments.page import render_benchmark
from tallystick_experiments.stats import spread


@pytest.mark.long
def test_a_table_of_several_classes_is_attacked_and_gone_on_with(tmp_path: Path) -> None:
    log = tmp_path / "runs.jsonl"
    chosen = {"tables": ["wine"], "epochs": 1}
    found = defended.label_defenses_experiment(**chosen, seeds=1, only=["none"]).run(Keeping(log=log))
    (run,) = found.rows
    assert run["attacks"]["direction-5"]["symmetric_auc"] > 0.9
    assert run["attacks"]["direction-5"]["told"]
    assert run["attacks"]["probe"]["upper_bound"]
    assert [line.split(",")[0] for line in run["not_measured"]] == ["enumeration", "enumeration-clusters"]
    assert run["attacks"]["completion-fine-tuned"]["symmetric_auc"] > 0.8  # a simulation has both sides
    assert run["attacks"]["completion-both"]["reads"] == "cut gradients and cut embeddings"
    assert run["attacks"]["direction-5"]["reads"] == "cut gradients"
    again = defended.label_defenses_experiment(**chosen, seeds=1, only=["none"]).run(Keeping(log=log, resume=True))
    assert again == found  # its seconds, too: not run again
    assert "wine: the strongest attack of each view" in render_benchmark(found.page(), tmp_path / "page.html").read_text()


@pytest.mark.long
def test_a_table_of_numbers_is_ranked_and_its_columns_are_rebuilt(tmp_path: Path) -> None:
    found = defended.label_defenses_experiment(tables=["diabetes"], epochs=1, seeds=1, only=["none"]).run()
    strongest, columns, _ = ({**dict(zip(table.columns, table.rows[0], strict=True))} for table in found.page().tables)
    assert strongest["Spearman"].value > 0.8  # of everything, by the first steps
    assert columns["20 rows known"].value > 0.5
    html = render_benchmark(found.page(), tmp_path / "page.html").read_text()
    assert "diabetes: columns rebuilt" in html
    assert "test RMSE" in html


@pytest.mark.long
def test_a_row_with_noise_is_the_same_when_it_is_made_again() -> None:
    first, second = (
        defended.label_defenses_experiment(tables=["diabetes"], epochs=1, seeds=1, only=["gaussian 8"]).run().rows[0]
        for _ in range(2)
    )
    assert {**first, "seconds": 0} == {**second, "seconds": 0}


def test_columns_are_dealt_out_in_turn_to_several_feature_parties() -> None:
    partner, _ = defended.trials(defended.load_table("wine", None), terms=defended.MatrixPlan(), seed=1, only=["none"])
    dealt = defended.among(partner, ["feature", "feature-2", "feature-3"])
    got = {name: list(dealt.columns[name]["features"]["numeric"]) for name in ("feature", "feature-2", "feature-3")}
    assert [len(each) for each in got.values()] == [3, 2, 2]  # of wine's 13 columns the feature party has 7
    assert sorted(column for columns in got.values() for column in columns) == sorted(partner.given)
    for name, columns in got.items():
        assert sorted(dealt.tables[name].columns) == sorted(["row", *columns])
    assert dealt.tables["label"].equals(partner.tables["label"])
    with pytest.raises(ConfigError, match="--feature-parties 8: there are 7 columns to share out"):
        defended.among(partner, [f"feature-{number}" for number in range(8)])


@pytest.mark.long
def test_of_several_feature_parties_the_seat_that_finds_most_counts() -> None:
    _, tried = defended.trials(defended.load_table("wine", None), terms=defended.MatrixPlan(epochs=1), seed=1, only=["none"])
    partner, _ = defended.trials(defended.load_table("wine", None), terms=defended.MatrixPlan(epochs=1), seed=1, only=["none"])
    run = defended.attacked_run(tried["none"], partner, seed=1, feature_parties=2)
    assert run["attacks"]["direction-5"]["symmetric_auc"] > 0.8
    assert run["attacks"]["probe"]["reads"] == "cut embeddings"


def test_what_is_tried_follows_from_the_target() -> None:
    found = {}
    for name in ("wine", "breast"):
        _, tried = defended.trials(defended.load_table(name, None), terms=defended.MatrixPlan(), seed=1)
        found[name] = {each.defense for each in tried.values()}
        assert [each.contract.model.cut_after for each in tried.values() if each.defense == "cut-after"] == [2, 3]
        assert {each.contract.model.cut_after for each in tried.values() if each.defense != "cut-after"} == {1}
    assert found["breast"] - found["wine"] == {"marvell", "gaussian-labels", "ladsg"}
    assert found["wine"] - found["breast"] == {"label-dp-prior"}


def made_up(defense: str, seed: int, test: float, **aucs: float) -> dict[str, object]:
    attacks = {
        name.replace("_", "-"): {
            "symmetric_auc": auc,
            "chance": 0.5,
            "reads": "cut embeddings" if name.startswith("e_") else "cut gradients",
            "told": name.endswith("told"),
            "upper_bound": name.startswith("probe"),
        }
        for name, auc in aucs.items()
    }
    return {"defense": defense, "seed": seed, "test": test, "attacks": attacks}


def test_the_strongest_attack_of_each_view_is_one_that_somebody_could_run() -> None:
    runs = [made_up("none", seed, 0.8 + seed / 100, one=0.9, two=0.8, probe_told=1.0, e_told=0.7) for seed in (1, 2, 3)]
    runs += [made_up("noise", seed, 0.7 + seed / 100, one=0.5, two=0.6, probe_told=0.9, e_told=0.7) for seed in (1, 2, 3)]
    found = {
        (name, view): defended.strongest_attack([run for run in runs if run["defense"] == name], *of)
        for name in ("none", "noise")
        for view, of in defended.VIEWS.items()
    }
    assert found["none", "gradients, no label"] == "one"
    assert found["noise", "gradients, no label"] == "two"
    assert found["noise", "gradients, few labels"] == "two"  # an attacker who knows labels may run what needs none
    assert found["noise", "embeddings, no label"] is None
    assert found["noise", "everything, few labels"] == found["noise", "embeddings, few labels"] == "e-told"
    about = {"data": {"made up": {"rows": 9, "classes": 2, "target": "binary"}}, "epochs": 1}
    table = defended.label_defenses_page(about, [{"table": "made up", **run} for run in runs]).tables[0]
    assert table.rows[1][2].value == pytest.approx(-0.1)
    assert table.rows[1][3:5] == ["two", spread([0.6] * 3)]


def test_tables_and_defences_that_cannot_be_tried_are_named() -> None:
    with pytest.raises(ConfigError, match="--only marvell 8: no such defence of diabetes; choose from none, isotropic 1"):
        defended.label_defenses_experiment(tables=["diabetes"], seeds=1, only=["marvell 8"]).run()
    with pytest.raises(ConfigError, match="--only marvell 7: no such defence of breast_cancer; choose from none, marvell 8"):
        defended.label_defenses_experiment(tables=["breast"], seeds=1, only=["marvell 7"]).run()
