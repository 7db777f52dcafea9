"""The lines on a fault and on a long load follow from what was counted."""

import pytest

from tallystick_experiments.speed import serving_far
from tallystick_experiments.speed.serving_faults import FAULTS, LOOK_S, Counts
from tallystick_experiments.speed.serving_memory import trend
from tallystick_experiments.speed.serving_page import serving_page


def counts(*shares):
    """Make ten rows at each look, so many of which are scored jointly."""
    seen, joint, alone = [(0.0, 0.0, 0.0)], 0.0, 0.0
    for place, share in enumerate(shares, start=1):
        joint, alone = joint + 10 * share, alone + 10 * (1 - share)
        seen.append((place * LOOK_S, joint, alone))
    return Counts(job=None, seen=seen)


def test_joint_scores_are_back_once_nearly_all_rows_of_some_looks_have_them():
    seen = counts(*[1.0] * 10, *[0.0] * 20, *[1.0] * 20)
    assert seen.back(10 * LOOK_S) == pytest.approx(35 * LOOK_S)
    assert seen.back(46 * LOOK_S) is None
    assert seen.share_alone(10 * LOOK_S, 30 * LOOK_S) == 1.0
    assert seen.share_alone(0.0, 20 * LOOK_S) == 0.5


def test_what_grows_is_said_to_grow_and_what_does_not_is_not():
    seen = [(second, {"mib": 100 + second / 30, "threads": 7.0}) for second in range(0, 600, 5)]
    found = trend(seen)
    assert found["mib_a_minute"] == pytest.approx(2.0)
    assert found["threads_a_minute"] == pytest.approx(0.0, abs=1e-9)
    assert (found["mib_first"], found["mib_last"]) == (100.0, pytest.approx(100 + 595 / 30))


def test_the_page_has_a_table_for_each_part_that_was_measured():
    about = {"rows": 2000, "way": "key", "cores": 2, "load": 0.1}
    asked = {"requests": 1000, "failed": 0, "p50_ms": 1.0, "p99_ms": 2.0, "slowest_ms": 3.0}
    load = {"part": "load", "what": "serve", "client": "hey", "rate": 100, "per_second": 99.0, "label_cpu_ms": 0.5, "cpu_ms": 0.5}
    floor = {"part": "round trip", "rate": 100, "cpu_ms": 0.5}
    rows = [load | asked, floor, *({"part": "faults", "fault": name, **asked, "alone": 1.0, "back_s": None} for name in FAULTS)]
    page = serving_page(about, rows)
    assert [len(table.rows) for table in page.tables] == [1, 1, len(FAULTS)]


def test_troubles_take_turns_and_fit_into_the_time():
    assert [name for name, _ in serving_far.plan(20)][:3] == list(serving_far.IN_TURN)
    for minutes in (0.5, 3, 20):
        plan = serving_far.plan(minutes)
        assert serving_far.BETWEEN_S + sum(lasts_s + serving_far.BETWEEN_S for _, lasts_s in plan) <= max(60 * minutes, 60)
    assert {lasts_s for _, lasts_s in serving_far.plan(20)} == set(serving_far.LASTS_S)
