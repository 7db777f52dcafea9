"""The audit of labels: what could each feature party tell of them by what crossed its cut?

Shapes: N aligned positions, R rows that are scored.

It is measured where it discloses nothing: the label party recorded what it sent and has the labels, and attacks at home.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod, tanh

import torch
from torch import Tensor

from tallystick import results
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, LabelInferenceAttack
from tallystick.attacks.label_inference.auxiliary import ClassOrder, FewKnownNumbers, FewLabels, NoLabels
from tallystick.attacks.label_inference.averaged import OverEpochs
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation
from tallystick.attacks.label_inference.numbers import NumberMetrics, evaluate_on_numbers
from tallystick.attacks.label_inference.outside import outside_attacks
from tallystick.attacks.label_inference.paired import PairedEnergy
from tallystick.attacks.matrix import UNSOLVED
from tallystick.attacks.row_sums import RowSums, epochs_in_words
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics
from tallystick.attacks.several_runs import pooled_runs
from tallystick.attacks.view import Received, StepView, View
from tallystick.audit.known_initial_weights import KnownStart
from tallystick.audit.other_run import OtherRun, runs_in_words
from tallystick.config.contract import Contract
from tallystick.defenses.label_dp import LabelDP
from tallystick.disclosure.protection import defense_lines
from tallystick.disclosure.training import start_lines
from tallystick.errors import DataError, StorageError
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.recorder import ViewStore
from tallystick.run_folder.row_recorder import RowStore
from tallystick.run_folder.trained import epochs_trained
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.watcher import Watcher

_LABELS = "labels.safetensors"
AUXILIARY_LABELS = 40  # labels that few-label attacks are told, or one per class where there are more
GROWTH = ("spectral-averaged", "completion-gradient", "completion")  # quick, and one vector per row
MOST_ROWS = 16_384  # evenly chosen, that attacks on one vector per row read
EVALUATOR = AttackEvaluator(either_end=True)  # what is found for sure, as what is told apart, may stand at the low end
NO_START = "it simulates the top model's start, which does not follow from the contract here"
QUICK = "a quick audit leaves them out, and what it keeps does not serve them; `audit: true` runs them and may find more"
NO_MODEL = "it trains the feature party's own model on the feature party's columns, and this side has neither"
BATCH_ROWS = 16_384  # about so many, in batches spread over the recorded epochs, are enough for the second decimal


@dataclass(frozen=True, kw_only=True)
class KeptLabels:
    """Labels of an audit beside the views: the true ones, which of them are real, the run, the known start if there is one."""

    label_N: Tensor
    own_N: Tensor
    run_id: str
    start: KnownStart | None = None


def save_labels(
    folder: RunFolder, contract: Contract, true_N: Tensor, own_N: Tensor, *, run_id: str, start: KnownStart | None = None
) -> None:
    """Keep the true labels beside the views, readable by this user alone, so that attacks can be measured again later."""
    facts = {"contract": contract.hash, "run_id": run_id, "start": start.facts() if start is not None else None}
    label_N = true_N if contract.target.type == "regression" else true_N.to(torch.int64)
    tensors = {"label_N": label_N, "own_N": own_N}
    write_tensors(folder.views / _LABELS, tensors, {"labels": json.dumps(facts)}, origin=folder.origin, private=True)


def load_labels(folder: RunFolder, contract: Contract) -> KeptLabels:
    """Read the true labels back; raises DataError if that fails."""
    path = folder.views / _LABELS
    if not path.exists():
        raise DataError(
            f"{folder.path} holds no recorded labels: only the label party's folder of a run whose contract has an audit "
            "can be audited, once its training has begun (go on with an interrupted run with --resume); to try a contract before "
            "any run, give the contract and --party"
        )
    try:
        tensors, metadata = read_tensors(path, origin=folder.origin)
        facts = json.loads(metadata["labels"])
        of, start = str(facts["contract"]), KnownStart.read(facts.get("start"))
        labels_file = KeptLabels(label_N=tensors["label_N"], own_N=tensors["own_N"], run_id=str(facts["run_id"]), start=start)
    except (StorageError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is cut short or holds no labels ({error}); run the contract again") from None
    if of != contract.hash:
        raise DataError(
            f"{path}: is of contract {of[:8]}, but here {contract.hash[:8]} is audited; give the folder of its own run"
        )
    return labels_file


def unattacked(contract: Contract) -> results.Audit | None:
    """Return what an audit of labels says if nothing that depends on them was sent; None if they are attacked."""
    if contract.sends_gradients:
        return None
    peers = " or ".join(contract.feature_parties)
    summary = (
        f"{peers} can guess labels by own columns alone, as before the run; each row's embedding crossed once, before any "
        "training, and tells of columns (the audit of columns)."
    )
    defense = "training.gradients = none: no cut gradient, no decision, no figure is sent"
    return results.Audit(summary=summary, defense=defense, nothing_sent=True)


def audit_labels(
    folder: RunFolder,
    contract: Contract,
    *,
    watcher: Watcher,
    auxiliary_labels: int = AUXILIARY_LABELS,
    also: Sequence[OtherRun] = (),
    seed: int = 0,
) -> results.Audit:
    """Attack every feature party's recorded view of a run for labels and measure by the true ones.

    With ``also`` attacks on one vector per row read those of all these runs together, too. Threat model: an honest-but-curious
    feature party that pools nothing with others. No guarantee: no attack here found more, another may. Raises DataError if the
    folder holds no view, a damaged one, or one of another contract or run.
    """
    if (why := unattacked(contract)) is not None:
        return why
    labels_file = load_labels(folder, contract)
    label_N, own_N = labels_file.label_N, labels_file.own_N
    if contract.target.type == "regression":
        watcher.say("attacking what this side sent, for its numbers, as a feature party could")
        return _audit_numbers(folder, contract, labels_file, known=auxiliary_labels, also=also, seed=seed)
    outside, unusable = outside_attacks() if contract.audit is True else ({}, {})
    quick = contract.audit == "quick"
    attacks = _attacks(contract, outside, auxiliary_labels)
    results_found: list[results.AttackResult] = []
    growth: list[results.LeakGrowth] = []
    unmeasured = [f"{name}: {why}" for name, why in unusable.items()]
    unmeasured += [f"{', '.join(left_out)}: {QUICK}"] if (left_out := _left_out(contract)) else []
    views: list[tuple[View, RowSums | None]] = []
    watcher.say("attacking what this side sent, for labels, as a feature party could")
    for number, peer in enumerate(contract.feature_parties):
        store = _store(folder, contract, labels_file, peer)
        sums = whole = None
        growing = []
        for epoch, up_to_it, whole in _sums_by_epoch(
            sums_of(store), own_N, contract, last=quick
        ):  # in memory one after the other
            growing.append((epoch, whole))
            sums = up_to_it
        view = _seen_view(contract, labels_file, store, whole, number=number)
        views.append((view, sums))
        evaluation = LabelInferenceEvaluation(view, label_N, whole=whole, evaluator=EVALUATOR, seed=seed)
        for done, (name, row) in enumerate(attacks):
            measured = _measured(row, evaluation, view, label_N[own_N], outside=name in outside)
            if isinstance(measured, str):
                unmeasured.append(f"{name}, in {peer}'s seat: {measured}")
            else:
                results_found.append(attack_result(name, row, peer, measured, note=row.description if name in outside else ""))
            watcher.progress("attacks", number * len(attacks) + done + 1, len(contract.feature_parties) * len(attacks))
        growth += _growth(growing, label_N, dict(attacks), peer, seed=seed) if not quick else []
        if also and whole is not None:
            together = {name: row for name, row in attacks if name not in outside}
            more, reasons = _audit_together(whole, also, label_N, together, peer, seed=seed)
            results_found, unmeasured = results_found + more, unmeasured + reasons
    summary = _summary(contract, views, trained=epochs_trained(folder)) + runs_in_words(also)
    return results.Audit(
        summary=summary, defense=_defense(contract), attacks=results_found, growth=growth, not_measured=unmeasured
    )


def _seen_view(contract: Contract, kept: KeptLabels, store: ViewStore, whole: View | None, *, number: int) -> View:
    """Return what the attacks on the feature party of this number read: some of its steps, or in a quick audit sums by row."""
    if contract.audit != "quick":
        steps = _real_rows(store.load("cut_gradient"), kept.own_N)
        start = kept.start.seen_by(number, contract) if kept.start is not None else None
        classes, flip = contract.target.classes, _flip(contract)
        return some_steps(View(received="cut_gradient", steps=steps, classes=classes, start=start, flip=flip))
    if whole is None:
        raise DataError(f"{store.folder} holds no sums per row; run the contract until an epoch is over at least")
    return whole


def _audit_together(
    whole: View, also: Sequence[OtherRun], label_N: Tensor, attacks: Mapping[str, LabelInferenceAttack], peer: str, *, seed: int
) -> tuple[list[results.AttackResult], list[str]]:
    """Attack one vector per row of several runs together; attacks on single batches gain nothing by them."""
    view = pooled_runs([whole, *(_sums_of_other(other, whole, label_N, peer) for other in also)])
    evaluation, runs = LabelInferenceEvaluation(view, label_N, evaluator=EVALUATOR, seed=seed), 1 + len(also)
    results_found, reasons = [], []
    for name, row in attacks.items():
        if row.over_training and not row.from_flip:  # every run replaces labels anew
            measured = _measured(row, evaluation, view, label_N[view.steps[0].rows_B], outside=False)
            if isinstance(measured, str):
                reasons.append(f"{name}, in {peer}'s seat, {runs} runs together: {measured}")
            else:
                results_found.append(attack_result(name, row, peer, measured, runs=runs))
    return results_found, reasons


def _sums_of_other(other: OtherRun, whole: View, label_N: Tensor, peer: str) -> View:
    """Another run's sums over its whole training, by this run's row numbers; raises DataError where labels are not the same."""
    labels_file = load_labels(other.folder, other.contract)
    store = sums_of(_store(other.folder, other.contract, labels_file, peer))
    if not (epochs := store.epochs()):
        raise DataError(f"{store.folder} holds no sums per row; run the contract until an epoch is over at least")
    view = store.load(epochs[-1]).view(classes=whole.classes)
    (step,) = view.steps
    known_B = other.renumbered(step.rows_B)
    step = step.only(known_B >= 0)
    here_B = known_B[known_B >= 0]
    if not torch.equal(labels_file.label_N[step.rows_B], label_N[here_B]):
        raise DataError(f"{other.folder.path}: its labels are not those of the run that is audited; give a run of the same table")
    return replace(view, steps=(replace(step, rows_B=here_B),))


def _attacks(
    contract: Contract, outside: Mapping[str, LabelInferenceAttack], auxiliary_labels: int
) -> list[tuple[str, LabelInferenceAttack]]:
    """Those that fit the target and the depth of the audit, told so many labels where they are told a few."""
    quick, flips = contract.audit == "quick", _flip(contract) is not None
    return [
        (name, replace(row, knows=FewLabels(count=auxiliary_labels)) if isinstance(row.knows, FewLabels) else row)
        for name, row in {**LABEL_INFERENCE_ATTACKS, **outside}.items()
        if row.allows(contract.target.classes) and (row.quick or not quick) and (flips or not row.from_flip)
    ]


def _left_out(contract: Contract) -> list[str]:
    """Name the attacks that fit the target and that the quick form does not run."""
    if contract.audit != "quick":
        return []
    names_run = {name for name, _ in _attacks(contract, {}, AUXILIARY_LABELS)}
    every = {name for name, _ in _attacks(contract.model_copy(update={"audit": True}), {}, AUXILIARY_LABELS)}
    return [name for name in LABEL_INFERENCE_ATTACKS if name in every - names_run]


def _flip(contract: Contract) -> float | None:
    """With what chance the contract has one of two labels replaced by the other; None where it does not."""
    epsilons = [defense.epsilon for defense in contract.defenses().labels if isinstance(defense, LabelDP)]
    kept_share = prod(tanh(epsilon / 2) for epsilon in epsilons)  # of each 1 - 2 / (1 + e^epsilon)
    return (1 - kept_share) / 2 if epsilons and contract.target.type == "binary" else None


def sums_of(store: ViewStore, received: Received = "cut_gradient") -> RowStore:
    """Return the running sums beside a peer's recorded steps."""
    return RowStore(folder=store.folder, contract=store.contract, origin=store.origin, run_id=store.run_id, received=received)


