"""What the how-tos say of files can be written so: each YAML block fits into a contract or a party file."""

import re
from pathlib import Path

import pytest
import yaml

from tallystick.config.contract import parse_contract
from tallystick.config.party import parse_party

HOWTOS = Path(__file__).parents[2] / "docs/howto"
BLOCK = re.compile(r"^```yaml\n# (contract|party)\.yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
CONTRACT = {
    "version": 1,
    "name": "example",
    "parties": {"bank": {"role": "label"}, "shop": {"role": "feature"}},
    "target": {"type": "binary"},
    "alignment": {"method": "intersection", "keys": [{"name": "id"}]},
}
PARTY = {
    "party": "bank",
    "table": {"path": "table.parquet"},
    "keys": {"id": "id"},
    "label": "y",
    "features": {"numeric": ["x"]},
}
BLOCKS = [
    pytest.param(kind, text, id=f"{page.stem}-{kind}-{number}")
    for page in sorted(HOWTOS.glob("*.md"))
    for number, (kind, text) in enumerate(BLOCK.findall(page.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize(("kind", "text"), BLOCKS)
def test_a_block_fits_into_its_file(kind, text, tmp_path):
    given = yaml.safe_load(text)
    if kind == "contract":
        contract = parse_contract({**CONTRACT, **given})
        assert all(name in contract.model_dump() for name in given)
    else:
        parse_party({**PARTY, **given}, folder=tmp_path)


def test_blocks_are_found():
    assert len(BLOCKS) >= 9
