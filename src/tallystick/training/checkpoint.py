"""Write and read checkpoints: a party's own weights, optimizer state and counters, completely or not at all.

Two generations are kept. The parties commit the same steps, so if one is killed between two commits, or a disk damages the newest
file, there is a step that all have. Every file is sealed (``tallystick.storage``), and only steps with intact files in their own
place are offered to the others.
"""

import json
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import safetensors.numpy
import safetensors.torch
import torch
from torch import Tensor, nn

from tallystick.array_files import read_safetensors
from tallystick.errors import DamagedFile, DataError
from tallystick.models.folds import network_of_weight, networks_in
from tallystick.storage import SEAL, Origin, check_sealed, make_folder, remove, write_sealed

_KEPT = 2
_STEP = re.compile(r"step-(0|[1-9][0-9]*)\.safetensors")
_BEST = re.compile(r"best-(0|[1-9][0-9]*)\.safetensors")


@dataclass(kw_only=True)
class TrainingState:
    """State of a training run: the part of a checkpoint that is not tensors."""

    step: int = 0
    epoch: int = 0
    best_epoch: int | None = None
    best_step: int | None = None  # after which weights were kept last; for a single network it is in the best epoch
    best_loss: float | None = None
    network_losses: list[float] = field(
        default_factory=list
    )  # for each network side by side, the loss of its kept weights on its own fold
    best_fitted: dict[str, float] = field(default_factory=dict)  # values that the best weights' logits need (Objective.fitted)
    epochs_since_best: int = 0
    loss_sum: float = 0.0
    epoch_loss: float | None = None  # the lowest validation loss of the current epoch so far
    stopped: bool = False
    history: list[dict[str, float]] = field(default_factory=list)
    first_epochs: int = 0  # epochs of the training with validation, before a refit
    refit_epochs: int = 0  # number of epochs of the refit, of which the last may be partial; 0 without a refit
    refit_steps: int = 0

    def refitting(self, *, steps: int, more_steps: int) -> "TrainingState":
        """Return the state at the start of the refit after this training: with as many passes over the rows as the best epoch
        had.

        Args:
            steps: of an epoch of this training.
            more_steps: of an epoch of the refit, which has more rows.
        """
        assert self.best_epoch is not None, "the first epoch is the best so far"
        assert self.best_step is not None, "it has a step"
        begins = deepcopy(self)
        begins.first_epochs, begins.refit_epochs = self.epoch, self.best_epoch + 1
        begins.refit_steps = max(1, round(self.best_step * more_steps / steps))
        begins.stopped, begins.epochs_since_best = False, 0
        return begins


