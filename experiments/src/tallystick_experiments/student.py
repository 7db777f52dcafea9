"""Measure the share of joining's gain that a student keeps: two parties train and predict, and the label party distils."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import polars as pl
from typer import Option

from tallystick.config.contract import load_contract
from tallystick.config.party import FeatureColumns, load_party
from tallystick.demo.homes import write_job
from tallystick.errors import ConfigError
from tallystick.export.student import StudentFigures, make_student
from tallystick.job.predict import predict_rows
from tallystick.job.process import run_process
from tallystick.network.addresses import free_port
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import TABLES, PublicTable, load_table
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.page import Benchmark, seeds_of
from tallystick_experiments.pivot import Pivot, mean
from tallystick_experiments.stats import Row

LABEL, FEATURE, KEY = "label", "feature", "row key"
USUAL = ("breast", "diabetes", "digits", "frogs", "taxi", "avazu", "ijcai18", "credit-default", "flights", "hdb")
MOST_ROWS = 5_000


def student_experiment(
    *,
    data: Annotated[Path | None, Option(help="Folder of public files (docs/results/quality.md).")] = None,
    tables: Annotated[Sequence[str], several("Tables of bench quality, with commas between.")] = USUAL,
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=100)] = MOST_ROWS,
    seeds: Annotated[Sequence[int], seeds_option("Seeds per table.")] = range(1, 4),
) -> Experiment:
    """Divide each table's columns at random, train together with the default settings, score, and distil.

    Raises ConfigError for an unknown table, DataError for a missing one.
    """
    if unknown := [name for name in tables if name not in TABLES]:
        raise ConfigError(f"--tables {', '.join(unknown)}: must be of {', '.join(TABLES)}")
    loaded = {name: load_table(name, data, most=rows) for name in tables}

    def trial(seed: int, table: str) -> Row:
        with TemporaryDirectory() as folder:
            figures = _measured(loaded[table], seed, Path(folder))
        return {
            "metric": figures["headline"],
            "share": figures["share"],
            "test_rows": figures["rows"]["test"],
            **figures["metrics"][figures["headline"]],
        }

    return Experiment(
        name="student",
        cases=grid(seed=seeds, table=loaded),
        trial=trial,
        page=student_page,
        setting={"benchmark": "student", "most_rows": rows},
        about={"rows": {name: table.frame.height for name, table in loaded.items()}},
    )


def _measured(table: PublicTable, seed: int, folder: Path) -> StudentFigures:
    """Run both parties over mutual TLS, score the run's rows, and make a student."""
    own, partner = table.halves(seed)
    frame = table.frame.with_columns(pl.int_range(table.frame.height).cast(pl.String).alias(KEY))
    address = f"127.0.0.1:{free_port()}"
    contract = {
        "name": "student",
        "parties": {LABEL: {"role": "label"}, FEATURE: {"role": "feature"}},
        "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
        "target": table.contract_target,
        "evaluation": {"own_columns_baseline": False, "importance": {"own_columns": False}},
        "audit": False,
        "seed": seed,
    }
    common = {"table": {"path": "table.parquet"}, "keys": {"id": KEY}, "threads": 1}
    files = {
        LABEL: {**common, "label": table.label, "listen": address, "features": _named(own)},
        FEATURE: {**common, "peers": {LABEL: {"address": address}}, "features": _named(partner)},
    }
    homes = write_job(folder, contract, files)
    for name, columns in ((LABEL, own), (FEATURE, partner)):
        held = [KEY, *columns.numeric, *columns.categorical, *([table.label] if name == LABEL else [])]
        frame.select(held).write_parquet(homes[name] / "table.parquet")
    read = {name: (load_contract(home / "contract.yaml"), load_party(home / "party.yaml")) for name, home in homes.items()}
    scores = homes[LABEL] / "scores.parquet"
    _both(lambda name: run_process(*read[name], watcher=Silent()))
    outputs = {LABEL: scores, FEATURE: None}
    _both(lambda name: predict_rows(*read[name], table=None, output=outputs[name], watcher=Silent()))
    return make_student(*read[LABEL], scores=scores, to=homes[LABEL] / "student", onnx=False, watcher=Silent())


def _named(columns: FeatureColumns) -> dict[str, list[str]]:
    return {"numeric": list(columns.numeric), "categorical": list(columns.categorical)}


def _both(role: Callable[[str], Any]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for each in [pool.submit(role, name) for name in (LABEL, FEATURE)]:
            each.result()


def student_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show own columns, student and joint model by table, and the share of the gain, from the means."""

    def kept(chosen: Sequence[Row]) -> float | None:
        joint_gain = sum(row["joint_gain"] for row in chosen)
        return sum(row["gain"] for row in chosen) / joint_gain if is_better(chosen) else None

    def is_better(chosen: Sequence[Row]) -> bool:
        """Tell whether the joint model surely gains on the test rows of every seed."""
        return all(row["kept"] is not None for row in chosen)

    def scored(chosen: Sequence[Row]) -> str:
        return ", ".join(f"{row['share']:g}" for row in chosen)

    note = (
        f"Columns shared out at random between two parties, who train with the default settings and have the rows of training "
        f"scored; seeds {seeds_of(rows)}, means with Student's 95 % intervals over seeds. Own columns are the same network "
        "without scores. A share is of the seeds' gains together, where joining gains with every seed, beyond its interval. "
        "Validation labels choose which share of a target is the score: none, a half or all."
    )
    return Benchmark(
        title="What a student keeps of joining's gain",
        tables=[
            Pivot(
                name="On test rows",
                rows={"table": "table", "metric": "metric"},
                shown={
                    "rows": lambda chosen: about["rows"][chosen[0]["table"]],
                    "own columns": mean("own"),
                    "student": mean("student"),
                    "joint": mean("joint"),
                    "share of the gain": kept,
                    "score's share by seed": scored,
                },
                note=note,
            ).table(rows)
        ],
    )
