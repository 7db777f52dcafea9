"""Evaluate the joint model at the label party, and send the results that may leave. Shapes: T own test rows."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from io import BytesIO
from typing import Any

import msgspec
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.audit.recording import pass_recorder
from tallystick.cut.forward import SCORED_AT_A_TIME, KeptCuts, crossing, logits_over, send_embeddings, unwatched
from tallystick.dataset.dataset import Dataset, Labels
from tallystick.dataset.own_rows import OwnRows
from tallystick.evaluation.blend import blended
from tallystick.evaluation.boosting import MOST_ROWS, Boosted, can_boost
from tallystick.evaluation.decisions import Decisions, Grouping, ScoredRows, Subgroups, by_group, decide
from tallystick.evaluation.evaluation_messages import Finished, receive_finished
from tallystick.evaluation.importance import sampled_rows
from tallystick.evaluation.measure import Comparison, compare_models
from tallystick.evaluation.private.result import NothingReleased
from tallystick.evaluation.sharing import send_shared
from tallystick.job.findings import Evaluated
from tallystick.job.job import EXPLORE, Job
from tallystick.job.phases.audit import audited_side
from tallystick.job.phases.importance import Measured, measure_columns, receive_results, send_columns
from tallystick.job.phases.release import RELEASE_NOTE, enter_shared, finished, release_auc
from tallystick.job.phases.train import train_own_columns
from tallystick.metrics import UndefinedMetric, label_bits, sigmoid
from tallystick.models.build import width_of
from tallystick.msgspec_threads import prepared
from tallystick.run_folder.embedding_charge import EmbeddingCharge, evaluation_ahead
from tallystick.run_folder.local_scores import final_logits, logits_alone
from tallystick.run_folder.trained import TrainedFeatureParty, TrainedLabelParty, before_refit
from tallystick.tables.encoder import Encoder
from tallystick.tables.groups import groups_of
from tallystick.training.checkpoint import TrainingState
from tallystick.training.screening import Screening


def evaluate_as_label_party(
    job: Job,
    rows: OwnRows,
    trained: TrainedLabelParty,
    dataset: Dataset,
    *,
    run_id: str,
    kept_cuts: Sequence[KeptCuts] | None = None,
) -> Evaluated:
    """Score the test rows with the joint model, send what may leave, then compare the scores with those of own columns.

    Every test row is embedded; this party measures those that it has. Everything that may leave is sent first, and then this
    party closes its sessions: how long the rest takes, and whether it succeeds, depends on exact labels. With ``kept_cuts``
    nothing is sent.
    """
    batches = dataset.test_batches(dataset.resolved(job.contract.training).batch_size)
    if kept_cuts is not None:
        cuts: Sequence[Callable[[int, Tensor], Tensor]] = kept_cuts
    else:
        cuts = [
            crossing(channel, width, peer, cut_rows=dataset.cut_rows)
            for peer, (channel, width) in enumerate(zip(job.feature_channels, trained.widths, strict=True))
        ]
    logits = logits_over(trained.model, dataset.features_at, batches, cuts)
    with before_refit(job.folder, trained.model, trained.state), trained.model.first_alone():
        measured = measure_columns(job, trained, dataset, kept_cuts=kept_cuts)
    scored = None
    if len(logits):
        job.logbook.commit(trained.state.step)  # the feature parties had committed it before they embedded these
        is_own_T = dataset.is_own(dataset.test_N)
        joint_T = final_logits(trained, dataset, logits[is_own_T], dataset.test_N[is_own_T])
        own = dataset.own_part()
        scored = _Scored(job=job, rows=rows, own=own, joint_T=joint_T, target_T=own.known_labels.true_N[own.test_N])
    evaluated = Evaluated(finished=Finished(rows=len(logits)))
    if kept_cuts is None:
        # send each feature party the results that the contract allows, and its last message
        message = evaluated.finished
        release_asked = job.contract.evaluation.privacy
        names, columns = job.contract.evaluation.share_metrics, job.contract.evaluation.importance.feature_columns
        is_shared = bool(names) or columns == "both"
        if is_shared:  # the exact results that the contract names; the ledger records them
            comparison = scored.compare(None) if scored is not None else None
            joint = comparison["joint"] if comparison is not None else {}
            count = comparison["rows"] if comparison is not None else 0
            falls_of_parties = dict(measured.falls) if measured is not None else None
            figures = [count, {name: joint.get(name) for name in names}, falls_of_parties]
            enter_shared(job.contract, job.party, job.folder, figures, run_id=run_id)
            for channel in job.feature_channels:
                falls = measured.falls.get(channel.peer) if measured is not None and columns == "both" else None
                send_shared(channel, names, joint, falls, rows=count)
        if release_asked is not None and scored is not None:
            # Once per run: one that goes on sends the same number again, which tells nothing new and costs nothing. That the
            # noise left no AUC is an outcome like any other: trying again would be another release.
            if noted := job.folder.noted(RELEASE_NOTE):
                message = msgspec.convert(noted, prepared(Finished))
            else:
                try:
                    released = release_auc(release_asked, job.party, job.folder, scored.target_T, scored.joint_T)
                except NothingReleased as nothing:
                    job.logbook.watcher.say(f"no AUC was released, though epsilon {release_asked.epsilon:g} is spent: {nothing}")
                    message = finished(message.rows, nothing)
                else:
                    job.logbook.watcher.say(f"released: {released.statement()}")
                    message = finished(message.rows, released)
                job.folder.note(RELEASE_NOTE, msgspec.to_builtins(message))  # killed before this, it is charged again
        for channel in job.feature_channels:
            channel.send(message)
        evaluated = Evaluated(finished=message, sent_shared=is_shared)
        job.leave()
    if scored is not None:
        evaluated = _measure(scored, trained, dataset, measured, evaluated)
    return replace(evaluated, importance=measured.importance if measured is not None else ())


def measure_once(job: Job, rows: OwnRows, dataset: Dataset, *, test_T: Tensor, validation_V: Tensor) -> Evaluated:
    """Measure a head on shares by the opened logits of test and validation rows. Nothing is sent.

    An exploration only asks what these logits add to own columns.
    """
    finished = Evaluated(finished=Finished(rows=len(test_T)))
    if not len(test_T):
        return finished
    job, own = replace(job, contract=job.contract.of_own_columns()), dataset.own_part()
    scored = _Scored(job=job, rows=rows, own=own, joint_T=test_T, target_T=own.known_labels.true_N[own.test_N])
    if job.command == EXPLORE:
        return _what_it_adds(scored, finished)
    measured = None
    if len(validation_V):
        measured = Measured(index_V=dataset.validation_N, logits_V=validation_V, falls={}, importance=[])
    return _measure(scored, None, dataset, measured, finished)


@dataclass(frozen=True, kw_only=True)
class _Scored:
    """The joint model's calibrated logits of this party's own test rows, and their exact labels."""

    job: Job
    rows: OwnRows
    own: Dataset
    joint_T: Tensor
    target_T: Tensor

    def compare(self, baseline_T: Tensor | None) -> Comparison:
        """Measure them, and compare with the logits of own columns alone, if there are any."""
        labels_here = self.own.known_labels
        labels, weights = labels_here.units(self.own.test_N)
        return compare_models(
            self.job.contract.target.type,
            labels,
            labels_here.coder.predictions(self.joint_T.cpu().numpy()),
            labels_here.coder.predictions(baseline_T.cpu().numpy()) if baseline_T is not None else None,
            weights=weights,
            keys_N=self.rows.key_at(self.own.test_N),
            levels=labels_here.coder.levels,
            labels=tuple(labels_here.coder.labels),
            evaluation=self.job.contract.evaluation,
            generator=np.random.default_rng(self.job.contract.seed),
        )


def _what_it_adds(scored: _Scored, evaluated: Evaluated) -> Evaluated:
    """Compare a blend of own columns' logits and the head's with own columns' logits alone."""
    job, own = scored.job, scored.own
    if own.encoder is None:
        return replace(evaluated, comparison=scored.compare(None))
    baseline = _baseline(job, own, own.encoder)
    both_T = blended(
        job.contract.target.type,
        baseline.logits_T.cpu().numpy(),
        scored.joint_T.cpu().numpy(),
        scored.target_T.cpu().numpy(),
        generator=np.random.default_rng(job.contract.seed),
    )
    comparison = replace(scored, joint_T=torch.from_numpy(both_T)).compare(baseline.logits_T)
    return replace(evaluated, comparison=comparison, local_baseline=baseline.state, notes=baseline.notes)


