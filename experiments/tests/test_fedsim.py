"""FedSim's experiments on small made-up sets: who has which columns, what is linked, and a sweep that resumes."""

from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
import torch
from lanes import short_lane_of

from tallystick.alignment.federal import Pivots
from tallystick.config.sections import NetworkModel, SynchronousTraining
from tallystick.dataset.similarity import AllCandidates
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.catalogue.pairs import read_bike, read_frogs, read_hdb, read_house, read_independent, read_synthetic
from tallystick_experiments.fedsim import inside, linkage, runs, sizes, sweep, table_7
from tallystick_experiments.fedsim.located import WIDE_FILTERS, link_places
from tallystick_experiments.fedsim.methods import METHODS
from tallystick_experiments.fedsim.page import method_differences
from tallystick_experiments.fedsim.parts import PARTS, Compared
from tallystick_experiments.grid import Keeping
from tallystick_experiments.output import write_folder
from tallystick_experiments.page import benchmark_html
from tallystick_experiments.stats import spread

PLACES = {"town", "block", "street_name", "lat", "lon", "Unnamed: 11", "Unnamed: 12"}


@pytest.fixture
def hdb(tmp_path):
    rng = np.random.default_rng(1)
    rows, schools = 300, 12
    frame = pl.DataFrame(
        {
            "month": [f"2015-{1 + month:02}" for month in rng.integers(0, 12, rows)],
            **{name: ["x"] * rows for name in ("town", "block", "street_name", "flat_model", "Unnamed: 11")},
            "flat_type": rng.choice(["3 ROOM", "4 ROOM"], rows),
            "storey_range": ["07 TO 09"] * rows,
            "floor_area_sqm": rng.uniform(50, 120, rows),
            "lease_commence_date": rng.integers(1970, 2010, rows),
            "remaining_lease": rng.integers(50, 90, rows),
            "resale_price": rng.uniform(2e5, 6e5, rows),
            "Unnamed: 12": rng.uniform(0, 1, rows),
            "lat": rng.uniform(1.3, 1.4, rows),
            "lon": rng.uniform(103.7, 103.9, rows),
        }
    )
    frame.write_csv(tmp_path / "hdb.csv")
    (tmp_path / "hdb_with_latlon.csv.gz").write_bytes((tmp_path / "hdb.csv").read_bytes())
    levels = {f"{what}_{grade}": rng.uniform(0, 1, schools) for grade in range(4) for what in ("n_places", "vacancy_rate")}
    pl.DataFrame(
        {
            "school_name": [f"s{i}" for i in range(schools)],
            **levels,
            "lat": rng.uniform(1.3, 1.4, schools),
            "lon": rng.uniform(103.7, 103.9, schools),
        }
    ).write_csv(tmp_path / "school_clean.csv")
    return tmp_path


@pytest.fixture
def quick(monkeypatch):
    recipe = runs.Recipe(neighbors=3, hidden=(8, 6, 6), epochs=2, batch_size=64, learning_rate=0.01)
    monkeypatch.setitem(runs.RECIPES, "hdb", recipe)
    monkeypatch.setitem(runs.RECIPES, "synthetic", recipe)


def test_no_party_has_a_column_that_gives_the_place_away(hdb):
    pair = read_hdb(hdb)
    columns = {*pair.own_columns.numeric, *pair.own_columns.categorical, *pair.their_columns.numeric}
    assert not columns & PLACES
    assert pair.own.get_column("resale_price").max() < 1000  # thousands
    linked = runs.link_pair(pair, neighbors=3, seed=1)
    flat = pair.own_key_NP[5]
    distance_M = np.linalg.norm(pair.their_key_MP - flat, axis=1)
    assert linked.numbers_NK[5].tolist() == distance_M.argsort()[:3].tolist()
    assert linked.similarity_NK[linked.train_N].mean() == pytest.approx(0, abs=1e-5)
    assert linked.similarity_NK[linked.train_N].std() == pytest.approx(1, abs=1e-5)


def test_splits_are_seven_one_two_and_differ_by_seed():
    train_N, validation_N, test_N = runs.split_rows(100, seed=1)
    assert (len(train_N), len(validation_N), len(test_N)) == (70, 10, 20)
    assert sorted([*train_N, *validation_N, *test_N]) == list(range(100))
    assert not np.array_equal(test_N, runs.split_rows(100, seed=2)[2])


