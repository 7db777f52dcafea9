"""What the default and the former default tell attackers: the audit of a run on a public table, both ways.

The run is the product's: a simulated job with ``audit: true``, the label party's attacks on all that crossed the cut.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from tallystick.benchmark.quality.methods import FORMER_ENCODING, FORMER_MODEL, former_training
from tallystick.benchmark.quality.tables import PublicTable, load_table
from tallystick.benchmark.shared import summarize_seeds
from tallystick.config.party import FeatureColumns
from tallystick.errors import ConfigError
from tallystick.job.log import Silent
from tallystick.network.channel import Progress, no_progress
from tallystick.report.result import Result
from tallystick.simulation import simulate

KEY = "row"
METHODS = ("former", "default")


def leaks(name: str, data: Path | None, *, seeds: Sequence[int]) -> list[dict[str, Any]]:
    """Train a table with classes by the former and the present default, and attack both runs; one entry per run."""
    table = load_table(name, data)
    if table.target == "regression":
        raise ConfigError(f"--tables {name}: attacks tell classes apart, which a number to predict does not have")
    return [
        {"table": name, "method": method, "seed": seed, **_figures(_run(table, seed, former=method == "former"))}
        for seed in seeds
        for method in METHODS
    ]


def run(tables: Sequence[str], data: Path | None, *, seeds: Sequence[int], progress: Progress = no_progress) -> dict[str, Any]:
    """Do so for several tables; gives the runs, and for each table and attack the mean symmetric AUC by method.

    Raises ConfigError for a table of numbers to predict: attacks tell classes apart.
    """
    runs: list[dict[str, Any]] = []
    for name in tables:
        for seed in seeds:
            runs += leaks(name, data, seeds=[seed])
            progress(f"{name}, seed {seed}", len(runs) // 2, len(tables) * len(seeds))
    rows = []
    for name in tables:
        of_table = [line for line in runs if line["table"] == name]
        for attack in ("test AUC of the model", *sorted(of_table[0]["attacks"])):
            row: dict[str, Any] = {"table": name, "attack": attack}
            for method in METHODS:
                values = [line["attacks"].get(attack, line["test_auc"]) for line in of_table if line["method"] == method]
                row[method] = summarize_seeds(values)
            rows.append(row)
    return {"benchmark": "quality-leaks", "seeds": list(seeds), "rows": rows, "runs": runs}


def _run(table: PublicTable, seed: int, *, former: bool) -> Result:
    own, theirs = table.halves(seed)
    frame = table.frame.with_row_index(KEY)
    contract: dict[str, Any] = {
        "name": "leaks",
        "parties": {"label": {"role": "label"}, "feature": {"role": "feature"}},
        "alignment": {"keys": [{"name": KEY}]},
        "target": {"type": table.target},
        "evaluation": {"bootstrap": 0, "own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": True,
        "seed": seed,
    }
    if former:
        rows = table.frame.height * 7 // 10
        training = former_training(rows).model_dump(mode="json")
        contract |= {"model": FORMER_MODEL.model_dump(mode="json"), "training": training}
    encoding = {"encoding": FORMER_ENCODING.model_dump(mode="json")} if former else {}
    parties: dict[str, dict[str, Any]] = {
        "label": {"keys": {KEY: KEY}, "label": table.label, "features": _listed(own), **encoding},
        "feature": {"keys": {KEY: KEY}, "features": _listed(theirs), **encoding},
    }
    tables: dict[str, pl.DataFrame] = {
        "label": frame.select(KEY, table.label, *own.numeric, *own.categorical),
        "feature": frame.select(KEY, *theirs.numeric, *theirs.categorical),
    }
    return simulate(contract, tables, parties, watcher=Silent())


def _listed(columns: FeatureColumns) -> dict[str, list[str]]:
    return {"numeric": list(columns.numeric), "categorical": list(columns.categorical)}


def _figures(result: Result) -> dict[str, Any]:
    assert result.evaluation is not None
    assert result.sections.leakage is not None
    attacks = {f"{attack.name} on {attack.view}": attack.symmetric_auc for attack in result.sections.leakage.attacks}
    return {"test_auc": result.evaluation["joint"]["auc"]["value"], "attacks": attacks}
