"""No default, example, template or first choice is something that our pages say was read."""

from pathlib import Path
from typing import get_args

import pytest
import tiny
import yaml

from tallystick.config.contract import Contract, parse_contract
from tallystick.config.defense import DefenseEntry
from tallystick.config.sections import UnionConfig
from tallystick.config.templates import FileRequest, contract_text
from tallystick.defenses.defense_table import DEFENSES
from tallystick.defenses.known_attacks import READ_BY
from tallystick.imputation.imputer_table import FEATURE_IMPUTERS, LABEL_IMPUTERS, feature_strategy, label_strategy
from tallystick.trials.trials import default_sweep

UNSAFE_DEFENSES = set(READ_BY)
ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *(ROOT / "docs").glob("*.md"),
    *(ROOT / "docs/tutorials").glob("*.md"),
    *(ROOT / "docs/howto").glob("*.md"),
]


def unsafe_in(contract: Contract) -> list[str]:
    """Return what a contract names that, according to our pages, was read."""
    names = [entry.defense.method for entry in contract.defense if entry.defense.method in UNSAFE_DEFENSES]
    strategies = (label_strategy(contract.union.labels)[0], feature_strategy(contract.union.features)[0])
    return names + [imputer.name for imputer in strategies if imputer.reader]


def test_the_facts_name_what_is_known_to_be_read() -> None:
    """Each kind has something safe to recommend, and something that is not, so the tests below can fail."""
    for table in (LABEL_IMPUTERS, FEATURE_IMPUTERS):
        assert {bool(imputer.reader) for imputer in table.values()} == {True, False}
    assert 0 < len(UNSAFE_DEFENSES) < len(DEFENSES)
    assert "unsafe" in (UnionConfig.model_fields["features"].description or "")
    read = parse_contract(tiny.contract_values(("bank", "shop"), defense=[{"method": "marvell", "power": 4}]))
    assert unsafe_in(read) == ["marvell"]
    union = parse_contract(tiny.contract_values(("bank", "shop"), alignment__method="union", union={"features": "sampling"}))
    assert unsafe_in(union) == ["sampling"]


@pytest.mark.parametrize("method", ["intersection", "union"])
def test_no_default_is_unsafe(method: str) -> None:
    assert unsafe_in(parse_contract(tiny.contract_values(("bank", "shop"), alignment__method=method))) == []


@pytest.mark.parametrize("gradients", ["sent", "none"])
@pytest.mark.parametrize("method", ["intersection", "union", "union-with-helper", "similarity"])
def test_no_template_is_unsafe(method: str, gradients: str) -> None:
    if gradients == "none" and method.startswith("union"):
        return
    parties = ("bank", "shop", "helper") if method in ("union-with-helper", "similarity") else ("bank", "shop")
    text = contract_text(FileRequest(role="label", parties=parties, method=method, gradients=gradients))
    assert unsafe_in(parse_contract(yaml.safe_load(text))) == []
    assert not [name for name in UNSAFE_DEFENSES if name in text]


def test_no_example_is_unsafe() -> None:
    (field,) = [note for note in get_args(DefenseEntry) if getattr(note, "examples", None)]
    assert [example["method"] for example in field.examples if example["method"] in UNSAFE_DEFENSES] == []


@pytest.mark.parametrize("target", ["binary", "multiclass", "regression"])
def test_the_first_look_of_an_audit_tries_nothing_unsafe(target: str) -> None:
    values = {"type": target, **({"classes": 3} if target == "multiclass" else {})}
    sweep = default_sweep(parse_contract(tiny.contract_values(("bank", "shop"), target=values)))
    assert [method for method, _ in sweep if method in UNSAFE_DEFENSES] == []
    assert len(sweep) >= 2


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_of_first_steps_has_an_unsafe_contract_or_command(page: Path) -> None:
    lines = page.read_text(encoding="utf-8").splitlines()
    shown = [line for line in lines if "method:" in line or "--sweep" in line or "union:" in line or "features:" in line]
    names = UNSAFE_DEFENSES | {
        name for table in (LABEL_IMPUTERS, FEATURE_IMPUTERS) for name, kind in table.items() if kind.reader
    }
    assert [(name, line) for line in shown for name in names if f"method: {name}" in line or f"--sweep {name}" in line] == []
    assert [(name, line) for line in shown for name in names if f"features: {name}" in line or f"labels: {name}" in line] == []
