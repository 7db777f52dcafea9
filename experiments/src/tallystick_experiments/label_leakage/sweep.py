"""The label-leakage paper's tables 1 to 5 and figures 2 to 7, and the frontiers that it does not draw.

``run`` trains every scenario that the chosen parts need, each once per seed, and sets what came out beside what the paper prints.
Every finished run can be kept in a log, so that a long sweep is cut and resumed.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import log2
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.errors import ConfigError
from tallystick_experiments.clicks import ClickData, ClickTable, encode_clicks, read_clicks
from tallystick_experiments.experiment import TrainingPlan
from tallystick_experiments.grid import Case, Keeping, Latest, run_cases
from tallystick_experiments.label_leakage import paper
from tallystick_experiments.label_leakage.runs import Scenario, balanced, run_scenario
from tallystick_experiments.label_leakage.scenarios import (
    LARGE_BATCH,
    NORMALISED,
    PLAIN,
    depth,
    frontier_curves,
    parts,
    point,
    scenarios,
)
from tallystick_experiments.stats import paired, summarize_seeds

_SEEDS = (1, 2, 3, 4, 5)
_PAPER_ROWS = 1_000_000  # from here on the paper's own batch and step size
UPDATES_PER_EPOCH = 140
HIDDEN_ENOUGH = 0.55

LeakageRun = dict[str, Any]
ByName = dict[str, list[LeakageRun]]


@dataclass(frozen=True, kw_only=True)
class WantedPlan:
    """What is asked of every training but those at a batch of 8,192; None is scaled to the file."""

    epochs: int = 3
    batch_size: int | None = None
    learning_rate: float | None = None


def plan_for(rows: int, wanted: WantedPlan | None = None) -> TrainingPlan:
    """Give the paper's plan (3 epochs, batch 8,192, Adam 1e-4), scaled to a sample.

    A tenth of Criteo gives 500 updates an epoch. A sample of 72,000 rows would give 9; it gets batches of about a 140th of its
    rows and ten times the step size.
    """
    large, wanted = rows >= _PAPER_ROWS, wanted or WantedPlan()
    scaled = min(LARGE_BATCH, max(16, 2 ** round(log2(rows / UPDATES_PER_EPOCH))))
    return TrainingPlan(
        epochs=wanted.epochs,
        batch_size=(LARGE_BATCH if large else scaled) if wanted.batch_size is None else wanted.batch_size,
        learning_rate=(1e-4 if large else 1e-3) if wanted.learning_rate is None else wanted.learning_rate,
    )


def large_plan(rows: int) -> TrainingPlan:
    """Give the plan at the paper's batch of 8,192; on a sample, with what did best there without a defence."""
    return plan_for(rows) if rows >= _PAPER_ROWS else TrainingPlan(epochs=8, batch_size=LARGE_BATCH, learning_rate=3e-3)


