"""Outcomes of rows made again: each sweep's latest are kept, and those of rows that are no longer kept are not shown."""

import json

import pytest

from tallystick.errors import ConfigError
from tallystick_experiments import outcomes
from tallystick_experiments.outcomes import keep_outcomes, main, outcomes_page


def write(path, *lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def outcome(name, of, same, apart=0.0):
    return {"rows_of": of, "results": name, "seed": 1, "same": same, "largest_difference": apart, "of": "auc", "kept": 0.5}


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Make two files of results: the first has an hour in its rows, one of which is in both."""
    monkeypatch.setattr(outcomes, "RUNS", tmp_path)
    shared = {"seed": 1, "auc": 0.5, "months": [{"seconds": 1800.0}]}
    write(tmp_path / "one.jsonl", {"benchmark": "quality", "commit": "aaa"}, shared, {"seed": 2, "auc": 0.5, "seconds": 1800.0})
    write(tmp_path / "two.jsonl", {"benchmark": "quality", "commit": "bbb"}, shared)
    return tmp_path


def lines_of(runs):
    _, *rows = (json.loads(line) for line in (runs / "again.jsonl").read_text().splitlines())
    return outcomes_page({}, rows), {row[0]: row[1:] for row in outcomes_page({}, rows).tables[0].rows}


def test_what_came_out_stands_beside_the_commits_of_both(runs):
    log = runs / "log"
    write(log, outcome("one", "aaa", True), outcome("one", "aaa", False, 0.25), {"rows": 2, "same": 1})
    keep_outcomes(log, "ccc", runs / "again.jsonl")
    page, lines = lines_of(runs)
    assert lines["[one](../quality/one.md)"] == [2, "aaa", 2, 1, "ccc", "0.25 of auc", "not looked for"]
    assert lines["[two](../quality/two.md)"] == [1, "bbb", None, None, None, None, None]
    assert page.facts == {
        "made again": "2 rows of 1 pages; 1 are the same",
        "distinct rows that are kept (some pages share rows)": "2; those that say their seconds took 1 hours of one core",
    }


def test_later_outcomes_replace_a_sweeps_own_alone(runs):
    log, kept = runs / "log", runs / "again.jsonl"
    write(log, outcome("one", "aaa", False), outcome("two", "bbb", True))
    keep_outcomes(log, "ccc", kept)
    write(log, outcome("one", "aaa", True))
    keep_outcomes(log, "ddd", kept)
    _, lines = lines_of(runs)
    assert [lines[f"[{name}](../quality/{name}.md)"][2:5] for name in ("one", "two")] == [[1, 1, "ddd"], [1, 1, "ccc"]]


def test_outcomes_of_rows_that_are_kept_no_longer_are_not_shown(runs):
    write(runs / "log", outcome("one", "before", True), {"results": "two", "left_out": "make demo: is no sweep"})
    keep_outcomes(runs / "log", "ccc", runs / "again.jsonl")
    page, lines = lines_of(runs)
    assert lines["[one](../quality/one.md)"][2:] == [None, None, None, None, "its rows are newer than the try"]
    assert lines["[two](../quality/two.md)"][2:] == [None, None, None, None, "is no sweep"]
    assert page.facts["made again"] == "0 rows of 0 pages; 0 are the same"


def test_words_that_are_missing_are_named(tmp_path):
    with pytest.raises(ConfigError, match="wanted: LOG COMMIT"):
        main([str(tmp_path / "none"), "abc"])
