"""The feature-leakage benchmark on small made-up tables: what comes back of a planted column, and the sweep's book-keeping."""

import json

import numpy as np
import polars as pl
import pytest

from tallystick.benchmark.experiment import TrainingPlan
from tallystick.benchmark.feature_leakage import sweep
from tallystick.benchmark.feature_leakage.page import page_of
from tallystick.benchmark.shared import Keeping
from tallystick.errors import ConfigError, DataError
from tallystick.report.bench import benchmark_html

ROWS = 400
CHOSEN = (sweep.ALONE, sweep.DEFAULT, "width 4, quantized-embeddings 3")


@pytest.fixture
def files(tmp_path):
    """Two tables; of the feature party one column is a category, and one nearly a copy of a label party column."""
    rng = np.random.default_rng(3)
    own, theirs = rng.normal(size=(ROWS, 2)), rng.normal(size=(ROWS, 3))
    y = (own[:, 0] + theirs.sum(axis=1) + rng.logistic(size=ROWS) > 0).astype(int)
    theirs[:, 2] = own[:, 1] + 0.1 * theirs[:, 2]
    label = pl.DataFrame({"id": range(ROWS), "y": y, "a": own[:, 0], "b": own[:, 1]})
    kind = np.where(theirs[:, 1] > 0.5, "high", "low")
    feature = pl.DataFrame({"id": range(ROWS), "c": theirs[:, 0], "kind": kind, "d": theirs[:, 2]})
    label.write_csv(tmp_path / "label.csv")
    feature.write_csv(tmp_path / "feature.csv")
    return {"data": tmp_path / "label.csv", "partner": tmp_path / "feature.csv"}


def test_what_comes_back_and_what_it_costs(files, tmp_path):
    plan = TrainingPlan(epochs=1, batch_size=64)
    how = {**files, "seeds": (1,), "only": CHOSEN, "plan": plan}
    found = sweep.run(**how, keeping=Keeping(log=tmp_path / "runs.jsonl"))
    alone, default, rounded = found["table"]
    assert [row["setting"] for row in found["table"]] == list(CHOSEN)
    assert default["change"]["mean"] == 0
    assert default["target"] is False
    assert default["rebuilt"]["embeddings, 200 rows"]["mean"] > 0.9  # one layer of 128 of three columns
    assert rounded["share"]["mean"] < 0.8
    assert alone["rebuilt"]["embeddings, 200 rows"]["mean"] == 0
    by_column = {each["setting"]: each["columns"] for each in found["columns"]}
    assert set(by_column[sweep.DEFAULT]) == {"partner_c", "partner_kind", "partner_d"}
    assert alone["rebuilt"]["embeddings and own columns, 200 rows"]["mean"] > 0.3  # partner_d is an own column with noise
    html = benchmark_html(page_of(found, command="tallystick bench feature-leakage"))
    assert "What hiding columns costs" in html
    again = sweep.run(**how, keeping=Keeping(log=tmp_path / "runs.jsonl", resume=True))
    assert json.dumps(again) == json.dumps(found)  # seconds too: nothing was trained again


def test_every_setting_is_named_once_and_the_default_is_the_contracts():
    settings = sweep.settings()
    assert len({setting.name for setting in settings}) == len(settings)
    (default,) = [setting for setting in settings if setting.name == sweep.DEFAULT]
    assert (default.depth, default.cut_width) == (1, 128)  # of a contract that says nothing: model.cut_after, the first of hidden


def test_unusable_arguments_are_refused(files, tmp_path):
    with pytest.raises(ConfigError, match="no setting; known are"):
        sweep.run(**files, only=("width 3",))
    with pytest.raises(DataError, match="not two CSV files"):
        sweep.run(data=files["data"], partner=tmp_path / "absent.csv")
