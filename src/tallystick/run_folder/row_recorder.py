"""Record running sums per row of what crossed the cut over a whole training, in files.

Shapes: N chosen rows, B rows of one step, D cut width.

An epoch's file holds the sums up to its end. A few of the files are kept, so that an audit can show how a leak grew. Like the
recorded steps (recorder.py) they are readable by their owner alone.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from tallystick.attacks.row_sums import RowSums, chosen_rows, most_looks, steps_together
from tallystick.attacks.second_moments import HALVES
from tallystick.attacks.view import Received
from tallystick.errors import DataError, StorageError
from tallystick.network.messages import MEBIBYTE
from tallystick.run_folder.recorder import RecordingPlan
from tallystick.storage import Origin, make_folder, remove
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.training.plan import Batch
from tallystick.training.step import CutObserver

MOST_ROWS: Mapping[Received, int] = MappingProxyType({"cut_gradient": 12_288, "cut_embedding": 4_000})  # what attacks read
QUICK_ROWS: Mapping[Received, int] = MappingProxyType(
    {"cut_gradient": 4_096, "cut_embedding": 1_000}
)  # rows that a quick audit records
MOST_BYTES = 256 * MEBIBYTE  # per peer on disk; in memory a sixth of it
_KEPT = RecordingPlan(first=1, later=4, batches=0)  # which epochs' files are kept
ROWS_VERSION = 4
_FILE = re.compile(r"rows-[0-9]{6,}\.safetensors")
_TENSORS = {"rows_N": torch.int64, "sum_ND": torch.float32, "last_ND": torch.float32, "length_N": torch.float32}
_TENSORS |= {"white_ND": torch.float32, "square_N": torch.float32, "white_count_N": torch.int64, "white_DD": torch.float32}
_TENSORS |= {"energy_NH": torch.float32, "count_N": torch.int64, "looks_LND": torch.float32, "looks_at_LN": torch.int64}


@dataclass(frozen=True, kw_only=True)
class RowStore:
    """One peer's running sums on disk: a file per kept epoch, each with its contract and its run."""

    folder: Path
    contract: str  # its hash
    received: Received
    origin: Origin
    run_id: str = ""

    def save(self, epoch: int, sums: RowSums) -> None:
        """Write the sums up to an epoch's end, and only then delete an older file."""
        make_folder(self.folder)
        facts = {"version": ROWS_VERSION, "contract": self.contract, "run_id": self.run_id}
        facts |= {"received": self.received, "epochs": list(sums.epochs), "looks": list(sums.look_epochs)}
        tensors = {name: getattr(sums, name) for name in _TENSORS}
        write_tensors(self._path(epoch), tensors, {"rows": json.dumps(facts)}, origin=self.origin, private=True)
        for stale in _KEPT.stale(self.epochs()):
            remove(self._path(stale))

    def drop_from(self, epoch: int) -> None:
        """Delete this epoch and later ones, which are about to be recorded again."""
        for later in self.epochs():
            if later >= epoch:
                remove(self._path(later))

    def no_sums(self, positions_N: Tensor, *, width: int, quick: bool = False, moments: bool = True) -> RowSums:
        """Begin sums of the rows that are chosen among these positions.

        ``quick`` keeps fewer rows; without ``moments`` no second moments of gradients are kept.
        """
        most = min(most_rows(self.received, width), QUICK_ROWS[self.received] if quick else sys.maxsize)
        return RowSums.zero(self.received, chosen_rows(positions_N, most=most), width, moments=moments)

    def epochs(self) -> list[int]:
        """List the epochs that have a file, counted from 0, in order."""
        paths = (path for path in self.folder.glob("rows-*.safetensors") if _FILE.fullmatch(path.name))
        return sorted(int(path.stem.removeprefix("rows-")) for path in paths)

    def load(self, epoch: int) -> RowSums:
        """Read the sums up to an epoch's end. Raises DataError for a damaged file or one of another contract or run."""
        path = self._path(epoch)
        try:
            tensors, metadata = read_tensors(path, origin=self.origin)
            facts = json.loads(metadata["rows"])
            of, run_id, received = str(facts["contract"]), str(facts["run_id"]), facts["received"]
            epochs, looks = (tuple(int(each) for each in facts[name]) for name in ("epochs", "looks"))
        except (StorageError, KeyError, ValueError, TypeError) as error:
            raise DataError(f"{path}: is cut short or holds no sums per row ({error}); remove it, or run again") from None
        if of != self.contract or (self.run_id and run_id != self.run_id):
            raise DataError(
                f"{path}: is of contract {of[:8]}, run {run_id}, but here contract {self.contract[:8]}, run {self.run_id} is "
                "audited; give the run folder that it was recorded in"
            )
        if received != self.received or not _fit(tensors, looks):
            raise DataError(f"{path}: its tensors do not fit together, so it holds no sums per row; run the contract again")
        return RowSums(received=self.received, epochs=epochs, look_epochs=looks, looks=None, **tensors)

    def _path(self, epoch: int) -> Path:
        return self.folder / f"rows-{epoch:06}.safetensors"


