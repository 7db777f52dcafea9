"""Options that several commands share, and how progress can be shown."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Style(StrEnum):
    """How progress is shown."""

    auto = "auto"
    bar = "bar"
    plain = "plain"
    json = "json"
    none = "none"


ContractPath = Annotated[Path, typer.Argument(help="The contract that both sides hold.")]
PartyPath = Annotated[Path, typer.Option("--party", help="This party's private file.")]
StyleFlag = Annotated[Style, typer.Option("--progress", help="How progress is shown on standard error.")]
JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object as the last line of standard output.")]