def run(
    *,
    data: Path,
    seeds: Sequence[int] = _SEEDS,
    only: Sequence[str] = (),
    named: Sequence[str] = (),
    training: WantedPlan | None = None,
    min_count: int = 10,
    limit: int | None = None,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Run the benchmark on one thread.

    Args:
        data: Kaggle's Criteo or Avazu file, or a folder that holds just it.
        seeds: of the split, initialisation, batches and noise.
        only: parts (see ``leakage_scenarios.parts``); by default all that this data set has in the paper.
        named: scenarios by name, instead of parts: no table or figure then, only what each came to.
        training: of every training but those at a batch of 8,192; see ``plan_for``.
        min_count: training rows that a category needs for a code of its own.
        limit: draw so many rows at random.
        keeping: of the runs; nowhere if left out.

    Raises:
        ConfigError: an unknown part, or a log of another sweep.
        DataError: the file is not in Kaggle's format.
    """
    table = read_clicks(data, limit=limit)
    chosen = [] if named else _chosen(only, table.name)
    rows = table.frame.height
    plan, keeping = plan_for(rows, training), keeping or Keeping()
    about = {
        "name": table.name,
        "rows": rows,
        "min_count": min_count,
        "epochs": plan.epochs,
        "batch_size": plan.batch_size,
        "learning_rate": plan.learning_rate,
    }
    every = scenarios(large_plan(rows))
    if unknown := sorted(set(named) - set(every)):
        raise ConfigError(f"bench label-leakage: unknown scenario {', '.join(unknown)}; choose from {', '.join(every)}")
    names = list(dict.fromkeys(name for part in chosen for name in parts()[part])) or list(named)
    encoded = Latest(_encoded)

    def case(scenario: Scenario, seed: int) -> Case:
        def trial() -> LeakageRun:
            clicks = encoded(table, scenario.positive_rate, min_count, seed)
            return run_scenario(scenario, clicks, plan=plan, seed=seed)

        return Case(key={"name": scenario.name, "seed": seed}, trial=trial, title=f"seed {seed}: {scenario.name}")

    # one share of positives is encoded at a time
    wanted = sorted((every[name] for name in names), key=lambda each: each.positive_rate or 0)
    cases = [case(scenario, seed) for seed in seeds for scenario in wanted]
    return report_of(run_cases(cases, keeping, about, total=len(cases)), parts_run=chosen, data=about)


def _chosen(only: Sequence[str], data: str) -> list[str]:
    unknown = sorted(set(only) - set(parts()))
    if unknown:
        raise ConfigError(f"bench label-leakage: unknown part {', '.join(unknown)}; choose from {', '.join(parts())}")
    elsewhere = {f"table-{number}" for number, table in paper.TABLES.items() if table.data != data}
    if data == "avazu" and not only:
        return [part for part in parts() if part.startswith("table-") and part not in elsewhere]
    return [part for part in parts() if (part in only if only else part not in elsewhere)]


def _encoded(table: ClickTable, rate: float | None, min_count: int, seed: int) -> ClickData:
    """The table with this share of positives, its own if None."""
    return encode_clicks(table if rate is None else balanced(table, rate, seed=seed), seed=seed, min_count=min_count)


# --- what the runs say


def report_of(runs: Sequence[LeakageRun], *, parts_run: Sequence[str], data: dict[str, Any]) -> dict[str, Any]:
    """Set what was measured beside what the paper prints."""
    by_name: ByName = {}
    for each in runs:
        by_name.setdefault(each["name"], []).append(each)
    numbers = [part.removeprefix("table-") for part in parts_run if part.startswith("table-")]
    figures = [part.removeprefix("figure-") for part in parts_run if part.startswith("figure-")]
    return {
        "benchmark": "label-leakage",
        "data": data,
        "parts": list(parts_run),
        "seeds": sorted({each["seed"] for each in runs}),
        "seconds": sum(each["seconds"] for each in runs),
        "scenarios": [_summary(name, found) for name, found in by_name.items()],
        "tables": {number: _table(paper.TABLES[number], by_name) for number in numbers},
        "figures": {number: _figure(paper.FIGURES[number], by_name) for number in figures},
        "frontiers": [
            _frontier(at, by_name) for at in frontier_curves() if ("frontier-large" if at else "frontier") in parts_run
        ],
        "depth": _depths(by_name) if "depth" in parts_run else [],
        "claims": _claims(by_name) if "claims" in parts_run else [],
        "runs": list(runs),
    }


def last(runs: Sequence[LeakageRun], metric: str, *, epoch: int = -1) -> dict[str, float] | None:
    """Mean and interval over seeds of a metric after an epoch, the last one by default; None if it was not measured."""
    if not runs:
        return None
    if metric == "test_auc":
        return summarize_seeds([each["epochs"][epoch]["test_auc"] for each in runs])
    if epoch == -1:
        return summarize_seeds([each["attacks"][metric]["symmetric_auc"] for each in runs]) if metric in _attacks(runs) else None
    return summarize_seeds([each["epochs"][epoch]["leaks"][metric] for each in runs])


def _attacks(runs: Sequence[LeakageRun]) -> list[str]:
    """Attacks that every seed's run has: one that found no batch to score in some seed is left out."""
    return [attack for attack in runs[0]["attacks"] if all(attack in each["attacks"] for each in runs)]


def _summary(name: str, runs: Sequence[LeakageRun]) -> dict[str, Any]:
    return {
        "name": name,
        "test_auc": last(runs, "test_auc"),
        "attacks": {
            attack: {
                figure: summarize_seeds([each["attacks"][attack][figure] for each in runs]) for figure in FIGURES_OF_AN_ATTACK
            }
            for attack in _attacks(runs)
        },
        "by_epoch": {metric: [summarize_seeds(values) for values in by_epoch] for metric, by_epoch in _by_epoch(runs).items()},
        **{
            kind: [summarize_seeds(list(values)) for values in zip(*(each[kind] for each in runs), strict=True)]
            for kind in BY_PLACE
        },
    }


BY_PLACE = ("layers", "components")
FIGURES_OF_AN_ATTACK = ("auc", "symmetric_auc", "chance_symmetric_auc", "balanced_accuracy", "tpr_at_fpr")


def _by_epoch(runs: Sequence[LeakageRun]) -> dict[str, list[list[float]]]:
    """Per metric and epoch, a value per seed."""
    count = len(runs[0]["epochs"])
    metrics = runs[0]["epochs"][0]["leaks"]
    return {"test_auc": [[each["epochs"][e]["test_auc"] for each in runs] for e in range(count)]} | {
        metric: [[each["epochs"][e]["leaks"][metric] for each in runs] for e in range(count)] for metric in metrics
    }


def _table(table: paper.PaperTable, by_name: ByName) -> dict[str, Any]:
    return {
        "title": table.title,
        "rows": [
            {
                "row": row.label,
                "paper": dict(row.printed),
                "measured": {metric: last(by_name.get(row.scenario, []), metric) for metric in row.printed},
                "normalised": {metric: last(by_name.get(row.scenario + NORMALISED, []), metric) for metric in row.printed},
            }
            for row in table.rows
        ],
    }


def _figure(panels: dict[str, paper.Panel], by_name: ByName) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for letter, panel in panels.items():
        names = [each for name in panel.scenarios for each in (name, name + NORMALISED) if each in by_name]
        if panel.metric == "layers":
            series = {name: _summary(name, by_name[name])["layers"] for name in names}
        else:
            series = {name: [summarize_seeds(values) for values in _by_epoch(by_name[name])[panel.metric]] for name in names}
        found[letter] = {
            "title": panel.title,
            "metric": panel.metric,
            "series": series,
            "stated": [
                {"metric": metric, "paper": value, **{name: last(by_name[name], metric) for name in names}}
                for metric, value in panel.stated.items()
            ],
        }
    return found


def _frontier(at: str, by_name: ByName) -> dict[str, Any]:
    """Per form and weight: what it costs and what still leaks; and the smallest weight that hides from the spectral attack."""
    curves, prices = [], []
    for form, weights in frontier_curves()[at].items():
        points: list[dict[str, Any]] = [
            {"weight": weight, "name": name, "test_auc": last(found, "test_auc"), "leaks": _leaks(found)}
            for weight in weights
            if (found := by_name.get(name := point(form, weight, at), []))
        ]
        title = form.format("").strip().replace(" ,", ",")
        curves.append({"form": title, "points": points})
        hidden = [each for each in points if each["weight"] and each["leaks"][paper.LEAK]["mean"] <= HIDDEN_ENOUGH]
        base = by_name.get(point(PLAIN, 0.0, at), [])  # the paper's network without a defence, whatever the form's own network
        if hidden and base:
            first = min(hidden, key=lambda each: each["weight"])
            prices.append(
                {
                    "form": title,
                    "weight": first["weight"],
                    "test_auc_change": _paired(base, by_name[first["name"]]),
                    "test_auc": first["test_auc"],
                    "leaks": first["leaks"],
                }
            )
    return {"batch": at.removeprefix(", batch ") or None, "curves": curves, "prices": prices}


def _leaks(runs: Sequence[LeakageRun]) -> dict[str, dict[str, float]]:
    return {attack: summarize_seeds([each["attacks"][attack]["symmetric_auc"] for each in runs]) for attack in _attacks(runs)}


def _paired(base: Sequence[LeakageRun], runs: Sequence[LeakageRun]) -> dict[str, float]:
    """The change of test AUC against the same seed's run without it: the luck of the split cancels."""
    return summarize_seeds(paired(runs, base, lambda each: float(each["epochs"][-1]["test_auc"])))


def _depths(by_name: ByName) -> list[dict[str, Any]]:
    return [
        {"below": below, "test_auc": last(found, "test_auc"), "leaks": _leaks(found)}
        for below in range(1, 7)
        if (found := by_name.get(depth(below), []))
    ]


def _claims(by_name: ByName) -> list[dict[str, Any]]:
    """The paper's claims as inequalities: the means must hold them."""
    bare, found = by_name["none"], []
    for attack in ("norm", "direction-1", "direction-3", "direction-5"):
        found.append(_claim(f"no defence: {attack} on gradients", last(bare, attack), ">=", 0.9))
    for epoch in range(1, len(bare[0]["epochs"])):
        found.append(
            _claim(f"no defence: spectral on embeddings, epoch {epoch + 1}", last(bare, paper.LEAK, epoch=epoch), ">", 0.6)
        )
    defended = by_name[paper.marvell(8)]
    for attack in ("norm", "direction-1", "direction-3", "direction-5", "direction-1-clean", "spectral-gradient"):
        found.append(_claim(f"Marvell s = 8: {attack} on gradients", last(defended, attack), "<=", 0.6))
    found.append(_claim("Marvell s = 8: spectral on embeddings stays", last(defended, paper.LEAK), ">", 0.6))
    return found


def _claim(what: str, measured: dict[str, float] | None, relation: str, wanted: float) -> dict[str, Any]:
    mean = np.nan if measured is None else measured["mean"]
    passed = {">=": mean >= wanted, ">": mean > wanted, "<=": mean <= wanted}[relation]
    return {"what": what, "measured": measured, "wanted": f"{relation} {wanted:g}", "passed": bool(passed)}