def evaluate_as_feature_party(job: Job, trained: TrainedFeatureParty, dataset: Dataset, *, run_id: str) -> Evaluated:
    """Embed, as a feature party, the test rows and the rows that measure columns.

    Then receive the results that the label party may send.
    """
    channel = job.channels[job.contract.label_party]
    batches = dataset.test_batches(dataset.resolved(job.contract.training).batch_size)
    what = f"evaluation of {job.contract.name}, run {run_id}"
    charge = EmbeddingCharge.of(job.contract, job.party, job.folder, what=what)
    charge.reserve(evaluation_ahead(job.contract))
    if batches:
        charge("test")
    passes = pass_recorder(audited_side(job, dataset, run_id=run_id), width_of(trained.bottom))
    watch = partial(passes.sent, "test") if passes is not None else unwatched
    send_embeddings(trained.bottom, dataset.features_at, batches, channel, watch=watch)
    if passes is not None:
        passes.pass_ended("test")
    with before_refit(job.folder, trained.bottom, trained.state):
        send_columns(job, trained.bottom, dataset, channel, charge, passes)
    if passes is not None:
        passes.epoch_ended()
    charge.settle()
    job.logbook.watcher.say(f"waiting for {channel.peer} to score the rows")
    shared, importance = receive_results(job, dataset, channel)
    released = job.contract.evaluation.privacy
    finished = receive_finished(channel, rows=len(dataset.test_N), epsilon=released.epsilon if released is not None else None)
    job.leave()
    return Evaluated(shared=shared, importance=importance, finished=finished)


