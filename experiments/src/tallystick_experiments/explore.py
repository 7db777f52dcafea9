"""Measure how well `tallystick explore` predicts: the gain on a sample next to that of the default run on all rows, by table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from scipy.stats import spearmanr
from typer import Option

from tallystick.config.contract import parse_contract
from tallystick.config.explore import ExploreConfig
from tallystick.errors import ConfigError
from tallystick.metrics import METRICS, TargetType
from tallystick.results import Result
from tallystick.simulation import simulate
from tallystick.watcher import Silent
from tallystick_experiments.catalogue.public import TABLES, PublicTable, load_table
from tallystick_experiments.catalogue.table import column_names
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.grid import grid
from tallystick_experiments.options import seeds_option, several
from tallystick_experiments.page import Benchmark, Cell, ResultTable, seeds_of
from tallystick_experiments.stats import Row, Spread

KEY, LABEL, FEATURE, HELPER = "row key", "label", "feature", "helper"
USUAL = (
    *("baseball", "casp", "compactiv", "crashes", "grid", "happiness"),
    *("hotels", "hours", "incomes", "lending", "packages", "votes"),
)
"""The first tables by name among those of the reporting half with two classes and 8,000 rows or more."""
MOST_ROWS = 12_000
SAMPLE: int = ExploreConfig.model_fields["rows"].default


def explore_experiment(
    *,
    data: Annotated[Path | None, Option(help="Folder of public files (docs/results/quality.md).")] = None,
    tables: Annotated[Sequence[str], several("Tables of bench quality, with commas between.")] = USUAL,
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=1_000)] = MOST_ROWS,
    sample: Annotated[int, Option(help="Ids of the sample, about.", min=500)] = SAMPLE,
    seeds: Annotated[Sequence[int], seeds_option("Seeds per table.")] = range(1, 2),
) -> Experiment:
    """Divide each table's columns at random, explore on a sample, and train with the default settings on all rows.

    Raises ConfigError for an unknown table, DataError for one that is missing.
    """
    if unknown := [name for name in tables if name not in TABLES]:
        raise ConfigError(f"--tables {', '.join(unknown)}: must be of {', '.join(TABLES)}")
    loaded = {name: load_table(name, data, most=rows) for name in tables}

    def trial(seed: int, table: str) -> Row:
        explored = _gain(loaded[table], seed, explore={"rows": sample}, training={"gradients": "shared"})
        return {"target": loaded[table].target, "estimate": explored, "final": _gain(loaded[table], seed)}

    return Experiment(
        name="explore",
        cases=grid(seed=seeds, table=loaded),
        trial=trial,
        page=explore_page,
        setting={"benchmark": "explore", "most_rows": rows, "sample": sample},
        about={"sample": sample, "rows": {name: table.frame.height for name, table in loaded.items()}},
    )


def _gain(table: PublicTable, seed: int, **sections: Mapping[str, Any]) -> Row:
    """Run or explore a contract with these sections. Return the figures of own columns, of both sides' and of the gain."""
    explores = "explore" in sections
    roles = {LABEL: "label", FEATURE: "feature"} | ({HELPER: "helper"} if explores else {})
    contract = parse_contract(
        {
            "name": "explore",
            "parties": {name: {"role": role} for name, role in roles.items()},
            "alignment": {"method": "intersection", "keys": [{"name": KEY}]},
            "target": table.contract_target,
            "unaligned": {"method": "none"},
            "evaluation": {"importance": {"own_columns": False}},
            "audit": False,
            "seed": seed,
            **sections,
        }
    )
    frame, halves = table.frame.with_row_index(KEY), dict(zip((LABEL, FEATURE), table.halves(seed), strict=True))
    parties: dict[str, dict[str, Any]] = {
        name: {"keys": {KEY: KEY}, "features": {"numeric": list(half.numeric), "categorical": list(half.categorical)}}
        for name, half in halves.items()
    }
    parties[LABEL]["label"] = table.label
    tables = {
        name: frame.select(KEY, *([table.label] if name == LABEL else []), *column_names(half)) for name, half in halves.items()
    }
    return figures_of(simulate(contract, tables, parties, watcher=Silent(), secret_seed=seed, explores=explores))


