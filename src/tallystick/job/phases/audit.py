"""The audits of a run: which steps are recorded, and what the recorded views give away.

Shapes: N aligned positions, R rows that are scored.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.evaluate import KNOWN
from tallystick.attacks.label_inference.auxiliary import ClassOrder, FewLabels, NoLabels
from tallystick.attacks.label_inference.averaged import OverEpochs
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation
from tallystick.attacks.label_inference.table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.metrics import AttackEvaluator, AttackMetrics
from tallystick.attacks.row_sums import RowSums, chosen_rows, epochs_in_words
from tallystick.attacks.view import Received, StepView, View
from tallystick.config.contract import Contract
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError, DataError, StorageError
from tallystick.job.disclosure import defense_lines, start_lines
from tallystick.job.job import Job
from tallystick.job.log import Watcher
from tallystick.job.phases.column_start import first_positions
from tallystick.job.phases.feature_audit import COLUMNS, audit_features, load_columns, own_columns, save_columns
from tallystick.job.phases.label_start import KnownStart
from tallystick.job.phases.membership_audit import MEMBERSHIP_EPOCHS, audit_membership
from tallystick.party.folder import RunFolder, contract_of
from tallystick.party.recorder import ROWS_PER_EPOCH, Recorder, RecordingPlan, ViewStore
from tallystick.party.row_recorder import Observers, RowRecorder, RowStore
from tallystick.party.trained import epochs_trained
from tallystick.report import result as shown
from tallystick.report.page import render
from tallystick.report.result import read_result
from tallystick.structs import prepared
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.training.plan import Schedule
from tallystick.training.step import CutObserver

_NOTE = "audit"
_LABELS = "labels.safetensors"
AUXILIARY_LABELS = 40  # labels that few-label attacks are told, or one per class where there are more
LABEL_EPOCHS = 5  # spread over the training up to its end: labels leak more the longer it lasts
GROWTH = ("spectral-averaged", "completion-gradient", "completion")  # quick, and one vector per row
GROWTH_ROWS = 8192
NO_START = "it simulates the top model's start, which does not follow from the contract here"
NO_CLASSES = (
    "every attack on labels tells classes apart, which a number to predict does not have; what is told of it is not known"
)
NO_MODEL = "it trains the feature party's own model on the feature party's columns, and this side has neither"
BATCH_ROWS = 32_768  # about so many, in batches spread over the recorded epochs, are enough for the third decimal


def recorders(
    job: Job, dataset: Dataset, widths: Sequence[int], *, run_id: str, resume_from: int
) -> Sequence[CutObserver | None]:
    """Make a recorder for each peer's cut of that width if the contract asks for an audit; otherwise give None for each.

    The true labels are written first: once an epoch is over it can be attacked, whether or not the run is finished.
    """
    first, later = _kept(job, dataset)
    if not first and not _audits_features(job):
        return [None] * len(widths)
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
            plan = recording_plan(schedule, first=first, later=later, epochs=epochs, width=width)
            observers.append(Recorder(plan=plan, store=store))
        if _audits_labels(job):
            sums = _sums_of(store, "cut_gradient")
            observers.append(RowRecorder.of(sums, schedule.train_N, width=width, resume_epoch=resume_epoch))
        by_example = Observers(each=observers, by_example=partial(dataset.seen, peer=number))
        if _audits_features(job):  # what crossed is of a row of this party, however many examples it was for
            sums, rows = _sums_of(store, "cut_embedding"), partial(dataset.cut_numbers, peer=number)
            recorder = RowRecorder.of(sums, rows(schedule.train_N), width=width, resume_epoch=resume_epoch, rows=rows)
            made.append(Observers(each=(by_example, recorder)))
        else:
            made.append(by_example)
    return made


def recording_plan(schedule: Schedule, *, first: int, later: int, epochs: int, width: int) -> RecordingPlan:
    """Which steps are recorded: what attacks on single batches read, or what an audit of membership compares."""
    rows = ROWS_PER_EPOCH if first == MEMBERSHIP_EPOCHS else -(-BATCH_ROWS // min(epochs, LABEL_EPOCHS))
    return RecordingPlan.of(schedule, first=first, later=later, epochs=epochs, width=width, rows=rows)


def _sums_of(store: ViewStore, received: Received = "cut_gradient") -> RowStore:
    """The running sums beside a peer's recorded steps."""
    return RowStore(folder=store.folder, contract=store.contract, origin=store.origin, run_id=store.run_id, received=received)


def _kept(job: Job, dataset: Dataset) -> tuple[int, int]:
    """How many of the first epochs, and how many later ones, are kept for the audits; none of either if there is none."""
    labels = _audits_labels(job)
    membership = _hidden(job, dataset) is not None
    return (MEMBERSHIP_EPOCHS if membership else int(labels)), (LABEL_EPOCHS - 1 if labels else 0)


