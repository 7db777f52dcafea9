"""Implement audit: attack a recorded run for labels, or try a contract and its defences before any partner is involved."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import JsonFlag, StyleFlag
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ComputeError, ConfigError
from tallystick.watcher import Style

if TYPE_CHECKING:
    from tallystick.results import Estimate, Result
    from tallystick.watcher import Watcher


def audit(
    target: Annotated[Path, typer.Argument(help="A run folder with a recorded view, or a contract file to try.")],
    party: Annotated[Path | None, typer.Option("--party", help="The label party's own file (contract only).")] = None,
    split: Annotated[str | None, typer.Option(help="Columns that stand in for the partner's: colA,colB (contract only).")] = None,
    share: Annotated[float | None, typer.Option(help="Or the share of columns to draw for it: 0.5 (contract only).")] = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(
            help="What to try: METHOD=STRENGTH,... of a defence, cut-after=1,2 or cut-width=8,4. May be repeated. Default: a "
            "first selection (contract only)."
        ),
    ] = None,
    seeds: Annotated[int | None, typer.Option(help="Runs of each defence. Default: 3 (contract only).")] = None,
    rows: Annotated[int | None, typer.Option(help="Most rows of the table to use. Default: 20000 (contract only).")] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Minutes after which no further seed begins. Default: 30 (contract only).")
    ] = None,
    auxiliary_labels: Annotated[
        int, typer.Option(help="Number of labels that attacks with few labels know (run folder only).", min=2)
    ] = 40,
    known_rows: Annotated[
        str, typer.Option(help="Numbers of rows whose columns attacks on columns know, separated by commas (run folder only).")
    ] = "20,200",
    also: Annotated[
        list[Path] | None,
        typer.Option(help="Another run folder on the same rows, to attack together with it. May be repeated (run folder only)."),
    ] = None,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Measure what leaks: from a recorded run, or from a contract before its run, by trials on your own data.

    The audit of a run replaces the earlier audit in its report.html and result.json.
    """

    def work() -> None:
        from tallystick.cli.watch import watcher_of

        if not target.exists():
            raise ConfigError(f"{target}: there is no such file or folder; give a contract, or a run folder (under `runs`)")
        if target.is_dir():
            wrong = {"--party": party, "--split": split, "--share": share, "--sweep": sweep, "--seeds": seeds, "--rows": rows}
            wrong |= {"--minutes": minutes}
            if given := [name for name, value in wrong.items() if value]:
                raise ConfigError(f"{', '.join(given)}: only works with a contract, and {target} is a folder; leave it out")
            counts = tuple(int(part) for part in known_rows.split(",") if part.strip().isdecimal())
            if len(counts) != len(known_rows.split(",")):
                raise ConfigError(f"--known-rows {known_rows}: must be whole numbers with commas between, such as 20,200")
            _recorded(target, auxiliary_labels, counts, tuple(also or ()), watcher_of(progress), as_json=as_json)
        elif party is None:
            raise ConfigError(
                f"--party is missing: {target} is tried on the label party's own data; or give a run folder to audit"
            )
        elif also:
            raise ConfigError(f"--also: only works with a run folder, and {target} is a contract; leave it out")
        else:
            options = _Options(split=split, share=share, sweep=sweep, seeds=seeds, rows=rows, minutes=minutes)
            _tried(target, party, options, watcher_of(progress), as_json=as_json)

    loads = (*LIBRARIES, "tallystick.trials.trials", "tallystick.audit.run")
    guarded(work, as_json=as_json, loads=loads, interrupted="interrupted; nothing was written")


def _recorded(
    folder: Path, auxiliary_labels: int, known_rows: tuple[int, ...], also: tuple[Path, ...], watcher: "Watcher", *, as_json: bool
) -> None:
    """Audit a recorded run again, and show the findings."""
    from tallystick.audit.run import audit_recorded
    from tallystick.cli.leakage import (
        feature_values,
        gradients_values,
        leakage_values,
        show_features,
        show_gradients,
        show_leakage,
    )
    from tallystick.report.compare import read_run
    from tallystick.report.leaks import promise

    audited = audit_recorded(folder, watcher=watcher, auxiliary_labels=auxiliary_labels, known_rows=known_rows, also=also)
    report = folder / "report.html"
    values: dict[str, Any] = {"folder": str(folder), "report": str(report) if report.exists() else None}
    if audited.leakage is not None:
        values |= leakage_values(audited.leakage)
    if audited.features is not None:
        values |= {"features": feature_values(audited.features)}
    if audited.told:
        values |= {"told": [gradients_values(each) for each in audited.told]}

    def show(console: Console) -> None:
        if audited.leakage is not None:
            show_leakage(console, audited.leakage)
            result = folder / "result.json"  # if it is missing, the run was not finished
            if result.exists() and (bounds := promise(read_run(folder))):
                console.print(bounds, markup=False)
        if audited.features is not None:
            show_features(console, audited.features)
        for from_gradients in audited.told:
            show_gradients(console, from_gradients)
        if report.exists():
            console.print(f"report: {report} (this audit has replaced the former one)", markup=False)

    finish(values, as_json=as_json, show=show)


