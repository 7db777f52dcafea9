"""Read config files: YAML without surprises, and messages that name the key, its value and the allowed values."""

import difflib
import json
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SerializationInfo,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tallystick.errors import ConfigError, printable
from tallystick.storage import refuse_pipe

_SHOWN_CHARACTERS, LONG_DESCRIPTION = 60, 250
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
"""A share that may be 1. A ``Share`` may not."""
Positive = Annotated[float, Field(strict=True, ge=1e-9, le=1e9)]


def resolved(path: Path, info: ValidationInfo) -> Path:
    """Resolve a path from the folder of the file that holds it. Raises ValueError for text that cannot be a path."""
    folder = Path((info.context or {}).get("folder", "."))
    if "\0" in str(path):
        raise ValueError("must be a path; it holds a null character")
    try:
        return folder / path.expanduser()
    except RuntimeError:  # ~nobody/...
        raise ValueError("must be a path whose ~ is the home folder of a user of this machine") from None


FilePath = Annotated[Path, AfterValidator(resolved)]
"""A path relative to the folder of the file that holds it."""


def _address(text: str) -> str:
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(\d{1,5})", text)
    if not match or int(match[2]) > 65535:
        raise ValueError('must be "host:port", such as "127.0.0.1:7443" or "[::1]:7443"')
    return text


Address = Annotated[str, AfterValidator(_address)]


class Model(BaseModel):
    """Base of every config model: frozen, no unknown keys, no NaN."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)


class Variant(Model):
    """Base of the classes of a tagged union: the value of one key, such as ``method``, chooses one of them.

    The family is one direct subclass of ``Variant``. All classes below it that have no subclasses are its choices. Each has only
    the keys that belong to it, so that other states cannot be written. A key that only other choices have gets the default that
    it has there, or the value of a class variable of this name. The canonical form writes it out, so that every contract has
    the same keys, and reading accepts it again.
    """

    @classmethod
    def choices(cls) -> tuple[type["Variant"], ...]:
        """Return all classes of the family, in the order of the source."""
        return tuple(_leaves(next(base for base in cls.__mro__ if Variant in base.__bases__)))

    @classmethod
    def absent(cls) -> dict[str, Any]:
        """Return the keys that only other choices have, and their values here, as JSON writes them."""
        return {
            name: list(value) if isinstance(value, tuple) else dict(value) if isinstance(value, dict) else value
            for name, value in _absent(cls, cls.choices())
        }

    @model_validator(mode="before")
    @classmethod
    def _without_absent(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        absent = cls.absent()
        return {
            key: value
            for key, value in values.items()
            if key not in absent or not (type(value) is type(absent[key]) and value == absent[key])
        }

    @model_serializer(mode="wrap")
    def _with_absent(self, written: SerializerFunctionWrapHandler, info: SerializationInfo) -> dict[str, Any]:
        values: dict[str, Any] = written(self)
        if info.exclude_unset:
            return values
        every = values | self.absent()
        return {key: every[key] for key in _keys_of_all(self.choices()) if key in every}


@cache
def _absent(choice: type[Variant], choices: tuple[type[Variant], ...]) -> tuple[tuple[str, Any], ...]:
    """Return each key that only other choices have, with its value in this one."""
    values: dict[str, Any] = {}
    for each in choices:
        for name, field in each.model_fields.items():
            if name not in choice.model_fields and name not in values:
                values[name] = vars(choice)[name] if name in vars(choice) else field.get_default(call_default_factory=True)
    return tuple(values.items())


@cache
def _keys_of_all(choices: tuple[type[Variant], ...]) -> tuple[str, ...]:
    """Return the keys of all choices, each next to its neighbours in its class."""
    keys: list[str] = []
    for each in choices:
        place = len(keys)
        for name in reversed(each.model_fields):
            if name in keys:
                place = keys.index(name)
            else:
                keys.insert(place, name)
    return tuple(keys)


def _leaves(family: type[Variant]) -> Iterator[type[Variant]]:
    for each in family.__subclasses__():
        yield from _leaves(each) if each.__subclasses__() else [each]


def usual(key: str, value: str) -> BeforeValidator:
    """Take this value for a tagged union's key that is left out."""

    def filled_in(values: Any) -> Any:
        return {key: value, **values} if isinstance(values, Mapping) else values

    return BeforeValidator(filled_in)


