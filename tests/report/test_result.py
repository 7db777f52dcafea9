"""Results become JSON and are read back, and merge."""

import json
import math

import msgspec
import numpy as np
import pytest

from tallystick.errors import DataError
from tallystick.report import merge, read_result
from tallystick.report.formats import MINUS, number
from tallystick.results import EpochRecord, Learnt, TrainingSummary, metric_in_words

UNITS = (1e-12, 1e-4, 1.0, 1e30)


def test_results_survive_json(make_audited) -> None:
    result = make_audited()
    assert read_result(result.to_json()) == result
    assert read_result(json.loads(result.to_json())) == result
    assert json.loads(result.to_json()) == result.to_dict()


def test_figures_of_labels_in_tiny_or_huge_units_are_figures():
    """The error of a label around 1e-12 was 0.0000 [0.0000, 0.0000], and of one around 1e30 a line of digits."""
    words = [metric_in_words({"value": unit * 8.8311, "low": unit * 7.2, "high": unit * 9.9, "reason": None}) for unit in UNITS]
    assert words == [
        "8.831e-12 [7.2e-12, 9.9e-12]",
        "0.0009 [0.0007, 0.0010]",
        "8.8311 [7.2000, 9.9000]",
        "8.831e+30 [7.2e+30, 9.9e+30]",
    ]
    assert metric_in_words({"value": 0.0, "low": None, "high": None, "reason": None}) == "0.0000"
    assert [number(unit * -8.8311) for unit in UNITS] == [
        f"{MINUS}8.83e{MINUS}12",
        f"{MINUS}0.0009",
        f"{MINUS}8.8311",
        f"{MINUS}8.83e+30",
    ]


def test_numbers_that_are_not_finite_become_null(make) -> None:
    training = TrainingSummary(
        mode="m", steps=np.int64(3), history=[EpochRecord(epoch=1, train_loss=math.nan, validation_loss=np.float32(0.5))]
    )
    found = read_result(msgspec.structs.replace(make(), training=training).to_json())
    assert found.training.history == [EpochRecord(epoch=1, train_loss=None, validation_loss=0.5)]
    assert found.training.steps == 3


def test_what_is_no_result_is_named(make) -> None:
    good = make().to_dict()
    for bad, field in (
        ({**good, "seconds": "long"}, r"\$\.seconds"),
        ({**good, "extra": 1}, "extra"),
        ({**good, "parties": [{"name": "a", "role": "guest"}]}, "role"),
        ({"run_id": "r"}, "party"),
    ):
        with pytest.raises(DataError, match=field):
            read_result(bad)
    with pytest.raises(DataError, match="not a result"):
        read_result(b"garbage")


def test_merge_covers_all_parties(make) -> None:
    carrier, weather, both = make(party="carrier"), make(party="weather"), make()
    later = msgspec.structs.replace(weather, started="2026-01-31T09:30:14+00:00")
    merged = merge([later, carrier])
    assert merged.party is None
    assert merged.role is None
    assert merged.evaluation == carrier.evaluation
    assert merged.training.history == carrier.training.history
    assert merged.learnt == both.learnt
    assert len(merged.phases) == len(carrier.phases) + len(weather.phases)
    assert merged.phases[-1].started == pytest.approx(weather.phases[-1].started + 2)
    assert merged.started == carrier.started
    assert merge([merge([carrier])]).parties == carrier.parties


def test_merge_keeps_what_was_learnt_in_one_step_together(make) -> None:
    one, other = (
        msgspec.structs.replace(
            make(party=party),
            learnt=[Learnt(step=step, party=party, what="sizes", guarantee="none") for step in ("alignment", "training")],
        )
        for party in ("carrier", "weather")
    )
    found = [(learnt.step, learnt.party) for learnt in merge([one, other]).learnt]
    assert found == [(step, party) for step in ("alignment", "training") for party in ("carrier", "weather")]


def test_merge_refuses_different_runs(make) -> None:
    with pytest.raises(DataError, match="more than one run"):
        merge([make(), msgspec.structs.replace(make(), run_id="other")])
    with pytest.raises(DataError, match="no results"):
        merge([])
    with pytest.raises(DataError, match="ISO 8601"):
        merge([msgspec.structs.replace(make(), started="soon")])
