"""Results that are committed: the rows of finished sweeps, and the pages of the documentation that follow from them.

``experiments/runs/NAME.jsonl`` holds a sweep: its first line says by which command, when and by which commit's code it was made,
every other line is a row. ``docs/results/NAME.md`` is made from it by ``make results``; a test holds the two together.

    python -m tallystick_experiments.results                                    # write all pages
    python -m tallystick_experiments.results OUT NAME COMMIT "tallystick bench ..."    # first keep what --out OUT holds
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tallystick.errors import DataError
from tallystick.storage import write_bytes
from tallystick_experiments import null_audits
from tallystick_experiments.label_leakage import defended, defended_page
from tallystick_experiments.page import Benchmark, ResultTable, cell, within
from tallystick_experiments.quality import page as quality_page
from tallystick_experiments.quality import sweep as quality_sweep

ROOT = Path(__file__).parents[3]
RUNS, PAGES = ROOT / "experiments" / "runs", ROOT / "docs" / "results"
DIGITS = 6  # of a row's figures
Row = dict[str, Any]


def _quality(about: Row, rows: Sequence[Row], command: str) -> Benchmark:
    methods, seeds = (list(dict.fromkeys(row[name] for row in rows)) for name in ("method", "seed"))
    return quality_page.page_of(quality_sweep.summarise(rows, about["data"], methods=methods, seeds=seeds), command=command)


def _label_defenses(about: Row, rows: Sequence[Row], command: str) -> Benchmark:
    found = about | {
        "seeds": list(dict.fromkeys(row["seed"] for row in rows)),
        "tables": {name: defended.rows_of([row for row in rows if row["table"] == name]) for name in about["data"]},
    }
    return defended_page.page_of(found, command=command)


def _null_audits(about: Row, rows: Sequence[Row], command: str) -> Benchmark:
    return null_audits.page_of(about | {"audits": rows}, command=command)


KINDS: Mapping[str, Callable[[Row, Sequence[Row], str], Benchmark]] = {
    "quality": _quality,
    "label-leakage-defenses": _label_defenses,
    "null-audits": _null_audits,
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
    if not (result.exists() and log.exists()):
        raise DataError(f"{out}: holds no finished sweep; result.json and runs.jsonl are wanted")
    found = json.loads(result.read_bytes())
    if (kind := found["benchmark"]) not in KINDS:
        raise DataError(f"{out}: is of {kind}; results are kept of {', '.join(KINDS)}")
    about = {name: value for name, value in found.items() if name not in ("runs", "audits", "tables", "against", "seeds")}
    if kind == "quality":
        about["data"] = {
            row["table"]: {name: row[name] for name in ("rows", "columns", "target", "source")} for row in found["tables"]
        }
    date = datetime.fromtimestamp(log.stat().st_mtime, UTC).date().isoformat()
    head = {"benchmark": kind, "command": command, "date": date, "commit": commit, "about": about}
    rows = [json.loads(line) for line in log.read_text().splitlines()[1:]]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(path, "".join(json.dumps(_rounded(line)) + "\n" for line in (head, *rows)).encode())


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, dict):
        return {name: _rounded(each) for name, each in value.items()}
    return [_rounded(each) for each in value] if isinstance(value, list) else value


def page(path: Path) -> str:
    """The page of a file of results, in Markdown.

    Raises DataError for a line that is damaged or a sweep of no known kind.
    """
    lines = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            lines.append(json.loads(line))
        except ValueError:
            raise DataError(f"{path}: line {number} is damaged; take it from the last commit, or run the sweep again") from None
    if not lines or lines[0].get("benchmark") not in KINDS:
        raise DataError(f"{path}: the first line names no benchmark that has a page; they are {', '.join(KINDS)}")
    head, *rows = lines
    found = KINDS[head["benchmark"]](head["about"], rows, head["command"])
    return markdown(
        found, f"Made on {head['date']} by the code of commit `{head['commit']}`, from `experiments/runs/{path.name}`:"
    )


def markdown(found: Benchmark, made: str) -> str:
    """A benchmark's tables and notes; an interval stands in brackets behind its value."""
    parts = [f"# {found.title}", "<!-- Written by `make results`: change the rows or the code, not this page. -->"]
    parts += [made, f"    {found.command}"]
    if found.facts:
        parts.append("\n".join(f"- {name}: {fact}" for name, fact in found.facts.items()))
    for table in found.tables:
        parts += [f"## {table.name}", *([table.note] if table.note else []), _table(table)]
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
    """Write the page of every file of results, and give their paths."""
    PAGES.mkdir(exist_ok=True)
    written = []
    for path in sorted(RUNS.glob("*.jsonl")):
        written.append(PAGES / f"{path.stem}.md")
        write_bytes(written[-1], page(path).encode())
    return written


if __name__ == "__main__":
    if len(sys.argv) == 5:
        _, out, name, commit, command = sys.argv
        keep(Path(out), RUNS / f"{name}.jsonl", commit=commit, command=command)
    sys.stdout.write("".join(f"{path}\n" for path in write_pages()))
