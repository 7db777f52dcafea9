"""What each side learnt in a job, in sentences: they follow from the contract, so every party says the same of every party."""

from collections.abc import Sequence
from typing import Literal

from tallystick import results
from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import learnt_of
from tallystick.alignment.repeats import counts_learnt
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.dataset.dataset import Dataset
from tallystick.disclosure import (
    defense_lines,
    embedded_once_more,
    shared_with_feature_parties,
    shuffled_embeddings,
    unaligned_lines,
)
from tallystick.evaluation.messages import Finished
from tallystick.job.findings import RunFindings
from tallystick.job.job import ALL_PHASES
from tallystick.job.phases.search import TrialRecord
from tallystick.training.checkpoint import TrainingState

UNPROTECTED = "no formal guarantee"


def learnt_of_run(contract: Contract, party: PartyFile, found: RunFindings) -> list[results.Learnt]:
    """What this party, and what its peers, learnt in each phase, in the phases' order."""
    guarantee = contract.linkage.guarantee
    counts = _counts_learnt(contract, found.alignment)
    items = [
        results.Learnt(step="alignment", party=party.party, what=sentence, guarantee=guarantee)
        for sentence in (found.alignment.learnt if found.alignment is not None else [])
        if sentence not in counts
    ]
    told = contract.feature_parties if party.party == contract.label_party else (party.party,)
    items += [results.Learnt(step="alignment", party=name, what=what, guarantee=UNPROTECTED) for what in counts for name in told]
    if found.alignment is not None and found.alignment.method == "intersection":
        items += _learnt_by_peers(contract, party, found.alignment)
    if found.helper is not None:
        items += [
            results.Learnt(step="alignment", party=party.party, what=sentence, guarantee=guarantee)
            for sentence in found.helper.learnt
        ]
    if found.trials and not found.alone:
        items += _learnt_in_trials(contract, found.trials)
    if not contract.sends_gradients and found.dataset is not None:
        items += _learnt_once(contract, found.dataset)
    if found.training is None or not contract.sends_gradients:
        return sorted(items, key=lambda item: ALL_PHASES.index(item.step))
    rows = len(found.dataset.train_N) if found.dataset is not None else 0
    validated = len(found.dataset.validation_N) if found.dataset is not None else 0
    items += _learnt_by_label_party(contract, rows=(rows, validated), folds=_networks(found.dataset), state=found.training)
    for peer in contract.feature_parties:
        items += _learnt_by_feature_party(
            contract,
            peer,
            rows=(rows, validated),
            folds=_networks(found.dataset),
            state=found.training,
            finished=found.evaluated.finished,
        )
    return sorted(items, key=lambda item: ALL_PHASES.index(item.step))


def _counts_learnt(contract: Contract, alignment: Alignment | None) -> list[str]:
    """What every feature party learnt of several rows of one id, for which nothing stands."""
    if alignment is None or contract.alignment.duplicates != "all":
        return []
    return [counts_learnt(contract.label_party, len(alignment), alignment.sizes["intersection"])]


def _learnt_by_peers(contract: Contract, party: PartyFile, alignment: Alignment) -> list[results.Learnt]:
    """What an intersection told the other side: who of its own this one has. It follows from what this side knows.

    Among several feature parties one knows nothing of another, and not what the label party has in common with each.
    """
    label, sizes = contract.label_party, alignment.sizes
    of_label = [label] if len(contract.feature_parties) == 1 else []
    return [
        results.Learnt(step="alignment", party=peer, what=sentence, guarantee=contract.linkage.guarantee)
        for peer in (contract.feature_parties if party.party == label else of_label)
        for sentence in learnt_of(party.party, sizes["own"], own=sizes[peer], common=sizes["intersection"])
    ]


def _learnt_in_trials(contract: Contract, trials: Sequence[TrialRecord]) -> list[results.Learnt]:
    """What a search tells, beyond what one training does: as much again with every trial."""
    done = [trial for trial in trials if not trial.problem]
    epochs, peers = sum(trial.epochs for trial in done), ", ".join(contract.feature_parties)
    training, validation = done[0].rows
    embedded = (
        f"A cut embedding per row and epoch from {peers}, by another network in each of {len(done)} trials: {training} training "
        f"and {validation} validation rows, {epochs} epochs in all."
    )
    answered = (
        f"A cut gradient per training row and epoch in each of {len(done)} trials ({training} rows, {epochs} epochs in all), "
        "from which labels can be estimated; per epoch whether validation got better; the values that were tried, which hang on "
        "the validation losses of the trials before, and which of them were best."
    )
    lines = _protected(contract, of="labels")
    protected = lines if lines == UNPROTECTED else f"each trial a release of its own: {lines}"
    of_columns = _protected(contract, of="features")
    return [
        results.Learnt(step="training", party=contract.label_party, what=embedded, guarantee=of_columns),
        *(results.Learnt(step="training", party=name, what=answered, guarantee=protected) for name in contract.feature_parties),
    ]


