"""Implement compare: results of several runs side by side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import finish, guarded
from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.job.promotion import Decision
    from tallystick.report.compare import RunComparison

EXIT_KEPT = 4
"""Exit code of `compare --decide` if the old run stays in use."""


def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders or result.json files.")],
    decide: Annotated[
        bool,
        typer.Option("--decide", help="Of OLD and NEW: exit with 0 if NEW's contract says to promote NEW, with 4 if not."),
    ] = False,
    party: Annotated[
        Path | None, typer.Option("--party", help="The label party's own file, whose ledger counts the answer (with --decide).")
    ] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Also write a page to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Compare the results of several runs, and show what differs in their contracts."""

    def work() -> None:
        from tallystick.report.compare import compare_results, read_run, render_comparison

        if decide and len(runs) != 2:
            raise ConfigError(f"compare --decide: {len(runs)} runs; give two, the one in use and the new one")
        if decide and party is None:
            raise ConfigError("compare --decide: others see what is promoted, so the ledger counts it; give --party FILE")
        comparison, decision = None, None
        if decide and party is not None:
            from tallystick.config.party import load_party
            from tallystick.job.promotion import count_decision, decide_promotion, decide_without_figures
            from tallystick.run_folder.folder import RunFolder

            own, (old, new) = load_party(party), runs
            folders = [
                RunFolder.open(path.parent if path.name == "result.json" else path, key=own.run_key) for path in (old, new)
            ]
            contract = folders[1].contract()
            results_of_runs = [read_run(each.path) if each.result.exists() else None for each in folders]
            outcome = decide_without_figures(contract, *results_of_runs) if contract.promotion.epsilon is not None else None
            if outcome is None:
                outcome = decide_promotion(read_run(old), read_run(new))
            decision = count_decision(outcome, own, folders[1], old=folders[0].run_id)
        if decision is None or decision.after is not None:
            results = [read_run(path) for path in runs]
            # Short names: the folder's, or the whole path if two would be the same
            short = [(path.parent if path.name == "result.json" else path).resolve().name for path in runs]
            comparison = compare_results(short if len(set(short)) == len(short) else [str(path) for path in runs], results)
        if html is not None and comparison is not None:
            render_comparison(comparison, html)
        facts = {**comparison.to_dict(), "html": str(html) if html is not None else None} if comparison is not None else {}
        finish(
            facts | ({"decision": decision.to_dict()} if decision is not None else {}),
            as_json=as_json,
            show=lambda console: _show(console, comparison, html, decision),
        )
        if decision is not None and not decision.promote:
            raise typer.Exit(EXIT_KEPT)

    guarded(work, as_json=as_json, loads=("numpy", "tallystick.report.compare"))


def _show(console: Console, comparison: "RunComparison | None", html: Path | None, decision: "Decision | None") -> None:
    from tallystick.report.compare import text
    from tallystick.report.formats import interval

    if comparison is not None:
        for title, rows in (
            ("metrics", comparison.metrics),
            ("contracts differ in", comparison.settings),
            ("runs", comparison.facts),
        ):
            if not rows:
                continue
            table = Table(title=title, title_justify="left")
            table.add_column("", overflow="fold")
            for run in comparison.runs:
                table.add_column(escape(run), justify="right", overflow="fold")
            for row in rows:
                cells = []
                for value, within, best in zip(row.values, row.within, row.best, strict=True):
                    bounds = f"\n{interval(*within)}" if within is not None else ""
                    cells.append(f"{escape(text(value))}{' *' if best else ''}{bounds}")
                table.add_row(escape(row.name), *cells)
            console.print(table)
        if any(any(row.best) for rows in (comparison.metrics, comparison.facts) for row in rows):
            console.print("* marks the best value of a row, however small its lead.", markup=False)
        for note in comparison.notes:
            console.print(note, markup=False)
    if html is not None:
        console.print(f"page: {html}", markup=False)
    if decision is not None:
        for reason in decision.reasons:
            console.print(reason, markup=False)
        console.print("the new run is to be promoted" if decision.promote else "the old run stays", markup=False)
