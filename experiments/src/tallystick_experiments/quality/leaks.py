"""What the default and the former default tell attackers: the audit of a run on a public table, both ways.

The run is the product's: a simulated job with ``audit: true``, the label party's attacks on all that crossed the cut.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError
from tallystick.network.channel import Progress, no_progress
from tallystick.results import Result
from tallystick_experiments.audited import audited
from tallystick_experiments.quality.methods import FORMER_ENCODING, FORMER_MODEL, former_training
from tallystick_experiments.quality.tables import MOST_ROWS, PublicTable, load_table
from tallystick_experiments.shared import SweepLog, make_output_folder, summarize_seeds

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
METHODS = ("former", *CONTRACTS)
USUAL = ("former", "default")


def run(
    folder: Path,
    tables: Sequence[str],
    data: Path | None,
    *,
    methods: Sequence[str] = USUAL,
    seeds: Sequence[int],
    most_rows: int = MOST_ROWS,
    resume: bool = False,
    progress: Progress = no_progress,
) -> dict[str, Any]:
    """Train each table by the former and the present default, or others of METHODS, and attack each run; one line of a log each.

    Gives the runs, and by table and method the mean symmetric AUC of each attack on labels, and the mean R² (of categories its
    like, see ``RebuiltColumn``) of the feature party's columns as rebuilt by the strongest attack.

    Raises ConfigError for an unknown method, or a table of numbers to predict: attacks tell classes apart.
    """
    if unknown := [name for name in methods if name not in METHODS]:
        raise ConfigError(f"--methods {', '.join(unknown)}: with --leaks must be of {', '.join(METHODS)}")
    loaded = {name: load_table(name, data, most=most_rows) for name in tables}
    if numbers := [name for name, table in loaded.items() if table.target == "regression"]:
        raise ConfigError(f"--tables {', '.join(numbers)}: attacks tell classes apart, which a number to predict does not have")
    make_output_folder(folder)
    log = SweepLog(folder / "runs.jsonl", setting={"benchmark": "quality-leaks", "most_rows": most_rows}, resume=resume)
    done = {(line["table"], line["method"], line["seed"]) for line in log.runs}
    wanted = [(name, method, seed) for seed in seeds for name in tables for method in methods]
    for number, (name, method, seed) in enumerate(wanted, 1):
        if (name, method, seed) not in done:
            found = _figures(_run(loaded[name], seed, method))
            log.add({"table": name, "method": method, "seed": seed, **found})
        progress(f"{name}, {method}, seed {seed}", number, len(wanted))
    runs = [line for line in log.runs if (line["table"], line["method"], line["seed"]) in wanted]
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
    former = method == "former"
    contract: dict[str, Any] = {"target": {"type": table.target}, "seed": seed, **CONTRACTS.get(method, {})}
    if former:
        rows = table.frame.height * 7 // 10
        training = former_training(rows).model_dump(mode="json")
        contract |= {"model": FORMER_MODEL.model_dump(mode="json"), "training": training}
    encoding = {"encoding": FORMER_ENCODING.model_dump(mode="json")} if former else {}
    return audited(table.frame, table.label, {"label": own, "feature": theirs}, contract=contract, party=encoding)


def _figures(result: Result) -> dict[str, Any]:
    figures = {"test AUC of the model": result.joint["auc"]["value"]}
    for attack in sorted(result.label_audit.attacks, key=lambda attack: attack.name):
        figures[f"labels: {attack.name}, {attack.view}"] = attack.symmetric_auc
    for audit in result.sections.features:
        figures |= {f"columns: rebuilt, {mean.known} known rows": mean.value for mean in audit.means}
    return {"figures": figures}
