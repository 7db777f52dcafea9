"""Keep and show the outcomes of ``again``: which kept rows come out the same when they are made again.

    python -m tallystick_experiments.outcomes LOG COMMIT

LOG is the output of ``again``, and COMMIT the commit whose code made its rows again. The outcomes of a sweep replace its earlier
ones in ``experiments/runs/again.jsonl``. The page shows the outcomes of rows that are still kept.
"""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tallystick.errors import ConfigError
from tallystick.storage import write_bytes
from tallystick_experiments.page import Benchmark, Cell, ResultTable, counted
from tallystick_experiments.results import PAGES, RUNS, write_pages
from tallystick_experiments.stats import Row, groups

KEPT = "again.jsonl"
COMMAND = "python -m tallystick_experiments.again DATA 2"
CHANGED = "its rows are newer than the try"
_ELSEWHERE = "made on a second machine with PyTorch 2.11; on one machine and version a row repeats"
WHY: Mapping[str, str] = dict.fromkeys(("no-gradients", "quality-unmatched"), _ELSEWHERE)
"""Why rows of a sweep do not come out the same: what changes them from one commit to the next, or where they were made."""


def keep_outcomes(log: Path, commit: str, kept: Path) -> None:
    """Replace the kept outcomes of the same sweeps by the output of ``again``."""
    log_rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()]
    new = [{**row, "by": commit} for row in log_rows if "results" in row]
    sweeps_tried = {row["results"] for row in new}
    lines = kept.read_text(encoding="utf-8").splitlines()[1:] if kept.exists() else []
    earlier = [row for row in map(json.loads, lines) if row["results"] not in sweeps_tried]
    head = {"benchmark": "again", "command": COMMAND, "date": datetime.now(UTC).date().isoformat(), "commit": commit, "about": {}}
    rows = sorted([*earlier, *new], key=lambda row: row["results"])
    write_bytes(kept, "".join(json.dumps(row) + "\n" for row in (head, *rows)).encode())


def outcomes_page(_about: Row, rows: Sequence[Row]) -> Benchmark:
    """Build a line for each file of results: the commit of its rows, and whether they come out the same again."""
    by_sweep = groups(rows, "results")
    sweeps = [(path.stem, *_lines(path)) for path in sorted(RUNS.glob("*.jsonl")) if path.name != KEPT]
    valid = [row for name, head, _ in sweeps for row in _still_kept(by_sweep.get(name, []), head["commit"])]
    distinct = {json.dumps([head["benchmark"], row]): row for _, head, of in sweeps for row in of}  # some pages share rows
    hours = sum(sum(_seconds(row)) for row in distinct.values()) / 3600
    again = f"{counted(len(valid), 'row')} of {len({row['results'] for row in valid})} pages"
    return Benchmark(
        title="Which kept rows come out again",
        tables=[
            ResultTable(
                name="By page",
                columns=["page", "rows", "their commit", "made again", "the same", "by the code of", "furthest apart", "why"],
                rows=[_shown(name, head, len(of), by_sweep.get(name, [])) for name, head, of in sweeps],
                note="Rows to make again are drawn at random; a dash: none was, or it is no longer kept. The same is to "
                "the last digit that is kept, the sixth; seconds are not compared.",
            )
        ],
        facts={
            "made again": f"{again}; {sum(row['same'] for row in valid)} are the same",
            "distinct rows that are kept (some pages share rows)": f"{len(distinct):,}; those that say their seconds took "
            f"{hours:.0f} hours of one core",
        },
    )


def _shown(name: str, head: Row, count: int, tried: Sequence[Row]) -> list[Cell]:
    """Build a page's line."""
    first_cells: list[Cell] = [f"[{name}](../{PAGES[head['benchmark']][0]}/{name}.md)", count, head["commit"].replace("`", "")]
    if left_out := next((row["left_out"] for row in tried if "left_out" in row), None):
        return [*first_cells, None, None, None, None, left_out.rpartition(": ")[2]]
    if not (valid := _still_kept(tried, head["commit"])):
        return [*first_cells, None, None, None, None, CHANGED if tried else None]
    same = sum(row["same"] for row in valid)
    furthest = max(valid, key=lambda row: row.get("largest_difference", 0.0))
    apart = f"{furthest['largest_difference']:.2g} of {furthest['of']}" if same < len(valid) else None
    why = WHY.get(name, "not looked for") if same < len(valid) else None
    return [*first_cells, len(valid), same, ", ".join(sorted({row["by"] for row in valid})), apart, why]


def _still_kept(tried: Sequence[Row], commit: str) -> list[Row]:
    """Return outcomes of rows that are kept today."""
    return [row for row in tried if row.get("rows_of") == commit]


def _lines(path: Path) -> tuple[Row, list[Row]]:
    head, *rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return head, rows


def _seconds(value: Any) -> Iterator[float]:
    """Yield the seconds that a row states, at any place in it."""
    if isinstance(value, dict):
        for name, each in value.items():
            if name in ("seconds", "cpu_seconds") and isinstance(each, int | float):
                yield float(each)
            else:
                yield from _seconds(each)
    elif isinstance(value, list):
        for each in value:
            yield from _seconds(each)


def main(words: Sequence[str]) -> None:
    """Keep a log's outcomes, as the module describes."""
    if len(words) != 2 or not Path(words[0]).is_file():
        raise ConfigError("wanted: LOG COMMIT, a file that again printed and the commit whose code made the rows")
    keep_outcomes(Path(words[0]), words[1], RUNS / KEPT)
    write_pages()


if __name__ == "__main__":
    main(sys.argv[1:])
