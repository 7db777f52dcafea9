"""Send exact results that the contract allows to leave the label party: metrics of the joint model, and falls of a peer's
columns.

Threat model: honest-but-curious feature parties. No formal guarantee, and not private: a metric is an exact figure about the test
labels, a fall one about the validation labels. Both are rounded to DIGITS significant digits, which limits how much one reveals
and protects nobody. Received results are checked against the contract, and no name or text from a peer is used any further.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec

from tallystick.errors import ProtocolError
from tallystick.evaluation.importance import Fall
from tallystick.evaluation.measure import MetricValue, without_value
from tallystick.metrics import METRICS, TargetType
from tallystick.network.channel import Channel
from tallystick.network.messages import Message

_DIGITS = 4


class SharedMetric(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """A metric with its interval, if there is one. The metric is None if it has no value on the test rows."""

    value: float | None
    low: float | None
    high: float | None


class SharedResults(Message, frozen=True):
    """Sent by the label party: the contract's metrics in the contract's order, and the falls of the receiver's
    columns if agreed.
    """

    rows: int
    metrics: tuple[SharedMetric, ...]
    falls: tuple[tuple[float, float], ...] | None = None


def send_shared(
    channel: Channel, names: Sequence[str], joint: Mapping[str, MetricValue], falls: Sequence[Fall] | None, *, rows: int
) -> None:
    """Send the metrics ``names`` of the joint model, as the label party, and the falls of the peer's columns if there are any."""
    figures = [joint.get(name) or without_value("there are no test rows") for name in names]
    values = tuple(SharedMetric(_rounded(each["value"]), _rounded(each["low"]), _rounded(each["high"])) for each in figures)
    shared_falls = None
    if falls is not None and all(math.isfinite(each["mean"]) and math.isfinite(each["deviation"]) for each in falls):
        shared_falls = tuple((_round(each["mean"]), _round(each["deviation"])) for each in falls)
    channel.send(SharedResults(rows=rows, metrics=values, falls=shared_falls))


def receive_shared(
    channel: Channel, names: Sequence[str], target: TargetType, *, rows: int, columns: int | None
) -> tuple[dict[str, MetricValue], list[Fall] | None]:
    """Receive the metrics ``names`` of ``rows`` test rows, as a feature party, and falls of ``columns`` columns (None: not
    agreed).

    Raises ProtocolError for other metrics than agreed, numbers that are not finite or out of the metric's range, an interval that
    does not contain its value, or falls of another number of columns.
    """
    message = channel.receive(SharedResults)

    def refuse(what: str) -> ProtocolError:
        return ProtocolError(channel.peer, f"{channel.peer}: SharedResults {what}; it does not fit the contract")

    if not 0 <= message.rows <= rows:
        raise refuse(f"is of {message.rows} test rows, and there are {rows}")
    if len(message.metrics) != len(names):
        raise refuse(f"holds {len(message.metrics)} metrics where {len(names)} are agreed")
    figures = {}
    for name, each in zip(names, message.metrics, strict=True):
        metric = METRICS[target][name]
        numbers = [number for number in (each.low, each.value, each.high) if number is not None]
        if not all(math.isfinite(number) and metric.low <= number <= metric.high for number in numbers):
            raise refuse(f"holds a {name} that is not finite or outside {metric.low:g} to {metric.high:g}")
        if len(numbers) not in (0, 1, 3) or (len(numbers) > 0 and each.value is None) or numbers != sorted(numbers):
            raise refuse(f"holds a {name} whose interval does not hold its value")
        figures[name] = MetricValue(
            value=each.value, low=each.low, high=each.high, reason=None if each.value is not None else metric.undefined
        )
    if message.falls is None:
        return figures, None
    if columns is None or len(message.falls) != columns:
        raise refuse(f"holds falls of {len(message.falls)} columns where {columns or 'none'} are agreed")
    metric = next(iter(METRICS[target].values()))
    most = metric.high - metric.low
    if not all(math.isfinite(mean) and 0 <= deviation < math.inf and abs(mean) <= most for mean, deviation in message.falls):
        raise refuse("holds a fall that is not finite or larger than the metric's range")
    return figures, [Fall(mean=mean, deviation=deviation) for mean, deviation in message.falls]


def _rounded(number: float | None) -> float | None:
    return None if number is None else _round(number)


def _round(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")
