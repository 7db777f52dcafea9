"""Keep committed results: the rows of finished sweeps, and the pages of the documentation that follow from them.

``experiments/runs/NAME.jsonl`` holds a sweep. Its first line says which command made it, when, and with which commit's code.
Every other line is a row. ``make results`` makes ``experiments/pages/FOLDER/NAME.md`` from it, and a test checks this.

    python -m tallystick_experiments.results                                    # write all pages
    python -m tallystick_experiments.results OUT NAME COMMIT "tallystick bench ..."    # first keep what --out OUT holds
"""

import json
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from tallystick.errors import DataError
from tallystick.storage import write_bytes
from tallystick_experiments.page import Benchmark, PageOf, ResultTable, cell, pictures, within
from tallystick_experiments.stats import Row

ROOT = Path(__file__).parents[3]
RUNS, PAGES_FOLDER = ROOT / "experiments" / "runs", ROOT / "experiments" / "pages"
DIGITS = 6  # digits of a row's figures
PAGES: Mapping[str, tuple[str, str]] = {
    "again": ("again", "outcomes:outcomes_page"),
    "audit": ("label-leakage", "label_leakage.kept:kept_views_page"),
    "dpauc": ("dpauc", "dpauc.page:dpauc_page"),
    "feature-leakage": ("columns", "feature_leakage.page:feature_leakage_page"),
    "far": ("lines", "far.price:price_page"),
    "fedads-3": ("fedads", "fedads.unaligned:unaligned_rows_page"),
    "fedads-4": ("fedads", "fedads.defenses:fedads_defenses_page"),
    "fedads-leaks": ("fedads", "fedads.leaks:fedads_leaks_page"),
    "fedsim": ("fedsim", "fedsim.page:fedsim_page"),
    "florist": ("florist", "florist.page:florist_page"),
    "florist-convergence": ("florist", "florist.convergence:florist_convergence_page"),
    "line": ("lines", "far.line:line_page"),
    "label-leakage": ("label-leakage", "label_leakage.page:label_leakage_page"),
    "label-leakage-defenses": ("label-leakage", "label_leakage.defended:label_defenses_page"),
    "null-audits": ("label-leakage", "null_audits:null_audits_page"),
    "quality": ("quality", "quality.page:quality_page"),
    "quality-leaks": ("quality", "quality.leaks:quality_leaks_page"),
    "retraining": ("retraining", "retraining:retraining_page"),
    "student": ("quality", "student:student_page"),
    "explore": ("quality", "explore:explore_page"),
    "serve": ("serving", "speed.serving_page:serving_page"),
}
"""By experiment, the folder of its pages, and the module and function that make them."""


def page_maker(experiment: str) -> PageOf:
    """Return the function that makes the page of an experiment's rows."""
    module, _, name = PAGES[experiment][1].partition(":")
    maker: PageOf = getattr(import_module(f"tallystick_experiments.{module}"), name)
    return maker


def keep(out: Path, path: Path, *, commit: str, command: str) -> None:
    """Write the rows of a finished sweep to a file of results.

    Args:
        out: the sweep's ``--out``.
        path: the file of results.
        commit: the commit whose code made the rows.
        command: the command that makes them again.

    Raises DataError if ``out`` holds no finished sweep of an experiment with a page.
    """
    result = out / "result.json"
    if not result.exists():
        raise DataError(f"{out}: holds no finished sweep; result.json is wanted")
    result_json = json.loads(result.read_bytes())
    if (name := result_json["benchmark"]) not in PAGES:
        raise DataError(f"{out}: is of {name}; results are kept of {', '.join(PAGES)}")
    date = datetime.fromtimestamp(result.stat().st_mtime, UTC).date().isoformat()
    head = {"benchmark": name, "command": command, "date": date, "commit": commit, "processor": processor()}
    head["about"] = result_json["about"]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(json.dumps(rounded(line)) + "\n" for line in (head, *result_json["rows"])).encode())


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Return the name and model of this machine's processor. The last digits of a training depend on it."""
    facts = dict[str, str]()
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    if "model name" not in facts:
        return platform.machine()
    return f"{facts['model name']}, family {facts.get('cpu family', '?')}, model {facts.get('model', '?')}"


