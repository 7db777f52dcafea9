"""Implement export: a party's own half of a trained network for other programs."""

from pathlib import Path
from typing import Annotated

import typer

from tallystick.cli.options import JsonFlag
from tallystick.cli.output import LIBRARIES, finish, guarded


def export(
    run: Annotated[Path, typer.Argument(help="The run folder whose half is exported.")],
    to: Annotated[Path, typer.Option("--to", help="The folder to make.")],
    onnx: Annotated[bool, typer.Option("--onnx/--no-onnx", help="Write ONNX in addition to safetensors, or not.")] = True,
    as_json: JsonFlag = False,
) -> None:
    """Write this party's half of a trained network as ONNX and safetensors, with its encoder and a card. Nothing is sent."""

    def work() -> None:
        from tallystick.export.write import write_half
        from tallystick.run_folder.folder import RunFolder
        from tallystick.run_folder.listing import contract_of

        contract_of(run)
        files = write_half(RunFolder.open(run), to, onnx=onnx)
        finish({"folder": str(to), "files": [path.name for path in files]}, as_json=as_json)

    guarded(work, as_json=as_json, loads=(*LIBRARIES, "tallystick.export.write"))