@pytest.mark.parametrize("name", short_lane_of([name for name in METHODS if name != "Combine"], 3))
def test_every_method_trains(hdb, quick, name):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    figures = runs.train_method(linked, name, runs.RECIPES["hdb"], seed=1).figures
    assert np.isfinite([figures["rmse"], figures["r2"]]).all()
    merge = METHODS[name].merge
    assert (figures["weights"] is not None) == (merge is not None and merge.weight == "learnt")


def test_by_contract_a_pair_is_encoded_and_trained_as_a_contract_says_by_default(hdb, quick):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    trained = runs.train_method(linked, "the contract's default", runs.RECIPES["hdb"], seed=1)
    default = SynchronousTraining(folds=1).resolved(len(linked.train_N))  # a contract links by similarity without folds
    assert trained.network.training == default
    assert trained.network.schedule.batch_size == default.batch_size
    assert trained.network.model.bottom.width == NetworkModel().hidden[0]


def test_a_solo_that_sees_the_keys_has_two_columns_more(hdb):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    seeing = runs.with_keys(linked)
    before, after = (each.own.numeric_NF for each in (linked, seeing))
    assert after.shape[1] == before.shape[1] + 2
    keys_NP = linked.pair.own_key_NP
    correlation = np.corrcoef(after[:, -2:].numpy().T, keys_NP.T)[:2, 2:]
    assert np.diag(correlation) == pytest.approx([1, 1], abs=1e-3)
    assert seeing.test_N.tolist() == linked.test_N.tolist()


def test_rmse_is_in_the_labels_units(hdb):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    found = runs.score_outputs(linked, torch.zeros(len(linked.test_N)))  # the mean of the training rows
    price_N = linked.pair.own.get_column("resale_price").to_numpy()
    expected = np.sqrt(np.mean((price_N[linked.test_N] - price_N[linked.train_N].mean()) ** 2))
    assert found["rmse"] == pytest.approx(expected, rel=1e-6)


def test_without_the_sort_gate_links_come_in_random_order(hdb):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    numbers_NK, similarity_NK = runs._links(linked, METHODS["FedSim without sort gate"], 1)
    assert not np.array_equal(numbers_NK, linked.numbers_NK)
    assert np.array_equal(np.sort(numbers_NK, axis=1), np.sort(linked.numbers_NK, axis=1))
    assert np.array_equal(np.sort(similarity_NK, axis=1), np.sort(linked.similarity_NK, axis=1))


def test_every_link_crosses_or_each_row_once(hdb, quick):
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    few, every = (
        runs.network_of(linked, METHODS["FedSim"], runs.RECIPES["hdb"], seed=1, crossing=form)
        for form in (runs.DistinctCandidates, AllCandidates)
    )
    index_B = few.schedule.train_N[:64]
    assert few.schedule.cut_rows(index_B, 0) == 12
    assert every.schedule.cut_rows(index_B, 0) == 64 * 3
    torch.testing.assert_close(few.logits([index_B]), every.logits([index_B]))


def test_a_smaller_tau_adds_more_noise_to_the_similarities_of_filters(hdb):
    pair = read_hdb(hdb)
    names = ("tau 1", "tau 0.001", "tau 0.0005")
    linked = [link_places(pair, name, neighbors=3, seed=1, locates=False) for name in names]
    assert all(not each.located for each in linked)
    spreads = [np.ptp(each.similarity_NK, axis=1).mean() for each in linked]
    assert all(each.similarity_NK.std() == pytest.approx(1, rel=0.2) for each in linked)
    assert len({round(float(each), 6) for each in spreads}) == len(names)


