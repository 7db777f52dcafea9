"""A hand-written page names each key of the contract and of a party file: no key without a person who needs it."""

import collections
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.secret import Secret
from tallystick.reading import Model

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
TEXTS = [page.read_text(encoding="utf-8") for page in sorted(DOCS.rglob("*.md")) if page.parent.name != "results"]
BY_HAND = [text for text in TEXTS if not text.partition("\n")[0].endswith(", from the code")]


def keys_of(model: type[Model], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return every key that holds no others, as its path."""
    for name, field in model.model_fields.items():
        models = [each for each in models_of(field.annotation) if each is not Secret]
        if not models:
            yield (*above, name)
        for each in models:
            yield from keys_of(each, (*above, name))


def models_of(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in models_of(argument)]


def paths_of(values: Any, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Return every path of an example, also without the names that a file gives itself, such as a peer's."""
    for value in values if isinstance(values, list) else [values]:
        for key, inner in value.items() if isinstance(value, dict) else ():
            yield (*above, str(key))
            yield from paths_of(inner, (*above, str(key)))
            yield from paths_of(inner, above and (*above,))


KEYS = {model: sorted(set(keys_of(model))) for model in (Contract, PartyFile)}
LAST = collections.Counter(path[-1] for paths in KEYS.values() for path in paths)
EXAMPLES = {
    path for text in BY_HAND for kind, block in FENCE.findall(text) if kind == "yaml" for path in paths_of(yaml.safe_load(block))
}
WORDS = {
    tuple(word.split("."))
    for text in BY_HAND
    for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for word in re.findall(r"[a-z_0-9]+(?:\.[a-z_0-9]+)*", code)
}


def is_named(path: tuple[str, ...]) -> bool:
    """Tell whether a page has the key in an example, or as code: alone if no other key ends so, else with one above it."""
    *above, last = path
    if path in EXAMPLES or ((last,) in WORDS and (LAST[last] == 1 or not above)):
        return True
    return any(word[0] in above and word[-1] == last for word in WORDS if len(word) > 1)


@pytest.mark.parametrize("model", KEYS)
def test_each_key_is_named_on_a_page_that_was_written_by_hand(model: type[Model]) -> None:
    assert [".".join(path) for path in KEYS[model] if not is_named(path)] == []


def test_pages_from_the_code_do_not_count() -> None:
    assert 9 <= len(TEXTS) - len(BY_HAND) < 12
    assert not is_named(("training", "nothing_like_it"))
    assert not is_named(("proxy", "threads")), "another key ends so"
