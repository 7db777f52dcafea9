"""The audits of a run: which steps are recorded, and what the recorded views give away.

Shapes: N aligned positions, R rows that are scored.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.attacks.label_inference.first_steps import LEAST_STEPS
from tallystick.attacks.view import Received
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError
from tallystick.job.job import Job
from tallystick.job.log import Watcher
from tallystick.job.phases.column_start import first_positions
from tallystick.job.phases.feature_audit import COLUMNS, audit_features, load_columns, own_columns, save_columns
from tallystick.job.phases.label_audit import AUXILIARY_LABELS, BATCH_ROWS, audit_labels, save_labels, sums_of, unattacked
from tallystick.job.phases.label_start import KnownStart
from tallystick.job.phases.membership_audit import LATER_EPOCHS, MEMBERSHIP_EPOCHS, audit_membership
from tallystick.party.folder import RunFolder, contract_of
from tallystick.party.recorder import ROWS_PER_EPOCH, Recorder, RecordingPlan, ViewStore
from tallystick.party.row_recorder import QUICK_ROWS, Observers, RowRecorder
from tallystick.report import result as shown
from tallystick.report.page import render
from tallystick.report.result import read_result
from tallystick.structs import prepared
from tallystick.training.plan import Schedule
from tallystick.training.step import CutObserver

_NOTE = "audit"
LABEL_EPOCHS = 5  # spread over the training up to its end: labels leak more the longer it lasts


def recorders(
    job: Job, dataset: Dataset, widths: Sequence[int], *, run_id: str, resume_from: int
) -> Sequence[CutObserver | None]:
    """Make a recorder for each peer's cut of that width if the contract asks for an audit; otherwise give None for each.

    The true labels are written first: once an epoch is over it can be attacked, whether or not the run is finished.
    """
    first, later = _kept(job, dataset)
    if not first and not (_audits_labels(job) or _audits_features(job)):
        return [None] * len(widths)
    quick = job.contract.audit == "quick"
    job.folder.make_views()
    if _audits_labels(job):
        true_N = dataset.known_labels.true_N
        own_N = dataset.is_own(torch.arange(len(true_N)))
        start = KnownStart.of(job, dataset, widths)
        save_labels(job.folder, job.contract, true_N, own_N, run_id=run_id, start=start)
    training = dataset.settled(job.contract.training)
    schedule, epochs = dataset.schedule(training, seed=job.contract.seed), training.epochs
    resume_epoch = schedule.epoch_of(resume_from)
    made: list[CutObserver] = []
    for number, (width, store) in enumerate(zip(widths, _stores(job, run_id), strict=True)):
        store.drop_from(resume_epoch)
        observers: list[CutObserver] = []
        if first:
            if _audits_numbers(job):
                plan = numbers_plan(schedule, first=first, later=later, epochs=epochs, width=width, quick=quick)
            else:
                plan = recording_plan(schedule, first=first, later=later, epochs=epochs, width=width)
            observers.append(Recorder(plan=plan, store=store))
        if _audits_labels(job) and not _audits_numbers(job):
            sums = sums_of(store, "cut_gradient")
            observers.append(RowRecorder.of(sums, schedule.train_N, width=width, resume_epoch=resume_epoch, quick=quick))
        by_example = Observers(each=observers, by_example=partial(dataset.seen, peer=number))
        if _audits_features(job):  # what crossed is of a row of this party, however many examples it was for
            sums, rows = sums_of(store, "cut_embedding"), partial(dataset.cut_numbers, peer=number)
            positions = rows(schedule.train_N)
            recorder = RowRecorder.of(sums, positions, width=width, resume_epoch=resume_epoch, rows=rows, quick=quick)
            made.append(Observers(each=(by_example, recorder)))
        else:
            made.append(by_example)
    return made


def recording_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int) -> RecordingPlan:
    """Which steps are recorded: what attacks on single batches read, or what an audit of membership compares."""
    compared = first == MEMBERSHIP_EPOCHS
    rows = ROWS_PER_EPOCH if compared else -(-BATCH_ROWS // min(epochs, LABEL_EPOCHS))
    return RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)


def numbers_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int, quick: bool) -> RecordingPlan:
    """Which steps are recorded where labels are numbers: the first ones of all, for these tell the most of them."""
    rows = QUICK_ROWS["cut_gradient"] if quick else ROWS_PER_EPOCH
    plan = RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)
    return replace(plan, lead=LEAST_STEPS)


def _kept(job: Job, dataset: Dataset) -> tuple[int, int]:
    """How many of the first epochs, and how many later ones, are kept for the audits; none of either if there is none."""
    # A quick audit reads sums over the training alone; numbers are read off the first steps.
    labels = _audits_numbers(job) or (_audits_labels(job) and job.contract.audit is True)
    membership = _hidden(job, dataset) is not None
    later = max(LABEL_EPOCHS - 1 if labels else 0, LATER_EPOCHS if membership else 0)
    return (MEMBERSHIP_EPOCHS if membership else int(labels)), later


def _hidden(job: Job, dataset: Dataset) -> Tensor | None:
    """Which rows this side has, where that is a secret that the contract wants attacked."""
    return dataset.membership if job.contract.union.audit else None


def _audits_labels(job: Job) -> bool:
    return job.contract.audit is not False and job.is_label and job.contract.sends_gradients


def _audits_numbers(job: Job) -> bool:
    return _audits_labels(job) and job.contract.target.type == "regression"


def _audits_features(job: Job) -> bool:
    return job.contract.audit is not False and not job.is_label


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What the audits of a run found."""

    membership: shown.Audit | None = None
    leakage: shown.Audit | None = None
    features: shown.FeatureAudit | None = None