def rounded(value: Any) -> Any:
    """Round a row's figures to DIGITS, as kept rows are."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list) else value


@dataclass(frozen=True, kw_only=True)
class KeptPage:
    """Hold the page of a file of results.

    Args:
        path: the file.
        head: its first line.
        benchmark: the page's content, made from the rows.
    """

    path: Path
    head: Row
    benchmark: Benchmark

    @property
    def place(self) -> Path:
        """Return the path of the page."""
        return PAGES_FOLDER / self.folder / f"{self.path.stem}.md"

    @property
    def folder(self) -> str:
        """Return the name of the folder of pages."""
        return PAGES[self.head["benchmark"]][0]

    def drawings(self) -> dict[str, str]:
        """Draw the curves: name of a file to its SVG."""
        return {f"{self.path.stem}-{name}": drawn for name, drawn in pictures(self.benchmark).items()}

    def text(self, drawn: Mapping[str, str]) -> str:
        """Write the page with its drawings."""
        code = f"by the code of commit `{self.head['commit']}`"
        code += f" on a processor {self.head['processor']}" if "processor" in self.head else ""
        origin = f"Made on {self.head['date']} {code}, from `experiments/runs/{self.path.name}`:"
        return markdown(self.benchmark, origin, drawn=drawn)


def read_page(path: Path) -> KeptPage:
    """Make the page of a file of results. Raises DataError for a damaged line or an unknown experiment."""
    lines = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise DataError(f"{path}: line {number} is damaged; take it from the last commit, or run the sweep again") from None
    if not lines or lines[0].get("benchmark") not in PAGES:
        raise DataError(f"{path}: the first line names no benchmark that has a page; they are {', '.join(PAGES)}")
    head, *rows = lines
    benchmark = replace(page_maker(head["benchmark"])(head["about"], rows), command=head["command"])
    return KeptPage(path=path, head=head, benchmark=benchmark)


def markdown(found: Benchmark, made: str, *, drawn: Mapping[str, str] | None = None) -> str:
    """Write a benchmark's tables, its pictures in these files, and its notes. An interval is in brackets after its value."""
    parts = [f"# {found.title}", "<!-- Written by `make results`: change the rows or the code, not this page. -->"]
    parts += [made, f"    {found.command}"]
    if found.facts:
        parts.append("\n".join(f"- {name}: {fact}" for name, fact in found.facts.items()))
    for table in found.tables:
        parts += [f"## {table.name}", *([table.note] if table.note else []), _table(table)]
    if drawn:
        words = (name.removesuffix(".svg").replace("-", " ") for name in drawn)
        parts += ["## Pictures", *(f"![{alt}]({name})" for alt, name in zip(words, drawn, strict=True))]
    if found.notes:
        parts += ["## How to read it", "\n".join(f"- {note}" for note in found.notes)]
    return "\n\n".join(parts) + "\n"


def _table(table: ResultTable) -> str:
    def shown(value: Any) -> str:
        interval = within(value)
        return cell(value) + (f" ({interval})" if interval else "")

    rows = [[shown(value).replace("|", "\\|") for value in row] for row in table.rows]
    lines = [[name or " " for name in table.columns], ["---"] * len(table.columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def index(pages: Iterable[KeptPage]) -> str:
    """Write the list of all pages: the title of each, and the command that makes its rows again."""
    lines: dict[str, list[str]] = {}
    for page in pages:
        row = f"| [{page.benchmark.title}]({page.folder}/{page.path.stem}.md) | `{page.head['command']}` |"
        lines.setdefault(page.folder, []).append(row)
    parts = ["# Reproductions", "<!-- Written by `make results`: change the rows or the code, not this page. -->"]
    parts.append("Each page is made from committed rows (`experiments/runs/`). The command beside it makes the rows again.")
    for folder, rows in sorted(lines.items()):
        parts += [f"## {folder}", "\n".join(["| page | command |", "| --- | --- |", *rows])]
    return "\n\n".join(parts) + "\n"


def write_pages() -> list[Path]:
    """Write the page of every file of results with its pictures, and the list of all pages, and return their paths."""
    written = []
    pages = [read_page(path) for path in sorted(RUNS.glob("*.jsonl"))]
    for page in pages:
        page.place.parent.mkdir(parents=True, exist_ok=True)
        svg_by_name = page.drawings()
        for path, text in {
            page.place: page.text(svg_by_name),
            **{page.place.with_name(name): svg for name, svg in svg_by_name.items()},
        }.items():
            write_bytes(path, text.encode())
            written.append(path)
    write_bytes(PAGES_FOLDER / "index.md", index(pages).encode())
    return [*written, PAGES_FOLDER / "index.md"]


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _, out, name, commit, command = sys.argv
        keep(Path(out), RUNS / f"{name}.jsonl", commit=commit, command=command)
    sys.stdout.write("".join(f"{path}\n" for path in write_pages()))
