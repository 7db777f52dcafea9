"""Each YAML block of the pages fits into a contract or a party file."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.party import PartyFile, parse_party

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"^ *```yaml\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"# (contract|party)\.yaml\b.*\n")
CONTRACT: dict[str, Any] = {
    "version": 1,
    "name": "example",
    "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
    "target": {"type": "binary"},
    "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
}
PARTY: dict[str, Any] = {
    "party": "bank",
    "table": {"path": "table.parquet"},
    "keys": {"id": "id"},
    "label": "y",
    "features": {"numeric": ["x"]},
}
PAGES = [page for page in sorted(DOCS.glob("**/*.md")) if page.parent.name != "results"]
FOUND = [(page, text) for page in PAGES for text in FENCE.findall(page.read_text(encoding="utf-8"))]
BLOCKS = [pytest.param(text, id=f"{page.stem}-{number}") for number, (page, text) in enumerate(FOUND)]


@cache
def validator(model: type[Contract] | type[PartyFile]) -> Any:
    schema = model.model_json_schema()
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


@pytest.mark.parametrize("text", BLOCKS)
def test_a_block_names_its_file_and_fits_into_it(text: str, tmp_path: Path) -> None:
    head = HEAD.match(text)
    assert head, "the first line says which file it is of: # contract.yaml or # party.yaml"
    given = yaml.safe_load(text)
    base, model = (CONTRACT, Contract) if head[1] == "contract" else (PARTY, PartyFile)
    validator(model).validate({**base, **given})
    if head[1] == "contract":
        contract = parse_contract({**CONTRACT, **given}).model_dump()
        assert all(name in contract for name in given)
    else:
        parse_party({**PARTY, **given}, folder=tmp_path)


@pytest.mark.parametrize("folder", ["howto", "explanation", "reference"])
def test_blocks_are_found(folder: str) -> None:
    assert sum(page.parent.name == folder for page, _ in FOUND) >= 3