def test_filters_that_reach_further_find_nearer_rows(hdb):
    """A town of 20 km by 10 km: beyond twice their window of .01 degrees filters do not distinguish near and far."""
    pair = read_hdb(hdb)
    narrow, wide, keys = (
        link_places(pair, "tau 1", neighbors=3, seed=1, locates=False),
        link_places(pair, WIDE_FILTERS, neighbors=3, seed=1, locates=False),
        runs.link_pair(pair, neighbors=3, seed=1),
    )
    away = [np.abs(pair.own_key_NP[:, None] - pair.their_key_MP[each.numbers_NK]).sum(axis=2).mean() for each in (narrow, wide)]
    assert away[1] < 0.9 * away[0]
    same = [(np.sort(each.numbers_NK) == np.sort(keys.numbers_NK)).mean() for each in (narrow, wide)]
    assert same[1] > same[0] + 0.1


LIANJIA = """url,id,Lng,Lat,tradeTime,DOM,followers,totalPrice,price,square,livingRoom,drawingRoom,kitchen,bathRoom,floor,\
buildingType,constructionTime,renovationCondition,buildingStructure,ladderRatio,elevator,fiveYearsProperty,subway,district
u,1,116.4,39.9,2016-08-09,10,3,415,31680,131,2,1,1,1,\xb8\xdf 26,1,2005,3,6,0.217,1,0,1,7
u,2,116.5,39.8,2012-07-28,10,3,575,31680,131,2,1,1,1,\xd6\xd0 6,1,2005,3,6,0.217,1,0,1,7
u,3,116.5,39.8,2014-07-28,,3,575,31680,131,2,1,1,1,\xd6\xd0 6,1,2005,3,6,0.217,1,0,1,7
u,4,116.5,39.8,2014-07-28,10,3,575,31680,131,2,1,1,1,\xd6\xd0 6,1,\xce\xb4\xd6\xaa,3,6,0.217,1,0,1,7
u,5,116.5,39.8,2014-07-28,10,3,1000,31680,131,2,1,1,1,\xd6\xd0 6,1,2005,3,6,0.217,1,0,1,7
"""


def test_house_keeps_the_rows_of_the_paper(tmp_path):
    """One of five: the others were sold before 2013, lack a value or a year of construction, or cost too much."""
    (tmp_path / "new.csv").write_bytes(LIANJIA.encode("latin-1"))  # as the file itself, whose characters are Chinese in GBK
    rooms = "lat,lon,price,minimum_nights,number_of_reviews,reviews_per_month,calculated_host_listings_count,availability_365"
    (tmp_path / "airbnb_clean.csv").write_text(
        f"{rooms},nbr_A,rt_Private room,rt_Shared room\n39.9,116.4,792,1,89,0.85,9,341,0,1,0\n"
    )
    pair = read_house(tmp_path)
    row = pair.own.select("totalPrice", "floor", "constructionTime", "year", "month").row(0)
    assert len(pair.own) == 1
    assert row == (415, 26, 2005, 2016, 8)
    assert pair.own_key_NP.tolist() == pair.their_key_MP.tolist() == [[116.4, 39.9]]
    columns = {*pair.own_columns.numeric, *pair.own_columns.categorical, *pair.their_columns.numeric}
    assert not columns & {"Lng", "Lat", "district", "subway", "price_per_square", "communityAverage", "nbr_A", "lat", "lon"}
    assert "price" not in pair.own_columns.numeric  # of a square metre


def test_what_the_merge_reads_adds_up_to_the_prediction(hdb, quick):
    """Integrated gradients are complete: they add up to the prediction minus that of a merge without input."""
    linked = runs.link_pair(read_hdb(hdb), neighbors=3, seed=1)
    trained = runs.train_method(linked, "FedSim", runs.RECIPES["hdb"], seed=1)
    network, index_B = trained.network, torch.from_numpy(linked.test_N[:20])
    (link,) = network.model.links
    with torch.no_grad():
        cuts = [bottom(source(index_B)) for bottom, source in zip(network.bottoms, network.sources, strict=True)]
        whole_B = network.model(cuts, network.own(index_B))
        with inside._scaled(link.merge, 0.0):
            nothing_B = network.model(cuts, network.own(index_B))
    found_BKL = inside.attributions(network, cuts, index_B, link)
    torch.testing.assert_close(found_BKL.sum(dim=(1, 2)), (whole_B - nothing_B).reshape(-1), rtol=0.05, atol=1e-3)
    assert sum(trained.figures["importance"]) == pytest.approx(1)
    assert trained.figures["dead"] <= runs.width_of(network.bottoms[0])


