"""A look at a run in use: what each side sees alone, as a page, as JSON and for Prometheus."""

import json

import polars as pl
import pytest
from html_page import Page
from prometheus_client.parser import text_string_to_metric_families
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

from tallystick.cli.app import app
from tallystick.cli.monitor import EXIT_DRIFTED
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.profile import kept_profile

PARTIES = ("bank", "shop")


def monitored(folder, name, *arguments, code=0):
    """Return what the command prints last. Fail for another exit code."""
    command = ["monitor", str(folder / "contract.yaml"), "--party", str(folder / f"{name}.yaml"), "--json", *map(str, arguments)]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == code, (ran.output, ran.exception)
    return json.loads(ran.stdout.splitlines()[-1])


def test_each_side_finds_what_moved_of_its_own_and_nothing_else(used):
    folder, run_id = used
    assert monitored(folder, "bank", "--fail", code=EXIT_DRIFTED)["drifted"] == ["x"]
    found = monitored(folder, "shop", "--fail")
    assert (found["drifted"], found["run_id"], found["scores"]) == ([], run_id, None)
    assert {each["name"]: each["state"] for each in found["columns"]} == dict.fromkeys(("x", "noise", "kind"), "same")


def test_the_profile_is_of_the_training_rows(used):
    folder, _ = used
    (path,) = folder.glob("shop/*/profile.json")
    run = RunFolder.open(path.parent)
    profile = kept_profile(run)
    result = json.loads((path.parent / "result.json").read_bytes())
    assert profile.rows == result["data"]["rows"]["train"]
    assert sum(count for _, count in profile.categorical[0].counts) == profile.rows


def test_scores_and_labels_are_measured_by_period(used):
    folder, _ = used
    found = monitored(folder, "bank", "--scores", folder / "scores.csv")
    table = pl.read_parquet(folder / "bank.parquet")
    assert found["without_score"] == table.height - 1_000
    assert found["scored_by"] == {"joint model": 750, "own columns": 250}
    joined = table.join(pl.read_csv(folder / "scores.csv"), on="id").drop_nulls("y")
    assert [period["name"] for period in found["periods"]] == ["2026-01-01", "2026-02-01"]
    for month, period in zip((1, 2), found["periods"], strict=True):
        part = joined.filter(pl.col("day").dt.month() == month)
        assert period["rows"] == part.height
        assert period["auc"] == pytest.approx(roc_auc_score(part["y"], part["score"]), rel=1e-9)
    assert found["scores"]["state"] == "much"  # those of the test rows came from a network that was hardly trained


def test_the_page_and_the_gauges_say_what_the_json_says(used, tmp_path):
    folder, _ = used
    page, text = tmp_path / "page.html", tmp_path / "tallystick.prom"
    found = monitored(folder, "bank", "--scores", folder / "scores.csv", "--html", page, "--prometheus", text)
    html = page.read_text()

    assert 'http-equiv="Content-Security-Policy" content="default-src \'none\'' in html
    assert {each["name"] for each in json.loads(Page(html).result)["columns"]} == {"x", "noise", "kind"}
    gauges = {
        (sample.name, sample.labels.get("column") or sample.labels.get("period") or sample.labels.get("scored_by")): sample.value
        for family in text_string_to_metric_families(text.read_text())
        for sample in family.samples
    }
    assert gauges["tallystick_monitor_rows", None] == found["rows"]
    assert gauges["tallystick_monitor_stability_index", "x"] == found["columns"][0]["stability"]
    assert gauges["tallystick_monitor_moved", "noise"] == 0
    assert gauges["tallystick_monitor_auc", "2026-01-01"] == found["periods"][0]["auc"]
    assert gauges["tallystick_monitor_scored_rows", "own columns"] == 250


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--run", "0123456789abcdef"), "there is no such run"),
        (("--scores", "other.csv"), "they are of run ffffffffffffffff"),
        (("--table", "narrow.parquet"), "column 'kind'"),
        (("--scores", "none.csv"), "there is no column score"),
    ],
)
def test_what_cannot_be_looked_at_is_said(used, arguments, said):
    folder, _ = used
    pl.DataFrame({"id": ["id-000001"], "score": [0.5], "run_id": ["f" * 16]}).write_csv(folder / "other.csv")
    pl.DataFrame({"id": ["id-000001"]}).write_csv(folder / "none.csv")
    pl.read_parquet(folder / "bank.parquet").drop("kind").write_parquet(folder / "narrow.parquet")
    named = [folder / each if "." in each else each for each in arguments]
    assert said in monitored(folder, "bank", *named, code=2)["error"]["message"]
