"""A command made of an experiment's function: its parameters are the options, and what all commands share is added to them."""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_type_hints

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError, TallystickError
from tallystick.watcher import Style, Watcher

if TYPE_CHECKING:
    from tallystick_experiments.grid import Keeping, Maker
    from tallystick_experiments.page import Benchmark, Cell, ExperimentResult

GROUP = "the options that are fields of this dataclass"
"""Annotates a parameter whose default says what they usually are."""
SHOWN_ROWS = 24  # of a table on the terminal
OutFolder = Annotated[Path | None, typer.Option("--out", help="Write result.json and report.html into this folder.")]
ResumeFlag = Annotated[bool, typer.Option("--resume", help="Go on with the runs that --out holds.")]
WorkersOption = Annotated[
    int | None, typer.Option(help="Make so many runs at a time, in processes of one thread each; the same rows.", min=1, max=4096)
]
RayOption = Annotated[str | None, typer.Option(help="On a Ray cluster: auto, host:port or ray://host:port.")]


class Command(NamedTuple):
    """A command that is not loaded yet.

    Its function has an option for each parameter that is annotated with ``typer.Option`` or ``ReadOption``, and for each such
    field of a ``GROUP``. One that declares an Experiment gets --out, --resume, --workers and --ray; one that gives an
    ExperimentResult gets --out and, if it takes ``keeping``, the others. ``progress`` and ``keeping`` are handed to it.
    """

    place: str  # module:function
    says: str  # what it measures, in a sentence

    def load(self) -> Callable[..., None]:
        """Import its module, and make the command."""
        module, _, name = self.place.partition(":")
        guarded(lambda: None, as_json="--json" in sys.argv, loads=(*LIBRARIES, module))
        return command_of(getattr(importlib.import_module(module), name))


@dataclass(frozen=True, kw_only=True)
class ReadOption:
    """An option whose value is made of what the command line says.

    Args:
        help: of the option.
        kind: what Typer takes.
        read: makes the value; raises ValueError for what is none.
        said: gives what would have said a value, which the help shows of the default.
        wanted: what an error asks for.
        least: of a number.
    """

    help: str
    kind: type
    read: Callable[[Any], Any]
    said: Callable[[Any], Any]
    wanted: str = ""
    least: int | None = None

    def value(self, name: str, said: Any) -> Any:
        """Read the value; raises ConfigError for an unusable one."""
        try:
            return self.read(said)
        except ConfigError:
            raise
        except ValueError:
            raise ConfigError(f"--{name} {said}: must be {self.wanted}") from None


def several(help: str, *, of: Callable[[str], Any] = str, separator: str = ",", wanted: str = "") -> ReadOption:
    """Declare an option that lists values between separators."""
    return ReadOption(
        help=help,
        kind=str,
        read=lambda text: [of(part.strip()) for part in text.split(separator) if part.strip()],
        said=lambda values: separator.join(map(str, values)),
        wanted=wanted,
    )


def seeds_option(help: str = "Runs per row.") -> ReadOption:
    """Declare an option for the number of seeds, from 1 on."""
    return ReadOption(help=help, kind=int, read=lambda count: list(range(1, count + 1)), said=len, least=1)


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


def _made_on(workers: int | None, ray: str | None, work: Callable[..., Any], options: Mapping[str, Any]) -> "Maker | None":
    """Return who makes the cases of a sweep, if that is asked for."""
    if workers is None:
        if ray is not None:
            raise ConfigError(f"--ray {ray}: needs --workers N, how many runs to make at a time")
        return None
    from tallystick.config.compute import ComputeConfig
    from tallystick.reading import validate
    from tallystick_experiments.tasks import MadeByTasks

    values = {"workers": workers} if ray is None else {"engine": "ray", "address": ray, "workers": workers}
    engine = validate(ComputeConfig, values, source="--workers, --ray").made()
    return MadeByTasks(engine=engine, command=f"{work.__module__}:{work.__name__}", options=options)


def command_of(work: Callable[..., Any]) -> Callable[..., None]:
    """Make a command of an experiment's function, or of one that gives figures, which are printed."""
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
    """Tell whether a function declares an experiment, which others can then make row by row."""
    from tallystick_experiments.experiment import Experiment

    return inspect.signature(work).return_annotation is Experiment


def parameters_of(work: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command's function, with the fields of its groups beside these."""
    parameters: dict[str, inspect.Parameter] = {}
    for each in inspect.signature(work).parameters.values():
        parameters[each.name] = each
        for name, hint in _fields(each).items():
            parameters[name] = each.replace(name=name, annotation=hint, default=getattr(each.default, name))
    return parameters


def called(work: Callable[..., Any], values: Mapping[str, Any]) -> Any:
    """Call a command's function with values of its parameters and of the fields of its groups."""
    arguments = dict(values)
    for name, each in inspect.signature(work).parameters.items():
        if changes := {field: arguments.pop(field) for field in _fields(each) if field in values}:
            arguments[name] = replace(each.default, **changes)
    return work(**arguments)


def _fields(parameter: inspect.Parameter) -> dict[str, Any]:
    """Return the fields of a group of options, and what each is annotated with; none of another parameter."""
    if GROUP not in getattr(parameter.annotation, "__metadata__", ()):
        return {}
    group = get_args(parameter.annotation)[0]
    hints = get_type_hints(group, include_extras=True)
    return {field.name: hints[field.name] for field in fields(group)}


def options_of(work: Callable[..., Any]) -> dict[str, Any]:
    """Return the options of a command's function, by the names of its parameters and their fields."""
    options = {name: _option(parameter) for name, parameter in parameters_of(work).items()}
    return {name: option for name, option in options.items() if option is not None}


def _option(parameter: inspect.Parameter) -> Any:
    """Return a parameter's annotation, if that makes it an option."""
    stated = getattr(parameter.annotation, "__metadata__", ())
    return next((each for each in stated if isinstance(each, ReadOption | typer.models.OptionInfo)), None)


def _shown(parameter: inspect.Parameter, option: Any) -> inspect.Parameter:
    """Return a parameter as Typer reads it."""
    if isinstance(option, ReadOption):
        has_default = parameter.default is not inspect.Parameter.empty
        parameter = parameter.replace(
            annotation=Annotated[option.kind, typer.Option(help=option.help, min=option.least)],
            default=option.said(parameter.default) if has_default else parameter.default,
        )
    return parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def read_option(option: Any, name: str, said: Any) -> Any:
    """Read an option's value from the command line; raises ConfigError for an unusable one."""
    return option.value(name.replace("_", "-"), said) if isinstance(option, ReadOption) else said


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