def test_trips_are_linked_by_both_ends(hdb):
    pair = read_hdb(hdb)
    both = [np.concatenate((key, key[::-1]), axis=1) for key in (pair.own_key_NP, pair.their_key_MP)]
    linked = link_places(replace(pair, own_key_NP=both[0], their_key_MP=both[1]), "tau 1", neighbors=3, seed=1, locates=False)
    assert linked.numbers_NK.shape == (len(pair.own), 3)


def test_a_tau_that_no_noise_brings_about_is_said_on_the_page(hdb, quick, monkeypatch):
    def small_tau(pair, noise, **how):
        if noise == "tau 5e-05":
            raise DataError("alignment.similarity.noise.tau = 5e-05: is not feasible")
        return link_places(pair, noise, **how)

    monkeypatch.setattr(sweep, "link_places", small_tau)
    fewer = Compared(("Top1Sim",), ("tau 1", "tau 5e-05"))
    monkeypatch.setitem(PARTS, "tau", replace(PARTS["tau"], runs=[fewer]))
    page = sweep.fedsim_experiment(data=[hdb], only=["tau"], seeds=(1,)).run().page()
    (table,) = page.tables
    assert "5e-05: is not feasible" in table.note
    assert [row[3] is None for row in table.rows] == [False, True]
    assert page.curves[0].series[0].xs == [1.0]


@pytest.mark.long
def test_filters_or_keys_and_other_recipes_and_merges_beside_ours(hdb, quick, monkeypatch):
    monkeypatch.setitem(sweep.paper.NEIGHBORS, "hdb", 4)
    found = sweep.fedsim_experiment(
        data=[hdb], only=["table-11", "recipes", "gains"], methods=["FedSim", "Top1Sim"], seeds=(1, 2)
    ).run()
    assert len(found.rows) == 2 * (2 + 1 + 2)  # ours, by keys, is a row of two parts
    tables = {table.name.partition(":")[0]: table for table in found.page().tables}
    by_keys, by_filters = tables["Table 11"].rows
    assert [by_keys[1:3], by_filters[1:3]] == [["none", 27.13], ["tau 1", 28.29]]  # both with the paper's K, not with ours
    (filters_less_keys,) = tables["Table 11, differences on the same split"].rows
    plain = [row for row in found.rows if row["neighbors"] == 3 and row["recipe"] == "ours"]
    by_noise = {(row["noise"], row["seed"]): row["rmse"] for row in plain}
    lost = spread(by_noise["tau 1", seed] - by_noise["", seed] for seed in (1, 2))
    assert filters_less_keys == ["hdb", "FedSim", "tau 1 less none", "rmse", lost, 2]
    rising = sum(row["weights"][-1] > row["weights"][0] for row in found.rows if row["neighbors"] == 4 and row["weights"])
    assert [row[2:4] for row in tables["Figure 10"].rows if row[2] == 4] == [[4, f"{rising} of 2"]]
    ours, published = tables["FedSim by how it is trained"].rows
    assert [ours[1], published[1]] == ["ours", "the paper's"]
    assert ours[3] != published[3]
    (gain,) = tables["Figure 5 ii"].rows
    rows = {(row["method"], row["seed"]): row["rmse"] for row in found.rows if row["neighbors"] == 4}
    assert gain[4] == spread(100 * (1 - rows["FedSim", seed] / rows["Top1Sim", seed]) for seed in (1, 2))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_sweep_shows_the_papers_numbers_and_resumes(hdb, quick, tmp_path):
    log = tmp_path / "runs.jsonl"
    how = {"data": [hdb], "only": ["table-1"], "methods": ["Solo", "FedSim", sweep.TREES]}
    found = sweep.fedsim_experiment(**how, seeds=(1,)).run(Keeping(log=log))
    again = sweep.fedsim_experiment(**how, seeds=(1, 2)).run(Keeping(log=log, resume=True))
    assert again.rows[:3] == found.rows
    page = again.page()
    rows = {row[0]: row for row in page.tables[0].rows}
    assert rows["FedSim"][1] == 29.38  # of K = 3
    assert rows["FedSim"][2] == spread(row["rmse"] for row in again.rows if row["method"] == "FedSim")
    assert "29.38" in benchmark_html(page)
    names = [curve.name for curve in page.curves]
    assert names == [
        "hdb: learnt weight by similarity, of the first seed",
        "hdb: share of the merge's integrated gradients by link, K = 3",
    ]


