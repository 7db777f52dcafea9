"""Define options of a command, as its function's parameters state them."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, get_args, get_type_hints

import typer

from tallystick.errors import ConfigError

GROUP = "the options that are fields of this dataclass"
"""Annotation of a parameter whose default holds the options' defaults."""


@dataclass(frozen=True, kw_only=True)
class ReadOption:
    """Define an option whose value is read from the command line's text.

    Args:
        help: the option's help.
        kind: the type for Typer.
        read: makes the value; raises ValueError for unusable text.
        said: turns a value back into text, which the help shows for the default.
        wanted: the words of an error for what is expected.
        least: the minimum of a number.
    """

    help: str
    kind: type
    read: Callable[[Any], Any]
    said: Callable[[Any], Any]
    wanted: str = ""
    least: int | None = None

    def value(self, name: str, said: Any) -> Any:
        """Read the value. Raises ConfigError for an unusable one."""
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


def parameters_of(work: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """Return the parameters of a command's function, together with the fields of its groups."""
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
    """Return the fields of a group of options, and the annotation of each. Another parameter has none."""
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


def read_option(option: Any, name: str, said: Any) -> Any:
    """Read an option's value from the command line. Raises ConfigError for an unusable one."""
    return option.value(name.replace("_", "-"), said) if isinstance(option, ReadOption) else said
