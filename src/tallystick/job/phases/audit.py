"""The audits of a run: which steps are recorded, and what the recorded views give away.

Shapes: N aligned positions, R rows that are scored.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
import torch
from torch import Tensor

from tallystick.attacks.label_inference.auxiliary import FewLabels
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.label_inference.table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.membership.evaluate import evaluate_membership
from tallystick.attacks.metrics import AttackMetrics
from tallystick.attacks.view import Received, StepView, View
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.errors import DataError, StorageError
from tallystick.job.disclosure import defense_lines
from tallystick.job.job import Job
from tallystick.job.log import Watcher
from tallystick.party.folder import RunFolder, contract_of
from tallystick.party.recorder import Recorder, RecordingPlan, ViewStore
from tallystick.party.trained import epochs_trained
from tallystick.report import result as shown
from tallystick.report.page import render
from tallystick.report.result import Audit, read_result
from tallystick.storage import write_json
from tallystick.training.checkpoint import read_tensors, write_tensors

MEMBERSHIP_EPOCHS = 2  # the first ones: what differs between two sightings of a row is what tells
_NOTE = "audit"
_LABELS = "labels.safetensors"
AUXILIARY_LABELS = 40  # labels that few-label attacks are told, or one per class where there are more
LABEL_EPOCHS = 5  # spread over the training up to its end: labels leak more the longer it lasts


def recorders(job: Job, dataset: Dataset, widths: Sequence[int], *, run_id: str, resume_from: int) -> Sequence[Recorder | None]:
    """Make a recorder for each peer's cut of that width if the contract asks for an audit; otherwise give None for each.

    The true labels are written first: once an epoch is over it can be attacked, whether or not the run is finished.
    """
    first, later = _kept(job, dataset)
    if not first:
        return [None] * len(widths)
    job.folder.make_views()
    if _audits_labels(job):
        true_N = dataset.known_labels.true_N
        own_N = dataset.is_own(torch.arange(len(true_N)))
        save_labels(job.folder, job.contract, true_N, own_N, run_id=run_id)
    schedule, epochs = dataset.schedule(job.contract.training, seed=job.contract.seed), job.contract.training.epochs
    made = []
    for width, store in zip(widths, _stores(job, run_id), strict=True):
        store.drop_from(schedule.epoch_of(resume_from))
        plan = RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width)
        made.append(Recorder(plan=plan, store=store))
    return made


def _kept(job: Job, dataset: Dataset) -> tuple[int, int]:
    """How many of the first epochs, and how many later ones, are kept for the audits; none of either if there is none."""
    labels = _audits_labels(job)
    membership = _hidden(job, dataset) is not None
    return (MEMBERSHIP_EPOCHS if membership else int(labels)), (LABEL_EPOCHS - 1 if labels else 0)


def _hidden(job: Job, dataset: Dataset) -> Tensor | None:
    """Which rows this side has, where that is a secret that the contract wants attacked."""
    return dataset.membership if job.contract.union.audit else None


def _audits_labels(job: Job) -> bool:
    return job.contract.audit and job.is_label


class Audited(msgspec.Struct, frozen=True, kw_only=True):
    """What the audits of a run found."""

    membership: shown.Audit | None = None
    leakage: shown.Audit | None = None


def audit_run(job: Job, dataset: Dataset, *, run_id: str) -> Audited:
    """Once trained, attack what was recorded: for membership if on a union, for labels if this party has them.

    A phase of its own, done once per run; a run that goes on after that keeps what was found.
    """
    contract, folder, watcher = job.contract, job.folder, job.logbook.watcher
    if (before := audited_before(folder)) is not None:
        return before
    if _kept(job, dataset) == (0, 0):
        return Audited()
    if not any(store.files() for store in _stores(job, run_id)):
        watcher.say("no step was recorded, so there is nothing to audit")
        return Audited()
    membership = leakage = None
    with job.logbook.during("audit", ()):
        if (own_N := _hidden(job, dataset)) is not None:
            membership = _evaluate_membership(job, own_N, run_id=run_id)
        if _audits_labels(job):
            leakage = audit_labels(
                folder, contract, watcher=watcher, auxiliary_labels=max(AUXILIARY_LABELS, contract.target.classes)
            )
    if leakage is None:
        folder.forget_views()  # only an audit of labels may be asked for again
    audited = Audited(membership=membership, leakage=leakage)
    keep_audited(folder, audited)
    return audited


def audited_before(folder: RunFolder) -> Audited | None:
    """What the audits of this run found; None if it was not audited yet."""
    noted = folder.noted(_NOTE)
    return msgspec.convert(noted, Audited) if noted else None


def keep_audited(folder: RunFolder, audited: Audited) -> None:
    """Keep what was found, for a run that goes on and for its report."""
    folder.note(_NOTE, msgspec.to_builtins(audited))


def _stores(job: Job, run_id: str) -> list[ViewStore]:
    peers = job.contract.feature_parties if job.is_label else (job.contract.label_party,)
    return [ViewStore(folder=job.folder.views / peer, contract=job.contract.hash, run_id=run_id) for peer in peers]


def _evaluate_membership(job: Job, own_N: Tensor, *, run_id: str) -> shown.Audit | None:
    received: Received = "cut_gradient" if job.is_label else "cut_embedding"
    (store,) = _stores(job, run_id)  # where membership is a secret there are two parties
    steps = [step for step in store.load(received) if step.epoch < MEMBERSHIP_EPOCHS]
    if not steps:
        return None
    return audit_membership(steps, own_N, peer=store.folder.name, received=received, say=job.logbook.watcher.say)


def audit_membership(
    steps: Sequence[StepView], own_N: Tensor, *, peer: str, received: Received, say: Callable[[str], None]
) -> shown.Audit:
    """Attack what this party sent, as its peer could, and measure by the truth that only this party has."""
    say("attacking what this side sent, as the peer could")
    found = evaluate_membership(received, steps, own_N)
    what = "cut gradients" if received == "cut_gradient" else "cut embeddings"
    attacks = [
        shown.AttackResult(
            name=name,
            view=f"{peer}, from {what}",
            auc=metrics.symmetric_auc.mean,
            low=metrics.symmetric_auc.low,
            high=metrics.symmetric_auc.high,
            tpr_at_fpr_0=metrics.tpr_at_fpr.mean,
            note=f"a guess would give {metrics.chance_symmetric_auc:.3f}" if metrics.chance_symmetric_auc > 0.505 else "",
        )
        for name, metrics in found.items()
    ]
    epochs = ", ".join(str(epoch + 1) for epoch in sorted({step.epoch for step in steps}))
    rows = sum(len(step.rows_B) for step in steps)
    summary = (
        f"Could {peer} tell from {what} which rows of the union this side has? Measured on {rows:,} rows of epochs {epochs}."
    )
    return shown.Audit(summary=summary, defense="synthetic rows; no formal guarantee", attacks=attacks)


def save_labels(folder: RunFolder, contract: Contract, true_N: Tensor, own_N: Tensor, *, run_id: str) -> None:
    """Keep the true labels beside the views, readable by this user alone, so that attacks can be measured again later."""
    facts = {"contract": contract.hash, "run_id": run_id}
    tensors = {"label_N": true_N.to(torch.int64), "own_N": own_N}
    write_tensors(folder.views / _LABELS, tensors, {"labels": json.dumps(facts)}, private=True)


def load_labels(folder: RunFolder, contract: Contract) -> tuple[Tensor, Tensor, str]:
    """Read the true labels back, which of them are real, and the run that they are of; raises DataError if that fails."""
    path = folder.views / _LABELS
    if not path.exists():
        raise DataError(
            f"{folder.path} holds no recorded labels: only the label party's folder of a run with `audit: true` in its contract "
            "can be audited, once its training has begun (go on with an interrupted run with --resume); to try a contract before "
            "any run, give the contract and --party"
        )
    try:
        tensors, metadata = read_tensors(path)
        facts = json.loads(metadata["labels"])
        label_N, own_N, of, run_id = tensors["label_N"], tensors["own_N"], str(facts["contract"]), str(facts["run_id"])
    except (StorageError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is cut short or holds no labels ({error}); run the contract again") from None
    if of != contract.hash:
        raise DataError(
            f"{path}: is of contract {of[:8]}, but here {contract.hash[:8]} is audited; give the folder of its own run"
        )
    return label_N, own_N, run_id


def audit_labels(
    folder: RunFolder, contract: Contract, *, watcher: Watcher, auxiliary_labels: int = AUXILIARY_LABELS, seed: int = 0
) -> shown.Audit:
    """Attack every feature party's recorded view of a run for labels and measure by the true ones.

    Threat model: an honest-but-curious feature party that pools nothing with others. No guarantee: no attack here found more,
    another may. Raises DataError if the folder holds no view, a damaged one, or one of another contract or run.
    """
    label_N, own_N, run_id = load_labels(folder, contract)
    attacks = [
        (name, replace(row, knows=FewLabels(count=auxiliary_labels)) if isinstance(row.knows, FewLabels) else row)
        for name, row in LABEL_INFERENCE_ATTACKS.items()
        if row.multiclass or contract.target.type == "binary"
    ]
    found: list[shown.AttackResult] = []
    epochs: set[int] = set()
    rows = 0
    watcher.say("attacking what this side sent, for labels, as a feature party could")
    for number, peer in enumerate(contract.feature_parties):
        store = ViewStore(folder=folder.views / peer, contract=contract.hash, run_id=run_id)
        view = View(received="cut_gradient", steps=_real_rows(store.load("cut_gradient"), own_N), classes=contract.target.classes)
        rows = max(rows, sum(len(step.rows_B) for step in view.steps))
        epochs |= set(view.epochs)
        for done, (name, row) in enumerate(attacks):
            measured = evaluate_label_inference(
                view, label_N, classes=contract.target.classes, auxiliary_labels=auxiliary_labels, attacks={name: row}, seed=seed
            )
            found += [_shown(name, row, peer, metrics) for metrics in measured.values()]
            watcher.progress("attacks", number * len(attacks) + done + 1, len(contract.feature_parties) * len(attacks))
    summary = _summary(contract, rows, sorted(epochs), trained=epochs_trained(folder))
    return shown.Audit(summary=summary, defense="; ".join(defense_lines(contract)), attacks=found)


def _real_rows(steps: tuple[StepView, ...], own_N: Tensor) -> tuple[StepView, ...]:
    """Only rows that this side has: elsewhere there is no true label to lose."""
    kept = []
    for step in steps:
        if int(step.rows_B.max()) >= len(own_N):
            raise DataError(f"the recorded view names row {int(step.rows_B.max())}, but there are labels for {len(own_N)} rows")
        own_B = own_N[step.rows_B]
        if own_B.all():
            kept.append(step)
        elif own_B.any():
            assert step.sent_BD is not None
            kept.append(
                replace(
                    step,
                    rows_B=step.rows_B[own_B],
                    own_B=step.own_B[own_B],
                    received_BD=step.received_BD[own_B],
                    sent_BD=step.sent_BD[own_B],
                )
            )
    return tuple(kept)


def _summary(contract: Contract, rows: int, epochs: list[int], *, trained: int | None) -> str:
    peers = " or ".join(contract.feature_parties)
    *before, last = (str(epoch + 1) for epoch in epochs)
    when = f"epochs {', '.join(before)} and {last}" if before else f"epoch {last}"
    of = f"of {trained}" if trained is not None else "of a run that was not finished"
    only = "; only rows that this side has are scored" if contract.linkage.imputes else ""
    return f"What could {peers} tell of the labels? Measured on {rows:,} training rows of {when} {of}{only}."


def _shown(name: str, row: LabelInferenceAttack, peer: str, metrics: AttackMetrics) -> shown.AttackResult:
    reads = "cut gradients" if row.reads == "cut_gradient" else "cut embeddings"
    return shown.AttackResult(
        name=name,
        view=f"{peer}, from {reads}, knowing {row.knows.describe()}",
        auc=metrics.auc.mean,
        low=metrics.auc.low,
        high=metrics.auc.high,
        symmetric_auc=metrics.symmetric_auc.mean,
        symmetric_low=metrics.symmetric_auc.low,
        symmetric_high=metrics.symmetric_auc.high,
        symmetric_chance=metrics.chance_symmetric_auc,
        balanced_accuracy=metrics.balanced_accuracy.mean,
        tpr_at_fpr_001=metrics.tpr_at_fpr.mean,
        chance=metrics.chance_auc,
        upper_bound=row.upper_bound,
        note="needs labels that no attacker has: what there is to be found" if row.upper_bound else "",
    )


# --- a run that is over, attacked again


def audit_recorded(path: Path, *, watcher: Watcher, auxiliary_labels: int = 40, seed: int = 0) -> Audit:
    """Attack the views in the label party's run folder, and put what was found into the run's report, if it has one.

    The label party's side only: it alone has labels to judge by. Nothing is sent. What was there before is replaced once the
    attacks are over. A run that was not finished has no report yet: what was recorded so far is attacked, and once the run goes
    on and ends it audits itself.

    Args:
        path: a run folder whose contract says ``audit: true``.
        watcher: shown the progress.
        auxiliary_labels: labels that few-label attacks are told, at least one per class.
        seed: of the told labels, of attacks that draw, and of the intervals.

    Raises ConfigError if this is no run folder, DataError if its view is empty, damaged or of another contract or run.
    """
    folder = RunFolder(path=path)
    contract = contract_of(path)
    with folder.locked():
        return _audit(folder, contract, watcher=watcher, auxiliary_labels=auxiliary_labels, seed=seed)


def _audit(folder: RunFolder, contract: Contract, *, watcher: Watcher, auxiliary_labels: int, seed: int) -> Audit:
    found = audit_labels(folder, contract, watcher=watcher, auxiliary_labels=auxiliary_labels, seed=seed)
    if (before := audited_before(folder)) is not None:
        keep_audited(folder, msgspec.structs.replace(before, leakage=found))
    if folder.result.exists():
        result = read_result(folder.read_json(folder.result))
        result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, leakage=found))
        write_json(folder.result, result.to_json().encode())
        render(result, folder.report)
    return found
