"""Show a privacy ledger as one self-contained HTML page: spending over time and its cap."""

import math
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from tallystick.privacy.exported import ExportedDataset, ExportedEpsilon, ExportedLedger
from tallystick.report import charts, formats
from tallystick.report.templating import render_template, write_page

WIDTH, HEIGHT = 560, 340


@dataclass(frozen=True, kw_only=True)
class _Row:
    """One release."""

    number: int
    time: str
    what: str
    event: str
    spent: str  # so far


@dataclass(frozen=True, kw_only=True)
class _Dataset:
    """One data set: its totals, its picture and its releases."""

    name: str
    epsilon_of: str  # the quantity that is added up
    total: str
    cap: str
    left: str
    share: float | None  # share of the cap, in per cent
    plot: charts.Plot | None
    rows: list[_Row]


def render_ledger(exported: ExportedLedger, path: str | os.PathLike[str]) -> Path:
    """Write the page of an exported ledger to ``path``. An earlier file is replaced only when the page is complete.

    Raises StorageError if the file cannot be written.
    """
    return write_page(ledger_html(exported), path)


def ledger_html(exported: ExportedLedger) -> str:
    """Return the page of an exported ledger."""
    datasets = []
    for name, dataset in exported["datasets"].items():
        limit = dataset["cap"]
        cap = limit["epsilon"] if limit is not None else None
        total = dataset["spent"]["epsilon"]
        rows = [
            _Row(
                number=entry["number"],
                time=formats.moment(entry["time"]),
                what=entry["what"],
                event=_cost(entry["event"]),
                spent=amount(running),
            )
            for entry, running in zip(dataset["entries"], dataset["running_label_epsilon"], strict=True)
        ]
        datasets.append(
            _Dataset(
                name=name,
                epsilon_of=dataset["epsilon_of"],
                total=at_delta(dataset["spent"]),
                cap="none" if limit is None else at_delta(limit),
                left=formats.NOTHING if cap is None or total is None else amount(max(cap - total, 0.0)),
                share=None if cap is None else 100.0 if total is None else min(100.0, 100 * total / cap),
                plot=_plot(dataset, cap),
                rows=rows,
            )
        )
    return render_template(
        "ledger.html.j2",
        party=exported["party"],
        identity=exported["identity"],
        not_private=[{**entry, "time": formats.moment(entry["time"])} for entry in exported["not_private"]],
        delta=exported["delta"],
        datasets=datasets,
    )


def amount(value: float | None) -> str:
    """Format an epsilon for people. None means that there is no bound."""
    return "unbounded" if value is None else f"{value:.4g}"


def at_delta(epsilon: ExportedEpsilon) -> str:
    """Format an epsilon for people, with its delta."""
    return amount(epsilon["epsilon"]) + (f" at delta {epsilon['delta']:g}" if epsilon["delta"] else "")


def _plot(dataset: ExportedDataset, cap: float | None) -> charts.Plot | None:
    """Plot the spending so far in steps, by date and time (UTC). Return None if nothing with a bound was spent.

    A total without a bound leaves the picture at its top.
    """
    spent = dataset["running_label_epsilon"]
    bounded = [value for value in spent if value is not None]
    if not bounded and cap is None:
        return None
    # In the order of the entries: if a clock was set back, the line must not go back.
    instants = list(accumulate((datetime.fromisoformat(entry["time"]).timestamp() for entry in dataset["entries"]), max))
    first, last = min(instants), max(instants)
    room = max(0.05 * (last - first), HOUR / 2 - (last - first) / 2)
    x = charts.Axis(low=first - room, high=last + room, start=charts.LEFT, end=WIDTH - charts.RIGHT)
    y = charts.spanning([*bounded, *([] if cap is None else [cap])], floor=0.0, start=HEIGHT - charts.BOTTOM, end=charts.TOP)
    steps: list[charts.Point] = [(x.start, y.at(0.0))]
    for at, value in zip(instants, spent, strict=True):
        steps += [(x.at(at), steps[-1][1]), (x.at(at), y.at(y.high if value is None else value))]
    steps.append((x.end, steps[-1][1]))
    lines = [charts.PlottedSeries(name="spent", colour="joint", points=steps, dots=steps[2:-1:2])]
    if cap is not None:
        lines.append(
            charts.PlottedSeries(name="cap", colour="own", points=[(x.start, y.at(cap)), (x.end, y.at(cap))], dashed=True)
        )
    # At most six marks at round times (UTC): times of day if they are less than a day apart, otherwise dates
    step = next((step for step in TICK_STEPS if x.high - x.low <= MOST_STEPS * step), None)
    if step is None:
        step = math.ceil((x.high - x.low) / (MOST_STEPS * 364 * DAY)) * 364 * DAY
    one_day = _utc(x.low).date() == _utc(x.high).date()
    form = "%H:%M" if one_day else "%d %b %H:%M" if step < DAY else "%d %b" if step < 91 * DAY else "%Y-%m-%d"
    marks = range(math.ceil(x.low / step), math.floor(x.high / step) + 1)
    first_day, last_day = (f"{instant.day} {instant:%B %Y}" for instant in (_utc(x.low), _utc(x.high)))
    return charts.Plot(
        title=f"{dataset['epsilon_of'][0].upper()}{dataset['epsilon_of'][1:]} over time",
        summary=f"{len(spent)} releases; spent: {amount(spent[-1])}; cap: {'none' if cap is None else amount(cap)}",
        width=WIDTH,
        height=HEIGHT,
        x=x,
        y=y,
        x_label=f"{first_day} (UTC)" if first_day == last_day else f"{first_day} to {last_day} (UTC)",
        y_label="epsilon",
        series=lines,
        x_ticks=[charts.Tick(at=x.at(mark * step), label=_utc(mark * step).strftime(form)) for mark in marks],
    )


HOUR, DAY = 3_600, 86_400
TICK_STEPS = (
    *(HOUR // part for part in (6, 3, 2, 1)),
    *(hours * HOUR for hours in (2, 3, 6, 12)),
    *(days * DAY for days in (1, 2, 7, 14, 28, 91, 182, 364)),
)
MOST_STEPS = 5


def _utc(instant: float) -> datetime:
    return datetime.fromtimestamp(instant, UTC)


def _cost(event: dict[str, Any]) -> str:
    """Say the cost of a release."""
    whose = {"record": " (of whole records)", "key": " (of linking keys)"}.get(event.get("unit", ""), "")
    match event["type"]:
        case "pure":
            return f"epsilon {event['epsilon']:g}{whose}"
        case "approximate":
            return f"epsilon {event['epsilon']:g}, delta {event['delta']:g}{whose}"
        case "unsent-gaussian":
            return f"{event['releases']} x the same noise, charged for and never released{whose}"
        case _:  # Gaussian: releases without a guarantee are not in this list
            times = f"{event['releases']} x " if event["releases"] > 1 else ""
            rate = f", of a random {100 * event['sampling_rate']:g} %" if event["sampling_rate"] < 1 else ""
            return f"{times}Gaussian noise of {event['noise_multiplier']:.4g} times the sensitivity{rate}{whose}"
