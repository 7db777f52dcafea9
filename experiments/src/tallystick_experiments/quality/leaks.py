"""What the default tells attackers beside what sends no gradient: the audit of a run on a public table, both ways.

The run is the product's: a simulated job with ``audit: true``, the label party's attacks on all that crossed the cut.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError
from tallystick.results import Result
from tallystick_experiments.audited import audited
from tallystick_experiments.grid import Case, Keeping, run_cases
from tallystick_experiments.quality.tables import MOST_ROWS, PublicTable, load_table
from tallystick_experiments.stats import summarize_seeds

_NONE: dict[str, Any] = {"training": {"gradients": "none"}}
_NOISE = {"method": "gaussian-embeddings", "delta": 1e-6, "clip": 1.0}
CONTRACTS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-gradients": _NONE,
    "no-gradients-32": _NONE | {"model": {"cut_width": 32}},
    "no-gradients-8": _NONE | {"model": {"cut_width": 8}},
    "no-gradients-4": _NONE | {"model": {"cut_width": 4}},
    "no-gradients-noise-100": _NONE | {"defense": [_NOISE | {"epsilon": 100.0}]},
    "no-gradients-noise-30": _NONE | {"defense": [_NOISE | {"epsilon": 30.0}]},
}
"""What each method's contract says that is not the default's."""
METHODS = tuple(CONTRACTS)
USUAL = ("default", "no-gradients")


def run(
    tables: Sequence[str],
    data: Path | None,
    *,
    methods: Sequence[str] = USUAL,
    seeds: Sequence[int],
    most_rows: int = MOST_ROWS,
    keeping: Keeping | None = None,
) -> dict[str, Any]:
    """Train each table by each of these methods and attack each run; one line of a log each.

    Gives the runs, and by table and method the mean symmetric AUC of each attack on labels, and the mean R² (of categories its
    like, see ``RebuiltColumn``) of the feature party's columns as rebuilt by the strongest attack.

    Raises ConfigError for an unknown method, or a table of numbers to predict: attacks tell classes apart.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigError(f"--methods {', '.join(unknown)}: with --leaks must be of {', '.join(METHODS)}")
    loaded = {name: load_table(name, data, most=most_rows) for name in tables}
    if numbers := [name for name, table in loaded.items() if table.target == "regression"]:
        raise ConfigError(f"--tables {', '.join(numbers)}: attacks tell classes apart, which a number to predict does not have")

    def case(name: str, method: str, seed: int) -> Case:
        return Case(
            key={"table": name, "method": method, "seed": seed},
            trial=lambda: _figures(_run(loaded[name], seed, method)),
            title=f"{name}, {method}, seed {seed}",
        )

    cases = [case(name, method, seed) for seed in seeds for name in tables for method in methods]
    runs = run_cases(cases, keeping or Keeping(), {"benchmark": "quality-leaks", "most_rows": most_rows}, total=len(cases))
    return {
        "benchmark": "quality-leaks",
        "seeds": list(seeds),
        "methods": list(methods),
        "rows": _rows(runs, tables, methods),
        "runs": runs,
    }


def _rows(runs: Sequence[dict[str, Any]], tables: Sequence[str], methods: Sequence[str]) -> list[dict[str, Any]]:
    rows = []
    for name in tables:
        of_table = [line for line in runs if line["table"] == name]
        for figure in dict.fromkeys(figure for line in of_table for figure in line["figures"]):
            row: dict[str, Any] = {"table": name, "attack": figure}
            for method in methods:
                values = [line["figures"][figure] for line in of_table if line["method"] == method and figure in line["figures"]]
                row[method] = summarize_seeds(values) if values else None
            rows.append(row)
    return rows


def _run(table: PublicTable, seed: int, method: str) -> Result:
    own, theirs = table.halves(seed)
    contract: dict[str, Any] = {"target": {"type": table.target}, "seed": seed, **CONTRACTS[method]}
    return audited(table.frame, table.label, {"label": own, "feature": theirs}, contract=contract)


def _figures(result: Result) -> dict[str, Any]:
    figures = {"test AUC of the model": result.joint["auc"]["value"]}
    for attack in sorted(result.label_audit.attacks, key=lambda attack: attack.name):
        figures[f"labels: {attack.name}, {attack.view}"] = attack.symmetric_auc
    for audit in result.sections.features:
        figures |= {f"columns: rebuilt, {mean.known} known rows": mean.value for mean in audit.means}
    return {"figures": figures}