class Problems(ValueError):
    """Raised for problems that involve several keys. Each one is already written as ``key = value: what is allowed``."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems

    @staticmethod
    def raise_any(problems: list[str]) -> None:
        """Raise if the list is not empty."""
        if problems:
            raise Problems(problems)


class Unshown(ValueError):
    """Raised for a value that no message may repeat, not even shortened. Its text says what to do, after the key."""


M = TypeVar("M", bound=Model)


def read_yaml(path: Path) -> Any:
    """Read one YAML document of plain values (null, true/false, numbers, text, lists, mappings).

    Raises ConfigError for a file that is missing, not UTF-8, larger than 1 MiB or not valid YAML, and for a key given twice, an
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
    """Make a model from plain values. Raises ConfigError with one line per problem, each starting with ``source``."""
    if not isinstance(data, Mapping):
        raise ConfigError(f"{source}: must hold `key: value` lines, found {'nothing' if data is None else type(data).__name__}")
    try:
        return model.model_validate(_plain(dict(data)), context=context)
    except ValidationError as error:
        # Without the cause: pydantic's own error holds the raw values.
        raise ConfigError("\n".join(f"{source}: {printable(line)}" for line in problem_lines(model, error))) from None


def _plain(value: Any) -> Any:
    """Turn a value into one that YAML could hold: plain numbers, text and lists.

    It converts the values of a sweep or a frame: members of an Enum, Decimals, and scalars, arrays and columns of NumPy, pandas,
    PyTorch and Polars.
    """
    if isinstance(value, Mapping):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Enum):
        return _plain(value.value)
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    if isinstance(value, Decimal):
        number = float(value)
        return int(number) if number.is_integer() else number
    if isinstance(value, set | frozenset):
        return object()  # a set has no order, so it cannot become a list
    if hasattr(value, "dtype"):
        convert = getattr(value, "tolist", None) or getattr(value, "to_list", None)
        return value if convert is None else convert()
    return value


def closest(word: str, names: Iterable[str]) -> str | None:
    """Find the name closest to a mistyped word. Among equally close ones, it takes one with the same letters:
    `lable`, `label`.
    """
    close = difflib.get_close_matches(word, list(names), n=5)

    def distance(name: str) -> tuple[float, bool]:
        return -difflib.SequenceMatcher(None, name, word).ratio(), sorted(name) != sorted(word)

    return min(close, key=distance, default=None)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Say which known word is close, or list the known ones."""
    names = sorted(known)
    if (twin := next((name for name in names if name != word and looks_of(name) == looks_of(word)), None)) is not None:
        return f"{twin!a} looks the same but has other character codes; write it with those codes, in double quotes, or rename it"
    close = closest(word, names)
    return f"did you mean {_spelt(close)}?" if close else f"known here: {', '.join(map(_spelt, names)) or 'none'}"


def looks_of(name: str) -> str:
    """Return a name as it looks: one code for letters that have several, and no invisible characters."""
    return "".join(each for each in unicodedata.normalize("NFC", name) if unicodedata.category(each) != "Cf")


def _spelt(name: str) -> str:
    """Spell a name, in quotes if it would not be clear without them."""
    return name if name.isprintable() and name == name.strip() and "," not in name else repr(name)


def redacted(text: str) -> str:
    """Blank out the passwords of a URL or a connection string."""
    text = re.sub(r"(:/{1,2})([^:@/\s]*):.*@", r"\1\2:***@", text)
    return re.sub(r"(?i)(password|passwd|pwd|secret|token)(\s*=\s*)('[^']*'|[^\s;&]+)", r"\1\2***", text)


def refuse_password(text: str, *, instead: str) -> str:
    """Return the text. Raises ValueError if it holds a password; ``instead`` says where a password belongs."""
    if redacted(text) != text:
        raise Unshown(f"holds a password; {instead}")
    return text


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names. Raises ValueError if one of them repeats."""
    if len(set(names)) != len(names):
        raise ValueError(f"must have each column once, found {shown(list(names))}")
    return names


def shown(value: Any) -> str:
    """Show a value as YAML writes it, shortened and without passwords. It is empty for mappings and long lists."""
    if isinstance(value, str):
        text = redacted(value)
        short = text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."
        return printable(json.dumps(short, ensure_ascii=False))
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value)
    if isinstance(value, list | tuple):
        items = [shown(item) for item in value]
        text = f"[{', '.join(items)}]"
        return text if all(items) and len(text) <= _SHOWN_CHARACTERS else ""
    return ""


def written_number(value: float) -> str:
    """Write a limit: whole numbers in full, small numbers like 1e-06."""
    return f"{int(value):,}" if value == int(value) else f"{value:g}"


