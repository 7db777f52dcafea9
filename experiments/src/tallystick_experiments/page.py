"""Render a benchmark into one self-contained HTML page: tables next to the paper's numbers, and curves.

Like the report of a run, the page loads nothing, runs no script, and carries its data as JSON.
"""

import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path

import msgspec

from tallystick.errors import DataError
from tallystick.report import charts, formats
from tallystick.report.templating import render_source, script_json, write_page
from tallystick_experiments.stats import Row, Spread, distinct

COLOURS = ("joint", "own", "other0", "other1", "other2", "muted")
WIDTH, HEIGHT = 560, 340
SUPERSCRIPT = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")


def counted(number: int, what: str) -> str:
    """Return a number of things in words: 1 seed, 5 seeds."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def seeds_of(rows: Sequence[Row]) -> str:
    """List the seeds of rows."""
    return ", ".join(str(seed) for seed in sorted(distinct(rows, "seed")))


def seed_count(rows: Sequence[Row]) -> str:
    """Say how many seeds rows have."""
    return counted(len(distinct(rows, "seed")), "seed")


Cell = str | bool | int | float | Spread | None
Shown = str | Callable[[Row], Cell]


@dataclass(frozen=True, kw_only=True)
class ResultTable:
    """Hold rows of cells under named columns. A column whose name begins with ``paper`` is shown as a reference."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    note: str = ""

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.columns):
                raise DataError(f"table {self.name!r}: a row of {len(row)} cells under {len(self.columns)} columns: {list(row)}")

    @classmethod
    def of(cls, name: str, rows: Iterable[Row], columns: Mapping[str, Shown], *, note: str = "") -> "ResultTable":
        """Build a line for each row. A column has a head, and for each row a field by its name or the result of a function."""
        cells = [[row.get(shown) if isinstance(shown, str) else shown(row) for shown in columns.values()] for row in rows]
        return cls(name=name, columns=list(columns), rows=cells, note=note)


@dataclass(frozen=True, kw_only=True)
class Series:
    """Hold one line of a picture. A point whose value is None is left out."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float | None]

    @classmethod
    def of(cls, name: str, points: Iterable[tuple[float, float | None]]) -> "Series":
        """Build the line through these points."""
        placed = list(points)
        return cls(name=name, xs=[x for x, _ in placed], ys=[y for _, y in placed])

    def points(self) -> list[tuple[float, float]]:
        """Return the known points, in the order of their x."""
        points = [(x, y) for x, y in zip(self.xs, self.ys, strict=True) if y is not None and math.isfinite(y)]
        return sorted(points)


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Hold a picture of several series over one axis."""

    name: str
    x: str  # the quantities on the axes
    y: str
    series: Sequence[Series]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """Hold the content of a benchmark's page."""

    title: str
    command: str = ""  # command that makes it again
    tables: Sequence[ResultTable] = ()  # tables without a row are left out
    curves: Sequence[Curve] = ()
    notes: Sequence[str] = ()  # how to read it, and its limits
    started: str = ""  # ISO 8601 with time zone
    seconds: float | None = None
    facts: Mapping[str, str] = field(default_factory=dict)  # versions, machine, sizes

    def __post_init__(self) -> None:
        object.__setattr__(self, "tables", [table for table in self.tables if table.rows])


PageOf = Callable[[Row, Sequence[Row]], Benchmark]
"""A function that makes an experiment's page from facts that are in no row, and from its rows."""


@dataclass(frozen=True, kw_only=True)
class ExperimentResult:
    """Hold the outcome of an experiment: its rows, and the other data of its page.

    Args:
        experiment: its key in results.PAGES, by which committed rows find their page.
        about: facts that are in no row, as plain data.
        rows: the rows, as in the log.
        page_of: makes the page from these two.
        failed: the error of the command after the page is shown; empty if there is none.
    """

    experiment: str
    about: Row
    rows: Sequence[Row]
    page_of: PageOf
    failed: str = ""

    def page(self, *, command: str = "") -> Benchmark:
        """Build the page, with the command that makes it again."""
        return replace(self.page_of(self.about, self.rows), command=command)

    def as_json(self, page: Benchmark) -> Row:
        """Return the rows and the tables of the page, as plain data."""
        plain_page = msgspec.to_builtins(page)
        return {"benchmark": self.experiment, "about": self.about, "rows": list(self.rows), **plain_page}


def render_benchmark(found: Benchmark, path: str | os.PathLike[str]) -> Path:
    """Write the page of ``found`` to ``path``, and replace an earlier file only when the page is complete.

    Raises StorageError if the file cannot be written.
    """
    return write_page(benchmark_html(found), path)


def benchmark_html(found: Benchmark) -> str:
    """Return the page of ``found``."""
    return render_source(
        _template("page.html.j2"),
        b=found,
        json=script_json(msgspec.json.encode(msgspec.to_builtins(found)).decode()),
        text=cell,
        within=within,
        is_figure=lambda value: not isinstance(value, str | bool),
        plots=[plot for curve in found.curves if (plot := _plot(curve)) is not None],
        slug=lambda index: f"table-{index}",
    )


