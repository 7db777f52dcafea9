"""A look at a run in use that predicts several labels: each label's scores, and its labels as far as they have arrived."""

import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest
import yaml
from html_page import Page
from prometheus_client.parser import text_string_to_metric_families
from sklearn.metrics import roc_auc_score
from tiny import columns, contract_values, tables
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.config.contract import load_contract
from tallystick.config.serving import AnswersConfig
from tallystick.run_folder.answer_journal import AnsweredRow, AnswerLog, serving_secret
from tallystick.run_folder.folder import RunFolder
from tallystick.simulation import simulate
from tallystick.watcher import Silent

PARTIES, NAMES = ("bank", "shop"), ("click", "buy")


@pytest.fixture(scope="module")
def used(tmp_path_factory):
    """A finished run, and later rows: scores of buy have moved, those of click have not, and not every label has arrived."""
    folder, rng = tmp_path_factory.mktemp("used"), np.random.default_rng(4)
    changes = {"evaluation": {"bootstrap": 0, "own_columns_baseline": False}, "training__epochs": 1}
    contract = contract_values(PARTIES, target={"type": "multilabel", "labels": list(NAMES)}, **changes)
    frames, names = tables(PARTIES, rows=1_500), columns(PARTIES)
    bank = frames["bank"].drop("y")
    frames["bank"] = bank.with_columns(**{name: pl.Series(rng.integers(0, 2, bank.height)) for name in NAMES})
    names["bank"] |= {"label": ["buy", "click"]}
    result = simulate(contract, frames, names, folder=folder, watcher=Silent())
    (folder / "contract.yaml").write_text(yaml.safe_dump(contract))
    later = frames["bank"].with_columns(
        click=pl.when(pl.Series(rng.random(bank.height)) < 0.8).then("click"),
        buy=pl.when(pl.Series(rng.random(bank.height)) < 0.5).then("buy"),
    )
    later.write_parquet(folder / "bank.parquet")
    values = {"party": "bank", "table": {"path": "bank.parquet"}, "runs": "bank", **names["bank"]}
    (folder / "bank.yaml").write_text(yaml.safe_dump(values))
    (run,) = RunFolder.all(folder / "bank", load_contract(folder / "contract.yaml"), "bank")
    kept = pl.read_parquet(run.scores)
    scores = later.select("id").with_columns(
        score_click=pl.Series(rng.choice(kept["score_click"].to_numpy(), later.height)),
        score_buy=pl.Series(rng.random(later.height)),
        run_id=pl.lit(result.run_id),
    )
    scores.write_csv(folder / "scores.csv")
    return folder, run, later, scores


def monitored(folder, *arguments):
    command = ["monitor", str(folder / "contract.yaml"), "--party", str(folder / "bank.yaml"), "--json", *map(str, arguments)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, (ran.output, ran.exception)
    return json.loads(ran.stdout.splitlines()[-1])


def measured(later, scores):
    """Rows and AUC of each label, by scikit-learn."""
    joined = later.join(scores, on="id")
    known = {name: joined.drop_nulls(name) for name in NAMES}
    return {name: (part.height, roc_auc_score(part[name], part[f"score_{name}"])) for name, part in known.items()}


def test_each_labels_scores_are_compared_and_measured(used, tmp_path):
    folder, _, later, scores = used
    page, text = tmp_path / "page.html", tmp_path / "tallystick.prom"
    found = monitored(folder, "--scores", folder / "scores.csv", "--html", page, "--prometheus", text)
    assert found["scores"] is None
    assert found["scores_by_label"]["buy"]["state"] == "much"
    assert found["scores_by_label"]["click"]["state"] == "same"
    assert found["drifted"] == ["scores of the joint model for label buy"]
    wanted = measured(later, scores)
    assert {each["label"]: (each["rows"], pytest.approx(each["auc"], rel=1e-9)) for each in found["periods"]} == wanted
    assert found["without_score"] == 0

    html = Page(page.read_text())
    assert "scores of the joint model for label click" in " ".join(html.text)
    assert json.loads(html.result)["scores_by_label"] == found["scores_by_label"]
    samples = [each for family in text_string_to_metric_families(text.read_text()) for each in family.samples]
    gauges = {each.labels["label"]: each.value for each in samples if each.name == "tallystick_monitor_auc"}
    assert gauges == {name: pytest.approx(auc) for name, (_, auc) in wanted.items()}


def test_answers_are_measured_by_the_labels_that_came_later(used):
    folder, run, later, scores = used
    answers = AnswerLog(
        origin=run.origin,
        secret=serving_secret(run),
        config=AnswersConfig(),
        clock=lambda: datetime(2026, 1, 20, tzinfo=UTC),
    )
    for key, click, buy in scores.select("id", "score_click", "score_buy").iter_rows():
        answers.keep([AnsweredRow(row=answers.digest(key.encode()), by="joint model", scores=(click, buy))], {"all": 1.0})
    answers.close()
    later.select("id", "buy", "click").write_parquet(folder / "labels.parquet")
    found = monitored(folder, "--served", "--labels", folder / "labels.parquet")
    wanted = measured(later, scores)
    assert {each["label"]: (each["rows"], pytest.approx(each["auc"], rel=1e-6)) for each in found["periods"]} == wanted
    assert found["scores_by_label"]["click"]["state"] == "same"
    assert found["scores_by_label"]["buy"]["state"] == "much"


def test_scores_without_one_of_the_labels_are_named(used, tmp_path):
    folder, _, _, scores = used
    scores.drop("score_buy").write_csv(tmp_path / "scores.csv")
    command = ["monitor", str(folder / "contract.yaml"), "--party", str(folder / "bank.yaml"), "--json"]
    ran = CliRunner().invoke(app, [*command, "--scores", str(tmp_path / "scores.csv")])
    assert ran.exit_code == 2
    assert "scores: there is no column score_buy" in json.loads(ran.stdout.splitlines()[-1])["error"]["message"]
