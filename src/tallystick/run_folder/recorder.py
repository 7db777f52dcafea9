"""Record what crosses the cut, which is the peer's view, in files.

Shapes: S recorded steps of an epoch, R their rows together, B rows of one step, D cut width.

A file holds one epoch and is written completely when the epoch is over, readable by its owner alone, because cut embeddings and
cut gradients reveal information about rows and labels.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from tallystick.attacks.view import Received, StepView
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.network.messages import MEBIBYTE
from tallystick.storage import Origin, make_folder, remove
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.training.plan import Batch, Schedule

ROWS_PER_EPOCH = 50_000
MAX_VIEW_BYTES = 256 * MEBIBYTE  # per peer, on disk and, for one epoch's share of it, in memory
VIEW_VERSION = 1
_EPOCH = re.compile(r"epoch-[0-9]{6,}\.safetensors")
_TENSORS = {"step_S", "rows_S", "index_R", "embedding_RD", "gradient_RD"}


@dataclass(frozen=True, kw_only=True)
class ViewStore:
    """One peer's recorded view on disk: a file per recorded epoch, each with its contract and its run."""

    folder: Path
    contract: str  # its hash
    origin: Origin
    run_id: str = ""

    def save(self, epoch: int, tensors: dict[str, Tensor]) -> None:
        """Write an epoch, completely or not at all."""
        make_folder(self.folder)
        facts = {"version": VIEW_VERSION, "contract": self.contract, "run_id": self.run_id, "epoch": epoch}
        write_tensors(self._path(epoch), tensors, {"view": json.dumps(facts)}, origin=self.origin, private=True)

    def drop(self, epoch: int) -> None:
        """Delete an epoch."""
        remove(self._path(epoch))

    def drop_from(self, epoch: int) -> None:
        """Delete this epoch and later ones, which are about to be recorded again."""
        for later in self.epochs():
            if later >= epoch:
                self.drop(later)

    def load(self, received: Received) -> tuple[StepView, ...]:
        """Read the steps back, in order. ``received`` says whose view it is.

        Raises DataError if there is none, if a file is cut short or is not a view, or if it is of another contract or run.
        """
        steps: list[StepView] = []
        for path in self.files():
            try:
                tensors, metadata = read_tensors(path, origin=self.origin)
                facts = json.loads(metadata["view"])
                epoch, contract, run_id = int(facts["epoch"]), str(facts["contract"]), str(facts["run_id"])
            except (StorageError, KeyError, ValueError, TypeError) as error:
                raise DataError(
                    f"{path}: is cut short or not a recorded view ({error}); remove it, or run the contract again"
                ) from None
            if contract != self.contract or (self.run_id and run_id != self.run_id):
                raise DataError(
                    f"{path}: is of contract {contract[:8]}, run {run_id}, but here contract {self.contract[:8]}, run "
                    f"{self.run_id} is audited; give the run folder that it was recorded in"
                )
            # Raise DataError unless the tensors fit together
            numbers = ("step_S", "rows_S", "index_R")
            fits = tensors.keys() == _TENSORS and all(tensors[name].dtype == torch.int64 for name in numbers)
            if fits:
                rows = len(tensors["index_R"])
                cuts = [tensors[name] for name in ("embedding_RD", "gradient_RD")]
                fits = (
                    len(tensors["step_S"]) == len(tensors["rows_S"])
                    and bool((tensors["rows_S"] > 0).all())
                    and int(tensors["rows_S"].sum()) == rows
                    and (rows == 0 or int(tensors["index_R"].min()) >= 0)
                    and all(cut.ndim == 2 and len(cut) == rows and cut.dtype == torch.float32 for cut in cuts)
                )
            if not fits:
                raise DataError(f"{path}: its tensors do not fit together, so it is not a recorded view; run the contract again")
            sizes = tensors["rows_S"].tolist()
            parts = (torch.split(tensors[name], sizes) for name in ("index_R", "embedding_RD", "gradient_RD"))
            for rows_B, embedding_BD, gradient_BD in zip(*parts, strict=True):
                got_BD, gave_BD = (gradient_BD, embedding_BD) if received == "cut_gradient" else (embedding_BD, gradient_BD)
                all_B = torch.ones(len(rows_B), dtype=torch.bool)
                steps.append(StepView(epoch=epoch, rows_B=rows_B, own_B=all_B, received_BD=got_BD, sent_BD=gave_BD))
        if not steps:
            raise DataError(
                f"{self.folder} holds no recorded step; run the contract until an epoch is over at least, an "
                "interrupted run with --resume"
            )
        return tuple(steps)

    def files(self) -> list[Path]:
        """List the recorded epochs, in order."""
        return sorted(path for path in self.folder.glob("epoch-*.safetensors") if _EPOCH.fullmatch(path.name))

    def epochs(self) -> list[int]:
        """List the numbers of the recorded epochs, counted from 0, in order."""
        return sorted(int(path.stem.removeprefix("epoch-")) for path in self.files())

    def _path(self, epoch: int) -> Path:
        return self.folder / f"epoch-{epoch:06}.safetensors"


