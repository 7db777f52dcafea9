"""A sweep makes each case once, and its log returns every finished run and nothing else, wherever it was interrupted."""

import re

import pytest

from tallystick import __version__
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.grid import Keeping, Latest, SweepLog, grid, run_cases
from tallystick_experiments.stats import Spread, at, change, over_seeds, paired, spread

SETTING = {"name": "criteo", "hidden": (1, 2), "epochs": 3}


def test_runs_come_back_in_order_and_a_half_written_one_is_dropped(tmp_path):
    path = tmp_path / "runs.jsonl"
    log = SweepLog(path, setting=SETTING, resume=False)
    for number in range(3):
        log.add({"seed": number, "auc": 0.1 * number})
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        resumed = SweepLog(path, setting=SETTING, resume=True)
        assert resumed.runs == log.runs[: max(0, whole[:cut].count(b"\n") - 1)]
        resumed.add({"seed": 9})
        assert SweepLog(path, setting=SETTING, resume=True).runs[-1] == {"seed": 9}


def test_another_sweep_is_refused_by_the_keys_that_differ(tmp_path):
    path = tmp_path / "runs.jsonl"
    SweepLog(path, setting=SETTING, resume=True).add({"seed": 1})
    with pytest.raises(ConfigError, match=r"epochs differ; choose another --out"):
        SweepLog(path, setting={**SETTING, "epochs": 2}, resume=True)
    with pytest.raises(ConfigError, match="--resume"):
        SweepLog(path, setting=SETTING, resume=False)


def test_a_log_of_another_version_is_refused_by_both_versions(tmp_path):
    path = tmp_path / "runs.jsonl"
    SweepLog(path, setting=SETTING, resume=True)
    path.write_text(path.read_text().replace(f'"tallystick": "{__version__}"', '"tallystick": "0.0.7"'))
    with pytest.raises(
        ConfigError, match=rf"written by tallystick 0\.0\.7, this is {re.escape(__version__)}; choose another --out"
    ):
        SweepLog(path, setting=SETTING, resume=True)


@pytest.mark.parametrize("line", ['{"seed": 1, "au', "7"])
def test_a_damaged_line_is_named_and_going_on_without_it_works(tmp_path, line):
    path = tmp_path / "runs.jsonl"
    log = SweepLog(path, setting=SETTING, resume=True)
    for seed in range(3):
        log.add({"seed": seed})
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], line, lines[3], ""]))
    with pytest.raises(DataError, match="line 3 is not a run of a sweep; delete it and go on by --resume"):
        SweepLog(path, setting=SETTING, resume=True)
    path.write_text("\n".join([*lines[:2], lines[3], ""]))
    assert SweepLog(path, setting=SETTING, resume=True).runs == [{"seed": 0}, {"seed": 2}]


@pytest.mark.parametrize("content", [b"not json\n", b'{"name": 1}\n[1]\n', b"\xff\xfe\n"])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    with pytest.raises((DataError, ConfigError), match="another"):
        SweepLog(path, setting=SETTING, resume=True)
    assert path.read_bytes() == content


# --- the loop


def made_in(made):
    """A trial that records what it made."""

    def trial(name, seed):
        made.append((name, seed))
        return {"auc": seed / 10}

    return trial


CASES = [{"name": name, "seed": seed} for seed in (1, 2) for name in ("a", "b")]


def test_a_grid_has_every_combination_with_the_first_field_outermost():
    assert [(case["name"], case["seed"]) for case in grid(seed=(1, 2), name="ab")] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]


def test_what_the_log_has_is_not_made_again_and_the_order_is_that_of_the_cases(tmp_path):
    made, said = [], []
    log = tmp_path / "runs.jsonl"
    some = run_cases(grid(name="b", seed=(1, 2)), made_in(made), Keeping(log=log), {"of": 1})
    keeping = Keeping(log=log, resume=True, progress=lambda *line: said.append(line))
    rows = run_cases(CASES, made_in(made), keeping, {"of": 1})
    assert made == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    assert [(row["name"], row["seed"]) for row in rows] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [row for row in rows if row["name"] == "b"] == some
    assert said[:2] == [("name = b, seed = 1", 1, 4), ("name = b, seed = 2", 2, 4)]
    assert [line[1:] for line in said] == [(done, 4) for done in range(1, 5)]


def test_a_case_that_is_declared_twice_is_refused():
    with pytest.raises(ConfigError, match="this sweep has the run name = a, seed = 1 twice; name each case once"):
        run_cases(grid(name="aa", seed=[1]), made_in([]), Keeping(), {})


def test_a_log_that_holds_a_run_twice_or_lacks_a_field_is_refused_by_its_line(tmp_path):
    log = tmp_path / "runs.jsonl"
    run_cases(CASES, made_in([]), Keeping(log=log), {})
    whole = log.read_text()
    log.write_text(whole + whole.splitlines()[2] + "\n")
    with pytest.raises(DataError, match="line 6 has the run name = b, seed = 1 of line 3 again; delete one"):
        run_cases(CASES, made_in([]), Keeping(log=log, resume=True), {})
    log.write_text(whole.replace('"name": "b", ', "", 1))
    with pytest.raises(DataError, match="line 3 has no name; it is of another sweep"):
        run_cases(CASES, made_in([]), Keeping(log=log, resume=True), {})
    made = []
    rows = run_cases(CASES, made_in(made), Keeping(log=log, resume=True), {}, usual={"name": "b"})
    assert (made, rows[1]["name"]) == ([], "b")


def test_only_the_latest_is_kept():
    made = []
    latest = Latest(lambda number, *, seed=0: made.append((number, seed)) or len(made))
    assert [latest(1), latest(1), latest(1, seed=2), latest(1, seed=2), latest(1)] == [1, 1, 2, 2, 3]


def test_a_change_is_over_the_seeds_of_both_sides_and_nothing_without_one():
    ours, theirs = (
        [{"seed": seed, "auc": auc} for seed, auc in found] for found in ([(1, 0.5), (2, 0.75)], [(2, 0.5), (3, 0.9)])
    )
    assert paired(ours, theirs, "auc") == [0.25]
    assert change(ours, theirs, "auc") == Spread(value=0.25)
    assert change(ours, theirs[1:], "auc") is None


def test_a_spread_is_students_and_a_figure_that_is_nowhere_is_none():
    found = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found.value == 3.0
    assert found.high - 3 == pytest.approx(2.776 * 2.5**0.5 / 5**0.5, rel=2e-3)
    assert spread([2.0]) == Spread(value=2.0)
    rows = [{"deep": {"figure": 1.0}}, {"deep": {}}, {}]
    assert over_seeds(rows, at("deep", "figure")) == Spread(value=1.0)
    assert over_seeds(rows, "absent") is None
