"""Write arrays to sealed safetensors files, completely or not at all. ``training/checkpoint.py`` does the same for tensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from tallystick.errors import DamagedFile
from tallystick.storage import SEAL, Origin, check_sealed, read_own, write_sealed

AnyArray = np.ndarray[Any, np.dtype[Any]]


def write_arrays(
    path: Path, arrays: Mapping[str, AnyArray], metadata: dict[str, str], *, origin: Origin, private: bool = False
) -> None:
    """Write a sealed safetensors file, completely or not at all."""
    plain = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    write_sealed(path, save(plain, {**metadata, SEAL: origin.blank_seal(path)}), origin=origin, private=private)


def read_arrays(path: Path, *, origin: Origin, only_metadata: bool = False) -> tuple[dict[str, AnyArray], dict[str, str]]:
    """Read the arrays and the metadata of a safetensors file. Raises DamagedFile unless it is as write_arrays left it there."""
    return read_safetensors(path, origin=origin, framework="np", only_metadata=only_metadata)


def read_safetensors(
    path: Path, *, origin: Origin, framework: Literal["np", "pt"], only_metadata: bool = False
) -> tuple[dict[str, Any], dict[str, str]]:
    """Read a safetensors file as ``read_arrays`` does, into arrays of NumPy or tensors of PyTorch."""
    check_sealed(path, origin=origin)
    if origin.key is not None:
        content = read_own(path, origin=origin)
        facts: dict[str, str] = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])["__metadata__"]
        facts.pop(SEAL)
        if only_metadata:
            return {}, facts
        if framework == "np":
            return dict(load(content)), facts
        from safetensors.torch import load as load_tensors

        return dict(load_tensors(content)), facts
    try:
        with safe_open(path, framework=framework) as file:
            metadata = {name: value for name, value in file.metadata().items() if name != SEAL}
            names = [] if only_metadata else file.keys()
            return {name: file.get_tensor(name) for name in names}, metadata
    except (OSError, SafetensorError) as error:
        raise DamagedFile(path, str(error)) from None
