"""Reading config files: YAML without surprises, and messages that name the key, its value and what is allowed."""

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo
from pydantic.fields import FieldInfo

from tallystick.errors import ConfigError, printable
from tallystick.storage import refuse_pipe

_SHOWN_CHARACTERS = 60
MAX_FILE_BYTES = 1 << 20

Role = Literal["label", "feature", "helper"]
Step = Literal["trim", "lower", "upper", "nfkc", "email", "phone", "digits"]
PARTY_NAME = re.compile(r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$")
Name = Annotated[str, Field(pattern=PARTY_NAME.pattern)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=1_000_000_000)]
Width = Annotated[int, Field(strict=True, ge=1, le=65_536)]
Share = Annotated[float, Field(strict=True, ge=0, lt=1)]
WholeShare = Annotated[float, Field(strict=True, ge=0, le=1)]
"""A share that may be all; a ``Share`` may not."""
Positive = Annotated[float, Field(strict=True, ge=1e-9, le=1e9)]


def resolved(path: Path, info: ValidationInfo) -> Path:
    """Resolve a path from the folder of the file that it stands in; raises ValueError for what no path can be."""
    folder = Path((info.context or {}).get("folder", "."))
    if "\0" in str(path):
        raise ValueError("must be a path; it holds a null character")
    try:
        return folder / path.expanduser()
    except RuntimeError:  # ~nobody/...
        raise ValueError("must be a path whose ~ is the home folder of a user of this machine") from None


FilePath = Annotated[Path, AfterValidator(resolved)]
"""A path that starts from the folder of the file that it stands in."""