def pictures(found: Benchmark) -> dict[str, str]:
    """Return each curve of ``found`` as a self-contained SVG for documents, by the name of its file."""
    plots = [plot for curve in found.curves if (plot := _plot(curve)) is not None]
    return {
        re.sub("[^a-z0-9]+", "-", plot.title.lower()).strip("-") + ".svg": render_source(_template("plot.svg.j2"), p=plot)
        for plot in plots
    }


@dataclass(frozen=True, kw_only=True)
class _LogAxis(charts.Axis):
    """Axis of powers of ten. ``low`` and ``high`` are logarithms."""

    def at(self, value: float) -> float:
        return super().at(math.log10(value))

    def ticks(self) -> list[charts.Tick]:
        whole = range(math.ceil(self.low - 1e-9), math.floor(self.high + 1e-9) + 1)
        choices = ((1.0,), (1.0, 2.0, 5.0), tuple(half / 2 for half in range(2, 20)))
        for multiples in choices[0 if len(whole) >= 4 else 1 :]:
            values = [step * 10.0**power for power in range(math.floor(self.low), math.ceil(self.high) + 1) for step in multiples]
            marks = [value for value in values if self.low - 1e-9 <= math.log10(value) <= self.high + 1e-9]
            if len(marks) > 1:
                break
        return [charts.Tick(at=self.at(value), label=_power(value)) for value in marks]


def _power(value: float) -> str:
    """Write a mark of a logarithmic axis, short enough to fit next to it."""
    if 0.001 <= value < 10_000:
        return f"{value:g}"
    digit, power = f"{value:.0e}".split("e")
    power_text = f"10{str(int(power)).translate(SUPERSCRIPT)}"
    return power_text if digit == "1" else f"{digit}\N{MIDDLE DOT}{power_text}"


def _axis(values: Sequence[float], *, log: bool, start: float, end: float, tight: bool) -> charts.Axis:
    if log:
        logs = [math.log10(value) for value in values]
        low, high = (min(logs), max(logs)) if tight else (math.floor(min(logs) * 3) / 3, math.ceil(max(logs) * 3) / 3)
        return _LogAxis(low=low, high=max(high, low + 0.1), start=start, end=end)
    if tight and max(values) > min(values):
        return charts.Axis(low=min(values), high=max(values), start=start, end=end)
    return charts.spanning(values, start=start, end=end)


def _plot(curve: Curve) -> charts.Plot | None:
    """Place a curve's known points. It returns None if there are none."""
    lines = [
        (series.name, [(x, y) for x, y in series.points() if (x > 0 or not curve.log_x) and (y > 0 or not curve.log_y)])
        for series in curve.series
    ]
    lines = [(name, points) for name, points in lines if points]
    if not lines:
        return None
    xs, ys = ([point[i] for _, points in lines for point in points] for i in (0, 1))
    x = _axis(xs, log=curve.log_x, start=charts.LEFT, end=WIDTH - charts.RIGHT, tight=True)
    y = _axis(ys, log=curve.log_y, start=HEIGHT - charts.BOTTOM, end=charts.TOP, tight=False)
    placed = []
    for index, (name, points) in enumerate(lines):
        places = [(x.at(a), y.at(b)) for a, b in points]
        placed.append(
            charts.PlottedSeries(
                name=name,
                colour=COLOURS[index % len(COLOURS)],
                points=places,
                dashed=index // len(COLOURS) % 2 == 1,
                dots=places if len(places) <= 20 else [],
            )
        )
    return charts.Plot(
        title=curve.name,
        summary="; ".join(f"{name}: from {points[0][1]:.4g} to {points[-1][1]:.4g}" for name, points in lines),
        width=WIDTH,
        height=HEIGHT,
        x=x,
        y=y,
        x_label=curve.x,
        y_label=curve.y,
        series=placed,
        x_ticks=x.ticks(),
    )


def figure(value: float) -> str:
    """Format a measured number: four decimals, but two significant digits if four decimals would hide it."""
    if not math.isfinite(value):
        return str(value).replace("-", formats.MINUS)
    if 0 < abs(value) < 0.01:
        digits = 1 - math.floor(math.log10(abs(value)))
        return f"{value:.{digits}f}".replace("-", formats.MINUS) if digits <= 8 else f"{value:.1e}"
    return formats.number(value)


def cell(value: Cell) -> str:
    """Format a cell as text. ``within`` formats its interval."""
    match value:
        case None:
            return formats.NOTHING
        case bool():
            return "yes" if value else "no"
        case str():
            return value
        case int():
            return f"{value:,}".replace("-", formats.MINUS)
        case Spread():
            return figure(value.value)
        case _:
            return figure(value)


def within(value: Cell) -> str:
    """Return the interval of a cell, or nothing."""
    if not isinstance(value, Spread) or value.low is None or value.high is None:
        return ""
    return f"{figure(value.low)} to {figure(value.high)}"


def _template(name: str) -> str:
    return (resources.files("tallystick_experiments") / name).read_text(encoding="utf-8")
