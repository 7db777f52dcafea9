"""Start the processes that share a party's training, if its party file asks for several."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from tallystick.dataset.dataset import Dataset
from tallystick.dataset.imputed import ImputingBottom
from tallystick.errors import ConfigError
from tallystick.job.job import Job
from tallystick.models.folds import FoldedBottom, FoldedLabelModel
from tallystick.models.split import LabelModel
from tallystick.run_folder.folder import WORKERS
from tallystick.tables.features import FeatureShape
from tallystick.training.feature_defense import DefendedBottom
from tallystick.training.plan import batches_per_message, staleness_of
from tallystick.training.run import TrainingRun
from tallystick.training.workers.plan import WorkerPlan
from tallystick.training.workers.team import Team


def label_workers(
    job: Job, model: LabelModel, dataset: Dataset, widths: Sequence[int], run: TrainingRun
) -> AbstractContextManager[object]:
    """Train the label party's model by all of the party's workers within this block."""
    own = dataset.encoder.feature_shape if dataset.encoder is not None else None
    return _shared(job, model, own, run, cut_widths=tuple(widths), rows=run.training.batch_size)


def feature_workers(job: Job, bottom: nn.Module, dataset: Dataset, run: TrainingRun) -> AbstractContextManager[object]:
    """Train a feature party's bottom model by all of its workers within this block.

    Defences of its embeddings still see the whole batch.
    """
    inner = bottom
    while isinstance(inner, DefendedBottom | ImputingBottom):
        inner = inner.bottom
    rows = dataset.most_cut_rows(run.training.batch_size, 0)  # by its own candidates, because it knows no others
    return _shared(job, inner, dataset.known_encoder.feature_shape, run, cut_widths=None, rows=rows)


def _shared(
    job: Job, module: nn.Module, own: FeatureShape | None, run: TrainingRun, *, cut_widths: tuple[int, ...] | None, rows: int
) -> AbstractContextManager[object]:
    workers, target, training = job.party.training_workers, job.contract.target, run.training
    compare_workers(job, goes_on=run.resume_from > 0)
    if workers == 1:
        return nullcontext()
    if job.bottom is not None or job.top is not None:
        raise ConfigError(
            f"training_workers = {workers}: simulate was given a module of your own, which may mix a batch's rows; leave one of "
            "the two out"
        )
    if any(isinstance(part, FoldedBottom | FoldedLabelModel) for part in module.modules()):
        job.logbook.watcher.say(
            f"note: training_workers = {workers} has no effect: networks side by side (training.folds) train in one process"
        )
        return nullcontext()
    cluster = job.party.training_cluster
    late = staleness_of(training) if cut_widths is None else 0
    plan = WorkerPlan(
        network=job.architecture.model.model_dump_json(),
        training=training.model_dump_json(),
        party=job.name,
        own=own,
        cut_widths=cut_widths,
        outputs=target.outputs,
        batch_rows=rows,
        in_flight=late + batches_per_message(training) if late else 1,
        workers=workers,
        threads=cluster.threads if cluster else job.party.threads or max(1, torch.get_num_threads() // workers),
        late=late > 0,
    )
    where = f", the further ones on the Ray cluster at {cluster.address}" if cluster else ""
    job.logbook.watcher.say(f"training in {workers} processes, which share the rows of each batch{where}")
    return Team(module, plan, cluster)


def compare_workers(job: Job, *, goes_on: bool) -> None:
    """Warn if a run is resumed with another number of workers than it began with: its bits depend on it."""
    workers, noted = job.party.training_workers, job.folder.noted(WORKERS)
    began = int(str(noted.get("training_workers", 1)))
    if goes_on and began != workers:
        job.logbook.watcher.say(
            f"note: training began with training_workers = {began} and goes on with {workers}: its last bits differ from a "
            "run with either number"
        )
    elif not goes_on and (noted or workers > 1):
        job.folder.note(WORKERS, {"training_workers": workers})
