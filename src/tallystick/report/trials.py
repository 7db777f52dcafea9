"""Show the trials of a sweep in a plane: the model's value against the leaks, for labels and for columns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tallystick.report import charts
from tallystick.results import Leak, Sweep, Trial, above_guess


@dataclass(frozen=True, kw_only=True)
class Spot:
    """One trial: its place, the ends of its two intervals and its name."""

    x: float
    y: float
    left: float
    right: float
    bottom: float
    top: float
    colour: str
    label: str
    label_x: float  # where its name begins, or ends if the name is on the left
    label_y: float
    anchor: str  # start or end


@dataclass(frozen=True, kw_only=True)
class Scatter:
    """Trials in a plane: leakage to the right, utility upward. A line connects each defence's strengths."""

    title: str
    summary: str
    width: int
    height: int
    x: charts.Axis
    y: charts.Axis
    x_label: str
    y_label: str
    series: list[charts.PlottedSeries]
    spots: list[Spot]
    floor: float | None  # utility of the label party alone


TRIAL_COLOURS = ("joint", "other0", "other1", "other2", "own", "muted")


def strongest(trial: Trial, reads: str) -> Leak | None:
    """Return the possible attack that found most beyond a guess, or None if nothing was attacked."""
    return max(_possible(trial, reads), key=lambda leak: above_guess(leak.auc.mean, leak.chance), default=None)


def outdone(trial: Trial, reads: str) -> Leak | None:
    """Return the attack with a higher AUC than the strongest one, if any, although it is closer to its guess."""
    worst = strongest(trial, reads)
    highest = max(_possible(trial, reads), key=lambda leak: leak.auc.mean, default=None)
    return None if worst is None or highest is None or highest.auc.mean <= worst.auc.mean else highest


def _possible(trial: Trial, reads: str) -> list[Leak]:
    """List the possible attacks on a view. A party that received gradients has its own embeddings as well."""
    return [leak for leak in trial.leaks if leak.reads.startswith(reads) and not leak.upper_bound]


LETTER, LINE = 6.5, 12.0
"""Width of a letter and height of a line of a spot's name, in units of the picture, for any sans-serif face of 11 pixels."""
ASIDE, RADIUS = 8.0, 5.0


def place_labels(
    points: Sequence[tuple[float, float]], labels: Sequence[str], *, left: float, right: float
) -> list[tuple[float, float, str]]:
    """Place the names of spots without overlaps: next to its spot, as near to its height as there is room.

    Return x, y of the base line and the anchor of each; to the left if the name would otherwise leave the frame.
    """
    boxes: list[tuple[float, float, float, float]] = []
    places = []
    # Above the spot, below it, and then farther away: enough places for this many names
    heights = [side * LINE * step / 2 - RADIUS - 1 for step in range(2 * len(points) + 2) for side in (1, -1)]
    for (x, y), label in zip(points, labels, strict=True):
        width = LETTER * len(label)
        sides = [(x + ASIDE, "start"), (x - ASIDE - width, "end")]
        inside = [side for side in sides if left <= side[0] and side[0] + width <= right] or sides[:1]
        tries = ((start, anchor, y + height) for height in heights for start, anchor in inside)
        start, anchor, base = next(
            (start, anchor, base)
            for start, anchor, base in tries
            if not any(
                start < right and left < start + width and base - LINE < bottom and top < base
                for left, top, right, bottom in boxes
            )
        )
        boxes.append((start, base - LINE, start + width, base))
        places.append((start if anchor == "start" else start + width, base, anchor))
    return places


PICTURES = (
    ("cut gradients", "Leakage from cut gradients and embeddings", "leak AUC of the strongest attack"),
    ("cut embeddings", "Leakage from cut embeddings alone", "leak AUC of the strongest attack"),
    ("columns", "Columns rebuilt from embeddings alone", "mean over columns of what the strongest attack tells"),
)


def sweep_plots(sweep: Sweep) -> list[Scatter]:
    """Plot one picture per kind of view for labels, and one for the columns that can be rebuilt."""
    return [plot for reads, *names in PICTURES if (plot := _sweep_plot(sweep, reads, *names)) is not None]


def _sweep_plot(sweep: Sweep, reads: str, title: str, x_label: str) -> Scatter | None:
    drawn_trials = []
    for trial in sweep.trials:
        leak = strongest(trial, reads) if reads != "columns" else None
        leaked = trial.columns if reads == "columns" else leak.auc if leak is not None else None
        if leaked is not None:
            drawn_trials.append((trial, leaked))
    if not drawn_trials:
        return None
    utilities = [value for trial, _ in drawn_trials for value in (trial.utility.low, trial.utility.high)]
    utilities += [sweep.local_baseline.mean] if sweep.local_baseline is not None else []
    span = charts.spanning(utilities)
    least = 0.0 if reads == "columns" else min(0.5, *(math.floor(leaked.low * 10) / 10 for _, leaked in drawn_trials))
    x, y = charts.axes(400, 396, (least, 1.0), (span.low, span.high))
    names = list(dict.fromkeys(trial.defense for trial, _ in drawn_trials))
    colours = {name: TRIAL_COLOURS[i % len(TRIAL_COLOURS)] for i, name in enumerate(names)}
    points = [(x.at(leaked.mean), y.at(trial.utility.mean)) for trial, leaked in drawn_trials]
    places = place_labels(points, [trial.strength or trial.defense for trial, _ in drawn_trials], left=x.start, right=x.end)
    spots = [
        Spot(
            x=points[i][0],
            y=points[i][1],
            left=x.at(leaked.low),
            right=x.at(leaked.high),
            bottom=y.at(trial.utility.low),
            top=y.at(trial.utility.high),
            colour=colours[trial.defense],
            label=trial.strength or trial.defense,
            label_x=places[i][0],
            label_y=places[i][1],
            anchor=places[i][2],
        )
        for i, (trial, leaked) in enumerate(drawn_trials)
    ]
    series = [
        charts.PlottedSeries(
            name=name,
            colour=colours[name],
            points=[(spot.x, spot.y) for spot, (trial, _) in zip(spots, drawn_trials, strict=True) if trial.defense == name],
            dashed=i >= len(TRIAL_COLOURS),
        )
        for i, name in enumerate(names)
    ]
    return Scatter(
        title=title,
        summary="; ".join(
            f"{trial.defense} {trial.strength}: {sweep.metric} {trial.utility.mean:.3f}, leak {leaked.mean:.3f}"
            for trial, leaked in drawn_trials
        ),
        width=400,
        height=396,
        x=x,
        y=y,
        x_label=x_label,
        y_label=f"test {sweep.metric}",
        series=series,
        spots=spots,
        floor=y.at(sweep.local_baseline.mean) if sweep.local_baseline is not None else None,
    )
