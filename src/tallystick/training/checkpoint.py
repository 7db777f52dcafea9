"""Checkpoints: a party's own weights, optimizer state and counters, whole or not at all.

A file is written beside its place, flushed to disk and renamed, so a full disk or a kill leaves the last good one. Two
generations stay: the parties commit the same steps, so when one is killed between two commits there is a step that all
have.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from tallystick.errors import StorageError

KEPT = 2


@dataclass(kw_only=True)
class Progressed:
    """Where a training run stands: what a checkpoint holds besides tensors."""

    step: int = 0
    epoch: int = 0
    best_epoch: int | None = None
    best_loss: float | None = None
    best_fitted: dict[str, float] = field(default_factory=dict)  # what the best weights' logits need (Objective.fitted)
    epochs_since_best: int = 0
    loss_sum: float = 0.0
    stopped: bool = False
    history: list[dict[str, float]] = field(default_factory=list)


class CheckpointStore:
    """A folder of one party's checkpoints and its best weights so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def steps(self) -> list[int]:
        """Steps that can be resumed from, oldest first; 0, the start, is not listed."""
        return sorted(int(path.stem.removeprefix("step-")) for path in self._folder.glob("step-*.safetensors"))

    def save(self, progressed: Progressed, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> None:
        """Commit a step; raises StorageError and leaves the earlier ones if it cannot be written."""
        tensors = {f"model/{name}": tensor for name, tensor in module.state_dict().items()}
        tensors |= _optimizer_tensors(optimizer)
        tensors["random"] = torch.get_rng_state()
        write_tensors(self._path(progressed.step), tensors, {"progressed": json.dumps(vars(progressed))})
        for step in self.steps()[:-KEPT]:
            self._path(step).unlink()

    def load(self, step: int, module: nn.Module, optimizer: torch.optim.Optimizer | None) -> Progressed:
        """Put a committed step back into the module and the optimizer; raises StorageError if it is damaged."""
        tensors, metadata = read_tensors(self._path(step))
        module.load_state_dict({name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model/")})
        if optimizer is not None:
            _restore_optimizer(optimizer, tensors)
        torch.set_rng_state(tensors["random"])
        return Progressed(**json.loads(metadata["progressed"]))

    def drop_after(self, step: int) -> None:
        """Forget steps after the one that all parties resume from."""
        for later in self.steps():
            if later > step:
                self._path(later).unlink()

    def save_best(self, module: nn.Module) -> None:
        """Keep the module's weights as the best so far."""
        write_tensors(self._folder / "best.safetensors", dict(module.state_dict()), {})

    def load_best(self, module: nn.Module) -> None:
        """Put the best weights into the module."""
        tensors, _ = read_tensors(self._folder / "best.safetensors")
        module.load_state_dict(tensors)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], *, private: bool = False) -> None:
    """Write a safetensors file whole or not at all."""
    content = save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}, metadata)
    write_bytes(path, content, private=private)


def write_bytes(path: Path, content: bytes, *, private: bool = False) -> None:
    """Write a file whole or not at all: what was there before stays until the new one is on disk.

    A ``private`` file is readable by its owner alone.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.unlink(missing_ok=True)
        with partial.open("xb") as file:
            if private:
                partial.chmod(0o600)  # it is still empty
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise StorageError(
            f"cannot write {path}: {error.strerror}; the last good version is untouched, free some space"
        ) from None


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors and its metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise StorageError(f"cannot read {path}: {error}") from None


def _optimizer_tensors(optimizer: torch.optim.Optimizer | None) -> dict[str, Tensor]:
    if optimizer is None:
        return {}
    state: dict[int, dict[str, Any]] = optimizer.state_dict()["state"]
    return {
        f"optimizer/{index}/{name}": value
        for index, values in state.items()
        for name, value in values.items()
        if value is not None
    }


def _restore_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer/"):
            _, index, key = name.split("/")
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
