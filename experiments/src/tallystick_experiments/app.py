"""bench: the figures that the documentation quotes, each by one command.

What all share (--out, --resume, --json) is added by ``command.py``; the other options are a command's own, a parameter each.
"""

from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tallystick.errors import ConfigError
from tallystick_experiments.command import experiment, measurement
from tallystick_experiments.speed import commands as speed

if TYPE_CHECKING:
    from tallystick.network.channel import Progress
    from tallystick_experiments.grid import Keeping
    from tallystick_experiments.page import ExperimentResult

Figures = dict[str, Any]
SeedsPerRow = Annotated[int, typer.Option("--seeds", help="Runs per row.", min=1)]
RowLimit = Annotated[int | None, typer.Option("--limit", help="Draw so many rows at random.")]

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Measure tallystick: speed, losslessness, and the papers' tables.",
)


for measured in (
    speed.training,
    speed.lossless,
    speed.alignment,
    speed.linkage,
    speed.memory,
    speed.defenses,
    speed.serve,
):
    app.command()(measured)


@app.command()
@experiment
def dpauc(
    data: Annotated[
        Path | None,
        typer.Option(help="CSV or Parquet with columns score, label; with --table the folder of public files. Else a"),
    ] = None,
    table: Annotated[str | None, typer.Option(help="Table of bench quality whose test rows a trained network scores.")] = None,
    rows: Annotated[int, typer.Option(help="Rows that are drawn from a larger table.", min=500)] = 100_000,
    repeats: Annotated[int, typer.Option(help="Draws per row.", min=2)] = 100,
    seed: Annotated[int, typer.Option(help="Seed of simulation and noise.")] = 0,
    *,
    progress: "Progress",
) -> "ExperimentResult":
    """DPAUC's Tables 1 to 5 beside the paper's numbers, with the mechanisms that do better."""
    from tallystick_experiments.catalogue.public import load_table
    from tallystick_experiments.dpauc import tables as benchmark

    given = load_table(table, data, most=rows) if table is not None else None
    return benchmark.run(data if table is None else None, table=given, repeats=repeats, seed=seed, progress=progress)


@app.command("private-coverage")
@measurement
def private_coverage(
    runs: Annotated[int, typer.Option(help="Seeded releases.", min=10)] = 100,
    epsilon: Annotated[float, typer.Option(help="Label-DP epsilon of each.")] = 1.0,
) -> Figures:
    """How often the exact AUC lies in a private AUC's 95 % interval."""
    from tallystick_experiments.dpauc import tables as benchmark

    return benchmark.coverage(runs=runs, epsilon=epsilon)


