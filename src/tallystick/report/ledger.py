"""A privacy ledger as one HTML page that needs nothing but itself: spending over time under its cap."""

import os
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from tallystick.errors import StorageError
from tallystick.report import charts, formats

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
    total: str
    cap: str
    left: str
    share: float | None  # of the cap, in per cent
    plot: charts.Plot | None
    rows: list[_Row]


def render_ledger(exported: dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the page of what ``Ledger.export`` gave to ``path``, replacing what was there only once the page is complete.

    Raises StorageError if the file cannot be written.
    """
    page, path = ledger_html(exported), Path(path)
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(page, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StorageError(f"the page {path} cannot be written: {error}; make room or choose another folder") from error
    return path


def ledger_html(exported: dict[str, Any]) -> str:
    """Give the page of what ``Ledger.export`` gave."""
    return (
        _environment()
        .get_template("ledger.html.j2")
        .render(
            party=exported["party"],
            delta=exported["delta"],
            css=Markup(_file("page.css")),  # noqa: S704 (our own file)
            datasets=[_dataset(name, dataset) for name, dataset in exported["datasets"].items()],
        )
    )


def _dataset(name: str, found: dict[str, Any]) -> _Dataset:
    cap = found["cap"]["epsilon"] if found["cap"] else None
    total = found["label_epsilon"]
    return _Dataset(
        name=name,
        total=_epsilon(total),
        cap="none" if cap is None else _epsilon(cap),
        left=formats.NOTHING if cap is None or total is None else _epsilon(max(cap - total, 0.0)),
        share=None if cap is None else 100.0 if total is None else min(100.0, 100 * total / cap),
        plot=_plot(found, cap),
        rows=[
            _Row(
                number=entry["number"],
                time=formats.moment(entry["time"]),
                what=entry["what"],
                event=", ".join(f"{key} {value}" for key, value in entry["event"].items()),
                spent=_epsilon(running),
            )
            for entry, running in zip(found["entries"], found["running_label_epsilon"], strict=True)
        ],
    )


def _epsilon(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.4g}"


def _plot(found: dict[str, Any], cap: float | None) -> charts.Plot | None:
    """Steps of what was spent so far, in days since the first release; None where nothing bounded was spent.

    An unbounded total leaves the picture at its top.
    """
    spent = found["running_label_epsilon"]
    bounded = [value for value in spent if value is not None]
    if not bounded and cap is None:
        return None
    instants = [datetime.fromisoformat(entry["time"]).timestamp() for entry in found["entries"]]
    span = max(instants[-1] - instants[0], 1.0)
    unit, name = next((size, name) for size, name in _UNITS if span >= 2 * size or size == 1.0)
    times = [(instant - instants[0]) / unit for instant in instants]
    last = times[-1] + max(times[-1] * 0.05, 0.5)
    x = charts.Axis(low=0.0, high=last, start=charts.LEFT, end=WIDTH - charts.RIGHT)
    y = charts.spanning([*bounded, *([] if cap is None else [cap])], floor=0.0, start=HEIGHT - charts.BOTTOM, end=charts.TOP)
    steps: list[charts.Point] = [(x.at(0.0), y.at(0.0))]
    for at, value in zip(times, spent, strict=True):
        steps += [(x.at(at), steps[-1][1]), (x.at(at), y.at(y.high if value is None else value))]
    steps.append((x.at(last), steps[-1][1]))
    lines = [charts.Series(name="spent", colour="joint", points=steps, dots=steps[2:-1:2])]
    if cap is not None:
        lines.append(
            charts.Series(name="cap", colour="own", points=[(x.at(0.0), y.at(cap)), (x.at(last), y.at(cap))], dashed=True)
        )
    return charts.Plot(
        title="Label epsilon over time",
        summary=f"{len(spent)} releases; spent: {_epsilon(spent[-1])}; cap: {'none' if cap is None else _epsilon(cap)}",
        width=WIDTH,
        height=HEIGHT,
        x=x,
        y=y,
        x_label=f"{name} since the first release",
        y_label="epsilon",
        series=lines,
        x_ticks=x.ticks(),
    )


_UNITS = ((86_400.0, "days"), (3_600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FunctionLoader(_file), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # charts.html.j2 names these in macros that this page does not call.
    environment.filters.update(number=formats.number, interval=formats.interval, percent=formats.percent, spread=formats.spread)
    return environment


def _file(name: str) -> str:
    return (resources.files("tallystick.report") / name).read_text(encoding="utf-8")