def _address(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise ValueError('must be "host:port", such as "127.0.0.1:7443" or "[::1]:7443"')
    return text


Address = Annotated[str, AfterValidator(_address)]


class Model(BaseModel):
    """Base of every config model: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class Problems(ValueError):
    """Problems that involve several keys; each one is already written as ``key = value: what is allowed``."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

    @staticmethod
    def raise_any(problems: list[str]) -> None:
        """Raise if the list is not empty."""
        if problems:
            raise Problems(problems)


class Unshown(ValueError):
    """A problem with a value that no message may repeat, not even shortened: what is to be done, after the key."""


M = TypeVar("M", bound=Model)


def read_yaml(path: Path) -> Any:
    """Read one YAML document of plain values (null, true/false, numbers, text, lists, mappings).

    Raises ConfigError for a file that is absent, not UTF-8, larger than 1 MiB or not valid YAML, and for a key given twice, an
    alias, a tag, or a character that cannot be printed.
    """
    refuse_pipe(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check the path") from None
    if len(content) > MAX_FILE_BYTES:
        raise ConfigError(f"{path}: is too large for a config file (at most {MAX_FILE_BYTES} bytes)")
    try:
        return yaml.load(content.decode("utf-8"), Loader=_Loader)  # noqa: S506 - a SafeLoader
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text (byte {error.start})") from None
    except yaml.MarkedYAMLError as error:
        # The mark's snippet would show the line, which may hold a password.
        mark = error.problem_mark or error.context_mark
        raise ConfigError(f"{path}: {f'line {mark.line + 1}: ' if mark else ''}{error.problem or error.context}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigError(f"{path}: is not valid YAML ({type(error).__name__})") from None


def validate(model: type[M], data: Any, *, source: str, context: Mapping[str, Any] | None = None) -> M:
    """Make a model from plain values; raises ConfigError with one line per problem, each starting with ``source``."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: must hold `key: value` lines, found {'nothing' if data is None else type(data).__name__}")
    try:
        return model.model_validate(_plain(dict(data)), context=context)
    except ValidationError as error:
        # Unchained: pydantic's own error holds the raw values.
        raise ConfigError("\n".join(f"{source}: {printable(line)}" for line in _lines(model, error))) from None


def _plain(value: Any) -> Any:
    """Give a value with NumPy's scalars, which a sweep or a frame brings, as the plain ones that they are."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return value.item() if type(value).__module__ == "numpy" and not getattr(value, "ndim", 1) else value


def closest(word: str, names: Iterable[str]) -> str | None:
    """Find the name that a mistyped word is closest to; of equally close ones, one with the same letters: `lable`, `label`."""
    close = difflib.get_close_matches(word, list(names), n=5)

    def distance(name: str) -> tuple[float, bool]:
        return -difflib.SequenceMatcher(None, name, word).ratio(), sorted(name) != sorted(word)

    return min(close, key=distance, default=None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known word is close, or list them."""
    names = sorted(known)
    close = closest(word, names)
    return f"did you mean {close}?" if close else f"known here: {', '.join(names) or 'none'}"


def redacted(text: str) -> str:
    """Blank out the passwords of a URL or a connection string."""
    text = re.sub(r"(:/{1,2})([^:@/\s]*):.*@", r"\1\2:***@", text)
    return re.sub(r"(?i)(password|passwd|pwd|secret|token)(\s*=\s*)('[^']*'|[^\s;&]+)", r"\1\2***", text)


def shown(value: Any) -> str:
    """Show a value as YAML would have it, shortened, without passwords; empty for mappings and long lists."""
    if isinstance(value, str):
        text = redacted(value)
        short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        return printable(json.dumps(short, ensure_ascii=False))
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        text = "[" + ", ".join(shown(item) or "..." for item in value) + "]"
        return text if len(text) <= _SHOWN_CHARACTERS else ""
    return ""


def written_number(value: float) -> str:
    """Write a limit: whole numbers in full, 1e-06 as it is."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """SafeLoader with YAML 1.2's scalars (1e-3 is a number; no, on, 2024-01-01 are text), no aliases, tags or double keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read here", mark)
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:  # !!int "" and the like fail in ways of their own
            wrong = f"the tag {shown(event.tag)} is not read here; write the plain value, in quotes if it is text"
            raise yaml.constructor.ConstructorError(None, None, wrong, event.start_mark)
        if (odd := _UNPRINTABLE.search(getattr(event, "value", ""))) is not None:
            wrong = f"the character U+{ord(odd[0]):04X} is not read here; leave it out"
            raise yaml.constructor.ConstructorError(None, None, wrong, event.start_mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # noqa: ARG002
        keys: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a single word", key.start_mark)
            if key.value in keys:
                raise yaml.constructor.ConstructorError(None, None, f"the key {shown(key.value)} is given twice", key.start_mark)
            keys.add(key.value)
        # Keys are names, whatever they look like.
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}

    def construct_yaml_map(self, node: yaml.MappingNode) -> Any:
        yield self.construct_mapping(node)


_Loader.add_constructor("tag:yaml.org,2002:map", _Loader.construct_yaml_map)
for _tag, _pattern, _first in (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(0|[1-9][0-9]{0,18})", list("-+0123456789")),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", list("-+.0123456789")),
):
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), _first)


def _lines(model: type[Model], error: ValidationError) -> list[str]:
    lines = []
    problems = error.errors()
    # A number or auto is a union: pydantic has a line for each half, below the key.
    either = {problem["loc"][:-1] for problem in problems if problem["loc"][-1:] == _AUTO}
    for problem in problems:
        or_auto = ""
        if problem["loc"][-1:] == _AUTO:
            continue
        if problem["loc"][:-1] in either:
            problem["loc"], or_auto = problem["loc"][:-1], ", or auto"
        key = redacted(".".join(str(step) for step in _keys(model, problem["loc"])))
        cause = problem.get("ctx", {}).get("error")
        if isinstance(cause, Problems):
            lines += [f"{key}.{line}" if key else line for line in cause.problems]
            continue
        if isinstance(cause, Unshown):
            lines.append(f"{key}: {cause}")
            continue
        kind = problem["type"]
        if kind == "extra_forbidden":
            owner = _model_at(model, problem["loc"][:-1])
            fields = owner.model_fields if owner else ()
            lines.append(f"{key}: is not a known key; {did_you_mean(str(problem['loc'][-1]), fields)}")
        elif kind == "union_tag_invalid":
            # Pydantic quotes what it expects: 'marvell', 'isotropic', ...
            tag, tags = problem["ctx"]["tag"], re.findall(r"'([^']*)'", problem["ctx"]["expected_tags"])
            tag_key = problem["ctx"]["discriminator"].strip("'")
            lines.append(f"{key}.{tag_key} = {shown(tag)}: is not known; {did_you_mean(tag, tags)}")
        elif kind == "missing":
            owner = _model_at(model, problem["loc"][:-1])
            about = owner.model_fields[str(problem["loc"][-1])].description if owner else None
            lines.append(f"{key}: is missing{f'; it says: {about}' if about else ''}")
        else:
            value = shown(problem["input"])
            allowed = _allowed(kind, problem.get("ctx", {}), problem["msg"])
            if kind == "tuple_type" and ((example := _example(model, problem["loc"])) or isinstance(problem["input"], Mapping)):
                allowed = f"must be a list, with a `- ` before each entry{example}"
            lines.append(f"{key}{f' = {value}' if value else ''}: {allowed}{or_auto}")
    return lines


_AS_YAML = re.compile(r"\b(True|False)\b")
_AUTO = ("literal['auto']",)


_TYPES = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "bool_type": "must be true or false",
    "string_type": "must be text; put it in quotes if it looks like a number",
    "path_type": "must be a path",
    "tuple_type": "must be a list, such as [a, b]",
    "dict_type": "must be a mapping of `key: value`",
    "model_type": "must be a mapping of `key: value`",
    "model_attributes_type": "must be a mapping of `key: value`",
    "string_too_short": "must not be empty",
}
_RANGES = {
    "greater_than_equal": ("at least", "ge"),
    "greater_than": ("above", "gt"),
    "less_than_equal": ("at most", "le"),
    "less_than": ("below", "lt"),
    "too_short": ("a list of at least", "min_length"),
    "too_long": ("a list of at most", "max_length"),
}
_PATTERNS = {
    r"^(cpu|cuda(:[0-9]+)?)$": "must be cpu, cuda or cuda:N",
    r"^[A-Za-z_][A-Za-z0-9_]*$": "must be a variable's name: letters, digits and _",
    r"^[\t !#-~]$": 'must be one ASCII character, such as ";"',
    r"^[A-Za-z_][\w.]*:[A-Za-z_]\w*$": 'must be an import path, such as "package.module:Class"',
    r"^[a-z0-9]([a-z0-9_-]{0,61}[a-z0-9])?$": "must be 1 to 63 of a-z, 0-9, - and _, starting and ending with a letter or digit",
}


