"""Make commands from experiments' functions: their parameters are the options, and the options of all commands are added."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError, TallystickError
from tallystick.watcher import Style, Watcher
from tallystick_experiments.options import ReadOption, called, options_of, parameters_of, read_option

if TYPE_CHECKING:
    from tallystick_experiments.grid import Keeping, Maker
    from tallystick_experiments.page import Benchmark, Cell, ExperimentResult

SHOWN_ROWS = 24  # number of rows of a table on the terminal
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write result.json and report.html into this folder.")]
ResumeFlag = Annotated[bool, typer.Option("--resume", help="Go on with the runs that --out holds.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Make so many runs at a time, in processes of one thread each; the same rows.", min=1, max=4096)
]
RayOption = Annotated[str | None, typer.Option(help="On a Ray cluster: auto, host:port or ray://host:port.")]


class Command(NamedTuple):
    """Name a command that is not loaded yet.

    Its function has an option for each parameter that is annotated with ``typer.Option`` or ``ReadOption``, and for each such
    field of a ``GROUP``. A function that declares an Experiment gets --out, --resume, --workers and --ray. One that returns an
    ExperimentResult gets --out and, if it takes ``keeping``, the others. The command passes ``progress`` and ``keeping`` to it.
    """

    place: str  # module:function
    says: str  # the measurement in a sentence

    def load(self) -> Callable[..., None]:
        """Import its module, and make the command."""
        module, _, name = self.place.partition(":")
        guarded(lambda: None, as_json="--json" in sys.argv, loads=(*LIBRARIES, module))
        return command_of(getattr(importlib.import_module(module), name))


def automatic_watcher() -> "Watcher":
    """Show progress as the terminal allows."""
    from tallystick.cli.watch import watcher_of

    return watcher_of(Style.auto)


def keeping_in(out: Path | None, *, resume: bool, made: "Maker | None" = None) -> "Keeping":
    """Keep a sweep's rows in ``out``, if that is given. Progress shows as the terminal allows."""
    if resume and out is None:
        raise ConfigError("--resume needs --out FOLDER, where the runs of the earlier sweep are")
    from tallystick_experiments.grid import Keeping, made_here

    return Keeping(log=out and out / "runs.jsonl", resume=resume, progress=automatic_watcher().progress, made=made or made_here)


def _made_on(workers: int | None, ray: str | None, work: Callable[..., Any], options: Mapping[str, Any]) -> "Maker | None":
    """Return the maker of a sweep's cases in other processes, or None without ``--workers``."""
    if workers is None:
        if ray is not None:
            raise ConfigError(f"--ray {ray}: needs --workers N, how many runs to make at a time")
        return None
    from tallystick.config.compute import LocalCompute, RayCompute
    from tallystick.reading import validate
    from tallystick_experiments.tasks import MadeByTasks

    values = {"engine": "local" if ray is None else "ray", "workers": workers, "address": ray}
    engine = validate(LocalCompute if ray is None else RayCompute, values, source="--workers, --ray").made()
    return MadeByTasks(engine=engine, command=f"{work.__module__}:{work.__name__}", options=options)


def command_of(work: Callable[..., Any]) -> Callable[..., None]:
    """Make a command from an experiment's function, or from one that returns figures, which are printed."""
    from tallystick_experiments.page import ExperimentResult

    parameters, options, declares = parameters_of(work), options_of(work), is_declaration(work)
    has_page = declares or inspect.signature(work).return_annotation is ExperimentResult
    is_kept = declares or "keeping" in parameters
    shared = (*(("out",) if has_page else ()), *(("resume", "workers", "ray") if is_kept else ()), "as_json")

    def command(
        *,
        out: OutFolder = None,
        resume: ResumeFlag = False,
        workers: WorkersOption = None,
        ray: RayOption = None,
        as_json: JsonFlag = False,
        **said: Any,
    ) -> None:
        def run() -> None:
            arguments = {name: read_option(options[name], name, value) for name, value in said.items()}
            keeping = keeping_in(out, resume=resume, made=_made_on(workers, ray, work, dict(arguments))) if is_kept else None
            if "keeping" in parameters:
                arguments["keeping"] = keeping
            elif "progress" in parameters:
                arguments["progress"] = automatic_watcher().progress
            result = called(work, arguments)
            if has_page:
                finish_bench(result.run(keeping) if declares else result, out=out, as_json=as_json)
            else:
                finish(result, as_json=as_json)

        guarded(run, as_json=as_json, loads=("tallystick_experiments.output", "tallystick.cli.watch"))

    own = [_shown(parameters[name], option) for name, option in options.items()]
    signature = inspect.Signature([*own, *(inspect.signature(command).parameters[name] for name in shared)])
    command.__annotations__ = {each.name: each.annotation for each in signature.parameters.values()}
    command.__signature__ = signature  # type: ignore[attr-defined]
    return command


def is_declaration(work: Callable[..., Any]) -> bool:
    """Tell whether a function declares an experiment, which other code can then make row by row."""
    from tallystick_experiments.experiment import Experiment

    return inspect.signature(work).return_annotation is Experiment


def _shown(parameter: inspect.Parameter, option: Any) -> inspect.Parameter:
    """Return a parameter as Typer reads it."""
    if isinstance(option, ReadOption):
        has_default = parameter.default is not inspect.Parameter.empty
        parameter = parameter.replace(
            annotation=Annotated[option.kind, typer.Option(help=option.help, min=option.least)],
            default=option.said(parameter.default) if has_default else parameter.default,
        )
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def finish_bench(found: "ExperimentResult", *, out: Path | None, as_json: bool) -> None:
    """Print the result of an experiment, as JSON or as its page's tables, and write both files if a folder is given.

    Raises TallystickError after that if the experiment failed.
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
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    return table


def _text(value: "Cell") -> str:
    from tallystick_experiments.page import cell, within

    reach = within(value)
    return f"{cell(value)}\n({reach})" if reach else cell(value)
