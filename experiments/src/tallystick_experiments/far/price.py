"""Measure what fewer bytes and more batches in flight cost on public tables: the contract's default with one key changed."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from tallystick.errors import ConfigError
from tallystick.report.leaks import strength
from tallystick.results import Result
from tallystick_experiments.audited import audited_table
from tallystick_experiments.catalogue.public import load_table
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.page import Benchmark, seeds_of
from tallystick_experiments.pivot import LineCell, Pivot
from tallystick_experiments.stats import Row

TRAININGS: dict[str, dict[str, Any]] = {
    "default": {},
    "bfloat16": {"compression": "bfloat16"},
    "int8": {"compression": "int8"},
    "in-flight-8": {"mode": "pipelined", "staleness": 8},
    "in-flight-16": {"mode": "pipelined", "staleness": 16},
    "in-flight-32": {"mode": "pipelined", "staleness": 32},
    "in-flight-64": {"mode": "pipelined", "staleness": 64},
    "int8-in-flight-64": {"compression": "int8", "mode": "pipelined", "staleness": 64},
    "no-gradients": {"gradients": "none"},
}
"""The keys of each contract's ``training`` that differ from the default."""


LEAKS = (
    (
        "What the audit finds of labels",
        "labels",
        "By the strongest attack that somebody could run: .5 is a guess, 1 all.",
    ),
    (
        "What the audit finds of columns",
        "columns",
        "The mean over columns, by an attacker who knows most rows: 0 is a guess.",
    ),
)
"""Tables of findings: their names, the figures in a row, and their notes."""


def price_experiment(
    *,
    data: Annotated[Path | None, Option(help="Folder of public files (docs/results/quality.md).")] = None,
    tables: Annotated[Sequence[str], several("Tables of bench quality, with commas between.")] = ("breast", "flights"),
    trainings: Annotated[Sequence[str], several("default, int8, in-flight-64 …, with commas between; all if left out.")] = (),
    seeds: Annotated[Sequence[int], seeds_option("Seeds per table and training.")] = range(1, 6),
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=100)] = 12_000,
    audit: Annotated[bool, Option(help="Attack each run as well.")] = False,
) -> Experiment:
    """Train each table in each of these ways by simulated jobs. With ``audit``, each run is attacked as well.

    Raises ConfigError for an unknown training.
    """
    if unknown := [name for name in trainings if name not in TRAININGS]:
        raise ConfigError(f"--trainings {', '.join(unknown)}: must be of {', '.join(TRAININGS)}")
    loaded = {name: load_table(name, data, most=rows) for name in tables}

    def trial(seed: int, table: str, training: str) -> Row:
        of = loaded[table]
        result = audited_table(of, seed, training=TRAININGS[training], audit=audit)
        value = result.joint["rmse" if of.target == "regression" else "auc"]["value"]
        return {"value": value} | (_found(result) if audit else {})

    return Experiment(
        name="far",
        cases=grid(seed=seeds, table=tables, training=trainings or TRAININGS),
        trial=trial,
        page=price_page,
        setting={"benchmark": "far", "most_rows": rows, "audit": audit},
        about={"metrics": {name: "RMSE" if table.target == "regression" else "AUC" for name, table in loaded.items()}},
    )


def _found(result: Result) -> Row:
    """Return what the strongest attacks found: for labels 0.5 is a guess and 1 all, for columns 0 and 1."""
    labels = [strength(attack) for attack in result.label_audit.attacks if not attack.upper_bound]
    columns = [mean for each in result.sections.features for mean in each.means]
    most_known = max((mean.known for mean in columns), default=0)
    return {
        "labels": 0.5 + max(labels, default=0.0),
        "columns": max((mean.value for mean in columns if mean.known == most_known), default=0.0),
        "known": most_known,
    }


def price_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show the rows of ``price_experiment``."""
    metric: dict[str, LineCell] = {"metric": lambda of: about["metrics"][of[0]["table"]]}
    return Benchmark(
        title="What fewer bytes and more batches in flight cost",
        tables=[
            Pivot(name="Test rows", rows="table", shown=metric, columns="training", figure="value").table(rows),
            Pivot(
                name="Change from the default",
                rows="table",
                shown=metric,
                columns="training",
                figure="value",
                paired="default",
                note="By seeds, which share rows and halves. A larger AUC is better, and a smaller RMSE.",
            ).table(rows),
            *(
                Pivot(name=name, rows="table", columns="training", figure=figure, note=note).table(rows)
                for name, figure, note in LEAKS
                if all(figure in row for row in rows)
            ),
        ],
        notes=["The contract's default network and training, by simulated jobs; columns are shared out at random, by the seed."],
        facts={"seeds": seeds_of(rows)},
    )