def figures_of(result: Result) -> Row:
    """Return the first metric of own columns and of both sides, the gain with its interval, test rows and seconds."""
    evaluation = result.evaluation
    assert evaluation is not None, "there are test rows"
    assert evaluation["local_baseline"] is not None, "the label party has columns"
    assert evaluation["difference"] is not None, "the label party has columns"
    name = next(iter(evaluation["joint"]))
    gain = evaluation["difference"][name]
    return {
        "metric": name,
        "own": evaluation["local_baseline"][name]["value"],
        "joint": evaluation["joint"][name]["value"],
        "gain": [gain["value"], gain["low"], gain["high"]],
        "test_rows": evaluation["rows"],
        "seconds": round(result.seconds, 1),
    }


def gain_in_points(target: TargetType, figures: Row) -> Spread:
    """Return a gain in points: .01 of a metric if higher is better, or else a tenth of the error with own columns."""
    metric = METRICS[target][figures["metric"]]
    value, low, high = figures["gain"]
    if metric.higher_is_better:
        return Spread(value=100 * value, low=100 * low, high=100 * high)
    scale = -10 / figures["own"]
    return Spread(value=scale * value, low=scale * high, high=scale * low)


def _holds(spread: Spread, value: float) -> bool:
    """Tell whether a value lies within the interval."""
    assert spread.low is not None, "an estimate has an interval"
    assert spread.high is not None, "an estimate has an interval"
    return spread.low <= value <= spread.high


def explore_page(about: Row, rows: Sequence[Row]) -> Benchmark:
    """Show both gains for each table, how well one ranks like the other, and the error of the estimate."""
    pairs = [(gain_in_points(row["target"], row["estimate"]), gain_in_points(row["target"], row["final"])) for row in rows]
    estimated, final = (np.array([pair[side].value for pair in pairs]) for side in (0, 1))
    lines: list[Sequence[Cell]] = [
        [row["table"], row["estimate"]["metric"], about["rows"][row["table"]], row["estimate"]["test_rows"],
         row["estimate"]["own"], row["estimate"]["joint"], estimate, row["final"]["own"], row["final"]["joint"], end]
        for row, (estimate, end) in zip(rows, pairs, strict=True)
    ]  # fmt: skip
    heads = ["table", "metric", "rows", "test rows of the sample", "own", "both", "estimate, points", "own, all", "both, all",
             "final gain, points"]  # fmt: skip
    tables = [ResultTable(name="Gain on a sample, and on all rows", columns=heads, rows=lines)]
    if len(rows) > 2:
        within = sum(_holds(estimate, end.value) for estimate, end in pairs)
        off = estimated - final
        summary: list[Sequence[Cell]] = [
            ["Spearman's rank correlation", float(spearmanr(estimated, final).statistic)],
            ["estimate below the final gain, tables", int((off < 0).sum())],
            ["off by, points, median", float(np.median(np.abs(off)))],
            ["off by, points, most", float(np.abs(off).max())],
            ["final gain within the estimate's interval, tables", within],
            ["seconds of an estimate, median", float(np.median([row["estimate"]["seconds"] for row in rows]))],
        ]
        tables.insert(0, ResultTable(name="How well it foretells", columns=[f"of {len(rows)} tables", ""], rows=summary))
    return Benchmark(
        title="What an exploration foretells",
        tables=tables,
        notes=[
            f"Columns shared out at random between two parties; seeds {seeds_of(rows)}. The estimate is by a head on shares on "
            f"about {about['sample']:,} ids, the final gain of a run with the default settings on all rows. Own columns by the "
            "network or boosting, whichever validates better. All parties simulated in one process.",
            "A point is .01 of AUC or accuracy, or a tenth of own columns' RMSE. Intervals are of the paired bootstrap over test "
            "rows: they do not say how another training, or another sample to train on, would differ.",
        ],
    )
