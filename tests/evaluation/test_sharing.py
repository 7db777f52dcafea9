"""Exact results that leave the label party: what is agreed arrives, and nothing else is accepted."""

import math

import pytest

from tallystick.errors import ProtocolError
from tallystick.evaluation.importance import Fall
from tallystick.evaluation.measure import MetricValue
from tallystick.evaluation.sharing import SharedMetric, SharedResults, receive_shared, send_shared
from tallystick.network.channel import memory_channels

JOINT = {
    "auc": MetricValue(value=0.78123456, low=0.77, high=0.79, reason=None),
    "ks": MetricValue(value=0.4, low=None, high=None, reason="no interval"),
    "nll": MetricValue(value=0.5, low=0.4, high=0.6, reason=None),
    "ap": MetricValue(value=None, low=None, high=None, reason="there are no positives"),
}


def test_what_the_contract_names_arrives_rounded_and_nothing_else() -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    send_shared(to_shop, ["auc", "ks", "ap"], JOINT, [Fall(mean=0.0123456, deviation=0.001)], rows=500)
    metrics, falls = receive_shared(to_bank, ["auc", "ks", "ap"], "binary", rows=500, columns=1)
    assert list(metrics) == ["auc", "ks", "ap"]
    assert metrics["auc"] == {"value": 0.7812, "low": 0.77, "high": 0.79, "reason": None}
    assert metrics["ap"]["value"] is None
    assert falls == [{"mean": 0.01235, "deviation": 0.001}]


def test_falls_without_a_value_are_not_sent() -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    send_shared(to_shop, ["auc"], {}, [Fall(mean=math.nan, deviation=0.0)], rows=0)
    metrics, falls = receive_shared(to_bank, ["auc"], "binary", rows=0, columns=1)
    assert (metrics["auc"]["value"], falls) == (None, None)


GOOD = SharedMetric(0.7, 0.6, 0.8)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (SharedResults(rows=501, metrics=(GOOD,)), "of 501 test rows"),
        (SharedResults(rows=-1, metrics=(GOOD,)), "of -1 test rows"),
        (SharedResults(rows=5, metrics=()), "0 metrics where 1"),
        (SharedResults(rows=5, metrics=(GOOD, GOOD)), "2 metrics where 1"),
        (SharedResults(rows=5, metrics=(SharedMetric(math.nan, None, None),)), "not finite"),
        (SharedResults(rows=5, metrics=(SharedMetric(math.inf, None, None),)), "not finite"),
        (SharedResults(rows=5, metrics=(SharedMetric(1.5, None, None),)), "outside 0 to 1"),
        (SharedResults(rows=5, metrics=(SharedMetric(0.7, 0.8, 0.9),)), "interval does not hold"),
        (SharedResults(rows=5, metrics=(SharedMetric(0.7, 0.6, None),)), "interval does not hold"),
        (SharedResults(rows=5, metrics=(SharedMetric(None, 0.6, None),)), "interval does not hold"),
        (SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0),)), "falls of 1 columns where 2"),
        (SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0), (math.nan, 0.0))), "not finite or larger"),
        (SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0), (2.0, 0.0))), "not finite or larger"),
        (SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0), (0.1, -1.0))), "not finite or larger"),
        (SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0), (0.1, math.inf))), "not finite or larger"),
    ],
)
def test_what_does_not_fit_the_contract_is_refused(message: SharedResults, complaint: str) -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    to_shop.send(message)
    with pytest.raises(ProtocolError, match=complaint):
        receive_shared(to_bank, ["auc"], "binary", rows=500, columns=2)


def test_falls_that_were_not_agreed_are_refused() -> None:
    to_shop, to_bank = memory_channels("bank", "shop")
    to_shop.send(SharedResults(rows=5, metrics=(GOOD,), falls=((0.1, 0.0),)))
    with pytest.raises(ProtocolError, match="where none are agreed"):
        receive_shared(to_bank, ["auc"], "binary", rows=500, columns=None)
