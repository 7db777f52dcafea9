"""Write the pages of docs/reference/ from the code: configuration, commands, messages and errors: ``make reference``."""

import importlib
import json
import pkgutil
import re
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
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
from tallystick.config.secret import Secret
from tallystick.config.tuning import TUNABLE
from tallystick.network.messages import Message

FOLDER = Path(__file__).with_name("reference")
OF_MOST = 5  # commands: an argument or option of so many is explained once
BOUNDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
}
ENTRIES = ("min_length", "max_length")

SHORT = {
    "serving.ways": "ways of asking that are allowed, all the label party's or all the feature party's: "
    "[serve scores online](../howto/serve-scores-online.md) compares them",
    "evaluation.share_metrics": "[metrics](python-names.md#metrics) of the joint model that the label party sends the feature "
    "parties, exact and not private",
    "promotion.metric": "which [metric](python-names.md#metrics) is compared; null is the target's first",
    "union.labels": "what a label is that the label party lacks: [imputers](methods.md#imputers-of-a-union)",
    "union.features": "what features are that the feature party lacks: [imputers](methods.md#imputers-of-a-union)",
    "defense[].method": "which method",
    "unaligned.method": "how they are trained on, and scored: [methods](methods.md#rows-without-a-partners-row)",
}
APART = ("alignment.similarity", "model.merge")
CONTRACT = {
    "": "Every party of a job has the same contract. These keys hold no others:",
    "parties": "There is one label party and at least one feature party. A union takes one feature party only. "
    "`union-with-helper` and `similarity` need a helper, and the other methods have none.",
    "alignment": "[Alignments](../explanation/alignments.md) says which method to choose, and "
    "[tables](data.md#several-rows-of-one-key) what `duplicates: all` discloses.\n\n"
    "**The match rate** is the number of ids that all parties have, divided by the number of the label party's ids, dummies "
    "included. All parties know both numbers from the alignment. If the rate is below `min_match_rate`, they end together before "
    "training. Without the key, a run warns if less than half of the smallest side's ids are common, and says what "
    "most of one's own keys look like (`+9{12}` here and `9{11}` there), which people of both sides can compare.",
    "alignment.similarity": "[Linking](../explanation/linking.md) explains the method, and "
    "[its protocol](alignment-protocols.md#similarity) what each side sees. A number "
    "needs `low` and `high` unless the helper sees keys in the clear.",
    "union": "[Unions](../explanation/unions.md) says what each strategy leaks. A union works only with `binary` targets and "
    "`split.method: hash`. Both strategies together use one of `-tr`, `-te` and `-fit` at most, and `-fit` needs "
    "`split.validation` above 0.",
    "unaligned": "[Rows without a partner](../howto/use-rows-without-a-partner.md) says which method to choose. A contract that "
    "`tallystick init` writes has `warm-start`.",
    "split": "`validation` and `test` together are below 1. With `validation: 0`, `training.patience` must be `null`.",
    "model": "`cut_after` is at most the number of layers in `hidden`. [Numbers](data.md#numbers) and "
    "[normalisation](rules.md#normalisation-of-layers) explain two of the keys.",
    "model.merge": "[Linking](../explanation/linking.md#how-links-become-one-row) explains these keys.",
    "training": "`warm_up` only works with `schedule: cosine`. [Training without "
    "gradients](../explanation/what-crosses-the-cut.md#training-without-gradients) says what `gradients: none` promises. It is "
    "refused beside what would tell of labels in another way (`evaluation.privacy`, `share_metrics`, `tuning.keys`, "
    "`importance.feature_columns`), what needs gradients (unions, `fedhssl`, `vfl-mpd`, penalties on embeddings), "
    "and defences of labels, which would only cost accuracy.",
    "defense": "[Defences](../explanation/defenses.md) explains each method. An entry has a `method` and that method's keys. "
    "No method is given twice. At most one method replaces labels (`label-dp`, `label-dp-prior`, `gaussian-labels`), and only on "
    "an "
    "intersection. `marvell` and `distance-correlation` need labels that are classes, so they do not work with "
    "`gaussian-labels` or `union.labels: neighbors`; nor does `gaussian` work with `neighbors`.",
    "evaluation": "`privacy` only works with `binary` targets, and not with `share_metrics`, whose exact figures would undo its "
    "promise. `importance.feature_columns` other than `none` [discloses these columns](report.md#which-columns-matter). It needs "
    "an intersection and `split.validation` above 0, and no defence of columns.",
    "network": "[The network](network.md) has the rules behind these keys. `heartbeat_s` is below `deadline_s`.",
    "tuning": "[Tune a contract](../howto/tune.md) says what a search discloses. `split.validation` is above 0. "
    "What may be tuned: " + ", ".join(f"`{key}`" for key in TUNABLE) + ".",
}
COMMANDS = {
    "init": (
        "Parties that give the same options get the same contract, except for the target. That comes from the label party's "
        "`--table`, so all take the label party's contract. Key and label are taken from the table's header if exactly one "
        "column's name says so, such as `customer_id`. Otherwise a comment says what to fill in. The label party listens on "
        "port 7443, the helper on 7444. Fill in the names of the machines.",
    ),
    "check": ("Every other job command begins with the same checks, except those of the connections.",),
    "align": ("This begins a run. `train` and `evaluate` go on with the latest one.",),
    "predict": ("[Score new rows](../howto/score-new-rows.md) says who gets scores, and what the file holds.",),
    "tune": ("[Tune a contract](../howto/tune.md) says what a search discloses.",),
    "audit": ("[What leaks](../tutorials/what-leaks.md) shows an audit before there is a partner.",),
    "ledger": ("[The ledger](ledger.md) explains what is counted.",),
}
PARTY = {
    "": "Each party has its own. It is never sent. Paths are relative to the party file's folder, and so are relative "
    "paths inside `table.query`; `~` is the home folder.\n\n"
    "| | label party | feature party | helper |\n"
    "|---|---|---|---|\n"
    "| `table`, `keys` | yes | yes | no: it sees no rows |\n"
    "| `sequences` | if wanted | if wanted | no |\n"
    "| `label` | yes | no | no |\n"
    "| `weight` | if wanted, not on a union | no | no |\n"
    "| `time` | if `split.method` is `time` | no | no |\n"
    "| `report` | if wanted | no | no |\n"
    "| `listen` | yes | no need | yes |\n"
    "| `peers` | the helper, if any | the label party, and the helper if any | no need |\n"
    "| `tls` | yes | yes | yes |\n\n"
    "`keys` maps every key name of the contract to one of your columns, and names no others. The label and the weight"
    " may not be features, keys, or a sequence's target. These keys hold no others:",
    "table": "[Tables](data.md) explains how a table is read. PostgreSQL runs the query in a transaction that may only read; "
    "it needs `pip install 'tallystick[postgres]'`, and SQLite `'tallystick[sqlite]'`. [Other "
    "databases](../howto/where-data-lies.md#databases) need their ADBC driver. [Secrets](../howto/where-data-lies.md#secrets) "
    "says how to give a password: it is refused in `database`.",
    "repeats": "[Several rows of one key](data.md#several-rows-of-one-key) has an example.",
    "features": "`features: auto` takes every other column by its type. `drop` only works with `auto`.",
    "sequences": "[Sequences](data.md#sequences) explains these keys.",
    "tls": "[The network](network.md#certificates) says what a certificate needs. A "
    "[secret](../howto/where-data-lies.md#secrets) is a file's content, a variable of the environment, or what a command prints.",
    "privacy": "[The ledger](ledger.md) explains names and caps.",
    "report": "[The report](report.md) shows what these keys change.",
}


