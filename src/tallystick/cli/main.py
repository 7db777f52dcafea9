"""The command line's entry: every command stands in this table."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from tallystick import __version__
from tallystick.cli import audit, bench, jobs, ledger, setup
from tallystick.cli.output import JsonFlag, finish, guarded
from tallystick.cli.watch import Style, demo_watcher
from tallystick.demo.flights import run_demo
from tallystick.report.result import Result

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Vertical federated learning that people can put to work and trust.",
)
for command in (
    setup.init,
    setup.cert,
    setup.check,
    jobs.run,
    jobs.align,
    jobs.train,
    jobs.evaluate,
    jobs.predict,
    audit.audit,
    ledger.ledger,
):
    app.command()(command)
app.add_typer(bench.app, name="bench")


@app.command()
def demo(
    folder: Annotated[Path, typer.Option(help="Where the run folder goes.")] = Path("runs"),
    alignment: Annotated[str, typer.Option(help="intersection, union or union-with-helper.")] = "intersection",
    progress: Annotated[Style, typer.Option("--progress", help="How progress is shown on standard error.")] = Style.auto,
    as_json: JsonFlag = False,
) -> None:
    """Two processes that share no files align, train and evaluate on real flights over mutual TLS."""

    def work() -> None:
        watcher = demo_watcher(progress)
        with watcher:
            result, found = run_demo(folder, on_event=watcher.on_event, alignment=alignment)
        finish(found, as_json=as_json, show=lambda console: _show_demo(console, result, found))

    guarded(work, as_json=as_json)


def _show_demo(console: Console, result: Result, found: dict[str, Any]) -> None:
    jobs.show_headline(console, result)
    console.print(f"report: {found['report']}", markup=False)


@app.command()
def version(as_json: JsonFlag = False) -> None:
    """Print the version."""
    finish({"version": __version__}, as_json=as_json)


def main() -> None:
    """Run the command line."""
    app()