def test_the_estimate_without_training_is_that_of_the_definition(hdb, monkeypatch):
    monkeypatch.setitem(sweep.paper.NEIGHBORS, "hdb", 4)
    found = sweep.fedsim_experiment(data=[hdb], only=["delta"], seeds=()).run()
    pair = read_hdb(hdb)
    lost = []
    for place in pair.own_key_NP:
        distances = np.sort(np.hypot(*(pair.their_key_MP - place).T))[:4]
        scaled = (distances.max() - distances) / (distances.max() - distances.min())
        lost.append(1 - scaled[0] + scaled[1:].sum())
    (row,) = found.about["delta"]
    assert row["delta"]["Top1Sim"] == pytest.approx(np.mean(lost), rel=1e-4)
    assert found.rows == []
    assert "20.69" in benchmark_html(found.page())


def test_an_epochs_time_stands_beside_that_of_one_link(hdb, monkeypatch):
    monkeypatch.setitem(sweep.paper.NEIGHBORS, "hdb", 4)
    found = sweep.fedsim_experiment(data=[hdb], only=["table-8"], seeds=(1, 2)).run()
    assert {row["steps"] for row in found.rows} == {1}  # 210 training rows in batches of 256
    assert all(row["epoch_s"] > 0 for row in found.rows)
    (table,) = found.page().tables
    rows = {row[0]: row for row in table.rows}
    assert rows["Top1Sim"][3] == spread([1.0, 1.0])
    assert [rows[method][1] for method in ("FedSim", "attention")] == ["6", None]
    first = {row["method"]: row["epoch_s"] for row in found.rows if row["seed"] == 1}
    second = {row["method"]: row["epoch_s"] for row in found.rows if row["seed"] == 2}
    assert rows["FedSim"][3] == spread([each["FedSim"] / each["Top1Sim"] for each in (first, second)])


def test_random_keys_in_a_table_of_any_size_and_methods_of_choice(quick):
    found = sweep.fedsim_experiment(only=["table-10"], methods=["Solo", "Top1Sim"], rows=400, seeds=(1, 2)).run()
    assert [row["method"] for row in found.rows] == ["Solo", "Top1Sim"] * 2
    assert found.about["rows"] == 400
    page = found.page()
    assert page.facts["rows of the synthetic tables"] == "400"
    assert {row[0]: row[2] for row in page.tables[0].rows} == {"Solo": 0.6076, "Top1Sim": 0.9215}


def test_a_run_that_a_part_asks_for_twice_counts_once(quick):
    """For one K both halves of Table 10 ask for FedSim."""
    found = sweep.fedsim_experiment(only=["table-10"], methods=["FedSim"], rows=200, neighbors=3, seeds=(1,)).run()
    assert len(found.rows) == 1
    assert found.page().tables[0].rows[0][3] == spread([found.rows[0]["accuracy"]])


def test_the_papers_numbers_of_weights_are_those_of_its_widths_or_of_none():
    """Table 9 has 22 numbers, one of which is below the weights of any network that reads the set's columns."""
    found = sweep.fedsim_experiment(only=["table-9"], seeds=()).run()
    rows = {(row["set"], row["method"]): row for row in found.about["sizes"]}
    assert len(rows) == 22
    assert found.rows == []
    odd = {key: row["others"] for key, row in rows.items() if row["weights"] != row["paper"]}
    assert odd.pop(("taxi", "Top1Sim")) == []
    assert min(sizes.CHOICES) * sum(sizes.SETS["taxi"].columns) > rows["taxi", "Top1Sim"]["paper"]
    assert all(len(widths) == 1 for widths in odd.values())
    shown = benchmark_html(found.page())
    assert "136,601" in shown
    assert "200-100-400" in shown


