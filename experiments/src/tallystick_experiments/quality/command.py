"""bench quality: methods compared on tables, or the audits of some of them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from tallystick.errors import ConfigError
from tallystick_experiments.catalogue.public import MOST_ROWS, own_table
from tallystick_experiments.command import seeds_option, several
from tallystick_experiments.experiment import Experiment
from tallystick_experiments.quality import leaks as audits
from tallystick_experiments.quality import sweep
from tallystick_experiments.quality.methods import USUAL


def experiment(
    *,
    data: Annotated[
        Path | None, Option(help="Folder of public files (docs/results/quality.md); without it, packages' tables.")
    ] = None,
    tables: Annotated[
        Sequence[str], several("Tables, with commas between; or held-out, or by-time; all but these if left out.")
    ] = (),
    table: Annotated[Path | None, Option(help="A table of your own, CSV or Parquet.")] = None,
    label: Annotated[str, Option(help="The column of --table that is predicted.")] = "",
    key: Annotated[str | None, Option("--id", help="The column of --table that names rows; it is no feature.")] = None,
    time: Annotated[str | None, Option(help="The column of --table by which rows are split, the newest for test.")] = None,
    methods: Annotated[Sequence[str], several("Methods, with commas between; all but TabM if left out.")] = (),
    seeds: Annotated[Sequence[int], seeds_option("Seeds per table and method.")] = range(1, 6),
    rows: Annotated[int, Option(help="Rows that are drawn from a larger table.", min=100)] = MOST_ROWS,
    noise_columns: Annotated[int, Option(help="Numeric columns that say nothing, beside those of each table.", min=0)] = 0,
    device: Annotated[str, Option(help="Where TabM trains: cpu, or cuda, where it takes seconds in place of minutes.")] = "cpu",
    leaks: Annotated[
        bool, Option("--leaks", help="Audit the default with gradients and without, or --methods, on --tables instead.")
    ] = False,
) -> Experiment:
    """Compare on tables of the catalogue or one's own, or audit; raises ConfigError for options that do not go together."""
    if table is None and (label or key or time):
        raise ConfigError("--label, --id, --time: name columns of --table; give a table, or leave them out")
    if leaks and table is not None:
        raise ConfigError(f"--leaks: audits tables of the catalogue; leave --table {table} out, or --leaks")
    if leaks:
        method_names = methods or audits.USUAL
        return audits.experiment(
            tables or ["breast"],
            data,
            methods=method_names,
            seeds=seeds,
            most_rows=rows,
            noise_columns=noise_columns,
        )
    own = own_table(table, label=label, key=key, time=time) if table is not None else None
    table_names = sweep.tables_of(tables, data) if own is None or tables else []
    method_names = methods or list(USUAL)
    return sweep.experiment(
        data=data,
        tables=table_names,
        own=own,
        methods=method_names,
        seeds=seeds,
        most_rows=rows,
        noise_columns=noise_columns,
        device=device,
    )
