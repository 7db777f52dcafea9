"""What every command with a page shares: its options, its folder, and how it ends."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli.options import JsonFlag, Style
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError, TallystickError

if TYPE_CHECKING:
    from tallystick.watcher import Watcher
    from tallystick_experiments.grid import Keeping, Maker
    from tallystick_experiments.page import Benchmark, Cell, ExperimentResult

SHOWN_ROWS = 24  # of a table on the terminal
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write result.json and report.html into this folder.")]
ResumeFlag = Annotated[bool, typer.Option("--resume", help="Go on with the runs that --out holds.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Make so many runs at a time, in processes of one thread each; the same rows.", min=1, max=4096)
]
LOADS = (*LIBRARIES, "tallystick_experiments.output", "tallystick.cli.watch")


def automatic_watcher() -> "Watcher":
    """Show progress as the terminal allows."""
    from tallystick.cli.watch import watcher_of

    return watcher_of(Style.auto)


def keeping_in(out: Path | None, *, resume: bool, made: "Maker | None" = None) -> "Keeping":
    """Keep a sweep's rows in ``out``; nowhere if it is left out. Progress shows as the terminal allows."""
    if resume and out is None:
        raise ConfigError("--resume needs --out FOLDER, where the runs of the earlier sweep are")
    from tallystick_experiments.grid import Keeping, made_here

    return Keeping(log=out and out / "runs.jsonl", resume=resume, progress=automatic_watcher().progress, made=made or made_here)


def _made_on(workers: int | None, work: Callable[..., Any], options: Mapping[str, Any]) -> "Maker | None":
    """Who makes the cases of a sweep, where that is asked for."""
    if workers is None:
        return None
    from tallystick.compute.local import LocalEngine
    from tallystick_experiments.tasks import MadeByTasks

    return MadeByTasks(engine=LocalEngine(workers=workers), command=f"{work.__module__}:{work.__name__}", options=options)


def experiment(work: Callable[..., "ExperimentResult"]) -> Callable[..., None]:
    """Make a command of a function that runs an experiment, which imports what it needs when it runs.

    --out, --resume and --workers take the place of its ``keeping``. One that keeps no log takes ``progress`` alone, and has
    neither of the latter.
    """
    resumes = "keeping" in inspect.signature(work).parameters

    def command(
        *,
        out: OutFolder = None,
        resume: ResumeFlag = False,
        workers: WorkersOption = None,
        as_json: JsonFlag = False,
        **options: Any,
    ) -> None:
        def run() -> None:
            keeping = keeping_in(out, resume=resume, made=_made_on(workers, work, options))
            found = work(**options, **{"keeping": keeping} if resumes else {"progress": keeping.progress})
            finish_bench(found, out=out, as_json=as_json)

        guarded(run, as_json=as_json, loads=LOADS)

    return _with_options_of(work, command, without=() if resumes else ("resume", "workers"))


def measurement(work: Callable[..., Mapping[str, object]]) -> Callable[..., None]:
    """Make a command of a function that gives figures: it prints them, as JSON by --json."""
    progresses = "progress" in inspect.signature(work).parameters

    def command(*, as_json: JsonFlag = False, **options: Any) -> None:
        def run() -> None:
            finish(work(**options, **{"progress": automatic_watcher().progress} if progresses else {}), as_json=as_json)

        guarded(run, as_json=as_json, loads=LOADS)

    return _with_options_of(work, command)


def _with_options_of(
    work: Callable[..., object], command: Callable[..., None], *, without: Sequence[str] = ()
) -> Callable[..., None]:
    """The command by the function's name and words, with its options before the command's own."""
    own, shared = (list(inspect.signature(each).parameters.values()) for each in (work, command))
    hidden = ("keeping", "progress", "options", *without)
    options = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in (*own, *shared) if each.name not in hidden]
    command.__name__, command.__doc__ = work.__name__, work.__doc__
    command.__wrapped__ = work  # type: ignore[attr-defined]
    command.__annotations__ = {each.name: each.annotation for each in options}
    command.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    return command


def finish_bench(found: "ExperimentResult", *, out: Path | None, as_json: bool) -> None:
    """Print what an experiment found, as JSON or as its page's tables, and write both files if a folder is given.

    Raises TallystickError then, where it found what must not be.
    """
    from tallystick_experiments.output import command, write_folder

    page = found.page(command=command())
    result = found.as_json(page)
    paths = write_folder(out, result, page) if out is not None else {}
    finish({**result, **paths}, as_json=as_json, show=lambda console: _show(console, page, paths))
    if found.failed:
        raise TallystickError(found.failed)


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
