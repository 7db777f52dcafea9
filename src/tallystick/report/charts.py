"""Turn values into coordinates on the page, and nothing else.

charts.html.j2 draws the charts. Wide ones are laid out in per cent of their track, so that text keeps its size on a narrow
screen, square ones in the units of their own picture.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from tallystick.evaluation.decisions import Decisions
from tallystick.results import (
    AttackResult,
    ColumnFall,
    LinkMap,
    LinkWeights,
    PhaseRecord,
    SimilarityHistogram,
    TrainingSummary,
)

Point = tuple[float, float]


@dataclass(frozen=True, kw_only=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Axis:
    """A linear scale from values [low, high] to coordinates [start, end]."""

    low: float
    high: float
    start: float = 0.0
    end: float = 100.0

    def at(self, value: float) -> float:
        """Return the coordinate of a value, kept within the axis."""
        share = (value - self.low) / (self.high - self.low)
        return round(self.start + min(max(share, 0.0), 1.0) * (self.end - self.start), 2)

    def ticks(self) -> list[Tick]:
        """Choose about five round values on the axis."""
        step = _round_step((self.high - self.low) / 5)
        digits = max(0, -math.floor(math.log10(step)))
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [Tick(at=self.at(i * step), label=f"{i * step:,.{digits}f}") for i in range(first, last + 1)]


def spanning(values: Sequence[float], *, start: float = 0.0, end: float = 100.0, floor: float | None = None) -> Axis:
    """Return an axis with round ends around the values, from ``floor`` if given."""
    low = min(values) if floor is None else floor
    high = max([*values, low])
    step = _round_step(max(high - low, abs(high) * 1e-3, 1e-9) / 5)
    return Axis(
        low=low if floor is not None else math.floor(low / step) * step,
        high=(math.floor(high / step) + 1) * step,
        start=start,
        end=end,
    )


def _round_step(raw: float) -> float:
    power = 10.0 ** math.floor(math.log10(raw))
    return next(power * each for each in (1, 2, 2.5, 5, 10) if power * each >= raw * (1 - 1e-9))


# --- line charts


@dataclass(frozen=True, kw_only=True)
class PlottedSeries:
    """One line: its name in the legend, its colour class and its points as the picture's coordinates."""

    name: str
    colour: str  # "joint", "own" or "muted": a class of page.css
    points: list[Point]
    dashed: bool = False
    dots: list[Point] = field(default_factory=list)

    @property
    def path(self) -> str:
        """Return the points as an SVG path."""
        return "M" + "L".join(f"{x:g},{y:g}" for x, y in self.points)


@dataclass(frozen=True, kw_only=True)
class Plot:
    """A framed chart in a picture of ``width`` x ``height`` units."""

    title: str
    summary: str  # for readers who do not see the chart
    width: int
    height: int
    x: Axis
    y: Axis
    x_label: str
    y_label: str
    series: list[PlottedSeries]
    x_ticks: list[Tick]
    diagonal: bool = False
    mark: Point | None = None
    mark_label: str = ""
    rule: float | None = None  # position of a vertical line
    rule_label: str = ""
    bars: list[tuple[float, float, float, float]] = field(default_factory=list)  # left, top, width, height; behind the lines


LEFT, TOP, RIGHT, BOTTOM = 58, 12, 12, 42


def axes(width: int, height: int, x: tuple[float, float], y: tuple[float, float]) -> tuple[Axis, Axis]:
    """Return the two axes of a picture of ``width`` x ``height`` units, over these values."""
    return (
        Axis(low=x[0], high=x[1], start=LEFT, end=width - RIGHT),
        Axis(low=y[0], high=y[1], start=height - BOTTOM, end=TOP),
    )


