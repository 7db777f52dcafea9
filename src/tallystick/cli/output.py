"""Print a command's result and end it: people read lines, programs read one JSON object as the last line."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import typer
from rich.console import Console

from tallystick.cli.signals import EXIT_FAILED, EXIT_INTERRUPTED, NOTHING_BEGUN, interruptible, load
from tallystick.errors import ConfigError, DataError, TallystickError, of_the_machine
from tallystick.terminal import PlainWordsConsole, printable_lines

EXIT_USAGE = 2
LIBRARIES = ("numpy", "torch", "scipy.special", "polars", "pyarrow")
"""Modules that load slowly; a command that needs them loads them first."""
ALIGN_LIBRARIES = ("numpy", "polars")
"""The same for a command that only aligns, which does not need PyTorch."""


def finish(result: Mapping[str, object], *, as_json: bool, show: Callable[[Console], None] | None = None) -> None:
    """Print a command's result: as JSON, or with ``show`` for people (by default a line for each value)."""
    if as_json:
        sys.stdout.write(json.dumps(result) + "\n")
        return
    console = PlainWordsConsole(highlight=False)
    if show is not None:
        show(console)
        return
    values = {name: _readable(value) for name, value in result.items() if value not in (None, {}, [], ())}
    width = max(map(len, values), default=0) + 2
    for name, value in values.items():
        console.print(f"{name:<{width}}" + value.replace("\n", "\n" + " " * width), markup=False)


def guarded(work: Callable[[], None], *, as_json: bool, loads: Sequence[str] = (), interrupted: str = "interrupted") -> None:
    """Run a command's work. A known error becomes a line and an exit code: 2 for bad input, 3 for a failure.

    An interrupt gives 130 and the line ``interrupted``, which describes the command's state then. Work with a better line raises
    KeyboardInterrupt with it.

    Args:
        work: the command's work. It imports what it needs when it runs, so that no command waits for another's modules.
        as_json: whether an error is printed as JSON as well.
        loads: modules to import before the work, because a signal could break their import.
        interrupted: the line after an interrupt.
    """
    line = NOTHING_BEGUN
    try:
        load(loads)
        interruptible()
        line = interrupted
        work()
    except TallystickError as error:
        code = EXIT_USAGE if isinstance(error, ConfigError | DataError) else EXIT_FAILED
        _fail(error, code, as_json=as_json)
    except Exception as error:
        if (known := of_the_machine(error)) is None:
            raise
        _fail(known, EXIT_FAILED, as_json=as_json)
    except KeyboardInterrupt as stop:
        sys.stderr.write(f"{printable_lines(str(stop) or line)}\n")
        raise typer.Exit(EXIT_INTERRUPTED) from None


def _fail(error: TallystickError, code: int, *, as_json: bool) -> NoReturn:
    if as_json:
        facts = {name: value for name, value in vars(error).items() if isinstance(value, str | int | list | type(None))}
        sys.stdout.write(json.dumps({"error": {"type": type(error).__name__, "message": str(error), **facts}}) + "\n")
    sys.stderr.write(f"error: {printable_lines(str(error))}\n")
    raise typer.Exit(code)


def _readable(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(each)}" for name, each in value.items())
    return "\n".join(map(_readable, value)) if isinstance(value, list | tuple) else str(value)
