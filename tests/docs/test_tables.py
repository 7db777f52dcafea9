"""Every row of every table has its entry in the docs."""

import re
import statistics
from pathlib import Path

import pytest

from tallystick.attacks.membership.attack_table import MEMBERSHIP_ATTACKS
from tallystick.defenses.defense_table import DEFENSES
from tallystick.defenses.known_attacks import READ_BY

DOCS = Path(__file__).parents[2] / "docs"


def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def cells(text: str, name: str) -> list[str]:
    """Return the cells of the table's row that begins with this name. Fail if there is none."""
    found = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
    assert found, f"no row for {name}"
    return [cell.strip() for cell in found[0].strip("|").split("|")]


def behind_of(name: str, rival: str, of_auc: float) -> list[float]:
    """Return how far the default misses a rival by more than so much AUC, or ten times that of RMSE, by table; below 0
    it does not.
    """
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page(f"../experiments/pages/quality/{name}.md").splitlines()
        if line[:1] == "|"
    ]
    column = rows[0].index(f"behind {rival}")
    figures = [row for row in rows if row[0].isdigit()]
    return [float(row[column].replace("\N{MINUS SIGN}", "-")) - (10 * of_auc if row[4] == "rmse" else of_auc) for row in figures]


def test_the_docs_count_the_tables_of_the_quality_pages() -> None:
    both = ("quality", "quality-held-out")
    short = [behind > 0 for name in both for behind in behind_of(name, "LightGBM", 0.002)]
    assert (short.count(False), len(short)) == (21, 23)
    assert [behind > 0 for behind in behind_of("quality-by-time", "LightGBM", 0.002)] == [False] * 5
    assert "**21 (91 %)**" in page("results/quality.md")
    assert "on 21 of 23 tables" in (DOCS.parent / "README.md").read_text(encoding="utf-8")
    short = [behind > 0 for name in both for behind in behind_of(name, "TabM", 0.001)]
    assert (short.count(False), len(short)) == (16, 23)
    assert "**16 (70 %)**" in page("results/quality.md")


def test_the_docs_say_what_a_head_on_shares_keeps_as_its_pages_do() -> None:
    shares, counts = [], []
    for group in ("reporting", "choosing", "held-out", "public"):
        text = page(f"../experiments/pages/quality/quality-shared-{group}.md")
        said = re.search(
            r"keeps (\S+) of the gain, the median of (\d+) tables.* on (\d+) of (\d+) tables, and within .* on (\d+)\.", text
        )
        assert said is not None
        share, with_gain, below, tables, near = said.groups()
        row = (
            f"(../../experiments/pages/quality/quality-shared-{group}.md) | {tables} | {with_gain} | {share} | {below} | {near} |"
        )
        assert row in page("results/quality.md")
        counts.append([int(tables), int(below), int(near)])
        part = text.partition("## What a head on shares keeps of the gain")[2].partition("\n## ")[0]
        rows = [[cell.strip() for cell in line.split("|")] for line in part.splitlines() if line[:1] == "|"]
        shares += [float(row[4].replace("\N{MINUS SIGN}", "-")) for row in rows if row[3].isdigit() and row[4][-1:].isdigit()]
    tables, below, near = map(sum, zip(*counts, strict=True))
    assert below == 1
    median = f"{statistics.median(shares):.2f}".removeprefix("0")
    headline = f"**On {tables} tables it keeps {median} of LightGBM's gain in the median, one falls behind own columns by"
    assert headline in page("results/quality.md")
    assert f"and {near} come within .005 or 3 % of LightGBM on the joined table.**" in page("results/quality.md")


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
