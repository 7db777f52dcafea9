"""What the page says in sentences: the headline, and whether a difference is one."""

from dataclasses import dataclass

from tallystick.evaluation.measure import MetricValue
from tallystick.evaluation.metrics import METRICS, Metric
from tallystick.report.formats import interval_text, number
from tallystick.report.result import Result


@dataclass(frozen=True, kw_only=True)
class Headline:
    """What the page says first."""

    title: str
    text: str


def headline(result: Result) -> Headline:
    """Say what joining brought, as far as the result knows it."""
    names, evaluation = names_of(result), result.evaluation
    if evaluation is None:
        return Headline(
            title=f"{names.all} trained one network",
            text=(
                f"Labels, and every number computed from them, stayed with {names.label}. "
                f"This page shows what {result.party or 'each side'} knows."
            ),
        )
    name, metric = next(iter(METRICS[evaluation["target"]].items()))
    joint = evaluation["joint"][name]
    own = evaluation["own_only"][name] if evaluation["own_only"] else None
    difference = evaluation["difference"][name] if evaluation["difference"] else None
    short = "RMSE" if name == "rmse" else metric.title
    if joint["value"] is None:
        return Headline(title=f"The joint model has no {short}", text=f"{joint['reason']}.".capitalize())
    rows = f"{evaluation['rows']:,} test rows"
    if own is None or own["value"] is None or difference is None or difference["value"] is None:
        return Headline(
            title=f"The joint model reaches {short} {number(joint['value'])}",
            text=(
                f"Measured on {rows}{interval_text(joint, ', 95 % interval ')}. "
                f"There is no model of {names.label}'s own columns to compare it with."
            ),
        )
    found = verdict(difference, metric)
    moved = "raised" if difference["value"] > 0 else "lowered"
    title = {
        "unclear": f"Joining made no clear difference to {short}",
        "equal": f"Joining left {short} at {number(joint['value'])}",
    }.get(found, f"Joining {moved} {short} from {number(own['value'])} to {number(joint['value'])}")
    meaning = {"better": "an improvement of", "worse": "a loss of"}.get(found, "a difference of")
    return Headline(
        title=title,
        text=(
            f"On {rows} that training never saw, the model of {names.all} together stands beside one of "
            f"{names.label}'s own columns, trained the same way: {meaning} {number(abs(difference['value']))}"
            f"{interval_text(difference, ', 95 % interval of the difference ', signed=True)}."
        ),
    )


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


@dataclass(frozen=True, kw_only=True)
class Names:
    """The parties in words."""

    all: str
    label: str
    feature: str


def names_of(result: Result) -> Names:
    """Name the parties of a run."""
    label = [party.name for party in result.parties if party.role == "label"]
    feature = [party.name for party in result.parties if party.role == "feature"]
    return Names(all=_joined(label + feature), label=_joined(label), feature=_joined(feature))


def _joined(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
