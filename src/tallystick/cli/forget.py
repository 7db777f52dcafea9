"""Implement forget: erase people from the data that a party keeps by row."""

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from tallystick.cli.options import JsonFlag, PartyPath
from tallystick.cli.output import LIBRARIES, finish, guarded


def forget(
    party: PartyPath,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Persons, by the key of the table.")] = None,
    table: Annotated[
        Path | None, typer.Option(help="Persons, in a file with the key columns of the table, in place of keys.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Erase. Without it nothing is changed, and the plan is shown.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Erase persons from run folders, journals and counts of scores. No other party is told."""

    def work() -> None:
        from tallystick.config.party import load_party
        from tallystick.erasure import erase_persons, persons_by_key
        from tallystick.errors import ConfigError
        from tallystick.tables.table import read_table

        own = load_party(party)
        if bool(keys) == (table is not None):
            raise ConfigError("forget: name persons by their keys, or by a file with --table")
        asks_for = set(own.keys.values()).__contains__
        rows = (
            read_table(own.table_at(table), text=own.text_columns, asks_for=asks_for)
            if table is not None
            else persons_by_key(own, keys or [])
        )
        erasure = erase_persons(own, rows, do=yes)

        def show(console: Console) -> None:
            past = "deleted, with all rows" if yes else "would be deleted, with all rows"
            for path in erasure.deleted:
                console.print(f"{past}: {path}", markup=False, soft_wrap=True)
            past = "rewritten without values of few rows" if yes else "would be rewritten without values of few rows"
            for path in erasure.coarsened:
                console.print(f"{past}: {path}", markup=False, soft_wrap=True)
            past = "rewritten without these persons" if yes else "would be rewritten without these persons"
            for path in (*erasure.rewritten, *([erasure.ledger] if erasure.ledger is not None else [])):
                console.print(f"{past}: {path}", markup=False, soft_wrap=True)
            for line in erasure.doubts:
                console.print(line, markup=False, soft_wrap=True)
            for sentence in erasure.remains if yes else ("Nothing was changed. Add --yes to erase.",):
                console.print(sentence, markup=False, soft_wrap=True)

        finish(msgspec.to_builtins(erasure), as_json=as_json, show=show)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.erasure"))