def _points(x: Axis, y: Axis, xs: Sequence[float], ys: Sequence[float]) -> list[Point]:
    return [(x.at(a), y.at(b)) for a, b in zip(xs, ys, strict=True)]


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line before it has coordinates: values, name and colour."""

    name: str
    colour: str
    xs: Sequence[float]
    ys: Sequence[float]


def roc_plot(lines: Sequence[Line], summary: str) -> Plot:
    """Plot ROC curves in a square, above the diagonal of guessing."""
    return _square("ROC curve", summary, ("false positive rate", "true positive rate"), lines, top=1.0, dotted=False)


def reliability_plot(lines: Sequence[Line], summary: str) -> Plot:
    """Plot the observed against the predicted rate per bin, and the diagonal of perfect calibration."""
    top = spanning([value for line in lines for value in (*line.xs, *line.ys)], floor=0.0).high
    labels = ("predicted probability", "observed rate")
    return _square("Reliability", summary, labels, lines, top=min(top, 1.0), dotted=True)


def quantile_plot(lines: Sequence[Line], summary: str) -> Plot:
    """Plot the share of labels at or below the predicted quantile against its level, and the diagonal where both agree."""
    return _square("Quantiles", summary, ("level", "share of labels at or below"), lines, top=1.0, dotted=True)


def brier_plot(lines: Sequence[Line], summary: str) -> Plot:
    """Plot Brier scores against time."""
    span = spanning([value for line in lines for value in line.ys], floor=0.0)
    x, y = axes(560, 340, (0.0, max(lines[0].xs)), (0.0, span.high))
    return Plot(
        title="Brier score until each time",
        summary=summary,
        width=560,
        height=340,
        x=x,
        y=y,
        x_label="time",
        y_label="Brier score",
        series=[
            PlottedSeries(
                name=line.name,
                colour=line.colour,
                points=_points(x, y, line.xs, line.ys),
                dashed=line.colour != "joint",
            )
            for line in lines
        ],
        x_ticks=x.ticks(),
    )


def precision_recall_plot(lines: Sequence[Line], summary: str) -> Plot:
    """Plot precision against recall."""
    labels = ("recall", "precision")
    return _square("Precision and recall", summary, labels, lines, top=1.0, dotted=False, diagonal=False)


def gain_plot(decisions: Decisions, summary: str) -> Plot:
    """Plot the share of the positives found among the highest-scored rows, above the diagonal of random choice."""
    shares = [i / len(decisions["deciles"]) for i in range(len(decisions["deciles"]) + 1)]
    line = Line(name="joint", colour="joint", xs=shares, ys=[0.0, *(decile["gain"] for decile in decisions["deciles"])])
    labels = ("share of rows, highest scores first", "share of positives found")
    return _square("Gain", summary, labels, [line], top=1.0, dotted=True)


def score_plot(decisions: Decisions, summary: str) -> Plot:
    """Plot the distribution of the scores of each class as steps. Each class sums to 1."""
    edges = decisions["edges"]
    top = spanning([*decisions["positives"], *decisions["negatives"]], floor=0.0).high
    x, y = axes(560, 340, (edges[0], edges[-1]), (0.0, top))
    best = decisions["best"]["threshold"]
    series = []
    for name, colour, shares in (("negatives", "own", decisions["negatives"]), ("positives", "joint", decisions["positives"])):
        steps = [
            (edge, share)
            for low, high, share in zip(edges, edges[1:], shares, strict=False)
            for edge, share in ((low, share), (high, share))
        ]
        points = [(x.at(edge), y.at(share)) for edge, share in steps]
        series.append(PlottedSeries(name=name, colour=colour, points=points, dashed=colour == "own"))
    return Plot(
        title="Scores by class",
        summary=summary,
        width=560,
        height=340,
        x=x,
        y=y,
        x_label="score",
        y_label="share of the class",
        series=series,
        x_ticks=x.ticks(),
        rule=None if best is None else x.at(best),
        rule_label="chosen threshold",
    )


def _square(
    title: str,
    summary: str,
    labels: tuple[str, str],
    lines: Sequence[Line],
    *,
    top: float,
    dotted: bool,
    diagonal: bool = True,
) -> Plot:
    """Draw both axes from 0 to ``top``, with their diagonal if it has a meaning."""
    x, y = axes(400, 396, (0, top), (0, top))
    placed = [(line, _points(x, y, line.xs, line.ys)) for line in lines]
    return Plot(
        title=title,
        summary=summary,
        width=400,
        height=396,
        x=x,
        y=y,
        x_label=labels[0],
        y_label=labels[1],
        series=[
            PlottedSeries(name=line.name, colour=line.colour, points=at, dots=at if dotted else [], dashed=line.colour == "own")
            for line, at in placed
        ],
        x_ticks=x.ticks(),
        diagonal=diagonal,
    )


def loss_plot(joint: TrainingSummary, own: TrainingSummary | None) -> Plot | None:
    """Plot training and validation loss per epoch, with the best epoch marked. Return None without two finite losses."""
    lines = [
        _loss_line("joint, training", "muted", joint, "train_loss"),
        _loss_line("joint, validation", "joint", joint, "validation_loss"),
        *([] if own is None else [_loss_line("own columns only, validation", "own", own, "validation_loss")]),
    ]
    lines = [line for line in lines if line.xs]
    values = [value for line in lines for value in line.ys]
    if len(values) < 2:
        return None
    last = max(max(line.xs) for line in lines)
    first = min(min(line.xs) for line in lines)
    span = spanning(values)
    x, y = axes(560, 340, (first, max(last, first + 1)), (span.low, span.high))
    placed = [(line, _points(x, y, line.xs, line.ys)) for line in lines]
    best = next(
        (
            point
            for line, points in placed
            for epoch, point in zip(line.xs, points, strict=True)
            if line.colour == "joint" and epoch == joint.best_epoch
        ),
        None,
    )
    step = max(1, math.ceil((last - first) / 10))
    return Plot(
        title="Loss per epoch",
        summary="; ".join(f"{line.name}: from {line.ys[0]:.4g} to {line.ys[-1]:.4g}" for line in lines),
        width=560,
        height=340,
        x=x,
        y=y,
        x_label="epoch",
        y_label="loss",
        series=[
            PlottedSeries(
                name=line.name,
                colour=line.colour,
                points=points,
                dots=points if len(points) <= 40 else [],
                dashed=line.colour == "own",
            )
            for line, points in placed
        ],
        x_ticks=[Tick(at=x.at(epoch), label=str(int(epoch))) for epoch in range(int(first), int(last) + 1, step)],
        mark=best,
        mark_label=f"{'kept' if joint.refit_epochs else 'best'}: epoch {joint.best_epoch}",
    )


def similarity_plot(name: str, histogram: SimilarityHistogram, links: Sequence[LinkWeights]) -> Plot:
    """Plot the similarities of the links with a feature party, and the trained network's weights of them (FedSim, figure 10)."""
    edges, most = histogram.edges, max([*histogram.counts, 1])
    x, y = axes(560, 340, (edges[0], max(edges[-1], edges[0] + 1e-9)), (0.0, 1.0))
    series = []
    if any(histogram.before):
        shares = [count / max(histogram.before) for count in histogram.before]
        steps = [
            (x.at(edge), y.at(share))
            for i, share in enumerate(shares)
            for edge, share in [(edges[i], share), (edges[i + 1], share)]
        ]
        series.append(PlottedSeries(name="before noise, as an attack implies", colour="muted", points=steps, dashed=True))
    for one in (each for each in links if each.party == name):
        inside = [(s, w) for s, w in zip(one.similarities, one.weights, strict=True) if edges[0] <= s <= edges[-1]]
        if len(inside) > 1:
            points = _points(x, y, [s for s, _ in inside], [w for _, w in inside])
            series.append(PlottedSeries(name="weight of a link that was learnt", colour="joint", points=points, dots=points))
    bars = [
        (x.at(low), y.at(count / most), max(x.at(high) - x.at(low) - 1, 0.5), y.start - y.at(count / most))
        for low, high, count in zip(edges, edges[1:], histogram.counts, strict=False)
    ]
    return Plot(
        title=f"How similar links with {name} are" + (", and what they weigh" if series else ""),
        summary="; ".join(
            [f"most links have a similarity of about {edges[histogram.counts.index(max(histogram.counts))]:.2f}"]
            + [f"{line.name} drawn over it" for line in series]
        ),
        width=560,
        height=340,
        x=x,
        y=y,
        x_label="similarity of a link",
        y_label="weight; links, the most in a bar being 1",
        series=series,
        x_ticks=x.ticks(),
        bars=bars,
    )


