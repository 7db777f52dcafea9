"""The page of claims agrees with the pages that it links, and its counts are right."""

import re
import unicodedata
from collections import Counter
from decimal import Decimal
from pathlib import Path

RESULTS = Path(__file__).parents[2] / "docs" / "results"
CLAIMS = (RESULTS / "claims.md").read_text(encoding="utf-8")
VERDICTS = ("comes out", "in part", "does not", "not measured")
STATES = ("complete", "in part", "missing")
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^()\s]+)\)")
NUMBER = re.compile(r"\d[\d,]*(?:\.\d+)?|\.\d+")


def table_rows(text: str, columns: int) -> list[list[str]]:
    """Return the rows of its tables of so many columns, without their heads."""
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if len(row) == columns and row[1] not in ("verdict", "state")]


def section(page: str, anchor: str) -> str:
    """Return the text under a heading, up to the next one that is no lower; the whole page without an anchor."""
    lines = (RESULTS / page).read_text(encoding="utf-8").splitlines()
    heads = [(number, len(line) - len(line.lstrip("#")), line) for number, line in enumerate(lines) if re.match(r"#+ ", line)]
    for number, level, line in heads if anchor else ():
        if slug(line.lstrip("# ")) == anchor:
            end = next((other for other, depth, _ in heads if other > number and depth <= level), len(lines))
            return "\n".join(lines[number:end])
    assert not anchor, f"{page} has no heading #{anchor}"
    return "\n".join(lines)


def slug(heading: str) -> str:
    plain = unicodedata.normalize("NFKD", heading).encode("ascii", "ignore").decode()
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", plain).strip().lower())


def numbers(text: str) -> list[Decimal]:
    return [Decimal(found.replace(",", "")) for found in NUMBER.findall(text)]


def decimals(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    assert isinstance(exponent, int)
    return -exponent


def stands(claimed: Decimal, found: list[Decimal]) -> bool:
    """Tell whether one of them is this number, or rounds to it; whole numbers must match exactly."""
    places = decimals(claimed)
    near = Decimal(5).scaleb(-places - 1) if places else Decimal(0)
    return any(abs(each - claimed) <= near for each in found if decimals(each) >= places)


def test_every_figure_stands_on_the_page_that_its_link_leads_to() -> None:
    missing, checked = [], 0
    for text, target in LINK.findall(CLAIMS):
        if re.match(r"[\u2212+.\d\[]", text):
            there = numbers(section(*target.partition("#")[::2]))
            wrong = [str(claimed) for claimed in numbers(text) if not stands(claimed, there)]
            missing += [f"{', '.join(wrong)}: not in {target}"] if wrong else []
            checked += len(numbers(text))
    assert not missing, "\n".join(missing)
    assert checked > 200


def test_a_number_that_is_on_no_page_is_found_out() -> None:
    there = numbers("| majority | 0.5761 | 0.5730 (0.5712 to 0.5748) | 3,914 |")
    assert all(stands(Decimal(claimed), there) for claimed in (".573", ".5730", ".571", "3914"))
    assert not any(stands(Decimal(claimed), there) for claimed in (".572", ".5731", ".57300", "3913", "1"))


def test_every_claim_has_a_verdict_and_what_does_not_come_out_says_whether_it_was_tested() -> None:
    rows = table_rows(CLAIMS.partition("## The 42")[0], 4)
    assert {row[1] for row in rows} == set(VERDICTS)
    assert [row[0] for row in rows if row[1] == "does not" and "tested" not in row[3]] == []


def test_every_page_that_says_it_has_not_measured_something_is_on_the_list_of_limits() -> None:
    own = {"claims.md", "limits.md", "what-we-did-differently.md"}
    said = re.compile(r"\bnot (?:been )?(?:measured|tested|tried)\b(?! is listed)|\bpresumably\b|\boutside this repository\b")
    listed = {
        (RESULTS / target.partition("#")[0]).resolve()
        for _, target in LINK.findall((RESULTS / "limits.md").read_text(encoding="utf-8"))
    }
    pages = [*RESULTS.glob("*.md"), *RESULTS.with_name("explanation").glob("*.md")]
    saying = {page.resolve() for page in pages if page.name not in own and said.search(page.read_text(encoding="utf-8"))}
    assert len(saying) > 5
    assert sorted(page.name for page in saying - listed) == []


def test_the_page_counts_its_claims_and_items() -> None:
    claims, _, items = CLAIMS.partition("## The 42")
    verdicts = Counter(row[1] for row in table_rows(claims, 4))
    states = Counter(row[1] for row in table_rows(items, 4))
    assert f"{verdicts.total()} claims: " + ", ".join(f"{verdicts[each]} *{each}*" for each in VERDICTS) in CLAIMS
    assert states.total() == 42
    assert f"Of the 42 tables and figures with results {', '.join(f'{states[each]} are *{each}*' for each in STATES)}" in CLAIMS
