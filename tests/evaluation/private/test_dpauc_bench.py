"""The benchmark reads files, deals rows without losing any, and repeats itself from one seed."""

from collections import Counter

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score
from tiny import columns, contract_values, tables

from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.private.bins import Population, ScoreBins
from tallystick.evaluation.private.histogram import LabelHistogram
from tallystick.evaluation.private.release import release_private_auc
from tallystick.simulation import simulate
from tallystick_experiments.catalogue.public import load_table
from tallystick_experiments.dpauc import paper
from tallystick_experiments.dpauc import tables as dpauc


@pytest.fixture
def small_file(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.random(3000) < 0.3
    scores = 1 / (1 + np.exp(-rng.normal(size=3000) - labels))
    table = pl.DataFrame({"score": scores, "label": labels.astype(int), "other": scores})
    table.write_csv(tmp_path / "scores.csv")
    table.write_parquet(tmp_path / "scores.parquet")
    return tmp_path


@pytest.mark.long
def test_a_file_gives_every_table_and_the_same_numbers_twice(small_file):
    first, second = (
        dpauc.measure_dpauc(small_file / name, repeats=5, check_repeats=5, epsilons=[1.0])
        for name in ("scores.csv", "scores.parquet")
    )
    assert first.rows == second.rows
    assert Counter(row["in"] for row in first.rows) == {
        "table_1": 1,
        "table_2": 7,
        "table_3": 13,
        "table_4": 4,
        "table_5": 5,
        "mechanisms": 26,
        "figure_3": 100,
    }
    assert first.about["rows"] == 3000
    assert all(row["paper_mean"] is None for row in first.rows if row["in"] == "table_4")
    at_epsilon_1 = first.page().tables[0]
    assert {row[1] for row in at_epsilon_1.rows} == {10, 1000}
    gaussian = next(row for row in first.rows if row.get("accounting") == "Gaussian, delta 1e-06" and row["clients"] == 1000)
    published = next(row for row in first.rows if row["in"] == "table_4" and row["clients"] == 1000)
    assert gaussian["predicted_sd"] < published["predicted_sd"]


def test_densities_of_scores_are_those_of_each_class(small_file):
    labels, scores = dpauc.read_scores(small_file / "scores.csv")
    rows = dpauc._densities(dpauc._scenarios((labels, scores), iter(np.random.SeedSequence(0).spawn(1)))[0])
    for name, of_class in (("positives", scores[labels]), ("negatives", scores[~labels])):
        densities = [row["density"] for row in rows if row["class"] == name]
        assert sum(densities) / len(densities) == pytest.approx(1)
        assert densities[20] == pytest.approx(np.mean((of_class >= 0.4) & (of_class < 0.42)) / 0.02)


@pytest.mark.long
def test_a_network_that_is_trained_on_a_shared_table_gives_the_scores():
    """Breast has 569 rows, of which some fifth are scored; a label that is a number has no AUC."""
    labels, scores = dpauc._trained(load_table("breast", None, most=300), seed=1)
    assert len(labels) == pytest.approx(300 / 5, rel=0.4)
    assert roc_auc_score(labels, scores) > 0.9
    with pytest.raises(ConfigError, match="--table diabetes: its label is regression"):
        dpauc.measure_dpauc(table="diabetes")


BAD_FILES = ["score,label\n0.5,1\n", "score\n0.5\n", "score,label\n0.5,yes\n", "score,label\n1.5,1\n0.2,0\n", ""]


@pytest.mark.parametrize("content", BAD_FILES)
def test_files_without_usable_scores_are_refused(tmp_path, content):
    (tmp_path / "scores.csv").write_text(content)
    with pytest.raises(DataError):
        dpauc.read_scores(tmp_path / "scores.csv")
    with pytest.raises(DataError, match="cannot be read"):
        dpauc.read_scores(tmp_path / "absent.csv")


@pytest.mark.parametrize("partition", ["IID", "non-IID"])
def test_dealing_rows_to_clients_loses_none(partition):
    population = Population(rows=5000, positive_rate=0.25)
    labels, scores = dpauc._draw(population, np.random.default_rng(0))
    scenario = dpauc._scenario("test", None, labels, scores, population, scores)
    bins = ScoreBins(edges=np.array([0.2, 0.3]))
    case = dpauc.Case(table="t", scenario=scenario, mechanism=LabelHistogram(epsilon=1.0), clients=7, partition=partition)
    dealt = dpauc._dealt_counts(scenario, bins, case, np.random.default_rng(0))
    np.testing.assert_array_equal(dealt, bins.count_classes(labels, scores))


def test_the_papers_tables_agree_where_they_overlap():
    for epoch in range(3):
        assert paper.TABLE_4[epoch, "IID", 10] == paper.TABLE_5[epoch, 100]


def test_coverage_counts_releases(small_file):
    labels, scores = dpauc.read_scores(small_file / "scores.csv")
    counted = dpauc.coverage(labels, scores, runs=10)
    assert counted["covered"] >= 5  # below that with probability under 1e-5 at 95 % coverage
    assert counted["runs"] == 10


def test_coverage_draws_no_noise_that_the_interval_draws_as_well(small_file, monkeypatch):
    """The interval's own simulation has the fixed seed 0; subtracting the released noise would give the exact AUC."""
    drawn = []

    def noted(*arguments, rng, **named):
        drawn.append(rng._rng.bit_generator.state)
        return release_private_auc(*arguments, rng=rng, **named)

    monkeypatch.setattr(dpauc, "release_private_auc", noted)
    dpauc.coverage(*dpauc.read_scores(small_file / "scores.csv"), runs=3, seed=0)
    assert len(drawn) == 3
    assert np.random.default_rng(0).bit_generator.state not in drawn


def test_a_file_that_noise_cannot_mix_up_has_no_ratio_and_is_json():
    rows = [{"epsilon": 1.0, "sd": 0.0, "predicted_sd": 1e-9}, {"epsilon": 2.0, "sd": 0.1, "predicted_sd": 0.1}]
    dpauc._pool_predictions(rows)
    assert [row["predicted_ratio"] for row in rows] == [None, 1.0]


def test_a_trained_runs_folder_gives_its_test_scores_to_nobody_else(tmp_path):
    parties = ("bank", "shop")
    found = simulate(contract_values(parties), tables(parties, rows=600), columns(parties), folder=tmp_path)
    (folder,) = (tmp_path / "bank").iterdir()
    labels, scores = dpauc.read_scores(folder)
    assert found.evaluation["rows"] == len(labels)
    assert roc_auc_score(labels, scores) == pytest.approx(found.evaluation["joint"]["auc"]["value"], abs=1e-12)
    assert (folder / "scores.parquet").stat().st_mode & 0o077 == 0
    assert not list((tmp_path / "shop").glob("*/scores.parquet"))
    with pytest.raises(DataError, match=r"shop.* holds no scores\.parquet"):
        dpauc.read_scores(next((tmp_path / "shop").iterdir()))