def _store(folder: RunFolder, contract: Contract, kept: KeptLabels, peer: str) -> ViewStore:
    return ViewStore(folder=folder.views / peer, contract=contract.hash, origin=folder.origin, run_id=kept.run_id)


def _defense(contract: Contract) -> str:
    return "; ".join([*defense_lines(contract, of="labels"), *start_lines(contract)])


def _audit_numbers(
    folder: RunFolder, contract: Contract, kept: KeptLabels, *, known: int, also: Sequence[OtherRun], seed: int
) -> results.Audit:
    """Audit labels that are numbers: attacks rank rows by them."""
    outside, unusable = outside_attacks() if contract.audit is True else ({}, {})
    few = FewKnownNumbers(count=known)
    attacks = {
        name: replace(row, knows=few) if isinstance(row.knows, FewKnownNumbers) else row
        for name, row in {**LABEL_INFERENCE_ATTACKS, **outside}.items()
        if row.numbers
    }
    results_found: list[results.AttackResult] = []
    unmeasured = [f"{name}: {why}" for name, why in unusable.items()]
    unmeasured += ["several runs together: attacks on numbers read single steps, of one run"] if also else []
    views: list[tuple[View, RowSums | None]] = []
    for peer in contract.feature_parties:
        steps = _real_rows(_store(folder, contract, kept, peer).load("cut_gradient"), kept.own_N)
        view = View(received="cut_gradient", steps=steps, classes=0)
        views.append((view, None))
        for name, row in attacks.items():
            try:
                metrics = evaluate_on_numbers(row.attack, view, kept.label_N, knows=row.knows, seed=seed)
            except DataError as error:  # NaN of a training that diverged
                unmeasured.append(f"{name}, in {peer}'s seat: {error}")
                continue
            except (Exception, SystemExit) as error:
                if name not in outside and not isinstance(error, UNSOLVED):
                    raise
                unmeasured.append(f"{name}, in {peer}'s seat: {_raised(error)}")
                continue
            if metrics is None:
                unmeasured.append(f"{name}, in {peer}'s seat: fewer than three rows, or all numbers are equal")
            else:
                results_found.append(_ranked(name, row, peer, metrics))
    summary = _summary(contract, views, trained=epochs_trained(folder))
    return results.Audit(summary=summary, defense=_defense(contract), attacks=results_found, not_measured=unmeasured)


