"""The generated pages say what the code says today."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tallystick.alignment.linkages import LINKAGES
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, NO_LABELS
from tallystick.attacks.linkage.attack_table import LINKAGE_ATTACKS
from tallystick.attacks.linkage.texts import TEXT_ATTACKS
from tallystick.config.unaligned import METHODS as UNALIGNED_METHODS
from tallystick.evaluation.private.release_table import MECHANISMS
from tallystick.imputation.imputer_table import FEATURE_IMPUTERS, LABEL_IMPUTERS
from tallystick.models.similarity.merges import MERGES

DOCS = Path(__file__).parents[2] / "docs"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def made() -> ModuleType:
    return load("make_lookup")


@pytest.fixture(scope="module")
def referred() -> ModuleType:
    return load("make_reference")


@pytest.mark.parametrize(
    "page",
    [
        *("configuration.md", "command-line.md", "messages.md", "errors.md"),
        *("contract.schema.json", "party-file.schema.json"),
    ],
)
def test_a_page_of_keys_is_what_the_code_says(page: str, made: ModuleType) -> None:
    assert (DOCS / "reference" / page).read_text(encoding="utf-8") == made.PAGES[page](), "run `make reference`"


@pytest.mark.parametrize("page", ["python-names.md", "attacks.md", "methods.md", "protocols.md", "rules.md"])
def test_a_page_of_docstrings_is_what_the_code_says(page: str, referred: ModuleType) -> None:
    assert (DOCS / "reference" / page).read_text(encoding="utf-8") == referred.PAGES[page](), "run `make reference`"


def test_the_threat_model_lists_the_disclosures_that_the_code_has(referred: ModuleType) -> None:
    assert (DOCS / "explanation" / "threat-model.md").read_text(encoding="utf-8") == referred.threat_model(), (
        "run `make reference`"
    )


def test_every_method_that_a_contract_can_name_has_its_section(referred: ModuleType) -> None:
    page = referred.methods()
    heads = {line.split("`")[1] for line in page.splitlines() if line.startswith("### `")}
    assert {*UNALIGNED_METHODS, *MERGES, *MECHANISMS} - {"none"} == heads
    for name in (*LINKAGES, *UNALIGNED_METHODS, *LABEL_IMPUTERS, *FEATURE_IMPUTERS):
        assert f"\n| `{name}`" in page, name


def test_what_is_drawn_in_a_docstring_stays_as_it_is(referred: ModuleType) -> None:
    drawn = "A function of each side.\n\n    A   ->   B\n      x^b\n\nRules:\n\n- one;\n  more of it\n- two\n\nShapes: B batch."
    assert list(referred._paragraphs(drawn)) == [
        "A function of each side.",
        "```text\nA   ->   B\n  x^b\n```",
        "Rules:",
        "- one; more of it\n- two",
    ]


def test_what_an_attacker_knows_stands_beside_the_attack(referred: ModuleType) -> None:
    page = referred.attacks()
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert "attacks on gradients that know no label have a form `NAME-unflipped`, quick where theirs is" in page
    for name, row in LABEL_INFERENCE_ATTACKS.items():
        if (plain := name.removesuffix("-unflipped")) != name:
            reader = LABEL_INFERENCE_ATTACKS[plain]
            assert (reader.reads, reader.knows, reader.quick) == ("cut_gradient", NO_LABELS, row.quick)
            rows[name] = rows[plain]
    assert set(LABEL_INFERENCE_ATTACKS) | set(FEATURE_INFERENCE_ATTACKS) | set(LINKAGE_ATTACKS) | set(TEXT_ATTACKS) <= set(rows)
    assert "| 40 labels; its own bottom model |" in rows["completion-fine-tuned"]
    assert "`training.starts: public`" in rows["enumeration"]
    assert "| no row; how each column is distributed |" in rows["marginals"]
    assert rows["low-energy"].endswith("| hidden |")
    assert rows["spectral-averaged"].endswith("| yes |")
    assert rows["probe"].endswith("|  |")


def test_messages_and_errors_have_rows(made: ModuleType) -> None:
    page = made.messages()
    for name in ("CutEmbedding", "CutGradient", "ValidationDecision", "Hello"):
        assert f"\n| `{name}` |" in page, name
    assert (
        "\n| `LabelError` | `DataError` | Raised if the labels, or their weights, are not usable. | its labels are not usable |"
        in made.error_tree()
    )