_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """Load YAML with the scalars of YAML 1.2: 1e-3 is a number, and no, on and 2024-01-01 are text.

    It accepts no aliases, tags or repeated keys.
    """

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own attribute

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(None, None, "aliases (*name) are not read here", mark)
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "tag", None) is not None:  # an explicit tag such as !!int "" has failures of its own
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
        # Keys are names, even if they look like numbers or booleans.
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


def problem_lines(model: type[Model], error: ValidationError) -> list[str]:
    """Say each problem of a model's values in one line: the key, its value, and the allowed values."""
    lines = []
    problems = [problem for problem in error.errors() if not _is_of_other_half(problem)]
    for problem in problems:
        problem["loc"] = tuple(step for step in problem["loc"] if not str(step).startswith(_TEXT_OR_LIST))
    # "A number or auto" is a union, and pydantic reports both halves, below the key.
    either = {problem["loc"][:-1] for problem in problems if problem["loc"][-1:] == _AUTO}
    for problem in problems:
        or_auto, depth = "", len(problem["loc"])
        if problem["loc"][-1:] == _AUTO:
            continue
        if problem["type"] == "too_short" and any(each["loc"][:depth] == problem["loc"] != each["loc"] for each in problems):
            continue  # pydantic does not count entries that have a problem of their own
        if problem["loc"][:-1] in either:
            problem["loc"], or_auto = problem["loc"][:-1], ", or auto"
        place = _Place.at(model, problem["loc"])
        name = str(place.keys[-1]) if place.keys else ""
        key, value = redacted(".".join(map(str, place.keys))), shown(problem["input"])
        key_with_value = f"{key} = {value}" if value else key
        about = place.owner.model_fields[name].description if place.owner and name in place.owner.model_fields else None
        cause, kind, context = problem.get("ctx", {}).get("error"), problem["type"], problem.get("ctx", {})
        if isinstance(cause, Problems):
            lines += [f"{key}.{line}" if key else line for line in cause.problems]
        elif isinstance(cause, Unshown):
            lines.append(f"{key}: {cause}")
        elif kind == "extra_forbidden" and (others := place.choices_with(name)):
            lines.append(f"{key_with_value}: only works with {others}; leave it out")
        elif kind == "extra_forbidden":
            field_names = {field for owner in place.choices or (place.owner or Model,) for field in owner.model_fields}
            lines.append(f"{key}: is not a known key; {did_you_mean(name, field_names)}")
        elif kind == "union_tag_invalid":
            tag = context["discriminator"].strip("'")
            wrong = problem["input"].get(tag) if isinstance(problem["input"], Mapping) else context["tag"]
            tags = re.findall(r"'([^']*)'", context["expected_tags"])  # pydantic quotes them: 'marvell', 'isotropic', ...
            lines.append(f"{key}.{tag} = {shown(wrong)}: is not known; {did_you_mean(str(wrong), tags)}")
        elif kind == "missing":
            needed = f"{place.choice} needs it; " if place.choice else ""
            if about and len(about) > LONG_DESCRIPTION and (words := _words(place.kind)):
                about = f"{about.partition(': ')[0]}; known here: {', '.join(words)}"
            lines.append(f"{key}: is missing{f'; {needed}it says: {about}' if about else ''}")
        elif kind == "literal_error" and (others := place.choices_with(name, value=problem["input"])):
            allowed = _allowed(kind, context, problem["msg"])
            lines.append(f"{key_with_value}: only works with {others}; here it {allowed}; it says: {about}")
        else:
            allowed = _allowed(kind, context, problem["msg"])
            if kind == "tuple_type" and ((example := _example(place)) or isinstance(problem["input"], Mapping)):
                allowed = f"must be a list, with a `- ` before each entry{example}"
            if kind == "model_type" and len(models := _models(place.kind)) == 1:
                fields = models[0].model_fields
                required = ", ".join(name for name, each in fields.items() if each.is_required())
                allowed += f", with {required}" if required else f", such as {next(iter(fields))}"
            lines.append(f"{key_with_value}: {allowed}{or_auto}")
    return lines


def _is_of_other_half(problem: ErrorDetails) -> bool:
    """Tell whether a problem concerns the half, text or a list of it, that the value does not look like."""
    is_half = bool(problem["loc"]) and str(problem["loc"][-1]).startswith(_TEXT_OR_LIST)
    return is_half and problem["type"] == ("string_type" if isinstance(problem["input"], list | tuple) else "tuple_type")