@dataclass(frozen=True, kw_only=True)
class PlacedLinks:
    """A map of links: own keys, the other side's keys where an attack places them, and the links as lines."""

    of: LinkMap
    width: int
    height: int
    x: Axis
    y: Axis
    own: list[Point]
    located: list[Point]
    lines: list[tuple[Point, Point]]


def link_map(links: LinkMap) -> PlacedLinks:
    """Place a map's points in a frame."""
    points = [*links.own, *links.located]
    # If an attack is wrong by far more than the extent of all keys, its points are drawn on the frame.
    spans = [spanning([point[axis] for point in (links.own or points)]) for axis in (0, 1)]
    x, y = axes(560, 420, *((span.low, span.high) for span in spans))

    def placed(some: Sequence[Point]) -> list[Point]:
        return _points(x, y, [a for a, _ in some], [b for _, b in some])

    own, located = placed(links.own), placed(links.located)
    lines = [(own[i], located[j]) for i, j in links.links]
    return PlacedLinks(of=links, width=560, height=420, x=x, y=y, own=own, located=located, lines=lines)


def _loss_line(name: str, colour: str, training: TrainingSummary, loss: str) -> Line:
    points = [(float(epoch.epoch), value) for epoch in training.history if (value := getattr(epoch, loss)) is not None]
    return Line(name=name, colour=colour, xs=[epoch for epoch, _ in points], ys=[value for _, value in points])


