"""The generated pages say what the code says today."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_lookup", DOCS / "make_lookup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("page", ["configuration.md", "command-line.md", "messages.md", "errors.md"])
def test_a_generated_page_is_what_the_code_says(page: str, made: ModuleType) -> None:
    assert (DOCS / "reference" / page).read_text(encoding="utf-8") == made.PAGES[page](), "run `make reference`"


def test_keys_inside_lists_and_choices_have_rows(made: ModuleType) -> None:
    page = made.configuration()
    for key in ("`training.gradients`", "`alignment.keys[].name`", "`privacy.ledger`", "`split.test`"):
        assert f"\n| {key} |" in page, key


def test_messages_and_errors_have_rows(made: ModuleType) -> None:
    page = made.messages()
    for name in ("CutEmbedding", "CutGradient", "EpochDecision", "Hello"):
        assert f"\n| `{name}` |" in page, name
    assert (
        "\n| `LabelError` | `DataError` | The labels, or their weights, are not usable. | its labels are not usable |"
        in made.error_tree()
    )
