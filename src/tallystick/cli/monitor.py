"""Implement monitor: one party examines a run in use, alone."""

from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import ContractPath, JsonFlag, PartyPath
from tallystick.cli.output import LIBRARIES, finish, guarded
from tallystick.errors import ConfigError

if TYPE_CHECKING:
    from tallystick.results.monitoring import Monitoring

EXIT_DRIFTED = 4
"""Exit code of `monitor --fail` if a distribution has moved."""


class Every(StrEnum):
    """Periods of figures."""

    day = "day"
    week = "week"
    month = "month"
    all = "all"


def monitor(
    contract: ContractPath,
    party: PartyPath,
    table: Annotated[str | None, typer.Option(help="New rows, by path or address. Default: the party file's table.")] = None,
    scores: Annotated[Path | None, typer.Option(help="Their scores, as `predict` wrote them.")] = None,
    served: Annotated[
        bool, typer.Option("--served", help="Look at what `serve` answered (serving.answers) instead of a table.")
    ] = False,
    labels: Annotated[
        str | None, typer.Option(help="Table of keys and labels that have arrived, by path or address (with --served).")
    ] = None,
    since: Annotated[datetime | None, typer.Option(formats=["%Y-%m-%d"], help="First day, in UTC (with --served).")] = None,
    run: Annotated[str | None, typer.Option("--run", help="Run in use. Default: the newest promoted or complete one.")] = None,
    every: Annotated[Every, typer.Option(help="Length of a period for AUC and calibration, by the time column.")] = Every.month,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page to this file.")] = None,
    prometheus: Annotated[Path | None, typer.Option("--prometheus", help="Write them to this file for Prometheus.")] = None,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 4 if a distribution has moved.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Compare new rows with the training rows, and scores with the labels that have arrived.

    This party works alone, and nothing is sent.
    """

    def work() -> None:
        from tallystick.config.contract import load_contract
        from tallystick.config.party import load_party
        from tallystick.job.monitor import look_of, served_look_of
        from tallystick.monitoring.monitor import monitor_table
        from tallystick.monitoring.prometheus import write_prometheus
        from tallystick.monitoring.served import monitor_served
        from tallystick.report.monitor import render_monitoring

        of_table, of_served = {"--table": table, "--scores": scores}, {"--labels": labels, "--since": since}
        wrong = [name for name, given in (of_table if served else of_served).items() if given is not None]
        if wrong and served:
            raise ConfigError(f"{wrong[0]}: is for a look at a table; leave it out, or --served")
        if wrong:
            raise ConfigError(f"{wrong[0]}: is for a look at what was answered; add --served")
        agreed, own = load_contract(contract), load_party(party)
        if served:
            first = since.date() if since is not None else None
            monitoring = monitor_served(served_look_of(agreed, own, labels=labels, run=run, since=first, every=every.value))
        else:
            monitoring = monitor_table(look_of(agreed, own, table=table, scores=scores, run=run, every=every.value))
        if html is not None:
            render_monitoring(monitoring, html)
        if prometheus is not None:
            write_prometheus(monitoring, prometheus)
        values = {
            **monitoring.to_dict(),
            "drifted": [each.name for each in monitoring.drifted],
            "html": str(html) if html else None,
        }
        finish(values, as_json=as_json, show=lambda console: _show(console, monitoring))
        if fail and monitoring.drifted:
            raise typer.Exit(EXIT_DRIFTED)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.job.monitor"))


def _show(console: Console, monitoring: "Monitoring") -> None:
    from tallystick.report.monitor import WORDS

    what = "new rows" if monitoring.served is None else "rows answered online"
    table = Table(title=f"run {monitoring.run_id}, {monitoring.rows:,} {what}", title_justify="left")
    for name in ("column", "moved", "stability index", "chance"):
        table.add_column(name)
    for each in monitoring.compared:
        table.add_row(escape(each.name), WORDS[each.state], f"{each.stability:.4f}", f"{each.chance:.3g}")
    console.print(table)
    for period in monitoring.periods:
        auc, error = (f"{value:.4f}" if value is not None else "none" for value in (period.auc, period.calibration_error))
        of_label = f", label {period.label}" if period.label else ""
        line = f"{period.name}{of_label}: {period.rows:,} rows with a label, AUC {auc}, calibration error {error}"
        console.print(line, markup=False)
    for during in monitoring.served or ():
        has = (
            f"partners had {during.partner_has:.1%} of those asked for"
            if during.partner_has is not None
            else "no partner answered"
        )
        times = ", ".join(f"{part.part} {part.p50:.1f} and {part.p99:.1f} ms" for part in during.latency)
        console.print(f"{during.name}: {during.rows:,} rows answered, {has}, {during.own_share:.1%} by own columns", markup=False)
        console.print(f"{during.name}: half and 99 % of requests within: {times}", markup=False)
    for note in monitoring.notes:
        console.print(note, markup=False)