def _tried(target: Path, party: Path, options: "_Options", watcher: "Watcher", *, as_json: bool) -> None:
    """Try a contract with defences on the label party's own data. If interrupted, keep the finished trials."""
    from tallystick.config.contract import load_contract
    from tallystick.config.party import load_party
    from tallystick.config.party_checks import check_party
    from tallystick.tables.table import read_party_table
    from tallystick.trials.partner import SimulatedPartner
    from tallystick.trials.trials import EngineLost, Interrupted, parse_sweep, sweep_defenses

    own = load_party(party)
    try:
        if options.split is not None and options.share is not None:
            raise ConfigError("--split, --share: give one of the two")
        columns = None if options.split is None else [name.strip() for name in options.split.split(",") if name.strip()]
        parsed = None if options.sweep is None else [parse_sweep(text) for text in options.sweep]
        agreed = load_contract(target)
        check_party(agreed, own, network=False, source=party.name)
        partner = SimulatedPartner.of(
            agreed,
            own,
            read_party_table(own),
            split=columns,
            share=0.5 if options.share is None else options.share,
            rows=20_000 if options.rows is None else options.rows,
            seed=agreed.seed,
        )
        result = sweep_defenses(
            agreed,
            partner,
            sweep=parsed,
            seeds=3 if options.seeds is None else options.seeds,
            minutes=30.0 if options.minutes is None else options.minutes,
            engine=own.compute.made() if own.compute is not None else None,
            watcher=watcher,
        )
    except Interrupted as stop:
        report = _keep(stop.result, own.runs, as_json=as_json)
        raise KeyboardInterrupt(f"interrupted; the finished trials are in {report}") from None
    except EngineLost as stop:
        report = _keep(stop.result, own.runs, as_json=as_json)
        raise ComputeError(f"{stop}; the finished trials are in {report}") from None
    _keep(result, own.runs, as_json=as_json)


@dataclass(frozen=True, kw_only=True)
class _Options:
    """Options of a sweep on the command line. None means an option's default."""

    split: str | None
    share: float | None
    sweep: list[str] | None
    seeds: int | None
    rows: int | None
    minutes: float | None


def _keep(result: "Result", runs: Path, *, as_json: bool) -> Path:
    """Write the report into a folder that appears completely or not at all."""
    from tallystick.report.page import render
    from tallystick.storage import Origin, new_whole_folder, write_json

    def fill(folder: Path) -> None:
        write_json(folder / "result.json", result.to_json().encode(), origin=Origin(folder=folder))
        render(result, folder / "report.html")

    folder = new_whole_folder(runs, f"{result.contract.name}-{result.contract.hash[:8]}-audit", fill)
    report = folder / "report.html"
    values = {
        "folder": str(folder),
        "report": str(report),
        "result": str(folder / "result.json"),
        "seconds": round(result.seconds, 3),
        "sweep": result.to_dict()["sections"]["sweep"],
        "notes": result.sections.notes,
    }
    finish(values, as_json=as_json, show=lambda console: _show_trials(console, result, report))
    return report


def _show_trials(console: Console, result: "Result", report: Path) -> None:
    from tallystick.report.trials import strongest

    sweep = result.sections.sweep
    assert sweep is not None
    console.print(sweep.summary, markup=False)
    if sweep.local_baseline is not None:
        console.print(f"{result.party} alone: test {sweep.metric} {_within(sweep.local_baseline)}", markup=False)
    table = Table(box=None)
    for name in ("defence", f"test {sweep.metric}", "leak from both", "leak from embeddings", "columns rebuilt"):
        table.add_column(name)
    for trial in sweep.trials:
        leaks = [
            f"{_within(leak.auc)}\n{leak.attack}" if (leak := strongest(trial, reads)) is not None else ""
            for reads in ("cut gradients", "cut embeddings")
        ]
        rebuilt = ""
        if trial.columns is not None:  # the bootstrap of a single run has no interval for it
            rebuilt = _within(trial.columns) if trial.seeds > 1 else f"{trial.columns.mean:.3f}"
        table.add_row(escape(f"{trial.defense} {trial.strength}"), _within(trial.utility), *leaks, rebuilt)
    console.print(table)
    console.print("both: cut gradients and embeddings together")
    console.print("leak: that of the attack furthest above a guess; the report has every attack on every trial")
    console.print(
        "columns rebuilt: mean of R² or a like figure, from embeddings alone; with your own columns more could be rebuilt"
    )
    two = {trial.seeds for trial in sweep.trials} == {2}
    console.print(
        "in brackets: " + ("both seeds' values" if two else "95 % intervals, or both values where there were two seeds")
    )
    for note in result.sections.notes:
        console.print(note, markup=False)
    console.print(f"report: {report}", markup=False)


def _within(value: "Estimate") -> str:
    return f"{value.mean:.3f} ({value.low:.3f}\N{EN DASH}{value.high:.3f})"
