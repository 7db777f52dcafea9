"""Measure column importance as a phase of a job: choose the rows and columns, and send the results that may leave.

Shapes: V validation rows.
"""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tallystick import metrics, results
from tallystick.cut.forward import KeptCuts, Sending, send_embeddings
from tallystick.dataset.dataset import Dataset
from tallystick.evaluation.importance import (
    Fall,
    Shuffling,
    column_places,
    complete_logits,
    own_falls,
    receive_falls,
    receive_rows,
    sampled_rows,
    send_shuffled,
)
from tallystick.evaluation.sharing import receive_shared
from tallystick.job.job import Job
from tallystick.network.channel import Channel
from tallystick.privacy.randomness import SEED_BITS, secret_generator
from tallystick.run_folder.pass_recorder import PassRecorder
from tallystick.run_folder.trained import TrainedLabelParty


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A measurement on validation rows. ``logits_V`` are the joint model's logits at ``index_V``."""

    index_V: Tensor
    logits_V: Tensor
    falls: Mapping[str, list[Fall]]  # per party, in the order of its columns; NaN if the metric has no value
    importance: list[results.ImportanceSummary]


def send_columns(
    job: Job, bottom: nn.Module, dataset: Dataset, channel: Channel, sending: Sending, passes: PassRecorder | None
) -> None:
    """Embed validation rows once more, as a feature party, and, if the contract asks for it, with each own column shuffled.

    ``sending`` is called before rows are sent; ``passes`` records them for the audit.
    """
    setting = job.contract.evaluation.importance
    if not job.contract.measures_columns:
        return
    index_V = sampled_rows(dataset.validation_N, setting.rows, seed=job.contract.seed)
    features, rows_V = dataset.features_at(index_V), dataset.cut_numbers(index_V, 0)
    batch_size = dataset.resolved(job.contract.training).batch_size
    places = column_places(dataset.known_encoder)
    sending("validation", 1)
    everything = torch.arange(len(features), device=features.numeric_NF.device)

    def watch(place_B: Tensor, cut_BD: Tensor) -> None:
        if passes is not None:
            passes.sent_rows("validation", rows_V[place_B], cut_BD)

    send_embeddings(bottom, features.rows, torch.split(everything, batch_size), channel, watch=watch)
    if passes is not None:
        passes.pass_ended("validation")
    if setting.feature_columns != "none":
        contrast = passes.contrast(rows_V, len(places)) if passes is not None else None
        send_shuffled(
            bottom,
            features,
            places,
            channel,
            Shuffling(repeats=setting.repeats, batch_size=batch_size, progress=job.logbook.watcher.progress),
            generator=secret_generator(secrets.randbits(SEED_BITS)),
            watch=contrast,
        )
        if contrast is not None:
            contrast.save()


def measure_columns(
    job: Job, trained: TrainedLabelParty, dataset: Dataset, *, kept_cuts: Sequence[KeptCuts] | None = None
) -> Measured | None:
    """Score the joint model, as the label party, with one column after the other shuffled. Return None if the contract measures
    none.

    The validation rows' embeddings come from ``kept_cuts``, or are sent once more.
    """
    contract, setting, model = job.contract, job.contract.evaluation.importance, trained.model
    if not contract.measures_columns:
        return None
    index_V = sampled_rows(dataset.validation_N, setting.rows, seed=contract.seed)
    how: dict[str, Any] = {"batch_size": dataset.resolved(contract.training).batch_size}
    if kept_cuts is not None:
        cuts_VD = [each(0, index_V) for each in kept_cuts]
    else:
        cuts_VD = [
            receive_rows(channel, dataset.cut_rows(index_V, number), width, device=index_V.device, **how)
            for number, (channel, width) in enumerate(zip(job.feature_channels, trained.widths, strict=True))
        ]
    own = dataset.features_at(index_V)
    logits_V = complete_logits(model, own, cuts_VD)
    # the target's first metric by the true labels, with the sign that makes more better; NaN if it has no value
    name, metric = next(iter(metrics.METRICS[contract.target.type].items()))
    labels_V, weights_V = dataset.known_labels.units(index_V)
    sign = 1.0 if metric.higher_is_better else -1.0

    def scorer(logits_V: Tensor) -> float:
        try:
            logits = dataset.known_labels.coder.predictions(logits_V.cpu().numpy())
            settings = metrics.MetricSettings(levels=dataset.known_labels.coder.levels)
            return sign * metrics.metric(contract.target.type, name, labels_V, logits, settings=settings, weights_N=weights_V)
        except metrics.UndefinedMetric:
            return np.nan

    shuffling = Shuffling(repeats=setting.repeats, progress=job.progress, **how)
    falls: dict[str, tuple[list[str | None], list[Fall]]] = {}
    if setting.own_columns and dataset.encoder is not None:
        places = column_places(dataset.encoder)
        generator = torch.Generator().manual_seed(contract.seed)
        falls[job.name] = (
            [place.name for place in places],
            own_falls(model, own, places, cuts_VD, scorer, shuffling, generator=generator),
        )
    if setting.feature_columns != "none":
        for number, channel in enumerate(job.feature_channels):
            received = receive_falls(model, own, cuts_VD, number, channel, scorer, shuffling)
            falls[channel.peer] = [None] * len(received), received
    importance, before = [], scorer(logits_V)
    if np.isfinite(before):
        metric = headline_metric(job)
        importance = [
            results.ImportanceSummary(
                party=party,
                metric=metric.title,
                rows=len(index_V),
                repeats=job.contract.evaluation.importance.repeats,
                before=before if metric.higher_is_better else -before,
                columns=_columns(names, found),
            )
            for party, (names, found) in falls.items()
        ]
    return Measured(
        index_V=index_V,
        logits_V=logits_V,
        falls={party: found for party, (_, found) in falls.items()},
        importance=importance,
    )


def receive_results(
    job: Job, dataset: Dataset, channel: Channel
) -> tuple[results.Shared | None, list[results.ImportanceSummary]]:
    """Receive the exact results that the contract allows a feature party, if any, and name its own columns in them."""
    evaluation = job.contract.evaluation
    both = evaluation.importance.feature_columns == "both"
    if not evaluation.share_metrics and not both:
        return None, []
    metrics_of, falls = receive_shared(
        channel,
        evaluation.share_metrics,
        job.contract.target.type,
        rows=len(dataset.test_N),
        columns=len(column_places(dataset.known_encoder)) if both else None,
    )
    shared = results.Shared(party=channel.peer, target=job.contract.target.type, rows=len(dataset.test_N), metrics=metrics_of)
    if falls is None:
        return shared, []
    summary = results.ImportanceSummary(
        party=job.name,
        metric=headline_metric(job).title,
        rows=min(len(dataset.validation_N), evaluation.importance.rows),
        repeats=evaluation.importance.repeats,
        columns=_columns([place.name for place in column_places(dataset.known_encoder)], falls),
    )
    return shared, [summary]


def headline_metric(job: Job) -> metrics.Metric:
    """Return the metric that columns are scored by."""
    return next(iter(metrics.METRICS[job.contract.target.type].values()))


def _columns(names: list[str] | list[str | None], falls: list[Fall]) -> list[results.ColumnFall]:
    return [
        results.ColumnFall(number=number, name=name, mean=fall["mean"], deviation=fall["deviation"])
        for number, (name, fall) in enumerate(zip(names, falls, strict=True), 1)
        if np.isfinite([fall["mean"], fall["deviation"]]).all()
    ]