def _measure(
    scored: _Scored, trained: TrainedLabelParty | None, dataset: Dataset, measured: Measured | None, evaluated: Evaluated
) -> Evaluated:
    """Measure the test rows' scores: compared with those of own columns, in groups, and at decision thresholds."""
    job, rows, own, labels_here = scored.job, scored.rows, scored.own, scored.own.known_labels
    baseline = None
    if job.contract.evaluation.own_columns_baseline and own.encoder is not None and job.top is None:
        baseline = _baseline(job, own, own.encoder)
    labels, weights = labels_here.units(own.test_N)
    joint = labels_here.coder.predictions(scored.joint_T.cpu().numpy())
    decisions = {}
    if job.contract.target.type in ("binary", "multilabel"):
        # keep what a later evaluation needs; it holds labels, so only its owner may read it
        names, classes = labels_here.coder.score_names, labels_here.coder.each_label(scored.target_T)
        score_TK = torch.sigmoid(scored.joint_T.double()).cpu().numpy().reshape(-1, len(names))
        values = dict(zip(names, score_TK.T, strict=True)) | {
            name.replace("score", "label", 1): label_T.cpu().numpy().astype(np.int64)
            for name, (_, label_T) in zip(names, classes, strict=True)
        }
        content = BytesIO()
        pl.DataFrame(values).write_parquet(content)
        job.folder.write_output(job.folder.scores, content.getvalue())
        decisions = _decide(job, labels_here, labels, joint, weights, measured)
    # the joint model on groups of test rows, made by columns that the party file names
    options, by_column = job.party.report, []
    rows_T = rows.alignment.rows_N[own.test_N.cpu().numpy()]
    for column in options.subgroups:
        names, codes_T = groups_of(rows.column_at(column, rows_T, use="subgroup"))
        try:
            grouping = by_group(
                job.contract.target.type,
                Subgroups(column=column, names=names, codes_N=codes_T),
                ScoredRows(labels_N=labels, logits=joint, weights_N=weights, keys_N=rows.key_at(own.test_N)),
                levels=labels_here.coder.levels,
                smallest=options.smallest_group,
                resamples=job.contract.evaluation.bootstrap,
                generator=np.random.default_rng(job.contract.seed),
            )
        except UndefinedMetric as error:
            job.logbook.watcher.say(f"no figures by {column}: {error}")
            continue
        by_column.append(grouping)
    return replace(
        evaluated,
        comparison=scored.compare(baseline.logits_T if baseline is not None else None),
        decisions=decisions,
        groups=by_column + _by_partner(job, rows, trained, dataset, scored.joint_T),
        local_baseline=baseline.state if baseline is not None else None,
        notes=baseline.notes if baseline is not None else (),
    )