def configuration() -> str:
    """Return the page of every key of the contract and the party file."""
    parts = [
        "# Configuration, from the code",
        "[The contract and the party file](../explanation/a-run.md#the-contract-and-the-party-file) explains the two files. "
        "A `[]` after a key says that its value is a list. Methods in brackets, as in `defense[].(marvell).power`, say that "
        "the key only works with these.",
        "Editors check a file as you write it, if its first line names its schema, such as "
        "`# yaml-language-server: $schema=contract.schema.json`: download [contract.schema.json](contract.schema.json) and "
        "[party-file.schema.json](party-file.schema.json).",
    ]
    for title, model, notes in (("The contract", Contract, CONTRACT), ("The party file", PartyFile, PARTY)):
        parts += [f"## {title}", notes[""]]
        for section, rows in _sections(model):
            parts += [f"### {section}"] if section else []
            parts += [notes[section]] if section and section in notes else []
            parts.append(_keys(rows))
    parts += ["## Secrets", "A key whose type is a secret holds exactly one of these keys:", _keys(_rows(Secret, ""))]
    return "\n\n".join(parts) + "\n"


def _keys(rows: Iterable[str]) -> str:
    """Make the table of keys from its rows."""
    return "\n".join(["| key | type and bounds | default | meaning |", "|---|---|---|---|", *rows])