@app.command()
@experiment
def retraining(
    rows: Annotated[int, typer.Option(help="Flights of each month.", min=200)] = 4_000,
    months: Annotated[int, typer.Option(help="Months that are retrained for.", min=1)] = 6,
    epochs: Annotated[int, typer.Option(help="Most epochs of a training, before its refit.", min=1)] = 12,
    seeds: SeedsPerRow = 2,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """Real flights by the month: retraining from last month's weights against from scratch, loss and processor time."""
    from tallystick_experiments import retraining as benchmark

    return benchmark.run(rows=rows, months=months, epochs=epochs, seeds=seeds, keeping=keeping)


@app.command()
@experiment
def florist(
    data: Annotated[Path, typer.Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: SeedsPerRow = 5,
    ratios: Annotated[
        str, typer.Option(help="Shares of rows that a side lacks, with commas between; the paper's nine if empty.")
    ] = "",
    sides: Annotated[
        str, typer.Option(help="Who lacks rows: labels, features, both; with commas between.")
    ] = "labels,features,both",
    strategies: Annotated[str, typer.Option(help="Strategies, with commas between; all if empty.")] = "",
    epochs: Annotated[int, typer.Option(help="Of every training run; the paper's table 5 has 2.", min=1)] = 3,
    own_columns: Annotated[
        int, typer.Option(help="Columns that the label party has, of the file's; for --sides features. The paper: none.", min=0)
    ] = 0,
    limit: RowLimit = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """FLORIST's tables and curves beside the paper's numbers: training on a union with synthetic labels and features."""
    from tallystick_experiments.florist import sweep as benchmark
    from tallystick_experiments.florist.runs import FloristSetting

    return benchmark.run(
        data=data,
        seeds=range(1, seeds + 1),
        ratios=_numbers(ratios) or benchmark.RATIOS,
        sides=_parts(sides),
        strategies=_parts(strategies) or None,
        setting=FloristSetting(epochs=epochs, own_columns=own_columns),
        limit=limit,
        keeping=keeping,
    )


@app.command("florist-convergence")
@experiment
def florist_convergence(
    data: Annotated[Path, typer.Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: SeedsPerRow = 5,
    ratios: Annotated[str, typer.Option(help="Shares of rows that a side lacks, with commas between.")] = "0.05,0.5,0.95",
    strategy: Annotated[str, typer.Option(help="Where both sides lack rows.")] = "florist-te",
    limit: RowLimit = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """FLORIST's Figure 2 h to j: losses and test AUC in the course of training."""
    from tallystick_experiments.florist import convergence as benchmark

    return benchmark.run(
        data=data, seeds=range(1, seeds + 1), ratios=_numbers(ratios), strategy=strategy, limit=limit, keeping=keeping
    )


@app.command("label-leakage")
@experiment
def label_leakage(
    data: Annotated[Path, typer.Option(help="Kaggle's Criteo or Avazu file.")],
    seeds: Annotated[int, typer.Option(help="Runs per scenario.", min=1)] = 5,
    only: Annotated[
        str,
        typer.Option(
            help="Parts, with commas between: table-1 to -5, figure-2 to -7, frontier, frontier-large, depth, choices, claims."
        ),
    ] = "",
    scenario: Annotated[list[str] | None, typer.Option(help="One scenario by its name, such as none; may be repeated.")] = None,
    epochs: Annotated[int, typer.Option(help="Of every training run but those at batch 8,192.", min=1)] = 3,
    batch_size: Annotated[int | None, typer.Option(help="Rows per step; scaled to the file if left out.", min=2)] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Of Adam; scaled to the file if left out.")] = None,
    limit: RowLimit = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """The label-leakage paper's tables 1 to 5 and figures 2 to 7 beside its numbers, and what distance correlation buys."""
    from tallystick_experiments.label_leakage import sweep as benchmark

    return benchmark.run(
        data=data,
        seeds=range(1, seeds + 1),
        only=_parts(only),
        named=scenario or (),
        training=benchmark.WantedPlan(epochs=epochs, batch_size=batch_size, learning_rate=learning_rate),
        limit=limit,
        keeping=keeping,
    )


@app.command("label-defenses")
@experiment
def label_defenses(
    data: Annotated[
        Path | None, typer.Option(help="Folder of public files (docs/results/boosting.md); without it, packages' tables.")
    ] = None,
    tables: Annotated[str, typer.Option(help="Tables, with commas between.")] = "credit-default,criteo,frogs",
    seeds: Annotated[int, typer.Option(help="Runs per cell.", min=1)] = 5,
    first_seed: Annotated[int, typer.Option(help="The first seed; others than those that a setting was chosen by.", min=0)] = 1,
    epochs: Annotated[int, typer.Option(help="Of every training run.", min=1)] = 8,
    rows: Annotated[int, typer.Option(help="Rows that are drawn from a larger table.", min=100)] = 30_000,
    only: Annotated[
        str, typer.Option(help="Defences with their strengths, with semicolons between; all of labels if empty.")
    ] = "",
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """Every attack on labels and on columns against every defence, on tables with classes and with numbers to predict."""
    from tallystick_experiments.label_leakage import defended as benchmark

    return benchmark.run(
        tables=_parts(tables),
        data=data,
        seeds=range(first_seed, first_seed + seeds),
        terms=benchmark.MatrixPlan(epochs=epochs, most_rows=rows),
        only=_parts(only, ";"),
        keeping=keeping,
    )


@app.command("null-audit")
@experiment
def null_audit(
    audits: Annotated[int, typer.Option(help="Each of other shuffled labels and columns.", min=1)] = 200,
    rows: Annotated[int, typer.Option(help="Of the made-up table of each training.", min=200)] = 600,
    epochs: Annotated[int, typer.Option(help="Of every training run.", min=1)] = 4,
    draws: Annotated[int, typer.Option(help="Of each kind of simulated scores, for coverage.", min=10)] = 400,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """How often an audit says that something leaks where labels and columns are shuffled, and whether its intervals cover."""
    from tallystick_experiments import null_audits as benchmark

    return benchmark.run(audits=audits, rows=rows, epochs=epochs, draws=draws, keeping=keeping)


@app.command("audit")
@experiment
def audit_kept(
    data: Annotated[Path | None, typer.Option(help="The label party's CSV file (id, y); a generated table if left out.")] = None,
    partner: Annotated[Path | None, typer.Option(help="The feature party's CSV file (id).")] = None,
    rows: Annotated[int, typer.Option(help="Of the generated table, and of the run that is timed.", min=1000)] = 200_000,
    seeds: Annotated[int, typer.Option(help="Runs per defence.", min=1)] = 3,
    epochs: Annotated[int, typer.Option(help="Of the training that is attacked.", min=1)] = 4,
    sides: Annotated[str, typer.Option(help="Whose secret: labels, features, or both with a comma.")] = "labels,features",
    priced: Annotated[
        bool, typer.Option("--cost/--no-cost", help="Time a run of two processes, with an audit and without.")
    ] = True,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """The audit's figures beside those of whoever kept all epochs and rows; its time as a share of training's, its memory."""
    from tallystick_experiments.experiment import TrainingPlan
    from tallystick_experiments.label_leakage import kept as benchmark

    return benchmark.run(
        data=data,
        partner=partner,
        rows=rows,
        seeds=range(1, seeds + 1),
        plan=TrainingPlan(epochs=epochs, batch_size=512),
        sides=_parts(sides),
        priced=priced,
        keeping=keeping,
    )


@app.command("feature-leakage")
@experiment
def feature_leakage(
    data: Annotated[Path, typer.Option(help="The label party's CSV file (id, y), the IJCAI-18 sample, or Kaggle's Criteo file.")],
    partner: Annotated[Path | None, typer.Option(help="The feature party's CSV file (id), beside the label party's.")] = None,
    seeds: SeedsPerRow = 5,
    first_seed: Annotated[int, typer.Option(help="The first seed; others than those that a setting was chosen by.", min=0)] = 1,
    epochs: Annotated[int, typer.Option(help="Of every training run.", min=1)] = 8,
    only: Annotated[str, typer.Option(help="Settings, with semicolons between; all if empty.")] = "",
    limit: Annotated[int | None, typer.Option(help="Read no more rows than this of each file.")] = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """How much of a feature party's columns comes back from its embeddings, by cut width and defence, and the price of hiding."""
    from dataclasses import replace

    from tallystick_experiments.feature_leakage import sweep as benchmark

    return benchmark.run(
        data=data,
        partner=partner,
        seeds=range(first_seed, first_seed + seeds),
        only=_parts(only, ";"),
        plan=replace(benchmark.PLAN, epochs=epochs),
        limit=limit,
        keeping=keeping,
    )


@app.command()
@experiment
def fedads(
    data: Annotated[
        Path,
        typer.Option(
            help="FedAds' folder, the IJCAI-18 sample, Kaggle's Criteo or Avazu file, or the folder of FATE's credit-card files."
        ),
    ],
    table: Annotated[
        str, typer.Option(help="Which of the paper's tables: 3, unaligned rows, or 4, defences; or leaks, audits of both.")
    ] = "4",
    seeds: SeedsPerRow = 5,
    only: Annotated[
        str, typer.Option(help="Table 3: rows, with semicolons between; all but probes if empty. Leaks: methods.")
    ] = "",
    epochs: Annotated[int, typer.Option(help="Table 4: of every training run.", min=1)] = 1,
    swapped: Annotated[bool, typer.Option("--swapped", help="Table 4: give each party the other's columns.")] = False,
    by_users: Annotated[bool, typer.Option("--by-users", help="Table 3: draw test and aligned rows by whole users.")] = False,
    aligned: Annotated[float, typer.Option(help="Table 3: share of the training rows that both parties have.")] = 0.2,
    paper_networks: Annotated[
        bool, typer.Option("--paper-networks", help="Table 3: the paper's networks, as FedAds' own data always gets.")
    ] = False,
    limit: Annotated[int | None, typer.Option(help="Draw so many rows of each file at random.")] = None,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """FedAds' Tables 3 and 4: what unaligned rows are worth, and what defences do to a label inference attack."""
    from dataclasses import replace

    from tallystick_experiments.fedads import defenses, leaks, unaligned
    from tallystick_experiments.fedads.unaligned_data import ALIGNED

    if table not in ("3", "4", "leaks"):
        raise ConfigError(f"--table {table}: expected 3, 4 or leaks")
    if table != "3" and (by_users or paper_networks or aligned != ALIGNED):
        raise ConfigError("--by-users, --paper-networks, --aligned: go with --table 3 only; leave them out")
    if table != "4" and (swapped or epochs != 1):
        raise ConfigError("--swapped, --epochs: go with --table 4 only; leave them out")
    if table == "4" and only:
        raise ConfigError(f"--only {only}: goes with --table 3 or leaks; leave it out")
    names = _parts(only, ";")
    how: dict[str, Any] = {"data": data, "seeds": range(1, seeds + 1), "limit": limit, "keeping": keeping}
    if table == "leaks":
        return leaks.run(**how, methods=names or leaks.METHODS)
    if table == "3":
        return unaligned.run(**how, only=names, by_users=by_users, paper_networks=paper_networks, aligned=aligned)
    return defenses.run(**how, plan=replace(defenses.PLAN, epochs=epochs), swapped=swapped)


@app.command()
@experiment
def far(
    data: Annotated[Path | None, typer.Option(help="Folder of public files (docs/results/boosting.md).")] = None,
    tables: Annotated[str, typer.Option(help="Tables of bench quality, with commas between.")] = "breast,flights",
    trainings: Annotated[str, typer.Option(help="default, int8, in-flight-64 …, with commas between; all if left out.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds per table and training.", min=1)] = 5,
    rows: Annotated[int, typer.Option(help="Rows that are drawn from a larger table.", min=100)] = 12_000,
    audit: Annotated[bool, typer.Option(help="Attack each run as well.")] = False,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """What fewer bytes and more batches in flight cost in AUC or RMSE on public tables."""
    from tallystick_experiments.far import price

    return price.run(
        _parts(tables),
        data,
        trainings=_parts(trainings) or list(price.TRAININGS),
        seeds=range(1, seeds + 1),
        most_rows=rows,
        audit=audit,
        keeping=keeping,
    )


@app.command()
@experiment
def line(
    lines: Annotated[
        str, typer.Option(help="Round trip in ms and rate in Mbit/s, as 50:100, with commas between; one machine comes first.")
    ] = "10:1000,50:100",
    turns: Annotated[int, typer.Option(help="Repetitions.", min=1)] = 3,
    *,
    progress: "Progress",
) -> "ExperimentResult":
    """Steps a second of training through a long line, by batches in flight and by compression, beside one machine."""
    from tallystick_experiments.far.line import LongLine, run

    return run([LongLine.parse(text) for text in _parts(lines)], turns=turns, progress=progress)


@app.command()
@experiment
def quality(
    data: Annotated[
        Path | None, typer.Option(help="Folder of public files (docs/results/boosting.md); without it, packages' tables.")
    ] = None,
    tables: Annotated[
        str, typer.Option(help="Tables, with commas between; or held-out, or by-time; all but these if left out.")
    ] = "",
    table: Annotated[Path | None, typer.Option(help="A table of your own, CSV or Parquet.")] = None,
    label: Annotated[str, typer.Option(help="The column of --table that is predicted.")] = "",
    key: Annotated[str | None, typer.Option("--id", help="The column of --table that names rows; it is no feature.")] = None,
    time: Annotated[str | None, typer.Option(help="The column of --table by which rows are split, the newest for test.")] = None,
    methods: Annotated[str, typer.Option(help="Methods, with commas between; all if left out.")] = "",
    seeds: Annotated[int, typer.Option(help="Seeds per table and method.", min=1)] = 5,
    rows: Annotated[int, typer.Option(help="Rows that are drawn from a larger table.", min=100)] = 30_000,
    leaks: Annotated[
        bool, typer.Option("--leaks", help="Audit the default with gradients and without, or --methods, on --tables instead.")
    ] = False,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """A split network beside gradient boosting on the joined table and on own columns, on public tables split at random."""
    from tallystick_experiments.catalogue.public import own_table
    from tallystick_experiments.quality import leaks as audits
    from tallystick_experiments.quality import sweep as benchmark
    from tallystick_experiments.quality.methods import METHODS

    if table is None and (label or key or time):
        raise ConfigError("--label, --id, --time: name columns of --table; give a table, or leave them out")
    if leaks and table is not None:
        raise ConfigError(f"--leaks: audits tables of the catalogue; leave --table {table} out, or --leaks")
    names = _parts(methods)
    how: dict[str, Any] = {"seeds": range(1, seeds + 1), "most_rows": rows, "keeping": keeping}
    if leaks:
        return audits.run(_parts(tables) or ["breast"], data, methods=names or audits.USUAL, **how)
    own = own_table(table, label=label, key=key, time=time) if table is not None else None
    chosen = benchmark.tables_of(tables, data) if own is None or tables else []
    return benchmark.run(data=data, tables=chosen, own=own, methods=names or list(METHODS), **how)


@app.command()
@experiment
def fedsim(
    data: Annotated[list[Path] | None, typer.Option(help="Folder of a set's files (hdb, bike, frogs); may be repeated.")] = None,
    seeds: SeedsPerRow = 5,
    only: Annotated[
        str, typer.Option(help="Parts, with commas: table-1, -2, -6, -10, neighbors, tau, frontier, synthetic, cut, delta.")
    ] = "",
    methods: Annotated[str, typer.Option(help="Methods of table-1 and the frontier, with commas between; all if empty.")] = "",
    fixed_split: Annotated[bool, typer.Option("--fixed-split", help="The paper's one split for every seed.")] = False,
    *,
    keeping: "Keeping",
) -> "ExperimentResult":
    """FedSim's tables and figures beside its numbers: rows linked by similar keys, and networks that weigh the links."""
    from tallystick_experiments.fedsim import sweep as benchmark

    return benchmark.run(
        data=data or [],
        seeds=range(1, seeds + 1),
        only=_parts(only),
        methods=_parts(methods),
        split="fixed" if fixed_split else "varied",
        keeping=keeping,
    )


def _parts(text: str, separator: str = ",") -> list[str]:
    """What an option lists."""
    return [part.strip() for part in text.split(separator) if part.strip()]


def _numbers(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in _parts(text))
    except ValueError:
        raise ConfigError(f"--ratios {text}: must be numbers with commas between, such as 0.25,0.5") from None


for entry in entry_points(group="tallystick.bench"):  # commands of other packages, such as tallystick-robustness
    app.command(entry.name)(entry.load())
