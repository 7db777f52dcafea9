"""Compare check's estimate of an alignment's cost with what such an alignment sends."""

import re

import pytest
from tiny import contract_values

from tallystick.config.contract import Contract
from tallystick.job import alignment_cost as module
from tallystick.job.alignment_cost import alignment_cost, line_note

SAID = re.compile(
    r"with (\d+) ids .*?: about ([\d.e+]+) s of processor time .* and ([\d.e+]+) MB of messages \(([\d.e+]+) s at 100"
)


def contract_of(**alignment):
    values = contract_values(("bank", "shop"))
    values["alignment"] |= alignment
    return Contract.model_validate(values)


def said(contract, ids):
    line = alignment_cost(contract, ids)
    assert line is not None
    found = SAID.match(line)
    assert found is not None, line
    return [float(number) for number in found.groups()]


def test_a_million_ids_cost_what_they_cost():
    """A real alignment has 81.8 MB of corrections, 30 bytes for each id, and 4 for each common id, which are half. The trial's
    ids take 9.
    """
    ids, seconds, megabytes, at_100_mbit = said(contract_of(protocol="oblivious-transfer"), 1_000_000)
    assert ids == 1_000_000
    assert seconds > 0
    assert megabytes == pytest.approx(114, rel=0.1)
    assert at_100_mbit == pytest.approx(megabytes / 12.5, rel=0.1)


@pytest.mark.long
def test_security_against_cheaters_costs_what_it_costs():
    """A store has some 1.36 slots an id, of 80 bytes; there are two, and 16 bytes of tag an id and side. A million ids
    took 253 MB.
    """
    _, seconds, megabytes, _ = said(contract_of(security="malicious"), 1_000_000)
    assert seconds > 0
    assert megabytes == pytest.approx(250, rel=0.1)


@pytest.mark.long
def test_a_union_costs_what_it_costs():
    """A million ids took 790 MB. The estimate lets all of it grow as switches do, which are only two fifths of it."""
    _, seconds, megabytes, _ = said(contract_of(method="union"), 1_000_000)
    assert seconds > 0
    assert megabytes == pytest.approx(790, rel=0.25)


def test_what_multiplies_for_each_id_is_extrapolated_from_fewer(monkeypatch):
    monkeypatch.setattr(module, "_MULTIPLIED", (5, 25))
    _, seconds, megabytes, _ = said(contract_of(protocol="diffie-hellman"), 100_000)
    assert seconds > 0
    assert megabytes == pytest.approx(100_000 * (2 * 32 + 2 * 16 + 2) / 1e6, rel=0.2)


@pytest.mark.parametrize(
    ("clock", "expected"),
    [
        pytest.param({50: 0.5, 450: 0.9}, 0.5 + (100_000 - 50) * 0.4 / 400, id="the difference of two trials"),
        pytest.param({50: 0.9, 450: 0.5}, 100_000 * 0.5 / 450, id="the small one was disturbed"),
    ],
)
def test_seconds_follow_from_two_trials_after_one_that_is_not_counted(clock, expected, monkeypatch):
    trials = []

    def trial(_contract, ids, *, hashes):
        trials.append(ids)
        return module._Cost(cpu_seconds=clock.get(ids, 99.0), sent_bytes=100.0 * ids)

    monkeypatch.setattr(module, "_trial", trial)
    _, seconds, *_ = said(contract_of(protocol="diffie-hellman"), 100_000)
    assert trials == [5, 50, 450]
    assert seconds == pytest.approx(expected, rel=0.05)


def test_few_ids_cost_nothing_worth_a_line():
    assert alignment_cost(contract_of(), module.MANY_IDS - 1) is None


@pytest.mark.parametrize(
    ("alignment", "ids", "expected"),
    [
        ({}, 500, "auto takes diffie-hellman"),
        ({}, 100_000, "auto takes oblivious-transfer"),
        ({"protocol": "diffie-hellman"}, 100_000, None),
        ({"security": "malicious"}, 100_000, None),
    ],
)
def test_what_auto_takes_is_said_with_the_round_trip(alignment, ids, expected):
    line = line_note(contract_of(**alignment), ids, round_trip_s=0.05)
    assert line.startswith("a round trip takes some 50 ms")
    assert (expected is None and "auto" not in line) or expected in line