class CheckpointPart(Protocol):
    """Content of a checkpoint in addition to a module's weights, such as the optimizer's state. It names its own tensors."""

    def tensors(self) -> Mapping[str, Tensor]:
        """Return its tensors for a checkpoint."""
        ...

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state that ``tensors`` returned. Other names are ignored."""
        ...


class CheckpointStore:
    """A folder of one party's checkpoints and its best weights so far, which are named by their step.

    ``origin`` is that of the run's folder. Without it files are bound only to their names.
    """

    def __init__(self, folder: Path, *, origin: Origin | None = None) -> None:
        self._folder = folder
        self._origin = origin or Origin(folder=folder)

    def steps(self) -> list[int]:
        """List the committed steps, oldest first, whether or not their files are intact, without 0, the start."""
        return self._numbers(_STEP)

    def intact(self) -> tuple[list[int], list[DamagedFile]]:
        """List the steps that can be resumed, oldest first, and the damage of the others' files.

        A step needs its own file and, if there are best weights so far, their file.
        """
        good = []
        damaged: dict[Path, DamagedFile] = {}
        for step in self.steps():
            try:
                best = self.state(step).best_step
                if best is None or (path := self._best(best)) not in damaged:
                    if best is not None:
                        check_sealed(path, origin=self._origin)
                    good.append(step)
            except DamagedFile as error:
                damaged[error.path] = error
        return good, list(damaged.values())

    def save(self, state: TrainingState, module: nn.Module, *beside: CheckpointPart | None) -> None:
        """Commit a step. If it cannot be written, raise StorageError and leave the earlier ones."""
        tensors = {f"model/{name}": tensor for name, tensor in module.state_dict().items()}
        for each in beside:
            tensors |= each.tensors() if each is not None else {}
        tensors["random"] = torch.get_rng_state()
        make_folder(self._folder)
        write_tensors(self._path(state.step), tensors, {"state": json.dumps(vars(state))}, origin=self._origin)
        for step in self.steps()[:-_KEPT]:
            remove(self._path(step))
        for best in self._numbers(_BEST)[:-_KEPT]:  # better weights are committed at once
            remove(self._best(best))

    def load(self, step: int, module: nn.Module, *beside: CheckpointPart | None) -> TrainingState:
        """Load a committed step into the module and the other parts.

        Raises DamagedFile, and DataError if it is of another module.
        """
        tensors, metadata = read_tensors(self._path(step), origin=self._origin)
        weights = {name[6:]: tensor for name, tensor in tensors.items() if name.startswith("model/")}
        put_weights(module, weights, source=self._path(step))
        for each in beside:
            if each is not None:
                each.restore(tensors)
        torch.set_rng_state(tensors["random"])
        return TrainingState(**json.loads(metadata["state"]))

    def drop_after(self, state: TrainingState) -> None:
        """Delete steps, and best weights, after those of the step from which all parties resume."""
        for later in self.steps():
            if later > state.step:
                remove(self._path(later))
        for best in self._numbers(_BEST):
            if state.best_step is None or best > state.best_step:
                remove(self._best(best))

    def save_best(self, module: nn.Module, *, step: int, improved: Sequence[int] = (0,), before: int | None = None) -> None:
        """Keep the module's weights, after this step, as the best so far.

        Of several networks side by side only those in ``improved`` have new weights. The others keep theirs, from the file of the
        step ``before``. Raises DamagedFile if that file is damaged.
        """
        make_folder(self._folder)
        weights = dict(module.state_dict())
        if len(improved) < networks_in(module):
            assert before is not None, "the first weights are the best so far, of every network"
            earlier, _ = read_tensors(self._best(before), origin=self._origin)
            weights |= {name: earlier[name] for name in weights if network_of_weight(name, module) not in improved}
        write_tensors(self._best(step), weights, {}, origin=self._origin)

    def load_best(self, module: nn.Module, *, step: int) -> None:
        """Load the best weights into the module."""
        load_weights(module, self._best(step), origin=self._origin)

    def state(self, step: int) -> TrainingState:
        """Return the state of a committed step. Raises DamagedFile."""
        _, metadata = read_tensors(self._path(step), origin=self._origin, only_metadata=True)
        return TrainingState(**json.loads(metadata["state"]))

    def _numbers(self, name: re.Pattern[str]) -> list[int]:
        matches = (name.fullmatch(path.name) for path in self._folder.glob("*.safetensors"))
        return sorted(int(each[1]) for each in matches if each is not None)

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step}.safetensors"

    def _best(self, step: int) -> Path:
        return self._folder / f"best-{step}.safetensors"


def write_tensors(
    path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str], *, origin: Origin, private: bool = False
) -> None:
    """Write a sealed safetensors file, completely or not at all."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    facts = {**metadata, SEAL: origin.blank_seal(path)}
    try:
        # The same bytes, and in a fifth of the time
        content = safetensors.numpy.save({name: tensor.numpy() for name, tensor in plain.items()}, facts)
    except TypeError:  # NumPy lacks this type: bfloat16
        content = safetensors.torch.save({name: tensor.clone() for name, tensor in plain.items()}, facts)
    write_sealed(path, content, origin=origin, private=private)


def read_tensors(path: Path, *, origin: Origin, only_metadata: bool = False) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Read a safetensors file: its tensors and its metadata. Raises DamagedFile unless it is as write_tensors wrote it there."""
    return read_safetensors(path, origin=origin, framework="pt", only_metadata=only_metadata)


def load_weights(module: nn.Module, path: Path, *, origin: Origin) -> None:
    """Load saved weights into a module. Raises DamagedFile, and DataError if they are another module's."""
    put_weights(module, read_tensors(path, origin=origin)[0], source=path)


def put_weights(module: nn.Module, weights: Mapping[str, Tensor], *, source: Path) -> None:
    """Load weights into a module. Raises DataError that names their source if they are another module's."""
    try:
        module.load_state_dict(weights)
    except RuntimeError as error:
        first = str(error).partition("\n")[2].partition("\n")[0].strip()
        raise DataError(
            f"{source} is of another model than the one that the contract and the columns give now ({first}); put the table, the "
            "party file and your own modules back as they were, or start a new run without --resume"
        ) from None
