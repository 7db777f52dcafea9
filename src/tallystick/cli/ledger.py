"""Implement ledger: what was released under differential privacy, and its cost."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import finish, guarded

if TYPE_CHECKING:
    from tallystick.privacy.exported import ExportedLedger

NARROWEST, WIDEST = 8, 40  # width of a bar


def ledger(
    party: Annotated[Path, typer.Argument(help="This party's own file, which stays private.")],
    delta: Annotated[float, typer.Option(help="Delta at which releases with Gaussian noise are added up.")] = 1e-6,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page of the spending over time to this file.")] = None,
    create: Annotated[
        bool, typer.Option("--create", help="Make the ledger. Do it once, before the first job on these labels.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Show what left this party without a guarantee, every private release, what these add up to, and what the cap leaves."""

    def work() -> None:
        from tallystick.config.party import load_party
        from tallystick.errors import ConfigError, StorageError
        from tallystick.report.ledger import render_ledger
        from tallystick.run_folder.ledger import create_ledger, known_ledger

        own = load_party(party)
        path = own.privacy.ledger
        if create:
            ledger_made = create_ledger(own)
            sentence = (
                f"{path} is made; put identity: {ledger_made.identity} under privacy in {party}, so that no other ledger is "
                "accepted"
            )
            values = {"ledger": str(path), "identity": ledger_made.identity}
            finish(values, as_json=as_json, show=lambda console: console.print(sentence, markup=False, soft_wrap=True))
            return
        try:
            export = known_ledger(own).export(delta=delta)
        except StorageError as error:  # the ledger is this command's input, so this is bad input, as in check
            raise ConfigError(str(error)) from None
        if html is not None:
            export["page"] = str(render_ledger(export, html))
        finish(export, as_json=as_json, show=lambda console: _show(console, export, path))

    guarded(work, as_json=as_json, loads=("tallystick.run_folder.ledger", "tallystick.report.ledger"))


def _show(console: Console, exported: "ExportedLedger", path: Path) -> None:
    from tallystick.report.ledger import amount, at_delta

    if exported["not_private"]:
        console.print("Not private, and not counted in any sum:")
        for each in exported["not_private"]:
            when = each["time"][:16].replace("T", " ")
            console.print(f"  {each['number']}  {when}  {each['dataset']}: {each['what']}", markup=False, soft_wrap=True)
    elif not exported["datasets"]:
        console.print(f"nothing has been released yet (ledger: {path})", markup=False)
    width = max(NARROWEST, min(WIDEST, console.width // 5))
    for name, dataset in exported["datasets"].items():
        limit = dataset["cap"]
        cap = limit["epsilon"] if limit is not None else None
        scale = cap or max((value for value in dataset["running_label_epsilon"] if value is not None), default=1.0)
        spent = at_delta(dataset["spent"])
        table = Table(
            title=escape(f"{name}: {dataset['epsilon_of']} {spent}, cap {'none' if limit is None else at_delta(limit)}")
        )
        for column in ("#", "time", "what", "spent so far", ""):
            table.add_column(column, no_wrap=column != "what", overflow="fold")
        for entry, running in zip(dataset["entries"], dataset["running_label_epsilon"], strict=True):
            filled = width if running is None else min(width, round(width * running / scale))
            bar = "█" * filled + "░" * (width - filled)
            table.add_row(str(entry["number"]), entry["time"][:16].replace("T", " "), escape(entry["what"]), amount(running), bar)
        console.print(table)
    if "page" in exported:
        console.print(f"page: {exported['page']}", markup=False)
