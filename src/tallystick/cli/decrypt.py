"""Implement decrypt: a readable copy of an encrypted run folder."""

from pathlib import Path
from typing import Annotated

import typer

from tallystick.cli.options import JsonFlag, PartyPath
from tallystick.cli.output import finish, guarded


def decrypt(
    run: Annotated[Path, typer.Argument(help="The encrypted run folder.")],
    party: PartyPath,
    to: Annotated[Path, typer.Option("--to", help="The folder to make.")],
    as_json: JsonFlag = False,
) -> None:
    """Make a copy of a run folder whose files are not encrypted, for audit, compare and export, and to look at its report."""

    def work() -> None:
        from tallystick.config.party import load_party
        from tallystick.errors import ConfigError
        from tallystick.run_folder.folder import RunFolder
        from tallystick.run_folder.listing import contract_of

        contract_of(run)
        folder = RunFolder.open(run, key=load_party(party).run_key)
        if folder.origin.key is None:
            raise ConfigError(f"{run}: its files are not encrypted; use it as it is")
        folder.contract()  # which is copied unchanged
        if to.exists():
            raise ConfigError(f"--to {to}: exists already; name a folder that is to be made")
        with folder.locked():
            folder.copy_plain(to)
        finish({"folder": str(to), "report": str(to / "report.html")}, as_json=as_json)

    guarded(work, as_json=as_json, loads=("torch", "tallystick.run_folder.folder"))