def _sections(model: type[BaseModel]) -> Iterator[tuple[str, list[str]]]:
    """Yield the rows of keys that hold no others, then those of each key that does."""
    plain: list[str] = []
    nested: dict[str, list[str]] = {}
    for row in _rows(model, ""):
        key = row.split("`")[1]
        key = re.sub(r"\([^)]*\)\.", "", key)
        section = next((part for part in APART if key.startswith(part)), re.split(r"[.\[]", key)[0])
        nested.setdefault(section, []).append(row)
    for section, rows in list(nested.items()):
        if len(rows) == 1:
            plain += nested.pop(section)
    yield "", plain
    yield from nested.items()


def command_line() -> str:
    """Return the page of every command, its arguments and options: those of most commands once."""
    commands: dict[str, typer.core.TyperCommand] = getattr(typer.main.get_command(app), "commands")  # noqa: B009 - of a group
    rows_of = {name: [_option(each) for each in command.params] for name, command in commands.items() if name != "bench"}
    counts = Counter(row for rows in rows_of.values() for row in rows)
    common = [row for row, count in counts.items() if count >= OF_MOST]
    head = ["| argument or option | meaning |", "|---|---|"]
    parts = [
        "# Command line, from the code",
        "Every party of the contract runs the same command at about the same time. The first one waits `network.wait_s` for "
        "the others. A helper runs `run` and `predict` like the others.",
        "Exit code 0 is success, 2 input that cannot be used, 3 a failure, 4 a no (`compare --decide`, `monitor --fail`), 130 an "
        "interrupt, and 137 (SIGKILL) a library that hung while it was loaded, and was ended by a signal. With `--json` the last "
        "line of standard output is one JSON object, and all else goes to standard error.",
        "These arguments and options belong to many commands. Each command names those that it takes:",
        "\n".join([*head, *common]),
    ]
    for name, rows in rows_of.items():
        parts += [f"## tallystick {name}", _plain(commands[name].help or ""), *COMMANDS.get(name, ())]
        parts += (
            [f"Takes {', '.join(row.split('|')[1].strip() for row in rows if row in common)}."] if {*rows} & {*common} else []
        )
        own = [row for row in rows if row not in common]
        parts += ["\n".join([*head, *own])] if own else []
    return "\n\n".join(parts) + "\n"