@pytest.mark.long
def test_the_frontier_has_what_noise_costs_beside_what_it_hides(hdb, quick, tmp_path, monkeypatch):
    settings = ("tau 1", "keys moved by 1000 m")
    frontier = replace(PARTS["frontier"], runs=[Compared(("attention",), settings)])
    monkeypatch.setitem(PARTS, "frontier", frontier)
    found = sweep.fedsim_experiment(data=[hdb], only=["frontier"], methods=["attention"], seeds=(1,)).run()
    rows = {(row["noise"], row["method"]): row for row in found.rows}
    assert set(rows) == {(noise, "attention") for noise in settings}
    plain, moved = (rows[noise, "attention"]["located"]["trilateration"] for noise in settings)
    assert plain < 100 < moved < 10_000  # of places that 1,000 m are added to on average, by 12 distances
    page = found.page()
    (table,) = page.tables
    assert len(table.rows) == len(settings)
    assert page.curves[0].name == "hdb: RMSE by what is located"
    write_folder(tmp_path, found.as_json(page), page)
    picture = (tmp_path / "hdb-rmse-by-what-is-located.svg").read_text()
    assert ElementTree.fromstring(picture).tag.endswith("svg")
    assert "attention, noise on keys" in picture


@pytest.mark.long
def test_places_are_linked_as_a_job_links_them(hdb):
    pair = read_hdb(hdb)
    middle_P = pair.own_key_NP.mean(axis=0)  # a small town: beyond their window filters do not distinguish far and farther
    pair = replace(pair, own_key_NP=(pair.own_key_NP + 19 * middle_P) / 20, their_key_MP=(pair.their_key_MP + 19 * middle_P) / 20)
    linked = link_places(pair, "tau 1", neighbors=3, seed=1)
    by_distance = runs.link_pair(pair, neighbors=3, seed=1)
    assert np.array_equal(linked.train_N, by_distance.train_N)
    same = (np.sort(linked.numbers_NK) == np.sort(by_distance.numbers_NK)).mean()
    assert same > 0.7  # filters add up the axes
    assert linked.similarity_NK.std() == pytest.approx(1, abs=1e-3)


def test_differences_are_of_the_same_split():
    figures = [("FedSim", 1, 30.0), ("Top1Sim", 1, 32.0), ("FedSim", 2, 40.0), ("Top1Sim", 2, 43.0), ("attention", 2, 39.0)]
    made = [{"set": "hdb", "method": method, "seed": seed, "rmse": rmse} for method, seed, rmse in figures]
    rows = {row[0]: row[3:] for row in method_differences(made)}
    assert (rows["FedSim less Top1Sim"][0].value, rows["FedSim less Top1Sim"][1]) == (-2.5, 2)
    assert rows["attention less FedSim"] == [spread([-1.0]), 1]


def test_the_linkages_time_of_a_share_of_names_is_that_of_all_pairs(monkeypatch):
    places = table_7.LinkedSet(rows=300, others=60, neighbors=5, places=2)
    names = table_7.LinkedSet(rows=2000, others=600, neighbors=5, share=0.1)
    monkeypatch.setattr(table_7, "SETS", {"taxi": places, "game": names})
    given = []

    def two_seconds(keys, _linked, way):
        given.append((way, *map(len, keys)))
        return 2.0

    monkeypatch.setattr(table_7, "linking_seconds", two_seconds)
    found = sweep.fedsim_experiment(only=["table-7"], seeds=()).run()
    assert given == [("clear", 300, 60), ("private", 300, 60), ("clear", 200, 60), ("private", 200, 60)]
    taxi, game = found.about["linkage"]
    assert taxi["seconds"] == {"clear": 2.0, "private": 2.0}
    assert game["seconds"]["private"] == pytest.approx(200)
    (table,) = found.page().tables
    assert table.rows[0][4:8] == [12.95, 2.0, 594.27, 2.0]


@pytest.mark.parametrize("places", short_lane_of([0, 1, 2], 2))
def test_keys_of_every_kind_are_linked_both_ways(places):
    linked = table_7.LinkedSet(rows=40, others=30, neighbors=5, places=places)
    keys = [table_7.generated_keys(linked, rows, seed=seed) for seed, rows in enumerate((40, 30))]
    assert len(set(keys[0].texts[0])) > 10 if not places else keys[0].numbers_RD.shape == (40, 2 * places)
    assert all(table_7.linking_seconds(keys, linked, way) > 0 for way in table_7.WAYS)


