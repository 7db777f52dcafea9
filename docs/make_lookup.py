"""Write the pages of docs/reference/ from the code: configuration, commands, messages and errors: ``make reference``."""

import importlib
import pkgutil
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import BaseModel
from pydantic_core import PydanticUndefined

import tallystick
from tallystick import errors
from tallystick.cli.app import app
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.network.messages import Message

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


def messages() -> str:
    """Give the page of every message that crosses between parties."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    parts = [
        "# Messages, from the code",
        "`make reference` makes this page from the classes of all messages. Between parties only these cross, in the frames that "
        "[the network](network.md#frames-over-tls) has. "
        "A receiver names the message that it expects, and checks the size of what comes before it decodes it. "
        "A message that is not expected, too large or not of this form ends the run with one line. "
        "[What crosses the cut](../explanation/what-crosses-the-cut.md) explains the two messages of training, and "
        "[the threat model](../threat-model.md#what-each-side-learns) says what each side learns from all of them.",
        "\n".join(["| message | fields | at most | meaning |", "|---|---|---|---|", *map(_message, _subclasses(Message))]),
    ]
    return "\n\n".join(parts) + "\n"


def error_tree() -> str:
    """Give the page of every error class, and of what a peer is told of one."""
    told = dict(errors._CATEGORIES)
    rows = [
        f"| `{kind.__name__}` | `{kind.__bases__[0].__name__}` | {_plain(kind.__doc__ or '')} | {told.get(kind, '')} |"
        for kind in (errors.TallystickError, *_subclasses(errors.TallystickError, within=errors.__name__))
    ]
    parts = [
        "# Errors, from the code",
        "`make reference` makes this page from the classes of errors. Every error that tallystick raises on purpose is a "
        "`TallystickError`. Its message names the thing, its value, what was expected, and what to do.",
        "A message may name private columns or values, so it stays at home. A peer is told one of a few fixed sentences. "
        "A class without a sentence of its own has that of its base. Where no base has one either, the peer is told that this "
        "side failed unexpectedly, and the name of the class. The message of a `PeerError` may quote the peer.",
        "\n".join(["| error | base | meaning | what a peer is told |", "|---|---|---|---|", *rows]),
        "## Errors of the system",
        "A full disk and its like have sentences of their own:",
        "\n".join(f"- {words}" for words in dict.fromkeys(errors._OF_THE_SYSTEM.values())),
    ]
    return "\n\n".join(parts) + "\n"


def _subclasses(kind: type, within: str = "tallystick.") -> Iterator[type]:
    """All classes below this one that the library defines, sorted by name at each level."""
    for one in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
        if f"{one.__module__}.".startswith(within):
            yield one
        yield from _subclasses(one, within)


def _message(kind: Any) -> str:
    size = kind.limit
    most = f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB" if size >= 1 << 10 else f"{size} bytes"
    fields = ", ".join(f"`{name}`" for name in kind.__struct_fields__)
    return f"| `{kind.__name__}` | {fields} | {most} | {_plain((kind.__doc__ or '').partition(chr(10) * 2)[0])} |"


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


PAGES = {"configuration.md": configuration, "command-line.md": command_line, "messages.md": messages, "errors.md": error_tree}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), encoding="utf-8")
