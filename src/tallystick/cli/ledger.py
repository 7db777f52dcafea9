"""ledger: what was released under differential privacy, and what it cost."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.output import JsonFlag, finish, guarded
from tallystick.config.party import load_party
from tallystick.privacy.ledger import Ledger
from tallystick.report.ledger import amount, render_ledger

NARROWEST, WIDEST = 8, 40  # of a bar


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
        if path.exists():
            found = Ledger(path, party=own.party).export(delta=delta)
        else:  # the first release makes the file; looking does not
            found = {"party": own.party, "delta": delta, "datasets": {}}
        if html is not None:
            found["page"] = str(render_ledger(found, html))
        finish(found, as_json=as_json, show=lambda console: _show(console, found, path))

    guarded(work, as_json=as_json)


def _show(console: Console, found: dict[str, Any], path: Path) -> None:
    if not found["datasets"]:
        console.print(f"nothing has been released yet (ledger: {path})", markup=False)
    width = max(NARROWEST, min(WIDEST, console.width // 5))
    for name, dataset in found["datasets"].items():
        cap = dataset["cap"]["epsilon"] if dataset["cap"] else None
        scale = cap or max((value for value in dataset["running_label_epsilon"] if value is not None), default=1.0)
        spent = amount(dataset["label_epsilon"])
        table = Table(title=escape(f"{name}: label epsilon {spent}, cap {'none' if cap is None else amount(cap)}"))
        for column in ("#", "time", "what", "spent so far", ""):
            table.add_column(column, no_wrap=column != "what", overflow="fold")
        for entry, running in zip(dataset["entries"], dataset["running_label_epsilon"], strict=True):
            filled = width if running is None else min(width, round(width * running / scale))
            bar = "█" * filled + "░" * (width - filled)
            table.add_row(str(entry["number"]), entry["time"][:16].replace("T", " "), escape(entry["what"]), amount(running), bar)
        console.print(table)
    if "page" in found:
        console.print(f"page: {found['page']}", markup=False)