_AS_YAML = re.compile(r"\b(True|False)\b")
_AUTO = ("literal['auto']",)
_TEXT_OR_LIST = ("constrained-str", "function-after[each_once(), tuple[")  # pydantic's names of these parts of a union


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
        return f"must be {_AS_YAML.sub(lambda match: match[0].lower(), context['expected']).replace(chr(39), '')}"
    if kind == "string_pattern_mismatch":
        return _PATTERNS.get(context["pattern"], f"must match {context['pattern']}")
    if kind == "value_error":
        return str(context["error"])
    if kind == "union_tag_not_found":
        return f"{context['discriminator']} is missing".replace("'", "")
    return message[:1].lower() + message[1:]


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Locate a problem in the model.

    Args:
        keys: the keys of the file that lead to it, without pydantic's own steps, such as the tags of unions.
        kind: the type at this place.
        owner: the class that has the last key, or should have it.
        choices: the classes of a tagged union, if the owner is one of them.
        tag: the key that chooses one of these classes.
        choice: this key and its value, if the owner is one of the classes.
    """

    keys: tuple[int | str, ...] = ()
    kind: Any
    owner: type[Model] | None = None
    choices: tuple[type[Model], ...] = ()
    tag: str = ""
    choice: str = ""

    @classmethod
    def at(cls, model: type[Model], path: tuple[int | str, ...]) -> "_Place":
        """Follow a problem's path through models, unions, mappings and lists."""
        place = cls(kind=model)
        for step in path:
            parts = get_args(place.kind)
            kind = parts[0] if parts and parts[-1] is type(None) else place.kind
            # A tagged union and the key that chooses one of its parts; an empty key for all other types
            notes = get_args(kind)[1:] if get_origin(kind) is Annotated else ()
            tag = next((note.discriminator for note in notes if isinstance(note, FieldInfo) and note.discriminator), "")
            union, tag = (get_args(kind)[0], str(tag)) if tag else (None, "")
            # The part of a union that each value of the tag chooses: a class, or another union
            tags = {
                value: part
                for part in get_args(union)
                for model in _models(part)
                for value in get_args(model.model_fields[tag].annotation)
            }
            if step in tags:
                choices = tuple(_models(union))
                choice = f"{'.'.join(map(str, (*place.keys, tag)))} = {step}"
                place = replace(place, kind=tags[step], choices=choices, tag=tag, choice=choice)
            elif isinstance(kind, type) and issubclass(kind, Model):
                field = kind.model_fields.get(str(step))
                inner: Any = field.annotation if field is not None else None
                if field is not None and field.discriminator is not None:
                    inner = Annotated[inner, field]
                among = place if kind in place.choices else cls(kind=None)
                place = replace(among, keys=(*place.keys, step), kind=inner, owner=kind)
            elif step != "[key]":
                arguments = get_args(kind)
                inner = (arguments[-1] if get_origin(kind) is dict else arguments[0]) if arguments else None
                place = cls(keys=(*place.keys, step), kind=inner)
        return place

    def choices_with(self, key: str, *, value: Any = None) -> str:
        """Name the other choices that have such a key, or that allow this value of it. It is empty if there are none."""
        tags = [
            str(tag)
            for choice in self.choices
            if key in choice.model_fields and (value is None or _allows(choice.model_fields[key], value))
            for tag in get_args(choice.model_fields[self.tag].annotation)
        ]
        *first, last = dict.fromkeys(tags) or [""]
        names = f"{', '.join(first)} or {last}" if first else last
        return f"{self.choice.partition(' = ')[0]} = {names}" if tags else ""


def _allows(field: FieldInfo, value: Any) -> bool:
    kind: Any = Annotated[field.annotation, field]
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError:
        return False
    return True


def _words(kind: Any) -> list[str]:
    """List the words that a type allows."""
    parts = get_args(kind)
    return [str(part) for part in parts] if get_origin(kind) is Literal else [word for part in parts for word in _words(part)]


def _models(kind: Any) -> list[type[Model]]:
    """List the classes that a type is a union of."""
    if isinstance(kind, type):
        return [kind] if issubclass(kind, Model) else []
    return [model for part in get_args(kind) for model in _models(part)]


def _example(place: _Place) -> str:
    """Show what an entry of the list at this place looks like, if its type says so."""
    arguments = get_args(place.kind)
    notes = get_args(arguments[0])[1:] if arguments and get_origin(arguments[0]) is Annotated else ()
    examples = next((note.examples for note in notes if isinstance(note, FieldInfo) and note.examples), None)
    if not examples:
        return ""
    values = ", ".join(f"{key}: {value}" for key, value in examples[0].items())
    return f", such as `- {{{values}}}`"
