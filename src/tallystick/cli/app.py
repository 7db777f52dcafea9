"""List the commands of the command line in one table.

These modules contain only options and help; a command imports what it needs when it runs. A command has a parameter for each of
its options, however many there are: Typer reads them from its signature, and has no groups of options.
"""

import sys
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli import audit, compare, decrypt, export, forget, jobs, ledger, monitor, runs, serve, setup, student
from tallystick.cli.options import LINKAGE_NAMES, JsonFlag, StyleFlag
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError
from tallystick.watcher import Style

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
COMMANDS: Mapping[str, Callable[..., None]] = {
    "init": setup.init,
    "cert": setup.cert,
    "check": setup.check,
    "run": jobs.run_command,
    "align": jobs.align,
    "overlap": jobs.overlap,
    "explore": jobs.explore,
    "train": jobs.train,
    "evaluate": jobs.evaluate,
    "predict": jobs.predict_command,
    "serve": serve.serve,
    "tune": jobs.tune,
    "audit": audit.audit,
    "compare": compare.compare,
    "runs": runs.runs,
    "monitor": monitor.monitor,
    "ledger": ledger.ledger,
    "export": export.export,
    "student": student.student,
    "score-alone": student.score_alone,
    "decrypt": decrypt.decrypt,
    "forget": forget.forget,
}
for name, command in COMMANDS.items():
    app.command(name)(command)


def _version(asked: bool) -> None:
    if asked:
        from tallystick import __version__

        sys.stdout.write(f"tallystick {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Vertical federated learning that people can put to work and trust."""


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Folder in which the run folders are made.")] = Path("runs"),
    alignment: Annotated[str, typer.Option(help=f"How rows are linked: {LINKAGE_NAMES}.")] = "intersection",
    gradients: Annotated[
        str, typer.Option(help="sent, or shared: train a head on secret shares, with a helper; columns then stay hidden.")
    ] = "sent",
    private_auc: Annotated[
        bool,
        typer.Option("--private-auc", help="Show instead how label holders and a server compute an AUC without showing labels."),
    ] = False,
    clients: Annotated[int, typer.Option(help="Number of label holders, 3 to 12 (with --private-auc).")] = 3,
    epsilon: Annotated[float, typer.Option(help="Epsilon of label DP (with --private-auc).")] = 1.0,
    progress: StyleFlag = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Show a whole job on real flights: processes that share no files align, train and evaluate over mutual TLS."""

    def work() -> None:
        if private_auc:
            from tallystick.demo.private_auc import run_private_auc

            shared = run_private_auc(folder, clients=clients, epsilon=epsilon)
            finish(shared, as_json=as_json, show=lambda console: _show_private_auc(console, shared))
            return
        from tallystick.cli.watch import demo_watcher
        from tallystick.demo.flights import run_demo

        watcher = demo_watcher(progress)
        with watcher:
            result, files = run_demo(folder, on_event=watcher.on_event, alignment=alignment, gradients=gradients)

        def show(console: Console) -> None:
            jobs.show_headline(console, result)
            console.print(f"report: {files['report']}", markup=False)

        finish(files, as_json=as_json, show=show)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, f"tallystick.demo.{'private_auc' if private_auc else 'flights'}"))


@app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def bench(context: typer.Context) -> None:
    """Measure tallystick: speed, losslessness, and the papers' tables (installed apart)."""
    entries = list(entry_points(group="tallystick.commands", name="bench"))
    if not entries:
        guarded(_no_bench, as_json="--json" in context.args)
    command: Callable[..., None] = entries[0].load()
    command(args=context.args, prog_name="tallystick bench")


def _no_bench() -> None:
    raise ConfigError(
        "bench is not installed: the wheel leaves it out; in a checkout of tallystick run: pip install ./experiments ./robustness"
    )


def _show_private_auc(console: Console, values: dict[str, Any]) -> None:
    low, high = values["interval"]
    console.print(f"AUC {values['auc']:.5f}, 95 % interval {low:.5f} to {high:.5f}, by {values['mechanism']}", markup=False)
    console.print(f"exact AUC {values['exact_auc']:.5f}, which only this demo knows", markup=False)
    console.print(f"protects {values['protects']} at epsilon {values['epsilon']:g}; reveals {values['reveals']}", markup=False)
    table = Table(title="What each label holder's ledger says", title_justify="left")
    for column in ("client", "carriers", "flights", "released", "epsilon spent", "cap"):
        table.add_column(column)
    for name, client in values["clients"].items():
        (dataset,) = client["ledger"]["datasets"].values()
        what = ", ".join(entry["what"] for entry in dataset["entries"])
        spent, cap = f"{dataset['label_epsilon']:g}", f"{dataset['cap']['epsilon']:g}"
        table.add_row(name, " ".join(client["carriers"]), f"{client['rows']:,}", what, spent, cap)
    console.print(table)
    console.print(f"{values['seconds']:.1f} s, files in {values['folder']}", markup=False)