def _learnt_once(contract: Contract, dataset: Dataset) -> list[results.Learnt]:
    """What crosses where no gradient does, so every party says the same of every party."""
    peers, label = ", ".join(contract.feature_parties), contract.label_party
    parts = [("training", dataset.train_N), ("validation", dataset.validation_N), ("test", dataset.test_N)]
    rows = ", ".join(f"{len(part_N)} {name}" for name, part_N in parts)
    embedded = f"One cut embedding per row from {peers} ({rows} rows), by bottom models that know no label."
    nothing = f"Nothing of labels: no cut gradient, no decision, no figure of {label} was sent. No message's time tells one."
    return [
        results.Learnt(step="training", party=label, what=embedded, guarantee=_protected(contract, of="features")),
        *(
            results.Learnt(step="training", party=name, what=nothing, guarantee="what is sent does not depend on labels")
            for name in contract.feature_parties
        ),
    ]


def _learnt_by_label_party(
    contract: Contract, *, rows: tuple[int, int], folds: int, state: TrainingState
) -> list[results.Learnt]:
    """What crosses the cut follows from the contract, so every party says the same of every party."""
    peers = ", ".join(contract.feature_parties)
    both = f"{rows[0]} training and {rows[1]} validation rows" if rows[1] else f"{rows[0]} training rows"
    training = f"A cut embedding per row and epoch from {peers}: {both}, {state.first_epochs or state.epoch} epochs."
    settled = contract.training.model_copy(update={"folds": folds}).resolved(rows[0])
    times = contract.validations(settled) if rows[1] else 1
    if times > 1:
        training += f" Of validation rows up to {times} in an epoch (training.validations)."
    if state.refit_epochs:
        training += f" The same of {state.refit_epochs} more epochs, in which training began anew with the validation rows."
    if folds > 1:
        training = (
            f"From {peers}, {folds} cut embeddings per row side by side, of as many networks: of {sum(rows)} training and "
            f"validation rows up to {1 + times} times in each of {state.epoch} epochs."
        )
    evaluation = "The cut embeddings of the test rows."
    if contract.measures_columns:
        most = contract.evaluation.importance.rows
        by = "the weights before the refit" if state.refit_epochs else "the final weights"
        evaluation += f" Those of at most {most:,} validation rows once more, by {by}, to measure columns."
    steps = [("training", training), ("evaluation", evaluation)]
    steps += [("training", f"From {peers}: {sentence}.") for sentence in embedded_once_more(contract)]
    if contract.evaluation.importance.feature_columns != "none":
        more = f"From {peers}: {shuffled_embeddings(contract)}; so by how much the metric falls without each of these columns."
        steps.append(("evaluation", more))
    guarantee = _protected(contract, of="features")
    return [results.Learnt(step=step, party=contract.label_party, what=what, guarantee=guarantee) for step, what in steps]


def _protected(contract: Contract, *, of: Literal["labels", "features"]) -> str:
    """What stands against learning one side's secret from what crosses, with what it promises."""
    lines = "; ".join(defense_lines(contract, of=of))
    return UNPROTECTED if lines.startswith("none") else lines


def _learnt_by_feature_party(
    contract: Contract, name: str, *, rows: tuple[int, int], folds: int, state: TrainingState, finished: Finished
) -> list[results.Learnt]:
    training = (
        f"A cut gradient per training row and epoch ({rows[0]} rows, {state.first_epochs or state.epoch} epochs), from which "
        "labels can be estimated, and after each validation whether the weights are the best so far."
    )
    if state.refit_epochs:
        training += f" The same of {sum(rows)} rows, the validation rows among them, for {state.refit_epochs} epochs more."
    if folds > 1:
        training = (
            f"{folds} cut gradients per row and epoch side by side, one of them 0 ({sum(rows)} training and validation rows, "
            f"{state.epoch} epochs), from which labels can be estimated, and after each validation which of the networks have "
            "weights that are their best so far."
        )
    protected = _protected(contract, of="labels")
    evaluation, released = f"Nothing but the number of test rows; the metrics stay with {contract.label_party}.", "not sent"
    if finished.epsilon is not None:
        what = "a noisy AUC" if finished.auc is not None else "that the noise left no AUC to release"
        evaluation = f"The number of test rows, and {what}, from {contract.label_party}."
        released = f"{finished.epsilon:g}-DP for {finished.protects}"
    if shared := shared_with_feature_parties(contract):
        evaluation, released = f"The number of test rows, {shared}, from {contract.label_party}.", UNPROTECTED
    if finished.epsilon is not None and shared:  # columns beside a private AUC
        evaluation = f"{evaluation[:-1]}, and {'a noisy AUC' if finished.auc is not None else 'that the noise left no AUC'}."
        released = f"no formal guarantee; the AUC: {finished.epsilon:g}-DP for {finished.protects}"
    by_time = "Each row's part of the split, hence the order in time of three groups of rows."
    split = [by_time] if contract.split.method == "time" else []
    return [
        *(results.Learnt(step="training", party=name, what=what, guarantee=UNPROTECTED) for what in split),
        *(results.Learnt(step="training", party=name, what=what, guarantee=protected) for what in unaligned_lines(contract)),
        results.Learnt(step="training", party=name, what=training, guarantee=protected),
        results.Learnt(step="evaluation", party=name, what=evaluation, guarantee=released),
    ]


def _networks(dataset: Dataset | None) -> int:
    return dataset.networks if dataset is not None else 1
