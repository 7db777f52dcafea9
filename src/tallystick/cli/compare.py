"""compare: results of several runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import finish, guarded

if TYPE_CHECKING:
    from tallystick.report.compare import ComparisonRow, RunComparison


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or result.json files; two or more.")],
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Put the results of several runs side by side, with what differs in their contracts."""

    def work() -> None:
        from tallystick.report.compare import compare_results, read_run, render_comparison

        found = compare_results(_names(runs), [read_run(path) for path in runs])
        if html is not None:
            render_comparison(found, html)
        finish(
            {**found.to_dict(), "html": str(html) if html is not None else None},
            as_json=as_json,
            show=lambda console: _show(console, found, html),
        )

    guarded(work, as_json=as_json, loads=("numpy", "tallystick.report.compare"))


def _names(runs: list[Path]) -> list[str]:
    """Short names: the folder's, or the whole path where two would be the same."""
    short = [(path.parent if path.name == "result.json" else path).resolve().name for path in runs]
    return short if len(set(short)) == len(short) else [str(path) for path in runs]


def _show(console: Console, found: "RunComparison", html: Path | None) -> None:
    for title, rows in (("metrics", found.metrics), ("contracts differ in", found.settings), ("runs", found.facts)):
        if rows:
            console.print(_table(title, found.runs, rows))
    if any(any(row.best) for rows in (found.metrics, found.facts) for row in rows):
        console.print("* marks the best value of a row, however small its lead.", markup=False)
    for note in found.notes:
        console.print(note, markup=False)
    if html is not None:
        console.print(f"page: {html}", markup=False)


def _table(title: str, runs: list[str], rows: "list[ComparisonRow]") -> Table:
    from tallystick.report.compare import text
    from tallystick.report.formats import interval

    table = Table(title=title, title_justify="left")
    table.add_column("", overflow="fold")
    for run in runs:
        table.add_column(escape(run), justify="right", overflow="fold")
    for row in rows:
        cells = []
        for value, within, best in zip(row.values, row.within, row.best, strict=True):
            cells.append(
                f"{escape(text(value))}{' *' if best else ''}" + (f"\n{interval(*within)}" if within is not None else "")
            )
        table.add_row(escape(row.name), *cells)
    return table
