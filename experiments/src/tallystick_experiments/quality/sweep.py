"""Every method on every table with every seed: ``tallystick bench quality``, one line of a log per run."""

from collections.abc import Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np

from tallystick.errors import ConfigError
from tallystick_experiments.grid import Case, Keeping, run_cases
from tallystick_experiments.quality.held_out import HELD_OUT
from tallystick_experiments.quality.methods import METHODS
from tallystick_experiments.quality.tables import BY_TIME, MOST_ROWS, PACKAGED, TABLES, PublicTable, drawn, load_table
from tallystick_experiments.stats import change, summarize_seeds

RIVALS = ("boosting", "boosting-early", "lightgbm")
AUC_WITHIN, RMSE_WITHIN = 0.002, 0.02
"""How far behind boosting still counts as as good: of AUC, and of RMSE relatively."""
AUC_BEHIND, RMSE_BEHIND = 0.005, 0.05
"""How far behind is too far."""


def tables_in(data: Path | None) -> list[str]:
    """The tables that can be had: all with the folder of public files, and without it those that packages bring."""
    return [name for name in TABLES if name not in (*HELD_OUT, *BY_TIME) and (data is not None or name in PACKAGED)]


def tables_of(asked: str, data: Path | None) -> list[str]:
    """The tables that a word of the command line names: names, ``held-out``, ``by-time``, or all that can be had."""
    if asked in (groups := {"held-out": list(HELD_OUT), "by-time": list(BY_TIME)}):
        return groups[asked]
    return asked.split(",") if asked else tables_in(data)


def run(
    *,
    data: Path | None,
    tables: Sequence[str] = tuple(TABLES),
    own: PublicTable | None = None,
    methods: Sequence[str] = tuple(METHODS),
    seeds: Sequence[int] = (1, 2, 3, 4, 5),
    most_rows: int = MOST_ROWS,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Run what the log lacks, seed after seed, and summarise all of it; ``own`` is a table of the user's.

    Raises ConfigError for an unknown table or method, DataError for a table that is not there.
    """
    for what, asked, known in (("table", tables, TABLES), ("method", methods, METHODS)):
        if unknown := [name for name in asked if name not in known]:
            raise ConfigError(f"--{what}s {', '.join(unknown)}: must be of {', '.join(known)}")
    loaded = {name: load_table(name, data, most=most_rows) for name in tables}
    if own is not None:
        loaded[own.name] = drawn(own, most=most_rows)

    def case(name: str, method: str, seed: int) -> Case:
        return Case(
            key={"table": name, "method": method, "seed": seed},
            trial=lambda: vars(METHODS[method](loaded[name], seed)),
            title=f"{name}, {method}, seed {seed}",
        )

    cases = [case(name, method, seed) for seed in seeds for name in loaded for method in methods]
    with np.errstate(all="ignore"):
        runs = run_cases(cases, keeping or Keeping(), {"benchmark": "quality", "most_rows": most_rows}, total=len(cases))
    facts = {
        name: {"rows": table.frame.height, "columns": len(table.columns.numeric + table.columns.categorical),
               "target": table.target, "source": table.source}
        for name, table in loaded.items()
    }  # fmt: skip
    return summarise(runs, facts, methods=methods, seeds=seeds)


def summarise(
    runs: Sequence[dict[str, Any]], facts: dict[str, dict[str, Any]], *, methods: Sequence[str], seeds: Sequence[int]
) -> dict[str, Any]:
    """Mean and spread of each method on each table, and how the default stands to boosting."""
    rows = []
    for name, about in facts.items():
        lines = {
            method: [line for line in runs if line["table"] == name and line["method"] == method and line["seed"] in seeds]
            for method in methods
        }
        lines = {method: of for method, of in lines.items() if of}
        figures = {method: summarize_seeds([line["value"] for line in of]) for method, of in lines.items()}
        row = {"table": name, **about, "metric": "rmse" if about["target"] == "regression" else "auc", "figures": figures}
        row["seconds"] = {method: summarize_seeds([line["seconds"] for line in of]) for method, of in lines.items()}
        row["megabytes"] = {
            method: summarize_seeds([line["crossing_bytes"] / 1e6 for line in of])
            for method, of in lines.items()
            if of[0].get("crossing_bytes") is not None
        }
        if price := change(lines.get("no-gradients", []), lines.get("default", []), itemgetter("value")):
            row["price"] = price
        for rival in RIVALS:
            if "default" in figures and rival in figures:
                row[f"behind_{rival}"] = behind(row["metric"], figures["default"]["mean"], figures[rival]["mean"])
        rows.append(row)
    return {"benchmark": "quality", "seeds": list(seeds), "tables": rows, **count_against(rows)}


def behind(metric: str, ours: float, theirs: float) -> float:
    """How far behind, negative if ahead: AUC as a difference, RMSE relatively."""
    return (ours - theirs) / theirs if metric == "rmse" else theirs - ours


def count_against(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """On how many tables the default is as good as boosting, and on how many too far behind."""
    found = {}
    for rival in RIVALS:
        gaps = [(row["metric"], row[f"behind_{rival}"]) for row in rows if f"behind_{rival}" in row]
        within = sum(gap <= (RMSE_WITHIN if metric == "rmse" else AUC_WITHIN) for metric, gap in gaps)
        far = sum(gap > (RMSE_BEHIND if metric == "rmse" else AUC_BEHIND) for metric, gap in gaps)
        found[rival] = {"tables": len(gaps), "within": within, "far_behind": far}
    return {"against": found}