# --- tracks, in per cent of their width


@dataclass(frozen=True, kw_only=True)
class Track:
    """A value with its interval on a track."""

    at: float
    low: float | None = None
    high: float | None = None
    since: float | None = None  # position of an earlier value, from which this one moved


def attack_track(attack: AttackResult) -> Track | None:
    """Place an attack's AUC between 0.5 and 1."""
    return _half_track(attack.auc, attack.low, attack.high)


def symmetric_track(attack: AttackResult) -> Track | None:
    """Place an attack's symmetric AUC between 0.5 and 1."""
    return _half_track(attack.symmetric_auc, attack.symmetric_low, attack.symmetric_high)


def _half_track(value: float | None, low: float | None, high: float | None) -> Track | None:
    axis = Axis(low=0.5, high=1.0)
    if value is None:
        return None
    return Track(at=axis.at(value), low=None if low is None else axis.at(low), high=None if high is None else axis.at(high))


def fall_track(fall: ColumnFall, axis: Axis) -> Track:
    """Place a column's fall with one standard deviation in both directions."""
    return Track(at=axis.at(fall.mean), low=axis.at(fall.mean - fall.deviation), high=axis.at(fall.mean + fall.deviation))


@dataclass(frozen=True, kw_only=True)
class Bar:
    """A phase's place on the run's time line."""

    phase: PhaseRecord
    left: float
    width: float


def timeline(phases: Sequence[PhaseRecord]) -> tuple[list[Bar], Axis]:
    """Place every phase after the previous one of the same party, unless it states when it started.

    Phases are in order of start.
    """
    ends: dict[str, float] = {}
    placed = []
    for phase in phases:
        start = ends.get(phase.party, 0.0) if phase.started is None else phase.started
        ends[phase.party] = start + phase.seconds
        placed.append((start, phase))
    axis = Axis(low=0.0, high=max([*ends.values(), 1e-9]))
    bars = [
        Bar(phase=phase, left=axis.at(start), width=round(axis.at(start + phase.seconds) - axis.at(start), 2))
        for start, phase in placed
    ]
    first: dict[str, float] = {}
    for start, phase in placed:
        first[phase.name] = min(start, first.get(phase.name, math.inf))
    names = {name: rank for rank, name in enumerate(sorted(first, key=lambda name: first[name]))}
    return sorted(bars, key=lambda bar: names[bar.phase.name]), axis


# --- the stick


@dataclass(frozen=True, kw_only=True)
class Stick:
    """Outlines of the two halves of a tally stick and the tips of its notches, in a picture of 1000 x 100 units."""

    stock: str
    foil: str
    scores: list[tuple[float, float, float]]  # x, upper tip, lower tip


def stick(contract_hash: str) -> Stick:
    """Draw a tally stick for a contract: equal hashes give equal notches on both halves, and on both sides' reports.

    The stock, with the handle, is the label party's; the foil belongs to the others.
    """
    cuts = hashlib.sha256(contract_hash.encode()).digest()
    upper, lower, split, end = 6.0, 94.0, 50.0, 862.0
    notches = [(44 + 33.6 * i + cuts[i] % 11, 3 + cuts[i] / 32, 8 + cuts[i + 8] / 12) for i in range(24)]
    xs = [8 + i * (end - 8) / 60 for i in range(61)]
    grain = [(x, split + 2.6 * math.sin(x / 70 + cuts[0]) + 1.4 * math.sin(x / 23 + cuts[1])) for x in xs]

    def edge(y: float, inward: float) -> list[Point]:
        return [point for x, half, deep in notches for point in ((x - half, y), (x, y + inward * deep), (x + half, y))]

    stock = [(8, upper + 2), (10, upper), *edge(upper, 1), (984, upper), (994, upper + 10), (998, split), (994, lower - 10)]
    stock += [(984, lower), (end + 10, lower), (end + 10, grain[-1][1] - 1.5), *((x, y - 1.5) for x, y in reversed(grain))]
    foil = [*((x, y + 1.5) for x, y in grain), (end, lower), *reversed(edge(lower, -1)), (10, lower), (8, lower - 2)]
    return Stick(
        stock=_closed(stock), foil=_closed(foil), scores=[(round(x, 1), upper + deep, lower - deep) for x, _, deep in notches]
    )


def _closed(points: Sequence[Point]) -> str:
    return "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in points) + "Z"
