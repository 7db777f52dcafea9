"""Every row of every table has its entry in the docs."""

from pathlib import Path

import pytest

from tallystick.attacks.membership.registry import MEMBERSHIP_ATTACKS
from tallystick.defenses.read_by import READ_BY
from tallystick.defenses.registry import DEFENSES

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def cells(text: str, name: str) -> list[str]:
    """The cells of the table's row that begins with this name; fails where there is none."""
    found = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    assert found, f"no row for {name}"
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def test_the_readme_counts_the_tables_of_the_quality_page() -> None:
    """Rows are rounded, so a row on the line (criteo, .756 for .758) may count either way; the sentence says which."""
    text = page("results/boosting.md")
    rows = [
        line.strip("|").split("|")
        for line in text.split("## What did it")[0].splitlines()
        if "±" in line and line.startswith("|")
    ]
    better = clear = 0
    for name, _, joined, _, split in rows:
        theirs, ours = (float(cell.split()[0]) for cell in (joined, split))
        behind = ours / theirs - 1 - 0.02 if "RMSE" in name else theirs - ours - 0.002
        better, clear = better + (behind <= 1e-9), clear + (behind < -1e-9)
    assert (clear, better, len(rows)) == (11, 12, 13)
    assert "on eleven of thirteen tables" in text
    assert "on 11 of 13 public tables" in (DOCS.parent / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("method", DEFENSES)
def test_every_defence_has_its_row(method: str) -> None:
    assert f"\n| `{method}`" in page("explanation/defenses.md")


@pytest.mark.parametrize("method", READ_BY)
def test_the_explanation_of_defences_has_the_figure_of_what_reads_each(method: str) -> None:
    without = page("explanation/defenses.md").partition("\nWithout one:\n")[2].partition("\n## ")[0]
    _, _, read, _ = cells(without, method)
    assert read.split()[0] == f"{READ_BY[method].auc:.3f}".removeprefix("0")


@pytest.mark.parametrize("name", sorted({name for table in MEMBERSHIP_ATTACKS.values() for name in table}))
def test_every_membership_attack_is_explained(name: str) -> None:
    text = page("results/unions.md")
    word = {"spectral-signed": "signed"}.get(name, name)
    assert f"*{word}*" in text.partition("## What each imputer leaks")[2]
