"""A sweep makes each case once, and its log gives back every finished run and nothing else, whatever cut it short."""

import re
from operator import itemgetter

import pytest

from tallystick import __version__
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.grid import Case, Keeping, Latest, SweepLog, run_cases
from tallystick_experiments.stats import change, paired, summarize_seeds

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


def cases(made, names=("a", "b"), seeds=(1, 2)):
    def case(name, seed):
        def trial():
            made.append((name, seed))
            return {"auc": seed / 10}

        return Case(key={"name": name, "seed": seed}, trial=trial, title=f"{name} {seed}")

    return [case(name, seed) for seed in seeds for name in names]


def test_what_the_log_has_is_not_made_again_and_the_order_is_that_of_the_cases(tmp_path):
    made, said = [], []
    log = tmp_path / "runs.jsonl"
    some = run_cases(cases(made, names=("b",)), Keeping(log=log), {"of": 1})
    keeping = Keeping(log=log, resume=True, progress=lambda *line: said.append(line))
    rows = run_cases(cases(made), keeping, {"of": 1}, total=4)
    assert made == [("b", 1), ("b", 2), ("a", 1), ("a", 2)]
    assert [(row["name"], row["seed"]) for row in rows] == [("a", 1), ("b", 1), ("a", 2), ("b", 2)]
    assert [row for row in rows if row["name"] == "b"] == some
    assert said == [("a 1", 1, 4), ("b 1", 2, 4), ("a 2", 3, 4), ("b 2", 4, 4)]


def test_a_case_that_is_declared_twice_is_refused():
    with pytest.raises(ConfigError, match="this sweep has the run name = a, seed = 1 twice; name each case once"):
        run_cases(cases([], names=("a", "a")), Keeping(), {})


def test_a_log_that_holds_a_run_twice_or_lacks_a_field_is_refused_by_its_line(tmp_path):
    log = tmp_path / "runs.jsonl"
    run_cases(cases([]), Keeping(log=log), {})
    whole = log.read_text()
    log.write_text(whole + whole.splitlines()[2] + "\n")
    with pytest.raises(DataError, match="line 6 has the run name = b, seed = 1 of line 3 again; delete one"):
        run_cases(cases([]), Keeping(log=log, resume=True), {})
    log.write_text(whole.replace('"name": "b", ', "", 1))
    with pytest.raises(DataError, match="line 3 has no name; it is of another sweep"):
        run_cases(cases([]), Keeping(log=log, resume=True), {})
    made = []
    rows = run_cases(cases(made), Keeping(log=log, resume=True), {}, usual={"name": "b"})
    assert (made, rows[1]["name"]) == ([], "b")


def test_only_the_latest_is_kept():
    made = []
    latest = Latest(lambda number, *, seed=0: made.append((number, seed)) or len(made))
    assert [latest(1), latest(1), latest(1, seed=2), latest(1, seed=2), latest(1)] == [1, 1, 2, 2, 3]


def test_differences_are_of_one_seed():
    ours, theirs = (
        [{"seed": seed, "auc": value} for seed, value in each] for each in ([(1, 0.5), (2, 0.7)], [(2, 0.6), (3, 0.1)])
    )
    assert paired(ours, theirs, lambda each: each["auc"]) == pytest.approx([0.1])
    assert summarize_seeds([0.5]) == {"mean": 0.5, "n": 1}


def test_a_change_is_over_the_seeds_of_both_sides_and_nothing_without_one():
    ours, theirs = (
        [{"seed": seed, "auc": auc} for seed, auc in found] for found in ([(1, 0.5), (2, 0.75)], [(2, 0.5), (3, 0.9)])
    )
    assert change(ours, theirs, itemgetter("auc")) == {"mean": 0.25, "n": 1}
    assert change(ours, theirs[1:], itemgetter("auc")) is None