def audit_run(job: Job, own: OwnRows, dataset: Dataset, *, run_id: str) -> Audited:
    """Once trained, attack what was recorded: for membership if on a union, for labels or for columns, whichever this party has.

    A phase of its own, done once per run; a run that goes on after that keeps what was found.
    """
    contract, folder, watcher = job.contract, job.folder, job.logbook.watcher
    if (before := audited_before(folder)) is not None:
        return before
    if _kept(job, dataset) == (0, 0) and not (_audits_labels(job) or _audits_features(job)):
        return Audited(leakage=unattacked(contract) if job.is_label else None)
    stores, own_N = _stores(job, run_id), _hidden(job, dataset)
    if not any(store.files() or sums_of(store).epochs() for store in stores):
        watcher.say("no step was recorded, so there is nothing to audit")
        membership = _evaluate_membership(job, dataset, own_N, run_id=run_id) if own_N is not None else None
        return Audited(membership=membership)
    membership = leakage = features = None
    with job.logbook.during("audit", ()):
        if own_N is not None:
            membership = _evaluate_membership(job, dataset, own_N, run_id=run_id)
        if _audits_labels(job):
            leakage = audit_labels(
                folder, contract, watcher=watcher, auxiliary_labels=max(AUXILIARY_LABELS, contract.target.classes)
            )
        if _audits_features(job):
            (store,) = stores
            sums = sums_of(store, "cut_embedding")
            seen_R, first_B = sums.load(sums.epochs()[-1]).seen_rows, first_positions(contract, dataset)
            truth = own_columns(own, dataset, seen_R, first_B=first_B)
            save_columns(folder, contract, job.name, truth, run_id=run_id)
            store.drop_from(0)  # single steps served the audit of membership
            features = audit_features(folder, contract, watcher=watcher)
    if not (_audits_labels(job) or _audits_features(job)):
        folder.forget_views()  # only an audit of labels or columns may be asked for again
    audited = Audited(membership=membership, leakage=leakage, features=features)
    keep_audited(folder, audited)
    return audited


def audited_before(folder: RunFolder) -> Audited | None:
    """What the audits of this run found; None if it was not audited yet."""
    noted = folder.noted(_NOTE)
    return msgspec.convert(noted, prepared(Audited)) if noted else None


def keep_audited(folder: RunFolder, audited: Audited) -> None:
    """Keep what was found, for a run that goes on and for its report."""
    folder.note(_NOTE, msgspec.to_builtins(audited))


def _stores(job: Job, run_id: str) -> list[ViewStore]:
    peers = job.contract.feature_parties if job.is_label else (job.contract.label_party,)
    folder, contract = job.folder, job.contract.hash
    return [ViewStore(folder=folder.views / peer, contract=contract, origin=folder.origin, run_id=run_id) for peer in peers]


def _evaluate_membership(job: Job, dataset: Dataset, own_N: Tensor, *, run_id: str) -> shown.Audit:
    received: Received = "cut_gradient" if job.is_label else "cut_embedding"
    (store,) = _stores(job, run_id)  # where membership is a secret there are two parties
    steps = store.load(received) if store.files() else ()
    sent = None if job.is_label else dataset.sent_columns
    return audit_membership(steps, own_N, peer=store.folder.name, received=received, say=job.logbook.watcher.say, sent=sent)


# --- a run that is over, attacked again


def audit_recorded(
    path: Path, *, watcher: Watcher, auxiliary_labels: int = 40, known_rows: Sequence[int] = KNOWN, seed: int = 0
) -> Audited:
    """Attack again what a run folder recorded, and put what was found into the run's report, if it has one.

    In the label party's folder for labels, in a feature party's for its columns: each has the truth of its own side alone.
    Nothing is sent. What was there before is replaced once the attacks are over. A run that was not finished has no report yet:
    what was recorded so far is attacked, and once the run goes on and ends it audits itself.

    Args:
        path: a run folder whose contract has an audit.
        watcher: shown the progress.
        auxiliary_labels: labels that few-label attacks are told, at least one per class.
        known_rows: numbers of rows whose columns attacks on features are told.
        seed: of the told labels and rows, of attacks that draw, and of the intervals.

    Raises ConfigError if this is no run folder, or ``known_rows`` are all there are, DataError if its view is empty, damaged or
    of another contract or run.
    """
    contract = contract_of(path)
    folder = RunFolder.open(path)
    folder.require(contract)
    with folder.locked():
        if (folder.views / COLUMNS).exists():
            rows = len(load_columns(folder, contract)[0].rows_R)
            if all(known >= rows for known in known_rows):  # nothing could be measured, and would stand in the place of what was
                raise ConfigError(f"--known-rows {min(known_rows)}: {rows} rows were recorded, and some must be left to judge by")
            features = audit_features(folder, contract, watcher=watcher, known=known_rows, seed=seed)
            found = Audited(features=features)
        else:
            leakage = audit_labels(folder, contract, watcher=watcher, auxiliary_labels=auxiliary_labels, seed=seed)
            found = Audited(leakage=leakage)
        _replace(folder, found)
        return found


def _replace(folder: RunFolder, found: Audited) -> None:
    """Put what was found in the place of the audit before."""
    new: dict[str, Any] = {name: value for name in found.__struct_fields__ if (value := getattr(found, name)) is not None}
    if (before := audited_before(folder)) is not None:
        keep_audited(folder, msgspec.structs.replace(before, **new))
    if folder.result.exists():
        new |= {"features": [found.features]} if found.features is not None else {}
        result = read_result(folder.read_json(folder.result))
        result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, **new))
        folder.write(folder.result, result.to_json())
        render(result, folder.report)