def _ranked(name: str, row: LabelInferenceAttack, peer: str, metrics: NumberMetrics) -> results.AttackResult:
    return results.AttackResult(
        name=name,
        view=_view_in_words(row, peer),
        auc=None,
        spearman=metrics.spearman.mean,
        spearman_low=metrics.spearman.low,
        spearman_high=metrics.spearman.high,
        spearman_chance=metrics.chance_spearman,
        r_squared=metrics.r_squared,
        rows=metrics.rows,
    )


def _measured(
    row: LabelInferenceAttack, evaluation: LabelInferenceEvaluation, view: View, label_R: Tensor, *, outside: bool
) -> AttackMetrics | str:
    """Return what one attack found, or why it could not be measured."""
    if row.from_start and view.start is None:
        return NO_START
    if row.with_model:
        return NO_MODEL
    try:
        metrics = evaluation(row)
    except DataError as error:  # NaN of a training that diverged
        return str(error)
    except (Exception, SystemExit) as error:
        if not outside and not isinstance(error, UNSOLVED):
            raise
        return _raised(error)
    return metrics if metrics is not None else _why_not(row, label_R, view)


def _raised(error: Exception | SystemExit) -> str:
    """Say that an attack fails, from outside or by equations without a solution: it costs its own row only."""
    return f"it raised {type(error).__name__}: {error}"