def _decide(
    job: Job,
    known: Labels,
    labels_T: NDArray[Any],
    logits_T: NDArray[Any],
    weights_T: NDArray[Any] | None,
    measured: Measured | None,
) -> dict[str, Decisions]:
    """Measure decisions by a threshold on the scores of each label. A single label has no name.

    The cheapest threshold is chosen on validation rows, if there are any.
    """
    names = tuple(known.coder.labels)

    def of_each_label(labels_N: NDArray[Any], logits: NDArray[Any]) -> list[tuple[NDArray[Any], NDArray[Any]]]:
        scores = sigmoid(logits)
        return list(zip(label_bits(labels_N, len(names)).T, scores.T, strict=True)) if names else [(labels_N, scores)]

    chosen_on: list[list[tuple[NDArray[Any], NDArray[Any], NDArray[Any] | None] | None]] = [[None] for _ in names or ("",)]
    if measured is not None:
        labels_V, weights_V = known.units(measured.index_V)
        validation = of_each_label(labels_V, measured.logits_V.cpu().numpy())
        chosen_on = [[(*each, weights_V), None] for each in validation]
    decisions = {}
    for name, (label_T, score_T), choices in zip(names or ("",), of_each_label(labels_T, logits_T), chosen_on, strict=True):
        costs = job.party.report.costs_of(name)
        for threshold_rows in choices:
            with suppress(UndefinedMetric):  # the validation rows or the test rows have one class only
                decisions[name] = decide(
                    label_T,
                    score_T,
                    weights=weights_T,
                    cost_false_positive=costs.false_positive,
                    cost_false_negative=costs.false_negative,
                    threshold_rows=threshold_rows,
                )
                break
    return decisions


def _by_partner(job: Job, rows: OwnRows, trained: TrainedLabelParty | None, dataset: Dataset, joint_T: Tensor) -> list[Grouping]:
    """Measure test rows with a partner's row, without one, and both together, each row by the score that it gets."""
    labels_here, index_U = dataset.known_labels, dataset.unaligned.test_N
    if trained is None or trained.alone is None or (not len(index_U) and bool(dataset.is_linked(dataset.test_N).all())):
        return []
    index_T = dataset.test_N.cpu()
    logits, index_N = joint_T.cpu(), torch.cat([index_T, index_U])
    if len(index_U):
        logits = torch.cat([logits, trained.alone(logits_alone(trained.model, dataset, index_U))])
    labels, weights = labels_here.units(index_N)
    predictions = labels_here.coder.predictions(logits.numpy())
    has_partner = np.concatenate([dataset.is_linked(dataset.test_N).cpu().numpy(), np.zeros(len(index_U), dtype=bool)])
    generator = np.random.default_rng(job.contract.seed)
    options = job.party.report
    both = np.zeros(len(logits), dtype=np.int64)
    groupings = []
    for column, names, codes in (
        (
            "test rows with and without a partner's row",
            ("with one: the joint model", "without: own columns"),
            np.where(has_partner, 0, 1),
        ),
        ("all test rows", ("both together",), both),
    ):
        try:
            grouping = by_group(
                job.contract.target.type,
                Subgroups(column=column, names=names, codes_N=codes),
                ScoredRows(labels_N=labels, logits=predictions, weights_N=weights, keys_N=rows.key_at(index_N)),
                levels=labels_here.coder.levels,
                smallest=options.smallest_group,
                resamples=job.contract.evaluation.bootstrap,
                generator=generator,
            )
        except UndefinedMetric as error:
            job.logbook.watcher.say(f"no figures by {column}: {error}")
            continue
        groupings.append(grouping)
    return groupings


