"""A sweep's log gives back every finished run and nothing else, whatever cut it short."""

import pytest

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


@pytest.mark.parametrize("content", [b"not json\n", b'{"name": 1}\n[1]\n', b"\xff\xfe\n"])
def test_a_file_of_something_else_is_refused_and_kept(tmp_path, content):
    path = tmp_path / "runs.jsonl"
    path.write_bytes(content)
    with pytest.raises((DataError, ConfigError), match="another"):
        SweepLog(path, setting=SETTING, resume=True)
    assert path.read_bytes() == content
