"""bench training: what it refuses, and that processor time is given by process."""

import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from tallystick_experiments.app import command_line
from tallystick_experiments.speed.workers import _ProcessorClock


@pytest.mark.parametrize("other", [["--scenario", "small"], ["--unaligned", "warm-start"]])
def test_options_that_exclude_each_other(other: list[str]) -> None:
    refused = CliRunner().invoke(command_line(["training"]), ["training", "--training-workers", "2", *other])
    assert refused.exit_code == 2
    assert "--training-workers: only works with --scenario criteo or larger" in refused.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--device", "gpu"], "--device gpu: PyTorch cannot use it"),
        (["--device", "cuda:97"], "--device cuda:97: PyTorch cannot use it"),
        (["--device", "cuda", "--unaligned", "warm-start"], "--device cuda: only works with --scenario alone"),
        (["--scenario", "smal"], "--scenario smal: is none of all, small, criteo, wide"),
    ],
)
def test_devices_and_scenarios_that_are_not_there(given: list[str], said: str) -> None:
    refused = CliRunner().invoke(command_line(["training"]), ["training", *given])
    assert refused.exit_code == 2
    assert said in refused.output


@pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="Linux only")
def test_processor_time_is_told_by_process() -> None:
    """A child that computes all the time has at least a tenth of its time, on a busy machine; the other process sleeps."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            clock = _ProcessorClock(1, 2)
            clock.at(1)
            time.sleep(0.5)
            clock.at(2)
        finally:
            child.kill()
    own, *others = clock.processor_ms()
    assert own < 100
    assert max(others) > own
