"""What the page says in sentences: the headline, and whether a difference is one."""

from dataclasses import dataclass

from tallystick.evaluation.measure import MetricValue
from tallystick.evaluation.metrics import METRICS, Metric
from tallystick.report.formats import interval, number
from tallystick.report.result import Result


@dataclass(frozen=True, kw_only=True)
class Names:
    """The parties in words."""

    all: str
    label: str
    feature: str


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the page says first."""

    title: str
    text: str


def headline(result: Result) -> Headline:
    """Say what joining brought, as far as the result knows it."""
    names, evaluation = names_of(result), result.evaluation
    if result.sections.sweep is not None:
        return Headline(
            title=f"What {names.feature} could learn of {names.label}'s labels, and what hiding them costs",
            text=f"A rehearsal on {names.label}'s own rows and columns. No partner was involved, and nothing left.",
        )
    if evaluation is None:
        return Headline(
            title=f"{names.all} trained one network",
            text=(
                f"This page shows what {result.party or 'each side'} knows of the run. "
                f"Metrics are computed from labels, and {names.label} kept them."
            ),
        )
    name, metric = next(iter(METRICS[evaluation["target"]].items()))
    short = "RMSE" if name == "rmse" else metric.title
    joint, rows = evaluation["joint"][name], f"{evaluation['rows']:,} test rows"
    if joint["value"] is None:
        return Headline(title=f"The joint model has no {short}", text=f"On {rows}: {joint['reason']}.")
    own = (evaluation["own_only"] or {}).get(name)
    difference = (evaluation["difference"] or {}).get(name)
    if own is None or own["value"] is None or difference is None or difference["value"] is None:
        return Headline(
            title=f"The joint model reaches {short} {_short(joint['value'])}",
            text=(
                f"Measured on {rows}{_within(joint)}. "
                + (
                    f"There is no model of {names.label}'s own columns to compare it with."
                    if own is None
                    else f"The model of {names.label}'s own columns has none: {own['reason']}."
                )
            ),
        )
    return _compared(names, short, rows, verdict(difference, metric), own, joint, difference)


def _compared(
    names: Names, short: str, rows: str, found: str, own: MetricValue, joint: MetricValue, difference: MetricValue
) -> Headline:
    assert difference["value"] is not None
    change = f"from {_short(own['value'])} to {_short(joint['value'])}"
    alone = f"a model of {names.label}'s own columns, trained the same way,"
    unseen = f"On {rows} that training never saw,"
    if found in ("better", "worse"):
        by = _short(abs(difference["value"]))
        verb = "beat" if found == "better" else "fall behind"
        return Headline(
            title=f"Joining {'raised' if difference['value'] > 0 else 'lowered'} {short} {change}",
            text=f"{unseen} {names.all} together {verb} {alone} by {by}{_within(difference, size=True)}.",
        )
    title = "made no clear difference to" if found == "unclear" else "did not change"
    gap = _short(difference["value"], signed=True)
    return Headline(
        title=f"Joining {title} {short}",
        text=f"{unseen} {names.all} together and {alone} are {gap} apart{_within(difference, signed=True)}.",
    )


def _short(value: float | None, *, signed: bool = False) -> str:
    return number(value, signed=signed, digits=3)


def _within(value: MetricValue, *, signed: bool = False, size: bool = False) -> str:
    """Interval in brackets, or nothing; ``size`` drops the sign that both ends share."""
    low, high = value["low"], value["high"]
    if low is None or high is None:
        return ""
    if size:
        low, high = sorted((abs(low), abs(high)))
    return f" (95 % interval {interval(low, high, signed=signed, digits=3)})"


def verdict(difference: MetricValue, metric: Metric) -> str:
    """better, worse, equal, or unclear where the interval holds zero; without an interval the value decides."""
    value, low, high = difference["value"], difference["low"], difference["high"]
    if value is None:
        return "unclear"
    if value == 0:
        return "equal"
    if low is not None and high is not None and low <= 0 <= high:
        return "unclear"
    return "better" if (value > 0) == metric.higher_is_better else "worse"


def names_of(result: Result) -> Names:
    """Name the parties of a run."""
    label = [party.name for party in result.parties if party.role == "label"]
    feature = [party.name for party in result.parties if party.role == "feature"]
    return Names(all=_joined(label + feature), label=_joined(label), feature=_joined(feature))


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