def _fit(tensors: dict[str, Tensor], looks: Sequence[int]) -> bool:
    if tensors.keys() != _TENSORS.keys() or any(tensors[name].dtype != kind for name, kind in _TENSORS.items()):
        return False
    rows_N, size = tensors["rows_N"], len(tensors["rows_N"])
    return (
        size > 0
        and all(len(tensor) == size for name, tensor in tensors.items() if name not in ("looks_LND", "looks_at_LN", "white_DD"))
        and tensors["looks_at_LN"].shape == (len(looks), size)
        and tensors["looks_LND"].shape == (len(looks), size, tensors["sum_ND"].shape[-1])
        and tensors["sum_ND"].shape == tensors["last_ND"].shape
        and tensors["sum_ND"].ndim == tensors["white_ND"].ndim == 2
        and tensors["white_DD"].shape in ((0, 0), 2 * tensors["white_ND"].shape[1:])
        and tensors["energy_NH"].shape[1:] in ((0,), (len(HALVES),))
        and int(rows_N[0]) >= 0
        and bool((rows_N.diff() > 0).all())
    )


def one_each(index_B: Tensor) -> Tensor:
    """Return one row for each position, with the position's own number."""
    return index_B


def at_once(task: Callable[..., None], *arguments: Any) -> None:
    """Do a task now."""
    task(*arguments)


def most_rows(received: Received, width: int) -> int:
    """Return how many rows of a cut of this width are summed: limited by number, and by the size of their files."""
    looks = most_looks(width) if received == "cut_embedding" else 1  # or the sum of whitened gradients
    per_row = (2 + looks) * 4 * width + 40
    files = _KEPT.first + _KEPT.later + 1  # the newest is written before another is deleted
    return max(1, min(MOST_ROWS[received], MOST_BYTES // (per_row * files)))


@dataclass(kw_only=True)
class RowRecorder:
    """A recorder that adds every step to the sums of the chosen rows.

    A resumed run continues from the sums of the last epoch before. Steps between two commits that were lost are in no sum, and
    ``RowSums.epochs`` says which epochs are included. ``rows`` returns the rows that crossed for a batch's positions. ``later``
    computes the sums and writes them; nothing else may touch them until it is finished.
    """

    store: RowStore
    sums: RowSums
    rows: Callable[[Tensor], Tensor] = one_each
    later: Callable[..., None] = at_once
    _steps: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)

    @classmethod
    def of(
        cls,
        store: RowStore,
        no_sums: RowSums,
        *,
        resume_epoch: int = 0,
        rows: Callable[[Tensor], Tensor] = one_each,
        later: Callable[..., None] = at_once,
    ) -> "RowRecorder":
        """Begin with no sums, or continue from the last epoch before ``resume_epoch``, whose later files are deleted."""
        store.drop_from(resume_epoch)
        earlier = store.epochs()
        return cls(store=store, sums=store.load(earlier[-1]) if earlier else no_sums, rows=rows, later=later)

    def crossed(self, batch: Batch, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Add a step."""
        self._steps.append((self.rows(batch.index_B).cpu(), embedding_BD.cpu(), gradient_BD.cpu()))
        if len(self._steps) >= steps_together(embedding_BD.numel()):
            self._hand_over()

    def epoch_ended(self, epoch: int) -> None:
        """Write the sums up to here."""
        self._hand_over()
        self.later(self._keep, epoch)

    def _hand_over(self) -> None:
        steps, self._steps = self._steps, []
        self.later(self._add, steps)

    def _add(self, steps: Sequence[tuple[Tensor, Tensor, Tensor]]) -> None:
        for rows_B, embedding_BD, gradient_BD in steps:
            self.sums.add(rows_B, embedding_BD, gradient_BD)

    def _keep(self, epoch: int) -> None:
        self.sums.epoch_ended(epoch)
        self.store.save(epoch, self.sums)


@dataclass(frozen=True, kw_only=True)
class Observers:
    """Several observers of one cut. ``by_example`` gives one row per position from everything that crossed for the position."""

    each: Sequence[CutObserver] = field(default_factory=tuple)
    by_example: Callable[[Tensor, Tensor], Tensor] = lambda index_B, rows_BD: rows_BD  # noqa: ARG005

    def crossed(self, batch: Batch, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Notify each observer."""
        embedding_BD, gradient_BD = (self.by_example(batch.index_B, rows_BD) for rows_BD in (embedding_BD, gradient_BD))
        for observer in self.each:
            observer.crossed(batch, embedding_BD, gradient_BD)

    def epoch_ended(self, epoch: int) -> None:
        """Notify each observer."""
        for observer in self.each:
            observer.epoch_ended(epoch)