def _sums_by_epoch(store: RowStore, own_N: Tensor, contract: Contract, *, last: bool) -> Iterator[tuple[int, RowSums, View]]:
    """Yield what an attacker had of own rows by the end of each kept epoch, or of the last."""
    epochs = store.epochs()
    for epoch in epochs[-1:] if last else epochs:
        sums = store.load(epoch).some(MOST_ROWS)
        view = sums.view(classes=contract.target.classes)
        if steps := _real_rows(view.steps, own_N):
            yield epoch, sums, replace(view, steps=steps, flip=_flip(contract))


def some_steps(view: View) -> View:
    """Evenly spread steps of a view, for attacks that look at one batch at a time."""
    rows = sum(len(step.rows_B) for step in view.steps)
    every = max(1, round(rows / BATCH_ROWS))
    return view if every == 1 else replace(view, steps=view.steps[::every])


def _growth(
    by_epoch: Sequence[tuple[int, View]],
    label_N: Tensor,
    attacks: Mapping[str, LabelInferenceAttack],
    peer: str,
    *,
    seed: int,
) -> list[results.LeakGrowth]:
    """Run some quick attacks on the sums as they were by the end of each kept epoch."""
    quick = {name: attacks[name] for name in GROWTH if name in attacks}
    evaluator = AttackEvaluator(replicates=1)
    course: dict[str, list[tuple[int, float]]] = {}
    for epoch, some in by_epoch if len(by_epoch) > 1 else ():
        evaluation = LabelInferenceEvaluation(some, label_N, evaluator=evaluator, seed=seed)
        for name, row in quick.items():
            try:
                metrics = evaluation(row)
            except DataError:  # which is said among what was not measured
                continue
            if metrics is not None:
                course.setdefault(name, []).append((epoch + 1, metrics.symmetric_auc.mean))
    return [
        results.LeakGrowth(
            name=name,
            view=_view_in_words(quick[name], peer),
            epochs=[at for at, _ in points],
            symmetric_auc=[auc for _, auc in points],
        )
        for name, points in course.items()
        if len(points) == len(by_epoch)
    ]


