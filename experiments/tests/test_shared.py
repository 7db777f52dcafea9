"""A sweep's log gives back every finished run and nothing else, whatever cut it short."""

import re

import pytest

from tallystick import __version__
from tallystick.errors import ConfigError, DataError
from tallystick_experiments.shared import SweepLog

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
