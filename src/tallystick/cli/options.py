"""Define options that several commands share, and the ways of showing progress."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tallystick.alignment.linkages import LINKAGES
from tallystick.watcher import Style, Watcher

if TYPE_CHECKING:
    from tallystick.config.contract import Contract
    from tallystick.config.party import PartyFile


*_FIRST, _LAST = LINKAGES
LINKAGE_NAMES = f"{', '.join(_FIRST)} or {_LAST}"


ContractPath = Annotated[Path, typer.Argument(help="The contract file, the same at all parties.")]
PartyPath = Annotated[Path, typer.Option("--party", help="This party's own file, which stays private.")]
StyleFlag = Annotated[
    Style, typer.Option("--progress", metavar="STYLE", help=f"How progress is shown on standard error: {', '.join(Style)}.")
]
RunName = Annotated[
    str | None,
    typer.Option(
        "--run",
        help="Run whose model scores: its id, folder name or path. Default: the newest run that all parties promoted, or the "
        "latest complete run if none is promoted.",
    ),
]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]


def read_files(contract: Path, party: Path, progress: Style) -> "tuple[Contract, PartyFile, Watcher]":
    """Read both files of a command, and make the watcher of its progress. It loads their modules."""
    from tallystick.cli.watch import watcher_of
    from tallystick.config.contract import load_contract
    from tallystick.config.party import load_party

    return load_contract(contract), load_party(party), watcher_of(progress)
