"""Write docs/reference/configuration.md from the config classes and command-line.md from the commands: ``make reference``."""

import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from tallystick.cli.app import app
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile

FOLDER = Path(__file__).with_name("reference")
BOUNDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "length at least",
    "max_length": "length at most",
}


def configuration() -> str:
    """Give the page of every key of the contract and the party file."""
    parts = [
        "# Configuration, from the code",
        "`make reference` makes this page from the classes that read the files, so no key is missing here. "
        "[Configuration](../config.md) explains the keys and their errors. A `[]` after a key says that its value is a list.",
    ]
    for title, model in (("The contract", Contract), ("The party file", PartyFile)):
        rows = ["| key | type | default | bounds | meaning |", "|---|---|---|---|---|", *_rows(model, "")]
        parts += [f"## {title}", "\n".join(rows)]
    return "\n\n".join(parts) + "\n"


def command_line() -> str:
    """Give the page of every command, its arguments and options."""
    group = typer.main.get_command(app)
    parts = [
        "# Command line, from the code",
        "`make reference` makes this page from the commands themselves. "
        "[Commands](../running.md) explains how they work together.",
    ]
    for name, command in getattr(group, "commands").items():  # noqa: B009 - of a group, which the type does not say
        if name == "bench":
            continue
        parts += [f"## tallystick {name}", _plain(command.help or "")]
        rows = ["| argument or option | meaning |", "|---|---|", *(_option(parameter) for parameter in command.params)]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"


def _rows(model: type[BaseModel], above: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        key = f"{above}{field.alias or name}"
        models = list(_models(field.annotation))
        many = "[]" if models and get_origin(field.annotation) in (list, tuple) else ""
        kind = "keys below" if models else _kind(field.annotation)
        default = "required" if field.is_required() else _default(field.default)
        cells = (f"`{key}{many}`", kind, default, _bounds(field.metadata, field.annotation), _plain(field.description or ""))
        yield "| " + " | ".join(cells) + " |"
        for inner in models:
            method = inner.model_fields.get("method") if len(models) > 1 else None
            values = get_args(method.annotation) if method else ()
            yield from _rows(inner, f"{key}{many}.{f'({values[0]}).' if values else ''}")


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """The config classes that an annotation holds."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _models(inner)


def _kind(kind: Any) -> str:
    """The type of a value in words."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in inner))
    if origin in (list, tuple):
        return "list of " + _kind(inner[0])
    if origin is dict:
        return "mapping to " + _kind(inner[1])
    named = {int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null", Path: "path"}
    return named.get(kind, getattr(kind, "__name__", "value"))


def _default(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    text = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else str(value)
    return f"`{text}`"


def _bounds(metadata: list[Any], kind: Any) -> str:
    found = [*metadata, *_nested(kind)]
    found += [inner for one in found for inner in getattr(one, "metadata", ())]
    said = [
        f"{words} {value}" for one in found for name, words in BOUNDS.items() if (value := getattr(one, name, None)) is not None
    ]
    return ", ".join(dict.fromkeys(said))


def _nested(kind: Any) -> Iterator[Any]:
    if get_origin(kind) is Annotated:
        yield from get_args(kind)[1:]
    if get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _nested(inner)


def _option(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
    if parameter.param_type_name == "argument":
        names = f"`{parameter.name.upper()}`"
    default = (
        parameter.default if isinstance(parameter.default, int | float | str) and parameter.default not in (False, "") else None
    )
    said = _plain(getattr(parameter, "help", None) or "")
    return f"| {names} | {said}{f' Default: `{default}`.' if default is not None else ''} |"


def _plain(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "\\<").replace("*", "\\*")


PAGES = {"configuration.md": configuration, "command-line.md": command_line}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), encoding="utf-8")