@dataclass(frozen=True, kw_only=True)
class _Baseline:
    """The model of the label party's own columns: its logits of the test rows, its training, and notes on it."""

    logits_T: Tensor
    state: TrainingState
    notes: tuple[str, ...] = ()


def _baseline(job: Job, own: Dataset, encoder: Encoder) -> _Baseline:
    """Score the test rows by own columns alone: by the same kind of network, or by boosting if that validates better."""
    job.logbook.watcher.say("training the own-columns-only model, the baseline")

    def progress(_what: str, completed: int, total: int) -> None:
        job.progress("own columns only", completed, total)

    model = replace(job.architecture, folds=own.networks).label_model(encoder, [])
    store, screening = job.folder.store("baseline"), Screening(seed=job.contract.seed)
    state = train_own_columns(job.contract, own, model, store=store, screening=screening, progress=progress)
    network_T = logits_over(model, own.features_at, own.test_batches(SCORED_AT_A_TIME), [])
    baseline = _Baseline(logits_T=network_T, state=state)
    if not job.contract.evaluation.own_columns_boosting or state.best_loss is None:
        return baseline
    if own.folds is None:
        return _better(job, own, baseline, state.best_loss, anew=job.contract.own_refits)
    alone = replace(own, folds=None)
    with model.first_alone():  # the same rows judge boosting
        logits_V = logits_over(model, own.features_at, torch.split(own.validation_N, SCORED_AT_A_TIME), [])
    loss = alone.objective().validation_loss(logits_V, own.validation_N).item()
    return _better(job, alone, baseline, loss, anew=True)


def _better(job: Job, own: Dataset, network: _Baseline, best: float, *, anew: bool = False) -> _Baseline:
    """Return the network, or gradient boosting on the same columns if its validation loss is below ``best``, and a note about
    it.

    With ``anew``, boosting that was better is fitted again with the validation rows, as the network was.
    """
    survival = job.contract.target.type == "survival"
    if survival or not can_boost():
        sentence = "own columns only: gradient boosting was not tried"
        sentence += (
            ", because it has no loss for survival times"
            if survival
            else "; install scikit-learn, or set evaluation.own_columns_boosting to false"
        )
        job.logbook.watcher.say(sentence)
        return replace(network, notes=(sentence,))
    target, device = job.contract.target, network.logits_T.device
    boosted, rows = _boosted(job, own)
    logits_V = boosted.logits(own.features_at, own.validation_N, classes=target.classes).to(device)
    loss = own.objective().validation_loss(logits_V, own.validation_N).item()
    is_better = loss < best
    sentence = (
        f"own columns only: {'gradient boosting' if is_better else 'the network'} is the baseline "
        f"(validation loss of boosting {loss:.4f}, of the network {best:.4f})"
    )
    if rows < len(own.train_N):
        sentence += f"; boosting was fitted on {rows:,} of {len(own.train_N):,} training rows"
    job.logbook.watcher.say(sentence)
    if not is_better or not len(own.test_N):
        return replace(network, notes=(sentence,))
    if anew:
        boosted = _boosted(job, own.with_validation())[0]
    logits_T = boosted.logits(own.features_at, own.test_N, classes=target.classes).to(device)
    return replace(network, logits_T=logits_T, notes=(sentence,))


def _boosted(job: Job, own: Dataset) -> tuple[Boosted, int]:
    """Fit boosting on the training rows, and return a note of how many it used."""
    labels_here, seed = own.known_labels, job.contract.seed
    fitted_N = sampled_rows(own.train_N, MOST_ROWS, seed=seed)
    weights = labels_here.weight_N[fitted_N] if labels_here.weight_N is not None else None
    boosted = Boosted(
        job.contract.target.type,
        own.features_at(fitted_N),
        labels_here.true_N[fitted_N],
        weights,
        levels=labels_here.coder.levels,
        outputs=job.contract.target.outputs,
        seed=seed,
    )
    return boosted, len(fitted_N)
