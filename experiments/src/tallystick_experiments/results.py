"""Results that are committed: the rows of finished sweeps, and the pages of the documentation that follow from them.

``experiments/runs/NAME.jsonl`` holds a sweep: its first line says by which command, when and by which commit's code it was made,
every other line is a row. ``docs/results/NAME.md`` is made from it by ``make results``; a test holds the two together.

    python -m tallystick_experiments.results                                    # write all pages
    python -m tallystick_experiments.results OUT NAME COMMIT "tallystick bench ..."    # first keep what --out OUT holds
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tallystick.errors import DataError
from tallystick.storage import write_bytes
from tallystick_experiments import null_audits
from tallystick_experiments.dpauc import page as dpauc_page
from tallystick_experiments.feature_leakage import page as columns_page
from tallystick_experiments.feature_leakage import sweep as columns_sweep
from tallystick_experiments.fedads import defenses as fedads_defenses
from tallystick_experiments.fedads import leaks as fedads_leaks
from tallystick_experiments.fedads import page as fedads_page
from tallystick_experiments.fedads import unaligned
from tallystick_experiments.florist import page as florist_page
from tallystick_experiments.florist import sweep as florist_sweep
from tallystick_experiments.label_leakage import defended, defended_page
from tallystick_experiments.label_leakage import page as leakage_page
from tallystick_experiments.label_leakage import sweep as leakage_sweep
from tallystick_experiments.page import Benchmark, ResultTable, cell, pictures, within
from tallystick_experiments.quality import page as quality_page
from tallystick_experiments.quality import sweep as quality_sweep

ROOT = Path(__file__).parents[3]
RUNS, PAGES = ROOT / "experiments" / "runs", ROOT / "docs" / "results"
DIGITS = 6  # of a row's figures
Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Kind:
    """How a benchmark's committed rows become its page.

    Args:
        report: what the benchmark found, from its rows and from what its first line keeps beside them.
        page_of: the page of that.
        about: what it found that no row says.
    """

    report: Callable[[Row, Sequence[Row]], Row]
    page_of: Callable[..., Benchmark]
    about: tuple[str, ...] = ("data",)


def _quality(about: Row, rows: Sequence[Row]) -> Row:
    methods, seeds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("method", "seed"))
    return quality_sweep.summarise(rows, about["data"], methods=methods, seeds=seeds)


def _label_defenses(about: Row, rows: Sequence[Row]) -> Row:
    return about | {
        "seeds": list(dict.fromkeys(row["seed"] for row in rows)),
        "tables": {name: defended.rows_of([row for row in rows if row["table"] == name]) for name in about["data"]},
    }


def _florist(about: Row, rows: Sequence[Row]) -> Row:
    return florist_sweep.report_of([florist_sweep.FloristRun(**row) for row in rows], data=about["data"])


def _label_leakage(about: Row, rows: Sequence[Row]) -> Row:
    return leakage_sweep.report_of(rows, parts_run=about["parts"], data=about["data"])


def _dpauc(about: Row, rows: Sequence[Row]) -> Row:
    tables: dict[str, list[Row]] = {}
    for row in rows:
        tables.setdefault(row["in"], []).append(row)
    return about | {"tables": tables}


KINDS: Mapping[str, Kind] = {
    "quality": Kind(report=_quality, page_of=quality_page.page_of),
    "label-leakage-defenses": Kind(report=_label_defenses, page_of=defended_page.page_of, about=("data", "epochs")),
    "null-audits": Kind(
        report=lambda about, rows: about | {"audits": rows},
        page_of=null_audits.page_of,
        about=("draws", "coverage", "rows", "epochs"),
    ),
    "florist": Kind(report=_florist, page_of=florist_page.page_of),
    "label-leakage": Kind(report=_label_leakage, page_of=leakage_page.page_of, about=("data", "parts")),
    "feature-leakage": Kind(
        report=lambda about, rows: columns_sweep.report_of(rows, data=about["data"]), page_of=columns_page.page_of
    ),
    "fedads-3": Kind(
        report=lambda about, rows: unaligned.report_of(rows, data=about["data"]), page_of=fedads_page.unaligned_page_of
    ),
    "fedads-4": Kind(report=lambda about, rows: fedads_defenses.report_of(rows, data=about["data"]), page_of=fedads_page.page_of),
    "fedads-leaks": Kind(
        report=lambda about, rows: fedads_leaks.report_of(rows, data=about["data"]), page_of=fedads_page.unaligned_leaks_page_of
    ),
    "dpauc": Kind(
        report=_dpauc,
        page_of=dpauc_page.page_of,
        about=("source", "rows", "positives", "repeats", "check_repeats", "seed", "exact_auc", "predictions", "seconds"),
    ),
}


def keep(out: Path, path: Path, *, commit: str, command: str) -> None:
    """Put the rows of a finished sweep into a file of results.

    Args:
        out: the sweep's ``--out``.
        path: of the results.
        commit: whose code made the rows.
        command: that makes them again.

    Raises DataError if ``out`` holds no finished sweep of a kind that has a page.
    """
    result, log = out / "result.json", out / "runs.jsonl"
    if not result.exists():
        raise DataError(f"{out}: holds no finished sweep; result.json and runs.jsonl are wanted")
    found = json.loads(result.read_bytes())
    kind = f"{found['benchmark']}-{found['number']}" if "number" in found else found["benchmark"]
    if kind not in KINDS:
        raise DataError(f"{out}: is of {kind}; results are kept of {', '.join(KINDS)}")
    about = {name: found[name] for name in KINDS[kind].about if name in found}
    if kind == "quality":
        about["data"] = {
            row["table"]: {name: row[name] for name in ("rows", "columns", "target", "source")} for row in found["tables"]
        }
    if kind == "dpauc":  # which keeps no log
        rows = [{"in": name, **row} for name, of in found["tables"].items() for row in of]
    elif log.exists():
        rows = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    else:
        raise DataError(f"{out}: holds no finished sweep; result.json and runs.jsonl are wanted")
    date = datetime.fromtimestamp(result.stat().st_mtime, UTC).date().isoformat()
    head = {"benchmark": kind, "command": command, "date": date, "commit": commit, "about": about}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(json.dumps(_rounded(line)) + "\n" for line in (head, *rows)).encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def page(path: Path) -> str:
    """The page of a file of results, in Markdown; raises DataError for a line that is damaged or a sweep of no known kind."""
    head, rows = _read(path)
    made = f"Made on {head['date']} by the code of commit `{head['commit']}`, from `experiments/runs/{path.name}`:"
    return markdown(_benchmark(head, rows), made, drawn=drawings(path))


def drawings(path: Path) -> dict[str, str]:
    """The curves of a file of results: name of a file to its SVG; raises as ``page`` does."""
    return {f"{path.stem}-{name}": drawn for name, drawn in pictures(_benchmark(*_read(path))).items()}


def _benchmark(head: Row, rows: Sequence[Row]) -> Benchmark:
    kind = KINDS[head["benchmark"]]
    return kind.page_of(kind.report(head["about"], rows), command=head["command"])


def _read(path: Path) -> tuple[Row, list[Row]]:
    lines = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise DataError(f"{path}: line {number} is damaged; take it from the last commit, or run the sweep again") from None
    if not lines or lines[0].get("benchmark") not in KINDS:
        raise DataError(f"{path}: the first line names no benchmark that has a page; they are {', '.join(KINDS)}")
    head, *rows = lines
    return head, rows


def markdown(found: Benchmark, made: str, *, drawn: Mapping[str, str] | None = None) -> str:
    """A benchmark's tables, the pictures of these files and its notes; an interval stands in brackets behind its value."""
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


def write_pages() -> list[Path]:
    """Write the page of every file of results, and its pictures; gives their paths."""
    PAGES.mkdir(exist_ok=True)
    written = []
    for path in sorted(RUNS.glob("*.jsonl")):
        written.append(PAGES / f"{path.stem}.md")
        write_bytes(written[-1], page(path).encode())
        for name, drawn in drawings(path).items():
            written.append(PAGES / name)
            write_bytes(written[-1], drawn.encode())
    return written


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _, out, name, commit, command = sys.argv
        keep(Path(out), RUNS / f"{name}.jsonl", commit=commit, command=command)
    sys.stdout.write("".join(f"{path}\n" for path in write_pages()))
