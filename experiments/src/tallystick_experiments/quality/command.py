"""Run bench quality: compare methods on tables, or audit some of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.catalogue.public import MOST_ROWS, ComparedTarget, own_table
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.options import GROUP, seeds_option, several
from tallystick_experiments.quality import leaks as audits
from tallystick_experiments.quality import sweep
from tallystick_experiments.quality.methods import USUAL


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """Hold options about a user's own table."""

    table: Annotated[Path | None, Option(help="A table of your own, CSV or Parquet.")] = None
    label: Annotated[str, Option(help="The column of --table that is predicted.")] = ""
    key: Annotated[str | None, Option("--id", help="The column of --table that names rows; it is no feature.")] = None
    time: Annotated[str | None, Option(help="The column of --table by which rows are split, the newest for test.")] = None
    target: Annotated[ComparedTarget | None, Option(help="What the label is; if left out guessed, never as count.")] = None


NO_FILE = OwnFile()


def quality_experiment(
    *,
    data: Annotated[
        Path | None, Option(help="Folder of public files (docs/results/quality.md); without it, packages' tables.")
    ] = None,
    tables: Annotated[
        Sequence[str],
        several("Tables, with commas between; or held-out, by-time, choosing, or reporting; all but these if left out."),
    ] = (),
    own: Annotated[OwnFile, GROUP] = NO_FILE,
    methods: Annotated[Sequence[str], several("Methods, with commas between; all but TabM if left out.")] = (),
    seeds: Annotated[Sequence[int], seeds_option("Seeds per table and method.")] = range(1, 6),
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=100)] = MOST_ROWS,
    noise_columns: Annotated[int, Option(help="Numeric columns that say nothing, beside those of each table.", min=0)] = 0,
    device: Annotated[str, Option(help="Where TabM trains: cpu, or cuda, where it takes seconds in place of minutes.")] = "cpu",
    leaks: Annotated[
        bool, Option("--leaks", help="Audit the default with gradients and without, or --methods, on --tables instead.")
    ] = False,
) -> Experiment:
    """Compare on tables of the catalogue or the user's own, or audit. Raises ConfigError for options that do not go together."""
    if own.table is None and (own.label or own.key or own.time or own.target):
        raise ConfigError("--label, --id, --time, --target: are about --table; give a table, or leave them out")
    if leaks and own.table is not None:
        raise ConfigError(f"--leaks: audits tables of the catalogue; leave --table {own.table} out, or --leaks")
    more = {"most_rows": rows, "noise_columns": noise_columns}
    if leaks:
        return audits.quality_leaks_experiment(tables or ["breast"], data, methods=methods or audits.USUAL, seeds=seeds, **more)
    mine = None if own.table is None else own_table(own.table, label=own.label, key=own.key, time=own.time, target=own.target)
    names = sweep.tables_of(tables, data) if mine is None or tables else []
    methods = methods or list(USUAL)
    return sweep.quality_sweep_experiment(data=data, tables=names, own=mine, methods=methods, seeds=seeds, device=device, **more)