def messages() -> str:
    """Return the page of every message that crosses between parties."""
    for module in pkgutil.walk_packages(tallystick.__path__, "tallystick."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    parts = [
        "# Messages, from the code",
        "Between parties only these cross, in the frames of "
        "[sessions](protocols.md#sessions). A message that is not expected, too large or not of this form ends the run with one "
        "line. [The threat model](../explanation/threat-model.md#what-each-side-learns) says what each side learns from them.",
        "\n".join(["| message | fields | at most | meaning |", "|---|---|---|---|", *map(_message, _subclasses(Message))]),
    ]
    return "\n\n".join(parts) + "\n"


def error_tree() -> str:
    """Return the page of every error class, and of what a peer is told of one."""
    told = dict(errors._CATEGORIES)
    public = [getattr(tallystick, name) for name in tallystick.__all__]
    rows = [
        f"| `{kind.__name__}` | {_bases(kind)} | {_first(kind)} | {told.get(kind, '')} |"
        for kind in (errors.TallystickError, *_subclasses(errors.TallystickError))
        if kind in public
    ]
    parts = [
        "# Errors, from the code",
        "Every error that tallystick raises on purpose is a "
        "`TallystickError`. Its message names the thing, its value, what was expected, and what to do.",
        "A message may name private columns or values, so it stays at home. A peer is told one of a few fixed sentences: that of "
        "the class or of its base, or that this side failed unexpectedly, with the name of the class.",
        "\n".join(["| error | base | meaning | what a peer is told |", "|---|---|---|---|", *rows]),
        "## Errors of the system",
        "A full disk and its like have sentences of their own:",
        "\n".join(f"- {words}" for words in dict.fromkeys(errors._OF_THE_SYSTEM.values())),
    ]
    return "\n\n".join(parts) + "\n"


def _subclasses(kind: type) -> Iterator[type]:
    """All classes below this one that the library defines, sorted by name at each level."""
    for one in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
        if f"{one.__module__}.".startswith("tallystick."):
            yield one
        yield from _subclasses(one)


def _bases(kind: type) -> str:
    return ", ".join(f"`{base.__name__}`" for base in kind.__bases__)


def _first(kind: type) -> str:
    """Return the first paragraph of a docstring."""
    return _plain((kind.__doc__ or "").partition("\n\n")[0])


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
        kind = "section" if models else _kind(field.annotation)
        default = "required" if field.is_required() else _default(field.default)
        if models == [Secret]:
            kind, models = "[secret](#secrets)", []
        kind = ", ".join(filter(None, (kind, _bounds(field.metadata, field.annotation))))
        yield f"| `{key}{many}` | {kind} | {default} | {SHORT.get(key) or _plain(field.description or '')} |"
        if len(models) == 1:
            yield from _rows(models[0], f"{key}{many}.")
        elif models:
            tags = [note.discriminator for note in (field, *_nested(field.annotation)) if getattr(note, "discriminator", None)]
            yield from _choice(models, f"{key}{many}.", tags)


def _choice(models: list[type[BaseModel]], above: str, tags: list[str]) -> Iterator[str]:
    """Rows of a section that is one of several classes: a row once, in brackets the choices that have it, if not all."""
    for tag in tags:
        values = ", ".join(f"`{value}`" for value in _chosen_by(tag, models))
        abouts = dict.fromkeys(str(model.model_fields[tag].description) for model in models)
        about = SHORT.get(f"{above}{tag}") or _plain("; ".join(abouts))
        usual = next((model.model_fields[tag].default for model in models if not model.model_fields[tag].is_required()), None)
        yield f"| `{above}{tag}` | {values} | {f'`{usual}`' if usual else 'required'} | {about} |"
    rows: dict[str, list[type[BaseModel]]] = {}
    for model in models:
        for row in _rows(model, above):
            if row.split("`")[1] not in [f"{above}{tag}" for tag in tags]:
                rows.setdefault(row, []).append(model)
    for row, having in rows.items():
        others = [model for model in models if model not in having]
        tag = next(tag for tag in tags if not {*_chosen_by(tag, having)} & {*_chosen_by(tag, others)})
        which = f"({f'{tag}: ' if len(tags) > 1 else ''}{', '.join(_chosen_by(tag, having))})."
        is_nested = "." in row.split("`")[1].removeprefix(above)  # and stands below a row that says which
        yield row if is_nested or not others else row.replace(f"`{above}", f"`{above}{which}", 1)


def _chosen_by(tag: str, models: list[type[BaseModel]]) -> list[str]:
    """List the values of a tag that choose one of these classes."""
    return list(dict.fromkeys(str(value) for model in models for value in get_args(model.model_fields[tag].annotation)))


def _models(kind: Any) -> Iterator[type[BaseModel]]:
    """Yield the config classes that an annotation holds."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    elif get_origin(kind) is not Literal:
        for inner in get_args(kind):
            yield from _models(inner)


def _kind(kind: Any) -> str:
    """Say the type of a value."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{str(value).lower() if isinstance(value, bool) else value}`" for value in inner)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(_kind(one) for one in inner))
    if origin in (list, tuple):
        return "list of " + _kind(inner[0])
    if origin is dict:
        return "mapping to " + _kind(inner[1])
    named = {int: "integer", float: "number", str: "text", bool: "true or false", type(None): "null", Path: "path"}
    return named.get(kind, getattr(kind, "__name__", "value"))


def _default(value: Any) -> str:
    if value is PydanticUndefined or isinstance(value, BaseModel):
        return ""
    if isinstance(value, tuple):
        value = list(value)
    text = {None: "null", True: "true", False: "false"}.get(value) if isinstance(value, bool | None) else str(value)
    return f"`{text}`"


def _bounds(metadata: list[Any], kind: Any) -> str:
    """Say between which limits a value lies, and how many entries a list has."""
    notes = [*metadata, *_nested(kind)]
    notes += [inner for note in notes for inner in getattr(note, "metadata", ())]
    limits = {name: value for name in BOUNDS for note in notes if (value := getattr(note, name, None)) is not None}
    entries = {name: value for name in ENTRIES for note in metadata if (value := getattr(note, name, None)) is not None}
    if "ge" in limits and "le" in limits:
        words = [f"{_written(limits['ge'])} to {_written(limits['le'])}"]
    else:
        words = [f"{BOUNDS[name]} {_written(value)}" for name, value in limits.items()]
    if get_origin(kind) is tuple and entries:
        most = f"{entries.get('min_length', 0)} to {entries['max_length']} entries" if "max_length" in entries else "not empty"
        words.insert(0, most)
    return ", ".join(words)


def _written(limit: float) -> str:
    """Write a limit in few characters."""
    return f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"


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


def schema(model: type[BaseModel]) -> str:
    """Write what an editor reads to check a file while it is written."""
    return json.dumps(model.model_json_schema(), indent=1, ensure_ascii=False) + "\n"


PAGES = {
    "configuration.md": configuration,
    "command-line.md": command_line,
    "messages.md": messages,
    "errors.md": error_tree,
    "contract.schema.json": partial(schema, Contract),
    "party-file.schema.json": partial(schema, PartyFile),
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, write in PAGES.items():
        (FOLDER / page).write_text(write(), encoding="utf-8")