def _hidden(job: Job, dataset: Dataset) -> Tensor | None:
    """Which rows this side has, where that is a secret that the contract wants attacked."""
    return dataset.membership if job.contract.union.audit else None


def _audits_labels(job: Job) -> bool:
    return job.contract.audit and job.is_label and job.contract.target.type != "regression"


def _audits_features(job: Job) -> bool:
    return job.contract.audit and not job.is_label


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
    leakage = _of_numbers(contract) if contract.audit and job.is_label else None
    if _kept(job, dataset) == (0, 0) and not _audits_features(job):
        return Audited(leakage=leakage)
    stores, own_N = _stores(job, run_id), _hidden(job, dataset)
    if not any(store.files() or _sums_of(store).epochs() for store in stores):
        watcher.say("no step was recorded, so there is nothing to audit")
        membership = _evaluate_membership(job, own_N, run_id=run_id) if own_N is not None else None
        return Audited(leakage=leakage, membership=membership)
    membership = features = None
    with job.logbook.during("audit", ()):
        if own_N is not None:
            membership = _evaluate_membership(job, own_N, run_id=run_id)
        if _audits_labels(job):
            leakage = audit_labels(
                folder, contract, watcher=watcher, auxiliary_labels=max(AUXILIARY_LABELS, contract.target.classes)
            )
        if _audits_features(job):
            (store,) = stores
            sums = _sums_of(store, "cut_embedding")
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


def _evaluate_membership(job: Job, own_N: Tensor, *, run_id: str) -> shown.Audit:
    received: Received = "cut_gradient" if job.is_label else "cut_embedding"
    (store,) = _stores(job, run_id)  # where membership is a secret there are two parties
    steps = [step for step in (store.load(received) if store.files() else ()) if step.epoch < MEMBERSHIP_EPOCHS]
    return audit_membership(steps, own_N, peer=store.folder.name, received=received, say=job.logbook.watcher.say)


@dataclass(frozen=True, kw_only=True)
class KeptLabels:
    """What an audit has beside the views: the true labels, which of them are real, the run, the known start if there is one."""

    label_N: Tensor
    own_N: Tensor
    run_id: str
    start: KnownStart | None = None


def save_labels(
    folder: RunFolder, contract: Contract, true_N: Tensor, own_N: Tensor, *, run_id: str, start: KnownStart | None = None
) -> None:
    """Keep the true labels beside the views, readable by this user alone, so that attacks can be measured again later."""
    facts = {"contract": contract.hash, "run_id": run_id, "start": start.facts() if start is not None else None}
    tensors = {"label_N": true_N.to(torch.int64), "own_N": own_N}
    write_tensors(folder.views / _LABELS, tensors, {"labels": json.dumps(facts)}, origin=folder.origin, private=True)