def _why_not(row: LabelInferenceAttack, label_R: Tensor, view: View) -> str:
    """Why an attack gave nothing to measure: never because nothing leaks."""
    if not len(label_R) or bool((label_R == label_R[0]).all()):
        return "the training rows have one class only"
    if len(view.epochs) < 2 and isinstance(row.attack, OverEpochs | PairedEnergy):
        return "it compares epochs, and one epoch was recorded only"
    if not isinstance(row.knows, NoLabels | ClassOrder):
        return "there are too few rows of a class to tell the attacker some labels and to judge it by the others"
    return "no group of the rows that it scores holds two classes"


def _real_rows(steps: tuple[StepView, ...], own_N: Tensor) -> tuple[StepView, ...]:
    """Only rows that this side has: elsewhere there is no true label to lose."""
    real_steps = []
    for step in steps:
        if int(step.rows_B.max()) >= len(own_N):
            raise DataError(f"the recorded view names row {int(step.rows_B.max())}, but there are labels for {len(own_N)} rows")
        own_B = own_N[step.rows_B]
        if own_B.any():
            real_steps.append(step if own_B.all() else step.only(own_B))
    return tuple(real_steps)


def _summary(contract: Contract, seen: Sequence[tuple[View, RowSums | None]], *, trained: int | None) -> str:
    peers = " or ".join(contract.feature_parties)
    rows = max(len(torch.unique(torch.cat([step.rows_B for step in view.steps]))) if view.steps else 0 for view, _ in seen)
    of = f"of {trained}" if trained is not None else "of a run that was not finished"
    only = "; only rows that this side has are scored" if contract.linkage.imputes else ""
    steps = f"This is the quick form, by the cheapest attacks{only}: `audit: true` runs all, and they may find more."
    quick = contract.audit == "quick" and contract.target.type != "regression"
    epochs = sorted({epoch for view, _ in seen for epoch in view.epochs}) if not quick else []
    if epochs:
        *before, last = (str(epoch + 1) for epoch in epochs)
        when = f"epochs {', '.join(before)} and {last}" if before else f"epoch {last}"
        steps = f"Attacks on single batches read {rows:,} training rows of {when} {of}{only}."
    sums = max((each for _, each in seen if each is not None), key=lambda each: len(each.rows_N), default=None)
    whole = ""
    if sums is not None:
        of_rows = f"{len(sums.rows_N):,} rows, evenly chosen, over epoch{'s' if len(sums.epochs) > 1 else ''}"
        whole = f"Attacks on one vector per row read {of_rows} {epochs_in_words(sums.epochs)}{'' if epochs else f' {of}'}. "
    floor = "Every figure is a floor: another attack may find more."
    return " ".join([f"What could {peers} tell of the labels? {whole}{steps}", *_beside_unaligned_rows(contract), floor])


def _beside_unaligned_rows(contract: Contract) -> list[str]:
    """Say what the figures tell of rows without a partner's row, if a method used them."""
    if not contract.unaligned.used:
        return []
    return [
        "Rows without a partner's row trained too, and nothing of them crosses: only aligned rows are attacked. What "
        "the others add or take away is the difference to a run with unaligned.method = none (tallystick compare)."
    ]


def _view_in_words(row: LabelInferenceAttack, peer: str, *, runs: int = 1) -> str:
    reads = "cut gradients" if row.reads == "cut_gradient" else "cut embeddings"
    both = " and cut embeddings" if row.tells_of_both else ""
    several = f", in {runs} runs" if runs > 1 else ""
    return f"{peer}{several}, from {reads}{both}, knowing {row.knows.describe()}"


def attack_result(
    name: str, row: LabelInferenceAttack, peer: str, metrics: AttackMetrics, *, note: str = "", runs: int = 1
) -> results.AttackResult:
    """Return what one attack in a peer's seat found, as reports show it."""
    return results.AttackResult(
        name=name,
        view=_view_in_words(row, peer, runs=runs),
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
        note="needs labels that no attacker has: that much, at least, is there to be found" if row.upper_bound else note,
    )
