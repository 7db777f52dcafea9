"""Parties as processes: results, and an end, with the first failure first, whatever one of them does."""

import os
import sys
import time
from pathlib import Path

import pytest
from shouting import party

from tallystick.demo.localhost import FEATURE, LABEL, PAIR, PartyProcesses, run_parties
from tallystick.errors import TallystickError
from tallystick.network.session import Limits

THREE = {"a": {"b": False, "c": False}, "b": {"a": True}, "c": {"a": True}}
QUICK = Limits(heartbeat_s=0.3, deadline_s=2.0, wait_s=60.0)


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))


@pytest.mark.long
def test_every_partys_result_comes_back_however_much_they_print_meanwhile(tmp_path):
    what = dict.fromkeys(THREE, "ready loud")
    outcome = run_parties(tmp_path, party, THREE, what, timeout_s=60, limits=QUICK)
    assert outcome.results == {"a": ["b says hello", "c says hello"], "b": ["a says hello"], "c": ["a says hello"]}
    assert 0 < outcome.seconds < 60
    for name in THREE:  # each home holds its own key and nobody else's
        assert {path.name for path in (tmp_path / name).iterdir()} == {"ca.pem", "own.pem", "own.key"}
        assert (tmp_path / name / "own.key").stat().st_mode & 0o077 == 0


def pair(folder, *, timeout_s=60, **what):
    return run_parties(folder, party, PAIR, {LABEL: "", FEATURE: "", **what}, timeout_s=timeout_s, limits=QUICK)


@pytest.mark.long
@pytest.mark.parametrize("behind", [LABEL, FEATURE])
def test_an_error_of_one_ends_all_and_stands_first_whoever_is_read_first(tmp_path, behind):
    def put_late(line):
        time.sleep(1.5 if line[0] == behind and "error" in (line[1] or {}) else 0)
        put(line)

    arguments = {LABEL: "ready", FEATURE: "ready wrong"}
    with PartyProcesses(tmp_path, party, PAIR, arguments, limits=QUICK) as parties:
        put, parties._lines.put = parties._lines.put, put_late
        with pytest.raises(TallystickError, match=r"^feature: the secret column is wrong; label: feature stopped") as caught:
            parties.run(timeout_s=60)
    assert str(caught.value).count("secret") == 1  # the peer was told that it stopped, not why


@pytest.mark.long
def test_a_bug_is_shown_with_its_traceback_and_nobody_waits_for_a_start_that_never_comes(tmp_path):
    started = time.monotonic()
    with pytest.raises(TallystickError, match=r"(?s)^label: failed unexpectedly.*RuntimeError: a bug"):
        pair(tmp_path, label="bug", feature="ready")
    assert time.monotonic() - started < 60


@pytest.mark.long
def test_parties_that_hang_are_ended_and_say_where_they_stood(tmp_path):
    with (
        PartyProcesses(tmp_path, party, PAIR, {LABEL: "", FEATURE: "stuck"}, limits=QUICK) as parties,
        pytest.raises(TallystickError, match=r"(?s)feature had not ended in time.*shouting.py.* in party"),
    ):
        parties.run(timeout_s=1)
    assert not [pid for pid in parties.pids.values() if (Path("/proc") / str(pid)).exists()]
