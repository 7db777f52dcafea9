"""Render a result into one self-contained HTML page.

The page loads nothing (its content policy forbids it), runs no script, and carries the result as JSON. Every value from the
result is escaped. The page shows the result and computes only positions.
"""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tallystick.evaluation.decisions import Decisions
from tallystick.evaluation.measure import Comparison, MetricValue
from tallystick.metrics import METRICS
from tallystick.report import charts, leaks, summary, trials
from tallystick.report.summary import headline, party_names, verdict
from tallystick.report.templating import render_template, script_json, write_page
from tallystick.results import ColumnFall, ImportanceSummary, Result, read_result

MODELS = (("local_baseline", "own columns only", "own"), ("joint", "joint", "joint"))
"""For each model of an evaluation's curves: key, name and colour."""


def render(result: Result | dict[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write the report of ``result`` to ``path``. An earlier file is replaced only when the page is complete.

    Raises DataError if a dictionary is not a result, StorageError if the file cannot be written.
    """
    return write_page(to_html(result), path)


def to_html(result: Result | dict[str, Any]) -> str:
    """Return the report of ``result`` as one page of HTML."""
    shown_result = result if isinstance(result, Result) else read_result(result)
    bars, clock = charts.timeline(shown_result.phases)
    partners = [party.name for party in shown_result.parties if party.role != "label"]
    evaluation = shown_result.evaluation
    metric_rows: list[MetricRow] = []
    if evaluation is not None:
        own, difference = evaluation["local_baseline"] or {}, evaluation["difference"] or {}
        metric_rows = [
            MetricRow(
                title=metric.title,
                better="higher" if metric.higher_is_better else "lower",
                joint=evaluation["joint"][name],
                own=own.get(name),
                difference=difference.get(name),
                verdict=verdict(difference[name], metric) if name in difference else "unclear",
            )
            for name, metric in METRICS[evaluation["target"]].items()
            if name in evaluation["joint"]
        ]
    by_label = dict(shown_result.sections.decisions_by_label)
    if shown_result.sections.decisions is not None:
        by_label[""] = shown_result.sections.decisions
    deciding = []
    for name, decisions in by_label.items():
        first = decisions["deciles"][0]["gain"]
        gain = charts.gain_plot(decisions, f"The highest-scored tenth of the rows holds {first:.0%} of the positives.")
        scores = charts.score_plot(decisions, "Shares of the positives and of the negatives per score.")
        deciding.append(Deciding(label=name, of=decisions, gain=gain, scores=scores))
    # For a quantile target: the shares of each model, and their lines
    curves = evaluation["curves"] if evaluation is not None else {}
    quantiles = {model: shares for model in curves if (shares := curves[model].get("quantiles")) is not None}
    quantile_lines = [
        charts.Line(name=name, colour=colour, xs=shares["level"], ys=[each["value"] or 0.0 for each in shares["observed"]])
        for model, name, colour in MODELS
        if (shares := quantiles.get(model)) is not None
    ]
    linkage, linked = shown_result.sections.linkage, None
    if linkage is not None:
        weights = shown_result.sections.link_weights
        linked = Linked(
            similarities={name: charts.similarity_plot(name, each, weights) for name, each in linkage.similarities.items()},
            maps=[charts.link_map(one) for one in linkage.maps],
        )
    return render_template(
        "page.html.j2" if shown_result.sections.sample is None else "explored.html.j2",
        r=shown_result,
        json=script_json(json.dumps(shown_result.to_dict(), allow_nan=False, separators=(",", ":"))),
        headline=headline(shown_result),
        names=party_names(shown_result),
        # The label party's colour is that of its own columns; the others use the remaining colours in turn
        colours={party.name: "own" for party in shown_result.parties if party.role == "label"}
        | {name: f"other{i % 3}" for i, name in enumerate(partners)},
        stick=charts.stick(shown_result.contract.hash),
        lift=_lift(shown_result),
        metrics=metric_rows,
        curve_plots=_curve_plots(evaluation) if evaluation is not None else [],
        labels=[
            LabelPart(
                name=name,
                of=part,
                verdict=verdict(change, METRICS["binary"]["auc"])
                if (change := (part["difference"] or {}).get("auc")) is not None
                else "unclear",
                plots=_curve_plots(part),
            )
            for name, part in (evaluation.get("labels", {}) if evaluation is not None else {}).items()
        ],
        quantiles=quantiles,
        coverage=charts.quantile_plot(quantile_lines, "Share of labels at or below each predicted quantile, against its level.")
        if quantile_lines
        else None,
        brier=_brier_plot(shown_result),
        deciding=deciding,
        falls=[_falls(one) for one in shown_result.sections.importance if one.columns],
        titles={target: {name: metric.title for name, metric in table.items()} for target, table in METRICS.items()},
        promise=leaks.promise(shown_result),
        linked=linked,
        loss=charts.loss_plot(shown_result.training, shown_result.local_baseline_training) if shown_result.training else None,
        bars=bars,
        clock=clock,
        sent=sum(phase.bytes_sent for phase in shown_result.phases),
        received=sum(phase.bytes_received for phase in shown_result.phases),
        attack_track=charts.attack_track,
        symmetric_track=charts.symmetric_track,
        sweep=trials.sweep_plots(shown_result.sections.sweep) if shown_result.sections.sweep else [],
        strongest=trials.strongest,
        outdone=trials.outdone,
        leaks=leaks,
        words=summary,
    )


@dataclass(frozen=True, kw_only=True)
class Linked:
    """Charts of links by similar keys."""

    similarities: dict[str, charts.Plot]
    maps: list[charts.PlacedLinks]


@dataclass(frozen=True, kw_only=True)
class MetricRow:
    """One metric of both models and their difference, with the meaning of the difference."""

    title: str
    better: str  # "higher" or "lower"
    joint: MetricValue
    own: MetricValue | None
    difference: MetricValue | None
    verdict: str


@dataclass(frozen=True, kw_only=True)
class Lift:
    """The opening chart: the first metric of both models on one axis."""

    axis: charts.Axis
    ends: tuple[str, str]  # what the axis's ends mean
    title: str
    joint: charts.Track
    own: charts.Track | None


def _lift(result: Result) -> Lift | None:
    evaluation = result.evaluation
    if evaluation is None:
        return None
    name, metric = next(iter(METRICS[evaluation["target"]].items()))
    joint = evaluation["joint"][name]
    own = evaluation["local_baseline"][name] if evaluation["local_baseline"] else None
    ends_of_intervals = [value for each in (joint, own) if each for value in (each["value"], each["high"]) if value is not None]
    if joint["value"] is None:
        return None
    axis, ends = charts.spanning(ends_of_intervals, floor=0.0), ("no error", "")
    if name == "auc":
        low = 0.5 if min(ends_of_intervals) >= 0.5 else 0.0
        axis, ends = charts.Axis(low=low, high=1.0), ("guessing" if low else "all wrong", "perfect")
    elif name == "accuracy":
        axis, ends = charts.Axis(low=0.0, high=1.0), ("all wrong", "all right")
    return Lift(
        axis=axis,
        ends=ends,
        title=metric.title,
        joint=_track(axis, joint, since=own["value"] if own else None),
        own=_track(axis, own) if own and own["value"] is not None else None,
    )


def _track(axis: charts.Axis, value: MetricValue, since: float | None = None) -> charts.Track:
    assert value["value"] is not None
    return charts.Track(
        at=axis.at(value["value"]),
        low=None if value["low"] is None else axis.at(value["low"]),
        high=None if value["high"] is None else axis.at(value["high"]),
        since=None if since is None else axis.at(since),
    )


@dataclass(frozen=True, kw_only=True)
class LabelPart:
    """One of several labels: figures of both models, the change of its AUC by joining, and its curves."""

    name: str
    of: Comparison
    verdict: str
    plots: list[charts.Plot]


def _curve_plots(comparison: Comparison) -> list[charts.Plot]:
    """Draw the existing curves of a label of two classes: ROC, precision-recall and reliability."""
    plots = [
        _curve_plot(
            comparison,
            "roc",
            charts.roc_plot,
            xs="false_positive_rate",
            ys="true_positive_rate",
            text="True positive rate against false positive rate: {}. The metrics table holds the areas.",
        ),
        _curve_plot(
            comparison,
            "precision_recall",
            charts.precision_recall_plot,
            xs="recall",
            ys="precision",
            text="Precision against recall: {}. The metrics table holds the average precision.",
        ),
        _curve_plot(
            comparison,
            "reliability",
            charts.reliability_plot,
            xs="predicted",
            ys="observed",
            text="Observed rate against predicted probability per bin of equal mass: {}.",
        ),
    ]
    return [plot for plot in plots if plot is not None]


def _curve_plot(
    comparison: Comparison, curve: str, plot: Callable[[list[charts.Line], str], charts.Plot], *, xs: str, ys: str, text: str
) -> charts.Plot | None:
    """Draw one curve of each model. ``text`` says what is drawn, with a place for the models' names."""
    curves: dict[str, Any] = comparison["curves"]
    lines = [
        charts.Line(name=name, colour=colour, xs=points[xs], ys=points[ys])
        for model, name, colour in MODELS
        if model in curves and (points := curves[model].get(curve)) is not None
    ]
    return plot(lines, text.format(" and ".join(line.name for line in lines))) if lines else None


def _brier_plot(result: Result) -> charts.Plot | None:
    """Draw the Brier scores of each model, and those of one distribution for all rows."""
    curves: dict[str, Any] = result.evaluation["curves"] if result.evaluation else {}
    shown_curves = [(name, colour, brier) for model, name, colour in MODELS if (brier := curves.get(model, {}).get("brier"))]
    if not shown_curves:
        return None
    lines = [charts.Line(name=name, colour=colour, xs=one["time"], ys=one["score"]) for name, colour, one in shown_curves]
    first = shown_curves[-1][2]
    alike = charts.Line(name="all rows alike", colour="muted", xs=first["time"], ys=first["alike"])
    return charts.brier_plot(
        [alike, *lines], "Brier score of the chance that there was no event until each time; lower is better."
    )


@dataclass(frozen=True, kw_only=True)
class Deciding:
    """Decisions by the scores of a label, and their charts. A single label has no name."""

    label: str
    of: Decisions
    gain: charts.Plot
    scores: charts.Plot


@dataclass(frozen=True, kw_only=True)
class Falls:
    """One party's columns on an axis, the most important one first."""

    of: ImportanceSummary
    title: str  # name of the metric within a sentence
    rises: bool  # whether the metric is an error, which grows when the model gets worse
    axis: charts.Axis
    rows: list[tuple[ColumnFall, charts.Track]]


def _falls(one: ImportanceSummary) -> Falls:
    ordered = sorted(one.columns, key=lambda fall: -fall.mean)
    reach = [0.0, *(end for fall in ordered for end in (fall.mean - fall.deviation, fall.mean + fall.deviation))]
    axis = charts.Axis(low=min(reach), high=max(*reach, min(reach) + 1e-9))
    metric = next((each for table in METRICS.values() for each in table.values() if each.title == one.metric), None)
    return Falls(
        of=one,
        title=metric.words if metric is not None else one.metric,
        rises=metric is not None and not metric.higher_is_better,
        axis=axis,
        rows=[(fall, charts.fall_track(fall, axis)) for fall in ordered],
    )
