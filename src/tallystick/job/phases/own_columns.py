"""The network of own columns alone, as a label party without a partner would train it: nothing crosses.

It scores rows without a partner's row, and joining is measured against it.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from tallystick.cut.forward import SCORED_AT_A_TIME
from tallystick.dataset.dataset import Dataset
from tallystick.job.job import Job
from tallystick.models.split import LabelModel
from tallystick.network.channel import Progress
from tallystick.training.checkpoint import CheckpointStore, TrainingState
from tallystick.training.label_party import train_label_party
from tallystick.training.refit import train_and_refit
from tallystick.training.run import TrainingRun
from tallystick.training.screening import Screening


def train_own_columns(
    job: Job,
    own: Dataset,
    model: LabelModel,
    *,
    store: CheckpointStore,
    screening: Screening | None,
    progress: Progress,
    between: Callable[[], None] = lambda: None,
) -> TrainingState:
    """Train it at the contract's settings, with folds or a refit as a joint network of so many rows would be.

    Args:
        job: the run.
        own: all own rows, with the labels to train by.
        model: of own columns alone.
        store: where its checkpoints go.
        screening: how columns that say nothing are closed; None closes none.
        progress: called as steps go by.
        between: called before a refit, while the model has the weights that validated best.

    Raises what ``train_label_party`` raises without peers.
    """
    training, seed = own.resolved(job.contract.training), job.contract.seed
    schedule = replace(own.schedule(training, seed=seed), validated=SCORED_AT_A_TIME)
    anew = own.with_validation().schedule(training, seed=seed) if job.contract.own_refits else None
    run = TrainingRun(training=training, schedule=schedule, store=store, progress=progress, screening=screening)
    train = partial(train_label_party, model, own.features_at, own.objective(), [])
    return train_and_refit(model, run, anew, train, between=between)