def load_labels(folder: RunFolder, contract: Contract) -> KeptLabels:
    """Read the true labels back; raises DataError if that fails."""
    path = folder.views / _LABELS
    if not path.exists():
        raise DataError(
            f"{folder.path} holds no recorded labels: only the label party's folder of a run with `audit: true` in its contract "
            "can be audited, once its training has begun (go on with an interrupted run with --resume); to try a contract before "
            "any run, give the contract and --party"
        )
    try:
        tensors, metadata = read_tensors(path, origin=folder.origin)
        facts = json.loads(metadata["labels"])
        of, start = str(facts["contract"]), KnownStart.read(facts.get("start"))
        kept = KeptLabels(label_N=tensors["label_N"], own_N=tensors["own_N"], run_id=str(facts["run_id"]), start=start)
    except (StorageError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is cut short or holds no labels ({error}); run the contract again") from None
    if of != contract.hash:
        raise DataError(
            f"{path}: is of contract {of[:8]}, but here {contract.hash[:8]} is audited; give the folder of its own run"
        )
    return kept


def audit_labels(
    folder: RunFolder, contract: Contract, *, watcher: Watcher, auxiliary_labels: int = AUXILIARY_LABELS, seed: int = 0
) -> shown.Audit:
    """Attack every feature party's recorded view of a run for labels and measure by the true ones.

    Threat model: an honest-but-curious feature party that pools nothing with others. No guarantee: no attack here found more,
    another may. Where the label is a number nothing is measured, and the audit says so. Raises DataError if the folder holds no
    view, a damaged one, or one of another contract or run.
    """
    if (unmeasured_numbers := _of_numbers(contract)) is not None:
        return unmeasured_numbers
    kept = load_labels(folder, contract)
    label_N, own_N = kept.label_N, kept.own_N
    classes = contract.target.classes
    attacks = [
        (name, replace(row, knows=FewLabels(count=auxiliary_labels)) if isinstance(row.knows, FewLabels) else row)
        for name, row in LABEL_INFERENCE_ATTACKS.items()
        if row.allows(classes)
    ]
    found: list[shown.AttackResult] = []
    growth: list[shown.LeakGrowth] = []
    unmeasured: list[str] = []
    seen: list[tuple[View, RowSums | None]] = []
    watcher.say("attacking what this side sent, for labels, as a feature party could")
    for number, peer in enumerate(contract.feature_parties):
        store = ViewStore(folder=folder.views / peer, contract=contract.hash, origin=folder.origin, run_id=kept.run_id)
        start = kept.start.seen_by(number, contract) if kept.start is not None else None
        steps = _real_rows(store.load("cut_gradient"), own_N)
        view = some_steps(View(received="cut_gradient", steps=steps, classes=classes, start=start))
        sums = whole = None
        growing = []
        for epoch, up_to_it, whole in _sums_by_epoch(_sums_of(store), own_N, classes):  # in memory one after the other
            growing.append((epoch, _some_rows(whole)))
            sums = up_to_it
        seen.append((view, sums))
        evaluation = LabelInferenceEvaluation(view, label_N, whole=whole, seed=seed)
        for done, (name, row) in enumerate(attacks):
            measured = _measured(row, evaluation, view, label_N[own_N])
            if isinstance(measured, str):
                unmeasured.append(f"{name}, in {peer}'s seat: {measured}")
            else:
                found.append(attack_result(name, row, peer, measured))
            watcher.progress("attacks", number * len(attacks) + done + 1, len(contract.feature_parties) * len(attacks))
        growth += _growth(growing, label_N, dict(attacks), peer, seed=seed)
    summary = _summary(contract, seen, trained=epochs_trained(folder))
    defense = "; ".join([*defense_lines(contract, of="labels"), *start_lines(contract)])
    return shown.Audit(summary=summary, defense=defense, attacks=found, growth=growth, not_measured=unmeasured)


def _of_numbers(contract: Contract) -> shown.Audit | None:
    """What an audit of labels says where they are numbers; None where they are classes."""
    if contract.target.type != "regression":
        return None
    summary = f"What {' or '.join(contract.feature_parties)} could tell of the labels was not measured."
    return shown.Audit(summary=summary, defense="; ".join(defense_lines(contract, of="labels")), not_measured=[NO_CLASSES])


def _measured(
    row: LabelInferenceAttack, evaluation: LabelInferenceEvaluation, view: View, label_R: Tensor
) -> AttackMetrics | str:
    """What one attack found, or why it could not be measured."""
    if row.from_start and view.start is None:
        return NO_START
    if row.with_model:
        return NO_MODEL
    try:
        found = evaluation(row)
    except DataError as error:  # NaN of a training that diverged
        return str(error)
    return found if found is not None else _why_not(row, label_R, view)


def _sums_by_epoch(store: RowStore, own_N: Tensor, classes: int) -> Iterator[tuple[int, RowSums, View]]:
    """What an attacker had by the end of each kept epoch, of rows that this side has, before the last of some, for growth."""
    for epoch in (epochs := store.epochs()):
        sums = store.load(epoch) if epoch == epochs[-1] else store.load(epoch).some(GROWTH_ROWS)
        view = sums.view(classes=classes)
        if steps := _real_rows(view.steps, own_N):
            yield epoch, sums, replace(view, steps=steps)


def some_steps(view: View) -> View:
    """Evenly spread steps of a view, for attacks that look at one batch at a time."""
    rows = sum(len(step.rows_B) for step in view.steps)
    every = max(1, round(rows / BATCH_ROWS))
    return view if every == 1 else replace(view, steps=view.steps[::every])


def _some_rows(whole: View) -> View:
    """Some rows of a view of sums, for attacks that are made once per epoch."""
    (step,) = whole.steps
    kept_B = torch.zeros(len(step.rows_B), dtype=torch.bool)
    kept_B[chosen_rows(torch.arange(len(step.rows_B)), most=GROWTH_ROWS)] = True
    return replace(whole, steps=(step.only(kept_B),))


def _growth(
    by_epoch: Sequence[tuple[int, View]],
    label_N: Tensor,
    attacks: Mapping[str, LabelInferenceAttack],
    peer: str,
    *,
    seed: int,
) -> list[shown.LeakGrowth]:
    """Some quick attacks on the sums as they were by the end of each kept epoch."""
    quick = {name: attacks[name] for name in GROWTH if name in attacks}
    evaluator = AttackEvaluator(replicates=1)
    found: dict[str, list[tuple[int, float]]] = {}
    for epoch, some in by_epoch if len(by_epoch) > 1 else ():
        evaluation = LabelInferenceEvaluation(some, label_N, evaluator=evaluator, seed=seed)
        for name, row in quick.items():
            try:
                metrics = evaluation(row)
            except DataError:  # which is said among what was not measured
                continue
            if metrics is not None:
                found.setdefault(name, []).append((epoch + 1, metrics.symmetric_auc.mean))
    return [
        shown.LeakGrowth(
            name=name,
            view=_view_in_words(quick[name], peer),
            epochs=[at for at, _ in points],
            symmetric_auc=[auc for _, auc in points],
        )
        for name, points in found.items()
        if len(points) == len(by_epoch)
    ]


def _why_not(row: LabelInferenceAttack, label_R: Tensor, view: View) -> str:
    """Why an attack gave nothing to measure: never because nothing leaks."""
    if not len(label_R) or bool((label_R == label_R[0]).all()):
        return "the training rows have one class only"
    if len(view.epochs) < 2 and isinstance(row.attack, OverEpochs):
        return "it compares epochs, and one epoch was recorded only"
    if not isinstance(row.knows, NoLabels | ClassOrder):
        return "there are too few rows of a class to tell the attacker some labels and to judge it by the others"
    return "no group of the rows that it scores holds two classes"


def _real_rows(steps: tuple[StepView, ...], own_N: Tensor) -> tuple[StepView, ...]:
    """Only rows that this side has: elsewhere there is no true label to lose."""
    kept = []
    for step in steps:
        if int(step.rows_B.max()) >= len(own_N):
            raise DataError(f"the recorded view names row {int(step.rows_B.max())}, but there are labels for {len(own_N)} rows")
        own_B = own_N[step.rows_B]
        if own_B.any():
            kept.append(step if own_B.all() else step.only(own_B))
    return tuple(kept)


def _summary(contract: Contract, seen: Sequence[tuple[View, RowSums | None]], *, trained: int | None) -> str:
    peers = " or ".join(contract.feature_parties)
    rows = max(sum(len(step.rows_B) for step in view.steps) for view, _ in seen)
    epochs = sorted({epoch for view, _ in seen for epoch in view.epochs})
    *before, last = (str(epoch + 1) for epoch in epochs)
    when = f"epochs {', '.join(before)} and {last}" if before else f"epoch {last}"
    of = f"of {trained}" if trained is not None else "of a run that was not finished"
    only = "; only rows that this side has are scored" if contract.linkage.imputes else ""
    sums = max((each for _, each in seen if each is not None), key=lambda each: len(each.rows_N), default=None)
    whole = ""
    if sums is not None:
        of_rows = f"{len(sums.rows_N):,} rows, evenly chosen, over epoch{'s' if len(sums.epochs) > 1 else ''}"
        whole = f"Attacks on one vector per row read {of_rows} {epochs_in_words(sums.epochs)}. "
    steps = f"Attacks on single batches read {rows:,} training rows of {when} {of}{only}."
    floor = "Every figure is a floor: another attack may find more."
    return " ".join([f"What could {peers} tell of the labels? {whole}{steps}", *_beside_unaligned_rows(contract), floor])


def _beside_unaligned_rows(contract: Contract) -> list[str]:
    """What the figures say of rows without a partner's row: in a sentence, where a method used them."""
    if not contract.unaligned.used:
        return []
    return [
        "Rows without a partner's row trained too, and nothing of them crosses: only aligned rows are attacked. What "
        "the others add or take away is the difference to a run with unaligned.method = none (tallystick compare)."
    ]


def _view_in_words(row: LabelInferenceAttack, peer: str) -> str:
    reads = "cut gradients" if row.reads == "cut_gradient" else "cut embeddings"
    both = " and cut embeddings" if row.tells_of_both else ""
    return f"{peer}, from {reads}{both}, knowing {row.knows.describe()}"


def attack_result(name: str, row: LabelInferenceAttack, peer: str, metrics: AttackMetrics) -> shown.AttackResult:
    """What one attack in a peer's seat found, as reports show it."""
    return shown.AttackResult(
        name=name,
        view=_view_in_words(row, peer),
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
        note="needs labels that no attacker has: that much, at least, is there to be found" if row.upper_bound else "",
    )


# --- a run that is over, attacked again


def audit_recorded(
    path: Path, *, watcher: Watcher, auxiliary_labels: int = 40, known_rows: Sequence[int] = KNOWN, seed: int = 0
) -> Audited:
    """Attack again what a run folder recorded, and put what was found into the run's report, if it has one.

    In the label party's folder for labels, in a feature party's for its columns: each has the truth of its own side alone.
    Nothing is sent. What was there before is replaced once the attacks are over. A run that was not finished has no report yet:
    what was recorded so far is attacked, and once the run goes on and ends it audits itself.

    Args:
        path: a run folder whose contract says ``audit: true``.
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