def test_ranks_are_checked_against_filters_as_they_are_defined(monkeypatch):
    job = {"rows": 200, "others": 100, "neighbors": 5}
    checked = linkage._check_filters(job, sample=20, others=30, deviation=0.2)
    assert (checked["rows"], checked["others"], checked["different"]) == (20, 30, 0)
    shifted = Pivots.ranks
    monkeypatch.setattr(Pivots, "ranks", lambda pivots, values_N: shifted(pivots, values_N + 0.001))
    with pytest.raises(DataError, match="not those of true filters"):
        linkage._check_filters(job, sample=20, others=30, deviation=0.2)


def test_the_search_in_the_clear_grows_with_the_rows():
    """Forty times the rows take far more than twice the time."""
    few, many = (linkage.clear_cpu_seconds({"rows": rows, "others": 500, "neighbors": 20}) for rows in (500, 20_000))
    assert many > 2 * few > 0


def test_one_table_split_by_columns():
    pair = read_synthetic(rows=400)
    assert not set(pair.own_columns.numeric) & set(pair.their_columns.numeric)
    noisy = runs.link_pair(pair, neighbors=3, seed=1, key_noise=0.5)
    exact = runs.link_pair(pair, neighbors=3, seed=1)
    assert (exact.numbers_NK[:, 0] == np.arange(400)).all()
    assert (noisy.numbers_NK[:, 0] != np.arange(400)).any()
    numbers_N1, _ = runs._links(noisy, METHODS["Combine"], 1)
    assert numbers_N1[:, 0].tolist() == list(range(400))


@pytest.mark.long
def test_three_feature_parties_share_the_columns_out(hdb, quick):
    found = sweep.fedsim_experiment(data=[hdb], only=["table-6"], seeds=(1,)).run()
    rows = {(row["parties"], row["method"]): row for row in found.rows}
    assert {parties for parties, _ in rows} == {"1+2+3", "1+2", "1+3", "2+3", "1", "2", "3"}
    assert rows["1+2+3", "FedSim"]["parameters"] > rows["1+2", "FedSim"]["parameters"] > rows["1", "FedSim"]["parameters"]
    pair = read_hdb(hdb)
    dealt = [name for columns in pair.shared_out([1, 2, 3]).parties for name in columns.numeric]
    assert sorted(dealt) == sorted(pair.their_columns.numeric)
    assert len(found.page().tables[0].rows) == 14


def test_keys_that_tell_nothing_but_which_rows_are_one_thing():
    pair, plain = read_independent(rows=400), read_synthetic(rows=400)
    assert (runs.link_pair(pair, neighbors=3, seed=1).numbers_NK[:, 0] == np.arange(400)).all()
    columns_NF = pair.theirs.select(pair.their_columns.numeric).to_numpy()
    most = [abs(np.corrcoef(columns_NF.T, each.own_key_NP.T)[:20, 20:]).max() for each in (pair, plain)]
    assert most[0] < 0.25 < most[1]  # a correlation of 400 rows by chance has deviation .05


def test_more_links_than_there_are_rows_are_refused_before_a_run(hdb, tmp_path):
    with pytest.raises(ConfigError, match="hdb has 12 rows to link to, and K = 20 is asked for"):
        sweep.fedsim_experiment(data=[hdb], only=["neighbors"], seeds=(1,)).run(Keeping(log=tmp_path / "out" / "runs.jsonl"))
    assert not (tmp_path / "out").exists()


def test_what_there_is_not_is_refused(tmp_path):
    with pytest.raises(DataError, match="holds none of airbnb_clean"):
        sweep.fedsim_experiment(data=[tmp_path], seeds=(1,)).run()
    with pytest.raises(ConfigError, match="unknown part figure-1"):
        sweep.fedsim_experiment(data=[], seeds=(1,), only=["figure-1"]).run()
    with pytest.raises(ConfigError, match="unknown method Median"):
        sweep.fedsim_experiment(data=[], seeds=(1,), methods=["Median"]).run()
    for read in (read_house, read_hdb, read_bike, read_frogs):
        with pytest.raises(DataError, match="cannot be read"):
            read(tmp_path)
