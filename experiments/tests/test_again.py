"""Kept rows made again: equal ones are counted, a changed one is found, and what cannot be made again is left out by name."""

import json

import numpy as np
import pytest

from tallystick.errors import ConfigError, DataError
from tallystick_experiments import again
from tallystick_experiments.again import compared, declared_by, made_again, main


def trial(*, seed, scale):
    return {
        "auc": round(np.sqrt(2) * scale, 12),
        "attacks": {"norm": [seed / 3, None]},
        "seconds": np.random.default_rng().random(),
    }


def test_figures_are_compared_to_the_digits_that_are_kept_and_seconds_are_not():
    case = {"seed": 2, "scale": 0.5}
    kept = {**case, "auc": 0.707107, "attacks": {"norm": [0.666667, None]}, "seconds": 9.0}
    assert compared("name", case, kept, trial)["same"]
    changed = compared("name", case, {**kept, "attacks": {"norm": [0.666666, None]}}, trial)
    assert not changed["same"]
    assert changed["of"] == "attacks.norm.0"
    assert changed["largest_difference"] == pytest.approx(1e-6)
    assert not compared("name", case, {**kept, "ace": 0.1}, trial)["same"]  # a figure that is no longer made


def test_rows_of_a_sweep_are_drawn_made_and_counted(tmp_path, monkeypatch, capsys):
    """Return the retraining benchmark's first rows, of a sweep that a stand-in declares instead."""
    cases = [{"seed": seed, "scale": scale} for seed in range(3) for scale in (0.5, 1.0)]
    sweep = type("Sweep", (), {"cases": cases, "trial": staticmethod(trial)})
    monkeypatch.setattr(again, "declared_by", lambda *_: sweep)
    monkeypatch.setattr(again, "RUNS", tmp_path)
    rows = [again.rounded({**case, **trial(**case)}) for case in cases]
    rows[-1]["auc"] = 0.5
    head = {"command": "tallystick bench x", "commit": "abc"}
    (tmp_path / "x.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (head, *rows)))
    assert [row["rows_of"] for row in made_again(tmp_path / "x.jsonl", tmp_path, 4)] == ["abc"] * 4
    main([str(tmp_path), "9", "x"])
    assert json.loads(capsys.readouterr().out.splitlines()[-1]) == {"rows": 6, "same": 5}


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("tallystick bench line --turns 2", "keeps no runs that could be made one by one"),
        ("make demo", "is not one command of tallystick bench"),
        ("tallystick bench florist --data nowhere.csv", "has no nowhere.csv, which the command names"),
    ],
)
def test_commands_that_declare_no_sweep_here_are_named(tmp_path, command, said):
    with pytest.raises(DataError, match=said):
        declared_by(command, tmp_path)


def test_a_sweep_is_declared_by_its_command():
    sweep = declared_by("tallystick bench retraining --rows 3000 --months 8 --epochs 12 --seeds 2", None)
    assert {case["seed"] for case in sweep.cases} == {1, 2}


def test_rows_of_a_graphics_card_and_sweeps_without_rows_are_left_out(tmp_path, monkeypatch):
    case = {"seed": 1, "table": "wine"}
    cases = [{**case, "method": method} for method in ("default", "tabm")]
    sweep = type("Sweep", (), {"cases": cases, "trial": staticmethod(lambda **_: {"value": 0.5})})
    monkeypatch.setattr(again, "declared_by", lambda *_: sweep)
    head = {"command": "tallystick bench x", "commit": "abc"}
    path = tmp_path / "x.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (head, *({**each, "value": 0.5} for each in cases))))
    assert [row["method"] for row in made_again(path, tmp_path, 9)] == ["default"]
    sweep.cases = [{**each, "split": "varied"} for each in cases]  # a field that older rows lack, the same for all
    assert [row["split"] for row in made_again(path, tmp_path, 9)] == ["varied"]
    sweep.cases = [{**cases[0], "split": split} for split in ("varied", "fixed")]
    with pytest.raises(DataError, match="none of its rows is one of its cases"):
        list(made_again(path, tmp_path, 9))
    sweep.cases = []
    with pytest.raises(DataError, match="makes no rows one by one"):
        list(made_again(path, tmp_path, 9))


def test_a_command_that_names_a_device_is_declared_without_one():
    sweep = declared_by("tallystick bench quality --tables wine --methods default,tabm --device cuda --seeds 1", None)
    assert [case["method"] for case in sweep.cases] == ["default", "tabm"]


def test_words_that_are_missing_are_named():
    with pytest.raises(ConfigError, match="wanted: DATA COUNT"):
        main(["data"])
