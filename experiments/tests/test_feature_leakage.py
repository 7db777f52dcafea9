"""The feature-leakage benchmark on small made-up tables: how much of a planted column is recovered, and the sweep's
book-keeping.
"""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tallystick.errors import ConfigError, DataError
from tallystick_experiments.feature_leakage import replay, sweep
from tallystick_experiments.feature_leakage.page import PICTURES, unbeaten
from tallystick_experiments.feature_leakage.runs import AIDED, ALONE, ANY, EMBEDDINGS
from tallystick_experiments.feature_leakage.settings import DEFAULT, settings
from tallystick_experiments.grid import Keeping
from tallystick_experiments.page import benchmark_html, pictures

ROWS = 400
CHOSEN = (ALONE, DEFAULT, "width 4, quantized-embeddings 3")


@pytest.fixture
def files(tmp_path):
    """Make two tables. One column of the feature party is a category, and one is nearly a copy of a label party's column."""
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


@pytest.mark.long
def test_what_comes_back_and_what_it_costs(files, tmp_path):
    how = {**files, "seeds": 1, "only": CHOSEN, "epochs": 1, "batch_size": 64}
    found = sweep.feature_leakage_experiment(**how).run(Keeping(log=tmp_path / "runs.jsonl"))
    page = found.page()
    prices = page.tables[0]
    assert [row[0] for row in prices.rows] == list(CHOSEN)
    alone, default, rounded = (dict(zip(prices.columns, row, strict=True)) for row in prices.rows)
    assert default["change"].value == 0
    assert default["half for .01"] is False
    assert default["embeddings, 200 rows"].value > 0.9  # one layer of 128 of three columns
    assert rounded["of the default's"].value < 0.8
    assert alone["embeddings, 200 rows"].value == 0
    assert set(page.tables[1].columns) == {"setting", "partner_c", "partner_kind", "partner_d"}
    assert alone["embeddings and own columns, 200 rows"].value > 0.3  # partner_d is an own column with noise
    assert "What hiding columns costs" in benchmark_html(page)
    _counts_own_columns(page)
    again = sweep.feature_leakage_experiment(**how).run(Keeping(log=tmp_path / "runs.jsonl", resume=True))
    assert again == found  # seconds, too: nothing was trained again


def _counts_own_columns(page):
    """The strongest of all attacks decides, column by column, and both pictures have a line per family."""
    rows = [dict(zip(page.tables[0].columns, row, strict=True)) for row in page.tables[0].rows]
    of_all = [row["strongest of all, 200 rows"].value for row in rows]
    for row, most in zip(rows, of_all, strict=True):
        assert most >= max(row[f"{reads}, 200 rows"].value for reads in (EMBEDDINGS, AIDED))
    assert rows[2]["of the default's"].value == pytest.approx(of_all[2] / of_all[1])
    assert of_all[0] > 0.3  # of the own columns, which no defence of embeddings removes
    assert [curve.name for curve in page.curves] == list(PICTURES.values())
    names = {series.name for curve in page.curves for series in curve.series}
    assert names == {ALONE, "quantized-embeddings"}
    assert len(pictures(page)) == 2  # as files, beside the report
    (codes,) = [table for table in page.tables if table.name.startswith("Accuracy") and ANY in table.name]
    guess, *settings = [row[1].value for row in codes.rows]
    assert 0.5 <= guess < settings[1] <= 1  # the planted category is found better than by guessing


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), max_size=8))
def test_the_frontier_is_what_nothing_beats(points):
    def beats(one, other):
        return one != other and one[0] <= other[0] and one[1] >= other[1]

    assert unbeaten(points) == sorted({each for each in points if not any(beats(other, each) for other in points)})


@pytest.mark.long
def test_what_was_not_measured_is_no_low_figure(files):
    """With 130 rows no attack can know 200: no figure, and a sentence that says so."""
    found = sweep.feature_leakage_experiment(**files, seeds=1, only=CHOSEN[:2], epochs=1, batch_size=64, limit=130).run()
    page = found.page()
    rows = [dict(zip(page.tables[0].columns, row, strict=True)) for row in page.tables[0].rows]
    for column in ("strongest of all, 200 rows", "strongest on embeddings", "half for .01"):
        assert [row[column] for row in rows] == [None, None]
    assert any("200 known rows of" in note for note in page.notes)


def test_every_setting_is_named_once_and_the_default_is_the_contracts():
    known = settings()
    assert len({setting.name for setting in known}) == len(known)
    (default,) = [setting for setting in known if setting.name == DEFAULT]
    assert (default.depth, default.cut_width) == (1, 128)  # of a contract that says nothing: model.cut_after, the first of hidden


def test_unusable_arguments_are_refused(files, tmp_path):
    with pytest.raises(ConfigError, match="not a setting; known are"):
        sweep.feature_leakage_experiment(**files, only=("width 3",)).run()
    with pytest.raises(DataError, match="not two CSV files"):
        sweep.feature_leakage_experiment(data=files["data"], partner=tmp_path / "absent.csv").run()
    label = pl.read_csv(files["data"])
    for changed, reason in (
        (pl.concat([label, label[:1]]), "id 0 is there more than once"),
        (label.with_columns(y=pl.col("y") + 1), "y is 2 in a row"),
        (label.with_columns(y=pl.when(pl.col("id") > 0).then("y")), "y is None in a row"),
        (label.with_columns(id=pl.col("id") + 1000), "no id is in both files"),
    ):
        changed.write_csv(tmp_path / "changed.csv")
        with pytest.raises(DataError, match=reason):
            sweep.feature_leakage_experiment(data=tmp_path / "changed.csv", partner=files["partner"]).run()


@pytest.mark.long
def test_a_training_played_again_finds_more_than_its_first_guess(files, tmp_path):
    """With only numbers, behind two units: the replay fits all that crossed, and begins at another attack's guess."""
    frame = pl.read_csv(files["partner"]).drop("kind")
    frame.write_csv(tmp_path / "numbers.csv")
    how = {"partner": tmp_path / "numbers.csv", "seeds": 1, "epochs": 4, "batch_size": 64, "steps": 200, "widths": [2]}
    rows = replay.replay_experiment(data=files["data"], **how).run().rows
    assert {row["known"] for row in rows} == {20, 200}
    assert all(row["replay"] > row["start"] for row in rows)
    with pytest.raises(DataError, match="the replay is of numbers alone"):
        replay.replay_experiment(data=files["data"], **how | {"partner": files["partner"]}).run()
