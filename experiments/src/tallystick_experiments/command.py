"""What every command with a page shares: its options, its folder, and how it ends."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli.options import Style
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.watcher import Watcher
    from tallystick_experiments.grid import Keeping
    from tallystick_experiments.page import Benchmark, Cell, ExperimentResult

SHOWN_ROWS = 24  # of a table on the terminal
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write result.json and report.html into this folder.")]
ResumeFlag = Annotated[bool, typer.Option("--resume", help="Go on with the runs that --out holds.")]
LOADS = (*LIBRARIES, "tallystick_experiments.output", "tallystick.cli.watch")


def automatic_watcher() -> "Watcher":
    """Show progress as the terminal allows."""
    from tallystick.cli.watch import watcher_of

    return watcher_of(Style.auto)


def prepare_folder(out: Path | None, *, resume: bool = False) -> Path | None:
    """Make the folder before the measurement, so that one that cannot be made costs no time."""
    if resume and out is None:
        raise ConfigError("--resume needs --out FOLDER, where the runs of the earlier sweep are")
    from tallystick_experiments.output import make_output_folder

    return None if out is None else make_output_folder(out)


def keeping_in(out: Path | None, *, resume: bool) -> "Keeping":
    """Keep a sweep's rows in ``out``, which is made here; nowhere if it is left out. Progress shows as the terminal allows."""
    from tallystick_experiments.grid import Keeping

    folder = prepare_folder(out, resume=resume)
    return Keeping(log=folder and folder / "runs.jsonl", resume=resume, progress=automatic_watcher().progress)


def run_experiment(
    work: Callable[["Keeping"], "ExperimentResult"], *, out: Path | None, resume: bool = False, as_json: bool
) -> None:
    """Run an experiment as a command, and finish with what it found; it imports what it needs when it runs."""
    guarded(lambda: finish_bench(work(keeping_in(out, resume=resume)), out=out, as_json=as_json), as_json=as_json, loads=LOADS)


def finish_bench(found: "ExperimentResult", *, out: Path | None, as_json: bool) -> None:
    """Print what an experiment found, as JSON or as its page's tables, and write both files if a folder is given."""
    from tallystick_experiments.output import command, write_folder

    page = found.page(command=command())
    result = found.as_json(page)
    paths = write_folder(out, result, page) if out is not None else {}
    finish({**result, **paths}, as_json=as_json, show=lambda console: _show(console, page, paths))


def _show(console: Console, page: "Benchmark", paths: dict[str, str]) -> None:
    console.print(page.title, style="bold", markup=False)
    for table in page.tables:
        console.print()
        console.print(_rich(table.name, table.columns, [[_text(value) for value in row] for row in table.rows[:SHOWN_ROWS]]))
        if len(table.rows) > SHOWN_ROWS:
            console.print(f"and {len(table.rows) - SHOWN_ROWS} more rows, in the report that --out writes", markup=False)
        if table.note:
            console.print(table.note, markup=False)
    console.print()
    for note in page.notes:
        console.print(f"- {note}", markup=False)
    last = f"report: {paths['report']}" if paths else "nothing was written; --out FOLDER keeps the result and a report"
    console.print(last, markup=False)


def _rich(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    shown = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        shown.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        shown.add_row(*row)
    return shown


def _text(value: "Cell") -> str:
    from tallystick_experiments.page import cell, within

    reach = within(value)
    return f"{cell(value)}\n({reach})" if reach else cell(value)
