"""What fewer bytes and more batches in flight cost on public tables: the contract's default, and it with one key changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError
from tallystick_experiments.audited import audited
from tallystick_experiments.catalogue.public import load_table
from tallystick_experiments.grid import Keeping, grid, run_cases
from tallystick_experiments.page import Benchmark, Cell, ExperimentResult, ResultTable, seeds_of
from tallystick_experiments.stats import Row, change, distinct, groups, over_seeds

TRAININGS: dict[str, dict[str, Any]] = {
    "default": {},
    "bfloat16": {"compression": "bfloat16"},
    "float16": {"compression": "float16"},
    "int8": {"compression": "int8"},
    "top-k": {"compression": "top-k"},
    "in-flight-8": {"mode": "pipelined", "staleness": 8},
    "in-flight-16": {"mode": "pipelined", "staleness": 16},
    "in-flight-32": {"mode": "pipelined", "staleness": 32},
    "in-flight-64": {"mode": "pipelined", "staleness": 64},
    "int8-in-flight-64": {"compression": "int8", "mode": "pipelined", "staleness": 64},
}
"""What each contract's ``training`` says that is not the default's."""


def run(
    tables: Sequence[str], data: Path | None, *, trainings: Sequence[str], seeds: Sequence[int], most_rows: int, keeping: Keeping
) -> ExperimentResult:
    """Train each table with each of these by simulated jobs; one line of a log each. Raises ConfigError for an unknown one."""
    if unknown := [name for name in trainings if name not in TRAININGS]:
        raise ConfigError(f"--trainings {', '.join(unknown)}: must be of {', '.join(TRAININGS)}")
    loaded = {name: load_table(name, data, most=most_rows) for name in tables}

    def trial(seed: int, table: str, training: str) -> Row:
        of = loaded[table]
        own, theirs = of.halves(seed)
        target = {"type": of.target} | ({"classes": of.classes} if of.target == "multiclass" else {})
        contract = {"target": target, "seed": seed, "training": TRAININGS[training], "audit": False}
        joint = audited(of.frame, of.label, {"label": own, "feature": theirs}, contract=contract).joint
        return {"value": joint["rmse" if of.target == "regression" else "auc"]["value"]}

    cases = grid(seed=seeds, table=tables, training=trainings)
    rows = run_cases(cases, trial, keeping, {"benchmark": "far", "most_rows": most_rows})
    metrics = {name: "RMSE" if table.target == "regression" else "AUC" for name, table in loaded.items()}
    return ExperimentResult(experiment="far", about={"metrics": metrics}, rows=rows, page_of=page_of)


def page_of(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``run``."""
    trainings, figures, changes = distinct(rows, "training"), list[list[Cell]](), list[list[Cell]]()
    for name, of in groups(rows, "table").items():
        found, metric = groups(of, "training"), about["metrics"][name]
        figures.append([name, metric, *(over_seeds(found[training], "value") for training in trainings)])
        others = [training for training in trainings if training != "default"]
        changes.append([name, metric, *(change(found[training], found.get("default", []), "value") for training in others)])
    others = [training for training in trainings if training != "default"]
    return Benchmark(
        title="What fewer bytes and more batches in flight cost",
        tables=[
            ResultTable(name="Test rows", columns=["table", "metric", *trainings], rows=figures),
            ResultTable(
                name="Change from the default",
                columns=["table", "metric", *others],
                rows=changes,
                note="By seeds, which share rows and halves. A larger AUC is better, and a smaller RMSE.",
            ),
        ],
        notes=["The contract's default network and training, by simulated jobs; columns are shared out at random, by the seed."],
        facts={"seeds": seeds_of(rows)},
    )
