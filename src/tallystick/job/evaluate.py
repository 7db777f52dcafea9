"""Evaluation as the label party does it: what did joining bring, and what of it may leave? Shapes: T own test rows."""

from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.config.contract import PrivateRelease
from tallystick.cut.forward import receive_logits
from tallystick.data.target import LabelCoder
from tallystick.evaluation.measure import compare
from tallystick.evaluation.messages import Finished
from tallystick.evaluation.private.result import NothingReleased
from tallystick.job.job import Job
from tallystick.job.release import RELEASE_NOTE, finished, release_auc
from tallystick.job.results import Findings
from tallystick.job.rows import Aligned
from tallystick.models.split import LabelModel
from tallystick.training.checkpoint import write_bytes
from tallystick.training.label_party import train_label_party


def evaluate(job: Job, model: LabelModel, rows: Aligned, widths: list[int], findings: Findings) -> None:
    """Score the test rows with the joint model, train and score the own-columns model, measure both, release what may leave.

    On a union every test row is embedded, and this party keeps the scores of those that it has.
    """
    logits = receive_logits(model, rows.source, rows.test_batches(job.contract), job.feature_channels, widths)
    findings.finished = Finished(rows=len(logits))
    if not len(logits):
        return
    if findings.progressed is not None:
        job.logbook.commit(findings.progressed.step)  # the feature parties had committed it before they embedded these
    own = rows.own_part()
    joint_T = rows.calibrated(findings.progressed).prediction_logits(logits[rows.is_own(rows.test_N)])
    baseline_T = None
    if job.contract.evaluation.own_columns_baseline and rows.encoder is not None and job.top is None:
        baseline_T = _baseline(job, own, findings)
    assert own.target_N is not None
    assert own.label_coder is not None
    target_T = own.target_N[own.test_N]
    evaluation = job.contract.evaluation
    findings.evaluation = compare(
        job.contract.target.type,
        _in_units(target_T, own.label_coder),
        _in_units(joint_T, own.label_coder),
        _in_units(baseline_T, own.label_coder) if baseline_T is not None else None,
        weights=own.weight_N[own.test_N].cpu().numpy() if own.weight_N is not None else None,
        bins=evaluation.calibration_bins,
        resamples=evaluation.bootstrap,
        generator=np.random.default_rng(job.contract.seed),
    )
    if job.contract.target.type == "binary":
        _keep_scores(job, target_T, joint_T)
    if evaluation.privacy is not None:
        findings.finished = _release(job, evaluation.privacy, target_T, joint_T, rows=len(logits))


def _release(job: Job, wanted: PrivateRelease, target_T: Tensor, logits_T: Tensor, *, rows: int) -> Finished:
    """Release the AUC, once per run: one that goes on sends the same number again, which tells nothing new and costs nothing.

    That the noise left no AUC is an outcome like any other: trying again would be another release.
    """
    if noted := job.folder.noted(RELEASE_NOTE):
        return msgspec.convert(noted, Finished)
    try:
        released = release_auc(wanted, job.party.privacy, job.name, target_T, logits_T)
    except NothingReleased as nothing:
        job.logbook.watcher.say(f"no AUC was released, though epsilon {wanted.epsilon:g} is spent: {nothing}")
        message = finished(rows, nothing)
    else:
        job.logbook.watcher.say(f"released: {released.statement()}")
        message = finished(rows, released)
    job.folder.note(RELEASE_NOTE, msgspec.to_builtins(message))  # killed before this, a resumed run is charged again
    return message


def _keep_scores(job: Job, target_T: Tensor, logits_T: Tensor) -> None:
    """Keep what a later evaluation needs; it holds labels, so nobody but its owner may read it."""
    values = {"score": torch.sigmoid(logits_T.double()).cpu().numpy(), "label": target_T.cpu().numpy().astype(np.int64)}
    content = BytesIO()
    pl.DataFrame(values).write_parquet(content)
    write_bytes(job.folder.scores, content.getvalue(), private=True)


def _baseline(job: Job, own: Aligned, findings: Findings) -> Tensor:
    """The label party's own columns alone, trained the same way: logits of its test rows."""
    job.logbook.watcher.say("training the own-columns-only model, the baseline")

    def progress(_what: str, done: int, total: int) -> None:
        job.logbook.watcher.progress("own columns only", done, total)
        for channel in job.feature_channels:  # nothing is received here for long: if one is lost, end soon
            channel.check()

    assert own.encoder is not None
    model = job.label_model(own.encoder.feature_shape, [])
    findings.own_only = train_label_party(
        model,
        own.source,
        own.objective(job.contract),
        [],
        [],
        training=job.contract.training,
        schedule=own.schedule(job.contract),
        store=job.folder.store("baseline"),
        progress=progress,
    )
    return receive_logits(model, own.source, own.test_batches(job.contract), [], [])


def _in_units(values: Tensor, coder: LabelCoder) -> np.ndarray[Any, Any]:
    """Regression is learnt standardised and measured in the label's own units."""
    array: np.ndarray[Any, Any] = values.cpu().numpy()
    return array.astype(np.float64) * coder.deviation + coder.mean if coder.type == "regression" else array
