"""Time an epoch with unaligned rows: what is trained, and how the figures follow from the turns."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from lanes import short_lane_of
from typer.testing import CliRunner

from tallystick.config.sections import NetworkModel
from tallystick.errors import ConfigError
from tallystick.network.channel import memory_channels
from tallystick_experiments.app import command_line
from tallystick_experiments.speed import unaligned
from tallystick_experiments.speed.training import SCENARIOS


@pytest.mark.parametrize("method", short_lane_of(["warm-start", "multi-task", "diffu-at"], 2))
def test_both_ways_train_on_the_same_aligned_rows_and_are_timed(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unaligned, "EPOCHS", 2)
    monkeypatch.setattr(unaligned, "MODEL", NetworkModel(hidden=(8, 6), cut_after=1, embedding_width=2))
    rows = unaligned.TimedRows.of(replace(SCENARIOS["small"], rows=130, batch_size=32))
    given: dict[str, list[Any]] = {"label": [], "feature": []}
    for name, run in (("label", unaligned.train_label), ("feature", unaligned.train_feature)):

        def listening(*arguments: Any, name: str = name, run: Any = run, **more: Any) -> None:
            given[name].append(arguments[4])
            run(*arguments, **more)

        monkeypatch.setattr(unaligned, f"train_{name}", listening)
    turns = ["none", method] * 2
    label, feature = memory_channels("label", "feature", timeout_s=20)
    with ThreadPoolExecutor(2) as threads:
        found = threads.submit(unaligned.as_label_party, rows, label, turns)
        threads.submit(unaligned.as_feature_party, rows, feature, turns).result(timeout=20)
        seconds = found.result(timeout=20)
    assert {name: [len(each) for each in parts.values()] for name, parts in seconds.items()} == {"none": [2, 2], method: [2, 2]}
    assert all(value > 0 for parts in seconds.values() for each in parts.values() for value in each)
    for schedules in given.values():
        assert [schedule.steps_per_epoch for schedule in schedules] == [5, 5 if method == "warm-start" else 10] * 2
        assert all(torch.equal(schedule.train_N, torch.arange(130)) for schedule in schedules)
        assert [schedule.epochs_before for schedule in schedules] == [0, int(method == "diffu-at")] * 2
    assert not any(len(schedule.local_N) for schedule in given["feature"])
    others_N = torch.cat([rows.unaligned_N, rows.validation_N]).sort().values
    assert torch.equal(others_N, torch.arange(130, 5 * 130))


def test_medians_and_ratios_of_the_same_turn_by_hand() -> None:
    seconds = {
        "none": {"before": [9.0, 9.0, 9.0], "epoch": [1.0, 2.0, 4.0]},
        "offset": {"before": [10.0, 30.0, 16.0], "epoch": [1.5, 2.2, 6.0]},
    }
    found = unaligned.figures("offset", seconds)
    assert (found["epoch_s"], found["none_epoch_s"], found["before_s"]) == (2.2, 2.0, 16.0)
    assert found["epoch_ratio"] == pytest.approx(1.5)  # of 1.5, 1.1 and 1.5
    assert found["before_in_epochs_of_none"] == pytest.approx(10.0)  # of 10, 15 and 4


def test_a_method_that_there_is_not_and_options_that_exclude_each_other() -> None:
    for name in ("none", "guess"):
        with pytest.raises(ConfigError, match=f"--unaligned {name}: expected one of warm-start, offset"):
            unaligned.measure_unaligned(method=name)
    for other in (["--scenario", "criteo"], ["--scenario", "criteo", "--turns", "2"]):
        refused = CliRunner().invoke(command_line(["training"]), ["training", "--unaligned", "warm-start", *other])
        assert refused.exit_code == 2
        assert "--unaligned: goes by itself" in refused.output
