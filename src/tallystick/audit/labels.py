"""Attack what the label party sent, and measure how much each feature party could learn about the labels from its cut.

Shapes: N aligned positions, R rows that are scored.

The label party runs these attacks itself. It recorded what it sent and has the labels, so nothing has to be disclosed.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import msgspec
import torch
from torch import Tensor

from tallystick import results
from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS, NO_LABELS, LabelInferenceAttack
from tallystick.attacks.label_inference.auxiliary import ClassOrder, FewKnownNumbers, FewLabels, NoLabels, ShareOfLabels
from tallystick.attacks.label_inference.averaged import OverEpochs
from tallystick.attacks.label_inference.evaluate import LabelInferenceEvaluation
from tallystick.attacks.label_inference.numbers import evaluate_on_numbers
from tallystick.attacks.label_inference.outside import outside_attacks
from tallystick.attacks.label_inference.paired import PairedEnergy
from tallystick.attacks.matrix import UNSOLVED
from tallystick.attacks.row_sums import epochs_in_words
from tallystick.attacks.scoring import AttackEvaluator, AttackMetrics
from tallystick.attacks.several_runs import pooled_runs
from tallystick.attacks.view import View
from tallystick.audit.other_run import runs_in_words
from tallystick.audit.recorded_labels import RecordedLabels, RecordedSeat, flip_of, reads_moments
from tallystick.config.contract import Contract
from tallystick.disclosure.protection import defense_lines
from tallystick.disclosure.training import start_lines
from tallystick.errors import DataError
from tallystick.watcher import Watcher

AUXILIARY_LABELS = 40  # labels that few-label attacks know; one per class if there are more classes
ALL = 0.999  # if an attack reaches this symmetric AUC, costlier ones are not run
GROWTH = ("spectral-averaged", "completion-gradient", "completion")  # quick attacks that read one vector per row
EVALUATOR = AttackEvaluator(either_end=True, replicates=1)
"""A certain finding, such as a perfect separation, may be at the low end. No report shows an interval that needs replicates."""
NO_START = "it simulates the top model's starting weights, which do not follow from the contract here"
QUICK = "a quick audit leaves them out and does not record what they need; `audit: true` runs them and may find more"
NO_BITS = "labels of validation rows: each validation says whether weights are the best so far, and no attack reads these bits"
NO_MODEL = "it trains the feature party's own model on the feature party's columns, and this side has neither"


def unattacked(contract: Contract) -> results.Audit | None:
    """Return the findings of an audit of labels if nothing that depends on labels was sent; None if the attacks have to run."""
    if contract.sends_gradients:
        return None
    peers = " or ".join(contract.feature_parties)
    if contract.shares_head:
        return results.Audit(
            summary=f"{peers} can guess labels from own columns alone, as before the run: what crossed are secret shares.",
            defense="training.gradients = shared: labels, columns and weights cross as secret shares only",
            nothing_sent=True,
        )
    summary = (
        f"{peers} can guess labels from own columns alone, as before the run. Each row's embedding crossed once, before any "
        "training; it tells about columns (see the audit of columns)."
    )
    defense = "training.gradients = none: no cut gradient, no decision, no figure is sent"
    return results.Audit(summary=summary, defense=defense, nothing_sent=True)


BY_PATTERN = "by-pattern"
"""End of the names of attacks for which each pattern of several labels is a class."""

EVENTS, TIMES = "rows by whether there was an event", "rows by their times, with an event or without"
"""The two secrets of a survival label. Each is judged alone."""


def audit_labels(
    recorded: RecordedLabels, *, watcher: Watcher, auxiliary_labels: int = AUXILIARY_LABELS, seed: int = 0
) -> results.Audit:
    """Attack every feature party's recorded view of a run, and compare the guessed labels with the true ones.

    Where several runs were recorded, attacks that read one vector per row also read the vectors of all runs together. Threat
    model: an honest-but-curious feature party that shares nothing with others. No guarantee: no attack here found more, another
    may.
    """
    contract = recorded.contract
    outside, unusable = outside_attacks() if contract.audit is True else ({}, {})
    unmeasured = [f"{name}: {why}" for name, why in unusable.items()]
    if contract.target.is_number:
        watcher.say("attacking what this side sent, for its numbers, as a feature party could")
        unmeasured += ["several runs together: attacks on numbers read single steps, of one run"] if recorded.runs > 1 else []
        attacks_found, reasons = _on_numbers(recorded, outside, known=auxiliary_labels, seed=seed)
        growth: list[results.LeakGrowth] = []
    else:
        watcher.say("attacking what this side sent, for labels, as a feature party could")
        attacks_found, growth = [], []
        labels_by_reason: dict[str, list[str]] = {}
        parts = recorded.each_label()
        for label, one in parts.items():
            attack_results, growth_of_label, unmeasured_of_label = _on_classes(
                one, outside, watcher=watcher, known=auxiliary_labels, seed=seed
            )
            attacks_found += [msgspec.structs.replace(each, label=label) for each in attack_results]
            of_label = f" of label {label}" if label else ""
            growth += [msgspec.structs.replace(each, name=f"{each.name}{of_label}") for each in growth_of_label]
            for line in unmeasured_of_label:
                labels_by_reason.setdefault(line, []).append(label)
        reasons = [
            line if set(labels) == set(parts) else f"{line} ({', '.join(labels)})" for line, labels in labels_by_reason.items()
        ]
        if len(parts) > 1:
            found_together, reasons_together = _on_patterns(recorded, tuple(parts), known=auxiliary_labels, seed=seed)
            attacks_found += found_together
            reasons += reasons_together
        if contract.audit == "quick":  # name the attacks that fit the target but are left out of a quick audit
            names_run = {name for name, _ in _attacks(contract, {}, AUXILIARY_LABELS)}
            every = {name for name, _ in _attacks(contract.model_copy(update={"audit": True}), {}, AUXILIARY_LABELS)}
            left_out = [name for name in LABEL_INFERENCE_ATTACKS if name in every - names_run]
            unmeasured += [f"{', '.join(left_out)}: {QUICK}"] if left_out else []
    if contract.split.validation and not contract.hides_labels:
        reasons = [*reasons, NO_BITS]
    views = [seat.view for seat in recorded.seats]
    peers = " or ".join(contract.feature_parties)
    rows = max(len(torch.unique(torch.cat([step.rows_B for step in view.steps]))) if view.steps else 0 for view in views)
    of = f"of {recorded.trained}" if recorded.trained is not None else "of a run that was not finished"
    only = "; only rows that this side has are scored" if contract.linkage.imputes else ""
    steps = f"This is the quick form, by the cheapest attacks{only}: `audit: true` runs all, and they may find more."
    quick = contract.audit == "quick" and not contract.target.is_number
    epochs = sorted({epoch for view in views for epoch in view.epochs}) if not quick else []
    if epochs:
        *before, last = (str(epoch + 1) for epoch in epochs)
        when = f"epochs {', '.join(before)} and {last}" if before else f"epoch {last}"
        steps = f"Attacks on single batches read {rows:,} training rows of {when} {of}{only}."
    sums = max((seat.sums for seat in recorded.seats if seat.sums is not None), key=lambda each: len(each.rows_N), default=None)
    whole = ""
    if sums is not None:
        of_rows = f"{len(sums.rows_N):,} rows, evenly chosen, over epoch{'s' if len(sums.epochs) > 1 else ''}"
        whole = f"Attacks on one vector per row read {of_rows} {epochs_in_words(sums.epochs)}{'' if epochs else f' {of}'}. "
    lines = [f"What could {peers} learn about the labels? {whole}{steps}"]
    if contract.unaligned.used:
        lines.append(
            "Rows without a partner's row took part in training. Nothing about them crosses, so only aligned rows are "
            "attacked. To see what they add to the leak, compare with a run with unaligned.method = none (tallystick compare)."
        )
    if contract.target.type == "multilabel":
        lines.append(
            "Each label was attacked as if it were the only one, but by unmixed, which tells them apart, and by attacks with "
            f"{BY_PATTERN} in their names, for which each pattern of a row's labels is a class."
        )
    lines.append("Every figure is a floor: another attack may find more.")
    return results.Audit(
        summary=" ".join(lines) + runs_in_words(recorded.runs),
        defense="; ".join([*defense_lines(contract, of="labels"), *start_lines(contract)]),
        quick=quick,
        attacks=attacks_found,
        growth=growth,
        not_measured=unmeasured + reasons,
    )


def _on_classes(
    recorded: RecordedLabels, outside: Mapping[str, LabelInferenceAttack], *, watcher: Watcher, known: int, seed: int
) -> tuple[list[results.AttackResult], list[results.LeakGrowth], list[str]]:
    """Attack class labels in the role of each feature party. Return the leaks, their growth, and what could not be measured."""
    contract, label_N = recorded.contract, recorded.label_N
    attacks = _attacks(contract, outside, known)
    leaks: list[results.AttackResult] = []
    growth: list[results.LeakGrowth] = []
    unmeasured: list[str] = []
    for number, seat in enumerate(recorded.seats):
        evaluation = LabelInferenceEvaluation(seat.view, label_N, whole=seat.whole, evaluator=EVALUATOR, seed=seed)
        leaks_of_seat: dict[str, results.AttackResult] = {}
        spared: list[str] = []
        by = ""  # name of an attack on gradients that found all labels without knowing one: no other attack can find more
        for done, (name, row) in enumerate(sorted(attacks, key=lambda each: _costly(each[0], each[1], outside))):
            watcher.progress("attacks", number * len(attacks) + done, len(recorded.seats) * len(attacks))
            if by and row.reads == "cut_gradient" and _costly(name, row, outside):
                spared.append(name)
                continue
            measured = _measured(row, evaluation, seat.view, label_N[recorded.own_N], outside=name in outside)
            if isinstance(measured, str):
                unmeasured.append(f"{name}, in {seat.peer}'s seat: {measured}")
            else:
                note = row.description if name in outside else ""
                leaks_of_seat[name] = attack_result(name, row, seat.peer, measured, note=note)
                finds_all = row.reads == "cut_gradient" and row.knows == NO_LABELS and measured.symmetric_auc.mean >= ALL
                by = by or (name if finds_all else "")
        watcher.progress("attacks", (number + 1) * len(attacks), len(recorded.seats) * len(attacks))
        leaks += [leaks_of_seat[name] for name, _ in attacks if name in leaks_of_seat]
        if spared:
            unmeasured.append(f"{', '.join(spared)}, in {seat.peer}'s seat: {by}, which knows no label, finds all of them")
        growth += _growth(seat, label_N, dict(attacks), seed=seed) if contract.audit != "quick" else []
        if seat.of_others:
            # Attack the vectors per row of several runs together; attacks on single batches gain nothing from other runs
            assert seat.whole is not None, "sums of other runs are loaded beside this run's"
            pooled, runs = pooled_runs([seat.whole, *seat.of_others]), 1 + len(seat.of_others)
            evaluation = LabelInferenceEvaluation(pooled, label_N, evaluator=EVALUATOR, seed=seed)
            for name, row in attacks:
                if name in outside or not row.over_training or row.from_flip:  # each run replaces labels by a fresh draw
                    continue
                measured = _measured(row, evaluation, pooled, label_N[pooled.steps[0].rows_B], outside=False)
                if isinstance(measured, str):
                    unmeasured.append(f"{name}, in {seat.peer}'s seat, {runs} runs together: {measured}")
                else:
                    leaks.append(attack_result(name, row, seat.peer, measured, runs=runs))
    return leaks, growth, unmeasured


def _on_patterns(
    recorded: RecordedLabels, names: tuple[str, ...], *, known: int, seed: int
) -> tuple[list[results.AttackResult], list[str]]:
    """Attack all labels of a row together, with a class for each pattern of them, and judge each label.

    An attack on a single label takes for noise what a gradient reveals about the other labels. Only an attacker who knows the
    labels of some rows can name patterns. Return the leaks, and what could not be measured.
    """
    contract, patterns = recorded.contract, 1 << len(names)
    if patterns > known:
        return [], [f"attacks {BY_PATTERN}: {len(names)} labels have {patterns:,} patterns, and {known} rows' labels are known"]
    leaks: list[results.AttackResult] = []
    unmeasured: list[str] = []
    for seat in recorded.seats:
        view, whole = (
            replace(each, classes=patterns, start=None) if each is not None else None for each in (seat.view, seat.whole)
        )
        assert view is not None
        evaluation = LabelInferenceEvaluation(view, recorded.label_N, whole=whole, evaluator=EVALUATOR, seed=seed)
        for name, row in _attacks(contract, {}, known):
            if not row.multiclass or row.from_start or row.with_model or not isinstance(row.knows, FewLabels | ShareOfLabels):
                continue
            try:
                of_labels = evaluation.each_label(row, len(names))
            except (DataError, *UNSOLVED) as error:  # NaN of a training that diverged, or equations without a solution
                unmeasured.append(f"{name}-{BY_PATTERN}, in {seat.peer}'s seat: {error}")
                continue
            for label, metrics in zip(names, of_labels, strict=True):
                if metrics is not None:
                    found = attack_result(
                        f"{name}-{BY_PATTERN}",
                        row,
                        seat.peer,
                        metrics,
                        note=f"{row.description}; of a known row it knows all labels",
                    )
                    leaks.append(msgspec.structs.replace(found, label=label))
    return leaks, unmeasured


def _costly(name: str, row: LabelInferenceAttack, outside: Mapping[str, LabelInferenceAttack]) -> bool:
    """Tell whether an attack of the table reads one vector per row and takes more than a moment."""
    return row.over_training and not row.quick and name not in outside


def _on_numbers(
    recorded: RecordedLabels, outside: Mapping[str, LabelInferenceAttack], *, known: int, seed: int
) -> tuple[list[results.AttackResult], list[str]]:
    """Attack labels that are numbers: the attacks rank the rows by label.

    A survival label holds two secrets, a time and an event. Each is also judged alone: an attack that finds one may miss the
    other.
    """
    few = FewKnownNumbers(count=known)
    attacks = {
        name: replace(row, knows=few) if isinstance(row.knows, FewKnownNumbers) else row
        for name, row in {**LABEL_INFERENCE_ATTACKS, **outside}.items()
        if row.numbers
    }
    leaks: list[results.AttackResult] = []
    unmeasured: list[str] = []
    truths = {"": recorded.label_N}
    if recorded.contract.target.type == "survival":
        truths |= {EVENTS: (recorded.label_N > 0).to(recorded.label_N), TIMES: recorded.label_N.abs()}
    for seat in recorded.seats:
        for (name, row), (note, number_N) in product(attacks.items(), truths.items()):
            of_note = f", {note}" if note else ""
            where = f"{name}, in {seat.peer}'s seat{of_note}"
            try:
                metrics = evaluate_on_numbers(row.attack, seat.view, number_N, knows=row.knows, seed=seed)
            except DataError as error:  # NaN of a training that diverged
                unmeasured.append(f"{where}: {error}")
                continue
            except (Exception, SystemExit) as error:
                if name not in outside and not isinstance(error, UNSOLVED):
                    raise
                unmeasured.append(f"{where}: {_raised(error)}")
                continue
            if metrics is None:
                unmeasured.append(f"{where}: fewer than three rows, or all numbers are equal")
            else:
                leaks.append(
                    results.AttackResult(
                        name=name,
                        note=note,
                        view=_view_in_words(row, f"{seat.peer}{of_note}"),
                        auc=None,
                        spearman=metrics.spearman.mean,
                        spearman_low=metrics.spearman.low,
                        spearman_high=metrics.spearman.high,
                        spearman_chance=metrics.chance_spearman,
                        r_squared=metrics.r_squared,
                        rows=metrics.rows,
                    )
                )
    return leaks, unmeasured


def _attacks(
    contract: Contract, outside: Mapping[str, LabelInferenceAttack], auxiliary_labels: int
) -> list[tuple[str, LabelInferenceAttack]]:
    """Select the attacks that fit the target and the depth of the audit. Those that need known labels get ``auxiliary_labels``
    of them.
    """
    quick, flips, several = contract.audit == "quick", flip_of(contract) is not None, contract.target.type == "multilabel"
    return [
        (name, replace(row, knows=FewLabels(count=auxiliary_labels)) if isinstance(row.knows, FewLabels) else row)
        for name, row in {**LABEL_INFERENCE_ATTACKS, **outside}.items()
        if row.allows(contract.target.classes)
        and (row.quick or not quick)
        and (not row.from_moments or reads_moments(contract))
        and (flips or not row.from_flip)
        and (several or not row.of_several)
    ]


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
    if metrics is not None:
        return metrics
    if not len(label_R) or bool((label_R == label_R[0]).all()):
        return "the training rows have one class only"
    if len(view.epochs) < 2 and isinstance(row.attack, OverEpochs | PairedEnergy):
        return "it compares epochs, and only one epoch was recorded"
    if not isinstance(row.knows, NoLabels | ClassOrder):
        return "a class has too few rows to give the attacker some labels and to measure it on the others"
    return "no group of the rows that it scores holds two classes"


def _raised(error: Exception | SystemExit) -> str:
    """Say why an attack failed: a plugin raised, or its equations have no solution. Only its own row of the findings is lost."""
    return f"it raised {type(error).__name__}: {error}"


def _growth(
    seat: RecordedSeat, label_N: Tensor, attacks: Mapping[str, LabelInferenceAttack], *, seed: int
) -> list[results.LeakGrowth]:
    """Run some quick attacks on the sums at the end of each kept epoch."""
    quick = {name: attacks[name] for name in GROWTH if name in attacks}
    evaluator = AttackEvaluator(replicates=1)
    course: dict[str, list[tuple[int, float]]] = {}
    for epoch, some in seat.by_epoch if len(seat.by_epoch) > 1 else ():
        evaluation = LabelInferenceEvaluation(some, label_N, evaluator=evaluator, seed=seed)
        for name, row in quick.items():
            try:
                metrics = evaluation(row)
            except DataError:  # the list of what was not measured already says so
                continue
            if metrics is not None:
                course.setdefault(name, []).append((epoch + 1, metrics.symmetric_auc.mean))
    return [
        results.LeakGrowth(
            name=name,
            view=_view_in_words(quick[name], seat.peer),
            epochs=[at for at, _ in points],
            symmetric_auc=[auc for _, auc in points],
        )
        for name, points in course.items()
        if len(points) == len(seat.by_epoch)
    ]


def _view_in_words(row: LabelInferenceAttack, peer: str, *, runs: int = 1) -> str:
    reads = "cut gradients" if row.reads == "cut_gradient" else "cut embeddings"
    both = " and cut embeddings" if row.tells_of_both else ""
    several = f", in {runs} runs" if runs > 1 else ""
    return f"{peer}{several}, from {reads}{both}, knowing {row.knows.describe()}"


def attack_result(
    name: str, row: LabelInferenceAttack, peer: str, metrics: AttackMetrics, *, note: str = "", runs: int = 1
) -> results.AttackResult:
    """Return the finding of one attack in the role of a peer, in the form that reports show."""
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
        note="needs labels that no attacker has; it shows the least that there is to find" if row.upper_bound else note,
    )
