"""ledger: what was released under differential privacy, and what it cost."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from tallystick.cli.output import JsonFlag, finish, guarded
from tallystick.config.party import load_party
from tallystick.errors import ConfigError
from tallystick.privacy.ledger import Ledger
from tallystick.report.ledger import render_ledger

WIDTH = 40


def ledger(
    party: Annotated[Path, typer.Argument(help="This party's private file.")],
    delta: Annotated[float, typer.Option(help="Delta at which Gaussian releases are added up.")] = 1e-6,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with the spending over time to this file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show every private release of this party, what they add up to, and how much of the cap is left."""

    def work() -> None:
        own = load_party(party)
        path = own.privacy.ledger
        if not path.exists():
            raise ConfigError(f"privacy.ledger = {path}: no such file; nothing has been released yet")
        found = Ledger(path, party=own.party).export(delta=delta)
        if html is not None:
            found["page"] = str(render_ledger(found, html))
        finish(found, as_json=as_json, show=lambda console: _show(console, found))

    guarded(work, as_json=as_json)


def _show(console: Console, found: dict[str, Any]) -> None:
    for name, dataset in found["datasets"].items():
        cap = dataset["cap"]["epsilon"] if dataset["cap"] else None
        scale = cap or max((value for value in dataset["running_label_epsilon"] if value is not None), default=1.0)
        table = Table(title=f"{name}: label epsilon {dataset['label_epsilon']}, cap {cap if cap is not None else 'none'}")
        for column in ("#", "time", "what", "spent so far", ""):
            table.add_column(column)
        for entry, running in zip(dataset["entries"], dataset["running_label_epsilon"], strict=True):
            filled = WIDTH if running is None else min(WIDTH, round(WIDTH * running / scale))
            bar = "█" * filled + "░" * (WIDTH - filled)
            spent = "unbounded" if running is None else f"{running:.4g}"
            table.add_row(str(entry["number"]), entry["time"][:19], entry["what"], spent, bar)
        console.print(table)
    if "page" in found:
        console.print(f"page: {found['page']}", markup=False)