def _allowed(kind: str, context: Mapping[str, Any], message: str) -> str:
    if kind in _TYPES:
        return _TYPES[kind]
    if kind in _RANGES:
        word, limit = _RANGES[kind]
        return f"must be {word} {written_number(context[limit])}"
    if kind == "literal_error":
        return f"must be {_AS_YAML.sub(lambda found: found[0].lower(), context['expected']).replace(chr(39), '')}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_not_found":
        return f"{context['discriminator']} is missing".replace("'", "")
    return message[:1].lower() + message[1:]


def _model_at(model: type[Model], path: tuple[int | str, ...]) -> type[Model] | None:
    """Find the model whose keys stand at ``path``, stepping through models, mappings and lists."""
    current: Any = model
    for step in path:
        if isinstance(current, type) and issubclass(current, Model):
            field = current.model_fields.get(str(step))
            current = _required(field.annotation) if field else None
        elif member := _tagged(current, step):
            current = member
        else:
            arguments = get_args(current)
            current = _required(arguments[-1] if get_origin(current) is dict else arguments[0]) if arguments else None
    return current if isinstance(current, type) and issubclass(current, Model) else None


def _example(model: type[Model], path: tuple[int | str, ...]) -> str:
    """Show how an entry of the list at ``path`` looks, where its type says so."""
    owner = _model_at(model, path[:-1])
    arguments = get_args(owner.model_fields[str(path[-1])].annotation) if owner else ()
    notes = get_args(arguments[0])[1:] if arguments and get_origin(arguments[0]) is Annotated else ()
    examples = next((note.examples for note in notes if isinstance(note, FieldInfo) and note.examples), None)
    if not examples:
        return ""
    values = ", ".join(f"{key}: {value}" for key, value in examples[0].items())
    return f", such as `- {{{values}}}`"


def _tagged(union: Any, tag: int | str) -> type[Model] | None:
    """Find the model of a tagged union whose ``method`` is ``tag``."""
    if get_origin(union) is not Annotated:
        return None
    members = [member for member in get_args(get_args(union)[0]) if issubclass(member, Model)]
    return next((member for member in members if tag in get_args(member.model_fields["method"].annotation)), None)


def _keys(model: type[Model], path: tuple[int | str, ...]) -> list[int | str]:
    """Leave out of a problem's path what is no key of the file: pydantic's own words, and the tags of tagged unions."""
    steps = [step for step in path if step != "[key]"]
    tags = [index for index in range(1, len(steps)) if isinstance(steps[index - 1], int) and isinstance(steps[index], str)]
    return [step for index, step in enumerate(steps) if index not in tags or _model_at(model, path[:index]) is not None]


def _required(annotation: Any) -> Any:
    """Strip ``| None`` from an annotation."""
    arguments = get_args(annotation)
    return arguments[0] if arguments and arguments[-1] is type(None) else annotation
