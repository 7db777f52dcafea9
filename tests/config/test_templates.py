"""The comments of the files that `tallystick init` writes name the choices of the schemas, and no others."""

import json
import re
from pathlib import Path

import pytest

from tallystick.config import templates

ROOT = Path(__file__).parents[2]
FOLDER = Path(templates.__file__).parent
SCHEMAS = {"contract.yaml": "contract", "training.yaml": "contract", "label.yaml": "party-file", "feature.yaml": "party-file"}
LISTED = re.compile(r"^\s*(?:(\w+): )?.*# ([\w-]+(?: \([^|)]*\))?(?: \| [^|]+)+)$")


def choices_by_key(schema: object) -> dict[str, set[str]]:
    """Return the texts that a key may be, by its name, in any place."""
    found: dict[str, set[str]] = {}

    def look(node: object, key: str) -> None:
        if isinstance(node, dict):
            for text in [*node.get("enum", ()), *([node["const"]] if "const" in node else [])]:
                if isinstance(text, str):
                    found.setdefault(key, set()).add(text)
            for name, part in node.get("properties", {}).items():
                look(part, name)
            for part in [*node.get("anyOf", ()), *node.get("oneOf", ()), node.get("items"), *node.get("$defs", {}).values()]:
                look(part, key)

    look(schema, "")
    return found


def listed(line: str) -> tuple[str, list[str]] | None:
    """Return the key of a line, and the choices that its comment lists: the first word of each part."""
    match = LISTED.match(line)
    if match is None:
        return None
    return match[1] or "", [re.match(r"[\w-]+", part)[0] for part in match[2].split(" | ")]


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_choices_in_comments_are_those_of_the_schema(name: str) -> None:
    schema = json.loads((ROOT / "docs" / "reference" / f"{SCHEMAS[name]}.schema.json").read_text(encoding="utf-8"))
    choices = choices_by_key(schema)
    compared = 0
    for line in (FOLDER / name).read_text(encoding="utf-8").splitlines():
        found = listed(line)
        if found is None or found[0] not in choices or found[0] == "method":  # which many sections have
            continue
        assert set(found[1]) == choices[found[0]], line.strip()
        compared += 1
    assert compared, "the comments have another form, and nothing was compared"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("  compression: none     # none | int8: fewer bytes a step", ("compression", ["none", "int8"])),
        ("  mode: auto   # auto (on a short line) | pipelined (late)", ("mode", ["auto", "pipelined"])),
        ("  seed: 1   # yours", None),
    ],
)
def test_a_comment_is_read(line: str, expected: tuple[str, list[str]] | None) -> None:
    assert listed(line) == expected
