"""Screening in a job: whether its training screens this party's columns, and what is said of it, at home alone.

Shapes: C columns.
"""

from torch import Tensor, nn

from tallystick.dataset.dataset import Dataset
from tallystick.job.job import Job
from tallystick.job.phases.initial_seed import start_of
from tallystick.models.tabular import Columns
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.tables.encoder import Encoder
from tallystick.training.screening import Screening

_NAMED = 20


def screening_of(job: Job, dataset: Dataset) -> Screening | None:
    """Build the screening of this run's joint training; None if branches share its columns, and as ``own_screening``."""
    return None if dataset.has_branches else own_screening(job, dataset)


def own_screening(job: Job, dataset: Dataset) -> Screening | None:
    """Build the screening of a training; None if it goes on from an earlier run, whose open columns come with its weights."""
    encoder = dataset.encoder
    if encoder is None or not encoder.screened or StartingPoint.of(job.folder) is not None:
        return None

    def settled(open_C: Tensor) -> None:
        job.logbook.watcher.say(_said(encoder, open_C))

    return Screening(seed=start_of(job.contract, job.folder), settled=settled)


def screening_notes(encoder: Encoder | None, module: nn.Module) -> list[str]:
    """Say what the report says of screening, for each of several networks side by side; nothing if no column may be closed."""
    screened = [part.gates for part in module.modules() if isinstance(part, Columns) and part.gates is not None]
    if encoder is None:
        return []
    notes = []
    for number, open_C in enumerate(screened, 1):
        sentence = _said(encoder, open_C)
        network = f" (network {number} of {len(screened)})" if len(screened) > 1 else ""
        notes.append(f"{sentence[0].upper()}{sentence[1:]}{network}.")
    return notes


def _said(encoder: Encoder, open_C: Tensor) -> str:
    """Say how many columns stay open, and which were closed."""
    closed = [name for name, is_open in zip(encoder.names, open_C.tolist(), strict=True) if not is_open]
    if not closed:
        return f"screening: all {len(open_C)} own columns stay open (encoding.screening)"
    names = ", ".join(map(repr, closed[:_NAMED])) + (f" and {len(closed) - _NAMED} more" if len(closed) > _NAMED else "")
    return (
        f"screening: {len(open_C) - len(closed)} of {len(open_C)} own columns stay open, and the others were closed, which said "
        f"nothing (encoding.screening): {names}"
    )