@dataclass(frozen=True, kw_only=True)
class RecordingPlan:
    """A plan of which steps are recorded and which are kept: some batches, evenly spread over an epoch, and a limited number of
    epochs.
    The length of training is only known at its end. So every epoch is recorded, and when there is one too many, one is deleted:
    the ``first`` epochs and the newest stay, with others between them, spread as evenly as possible.

    Args:
        first: number of epochs from the start that are recorded and stay.
        later: number of later epochs that stay, including the newest; 0 records only the first epochs.
        batches: number of recorded batches of an epoch.
        every: distance from one recorded batch to the next.
        lead: number of batches at the start of the first epoch that are always recorded, because the model has learnt nothing
            yet.
    """

    first: int
    later: int
    batches: int
    every: int = 1
    lead: int = 0

    @classmethod
    def of(
        cls, schedule: Schedule, *, first: int, later: int, epochs: int, width: int, rows: int = ROWS_PER_EPOCH
    ) -> "RecordingPlan":
        """Plan about this many ``rows`` of an epoch, in whole batches, within the limit of bytes for at most ``epochs``.

        Raises ConfigError if not even one batch per epoch fits.
        """
        per_row = 2 * 4 * width + 8
        files = min(epochs, first + later + (1 if later else 0))  # the newest is written before another is deleted
        most = min(ROWS_PER_EPOCH, MAX_VIEW_BYTES // (per_row * max(1, files)))
        batches_needed, batches = -(-rows // schedule.batch_size), most // schedule.batch_size
        if most >= len(schedule.train_N):
            batches = schedule.steps_per_epoch
        if batches == 0:
            raise ConfigError(
                f"audit: a batch of {schedule.batch_size} rows with cut width {width} is more than the recorder keeps per epoch "
                f"({most} rows); lower training.batch_size, or set audit: false"
            )
        batches = min(batches_needed, batches)
        return cls(first=first, later=later, batches=batches, every=max(1, schedule.steps_per_epoch // batches))

    def records(self, epoch: int, batch: int) -> bool:
        """Tell whether a batch of an epoch is recorded, by its number in the epoch."""
        spread = batch % self.every == 0 and batch // self.every < self.batches
        return (self.later > 0 or epoch < self.first) and (spread or (epoch == 0 and batch < self.lead))

    def stale(self, epochs: Sequence[int]) -> list[int]:
        """Return the recorded epochs that have to be deleted."""
        remaining, dropped = sorted(epochs), []
        while len(remaining) > self.first + self.later:
            between = zip(remaining, remaining[1:], remaining[2:], strict=False)
            gaps = {epoch: after - before for before, epoch, after in between if epoch >= self.first}
            dropped.append(min(gaps, key=gaps.__getitem__))  # the epoch whose absence leaves the smallest gap
            remaining.remove(dropped[-1])
        return dropped


@dataclass(kw_only=True)
class Recorder:
    """A recorder of steps as both parties see them: cut embeddings forward, cut gradients back.

    A step counts when its gradient has crossed, so forward passes without gradients (validation) are not recorded. A run that
    resumes within an epoch records the rest of that epoch.
    """

    plan: RecordingPlan
    store: ViewStore
    _taken: list[tuple[Batch, Tensor, Tensor]] = field(default_factory=list)

    def crossed(self, batch: Batch, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Keep a planned step. It is copied, because training may reuse the memory."""
        if self.plan.records(batch.epoch, batch.number):
            self._taken.append((batch, embedding_BD.cpu().clone(), gradient_BD.cpu().clone()))

    def epoch_ended(self, epoch: int) -> None:
        """Write the records of the finished epoch, and only then delete another epoch."""
        steps, self._taken = self._taken, []
        if not steps:
            return
        batches, embeddings, gradients = zip(*steps, strict=True)
        rows = [batch.index_B.cpu() for batch in batches]
        self.store.save(
            epoch,
            {
                "step_S": torch.tensor([batch.step for batch in batches]),
                "rows_S": torch.tensor([len(index_B) for index_B in rows]),
                "index_R": torch.cat(rows),
                "embedding_RD": torch.cat(embeddings),
                "gradient_RD": torch.cat(gradients),
            },
        )
        for stale in self.plan.stale(self.store.epochs()):
            self.store.drop(stale)
