"""The site has the pages of docs/ and of experiments/pages/ side by side, and every link between them leads somewhere."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs"))
from stage import LINK, PLACES, place_of, staged  # noqa: E402


@pytest.mark.parametrize(
    ("path", "text", "expected"),
    [
        (
            "docs/results/claims.md",
            "[a](../../experiments/pages/florist/florist.md#x)",
            "[a](../reproductions/florist/florist.md#x)",
        ),
        (
            "docs/index.md",
            "[a](results/claims.md) [b](https://example.org/x.md)",
            "[a](results/claims.md) [b](https://example.org/x.md)",
        ),
        ("experiments/pages/again/again.md", "[a](../quality/quality.md)", "[a](../quality/quality.md)"),
        ("experiments/pages/quality/quality.md", "![a](../../../docs/x.svg)", "![a](../../x.svg)"),
    ],
)
def test_links_between_the_trees_become_paths_of_the_site(path: str, text: str, expected: str) -> None:
    assert staged(text, path) == expected


def test_every_link_of_a_page_leads_to_a_file() -> None:
    pages = [page for source in PLACES for page in (ROOT / source).rglob("*.md")]
    places = {
        place_of(file.relative_to(ROOT).as_posix()) for source in PLACES for file in (ROOT / source).rglob("*") if file.is_file()
    }
    lost = []
    for page in pages:
        path = page.relative_to(ROOT).as_posix()
        for match in LINK.finditer(staged(page.read_text(encoding="utf-8"), path)):
            target = (Path(place_of(path)).parent / match[2]).as_posix()
            parts: list[str] = []
            for part in target.split("/"):
                if part == "..":
                    parts.pop()
                elif part != ".":
                    parts.append(part)
            if "/".join(parts) not in places:
                lost.append(f"{path}: {match[2]}")
    assert not lost
    assert len(pages) > 100
