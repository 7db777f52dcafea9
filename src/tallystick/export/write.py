"""Write an export: a new folder with all files, or no folder."""

import json
from pathlib import Path

from tallystick.errors import ConfigError
from tallystick.export.card import card_of
from tallystick.export.half import columns_json, half_of, onnx_of, safetensors_of
from tallystick.results import read_result
from tallystick.run_folder.folder import RunFolder
from tallystick.storage import write_bytes, written_folder

ONNX, WEIGHTS, INPUTS, ENCODER, CARD = "model.onnx", "model.safetensors", "inputs.json", "encoder.json", "README.md"


def write_half(folder: RunFolder, to: Path, *, onnx: bool = True) -> list[Path]:
    """Write a run's own half into a new folder: ONNX, weights, encoder and card. Return the files.

    ``encoder.json`` holds categories and statistics of this party's rows, as the run folder does. Only the owner can read the
    folder.

    Args:
        folder: folder of a trained run.
        to: the new folder.
        onnx: whether ONNX is written in addition to the weights.

    Raises ConfigError for an existing folder, and what ``half_of`` and ``onnx_of`` raise.
    """
    if to.exists():
        raise ConfigError(f"--to {to}: exists already; name a folder that is to be made")
    with folder.locked():
        exported = half_of(folder)
        result = read_result(folder.read_json(folder.result)) if folder.result.exists() else None
    with written_folder(to) as new:
        if onnx:
            onnx_of(exported, new / ONNX)
        write_bytes(new / WEIGHTS, safetensors_of(exported))
        write_bytes(new / INPUTS, columns_json(exported).encode())
        if exported.encoder is not None:
            write_bytes(new / ENCODER, json.dumps(json.loads(exported.encoder.to_json()), indent=1).encode(), private=True)
        write_bytes(new / CARD, card_of(exported, result).encode())
    return sorted(to.iterdir())
