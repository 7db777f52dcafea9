"""Train as a phase of a job, per role: encode the rows, charge for defences, build the network, and train or load it."""

import base64
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from tallystick.alignment.outcome import Alignment
from tallystick.audit.recording import pass_recorder, recorders
from tallystick.config.contract import Contract
from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import SCORED_AT_A_TIME, KeptCuts
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.datasets import dataset_of
from tallystick.dataset.drawn_labels import SettlingRule
from tallystick.dataset.imputed import ImputingObjective
from tallystick.dataset.intersection import check_classes
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import LabelError
from tallystick.evaluation.evaluation_messages import Finished
from tallystick.evaluation.importance import column_places
from tallystick.job.handshake import Agreement
from tallystick.job.job import Job
from tallystick.job.phases.audit import audited_side
from tallystick.job.phases.batches_in_flight import paced_feature_party, paced_label_party
from tallystick.job.phases.defense import RunDefense
from tallystick.job.phases.no_gradients import send_once
from tallystick.job.phases.workers import feature_workers, label_workers
from tallystick.models.branches import BranchedModel
from tallystick.models.build import build_bottom, try_bottom, try_top, width_of
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel, Progress
from tallystick.network.messages import MEBIBYTE
from tallystick.privacy.randomness import Seed
from tallystick.run_folder.embedding_charge import EmbeddingCharge, evaluation_ahead, training_ahead
from tallystick.run_folder.folder import SETTLED, RunFolder
from tallystick.run_folder.initial_weights import StartingPoint, put_starting_weights
from tallystick.run_folder.local_scores import calibrated_alone
from tallystick.run_folder.profile import keep_profile, profile_of
from tallystick.run_folder.recording_thread import RecordingThread
from tallystick.run_folder.trained import (
    TrainedFeatureParty,
    TrainedLabelParty,
    before_refit,
    changed_values,
    keep_before_refit,
    keep_encoders,
    kept_encoder,
)
from tallystick.tables.digests import column_digest
from tallystick.tables.encoder import feature_columns
from tallystick.tables.keys import Keys
from tallystick.tables.target_leakage import telling
from tallystick.tables.vectors import vector_of
from tallystick.training.calibration import LogitLine
from tallystick.training.checkpoint import CheckpointStore, TrainingState
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, KeptPeer, Peer, train_label_party
from tallystick.training.objective import Objective
from tallystick.training.plan import Schedule, batches_per_message, rows_validated
from tallystick.training.refit import train_and_refit
from tallystick.training.run import TrainingRun
from tallystick.training.screening import Screening, screening_sentence
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick.training.training_messages import MAX_CUT_WIDTH, CutWidth, receive_width
from tallystick.training.unaligned.method import OwnPart


def own_rows(job: Job, keys: Keys, alignment: Alignment) -> OwnRows:
    """Return this party's table, and where its rows are in the alignment."""
    point = StartingPoint.of(job.folder)
    return OwnRows(
        before=point.before(grows=job.grows) if point is not None else None,
        trained=kept_encoder(job.folder) if job.folder.trained else None,
        party=job.party,
        is_label=job.is_label,
        frame=job.frame,
        keys=keys,
        alignment=alignment,
        numbers=job.contract.model.numeric,
        screens=job.bottom is None and job.contract.screens(job.name),
        hides=job.contract.shares_head,
    )


def encode_rows(job: Job, keys: Keys, alignment: Alignment, channels: Sequence[Channel]) -> Dataset:
    """Encode this party's rows at the linked positions, and save the encoders."""
    own = own_rows(job, keys, alignment)
    dataset = dataset_of(job.contract.linkage).of(job.contract, own, channels, secret_seed=job.folder.secret_seed)
    digests = value_digests(own, dataset)
    changed = changed_values(job.folder, digests)
    if changed:  # only a warning: the others are connected, so ending here would tell them something about labels
        job.logbook.watcher.say(
            f"warning: since this run began, the table has other values of the same ids: {', '.join(changed)}; training and "
            "measurements now use these; put the former table back, or begin a new run"
        )
    if not (changed and job.folder.trained):  # a trained model needs its own encoders
        keep_encoders(job.folder, dataset, digests)
    if not job.folder.trained and dataset.encoder is not None:
        # The rows that this party trains on; for a feature party that links by similarity, all linked rows.
        by_number = own.alignment.candidates and not own.is_label
        rows_R = own.alignment.own_rows if by_number else own.rows_at(dataset.train_N)
        training_rows = own.keys.rows_R[np.unique(rows_R[rows_R >= 0])]
        keep_profile(job.folder, profile_of(own.frame, dataset.encoder, training_rows))
    # a simulation has not checked before, as a run has, whether a user's bottom has the width that it states
    name, model = job.party.party, job.contract.model
    if (name in model.bottoms or job.bottom is not None) and dataset.encoder is not None:
        few = dataset.encoder.encode(job.frame[np.arange(min(2, job.frame.height))]).unpacked()
        if job.bottom is not None:
            try_bottom(job.bottom, few, what=f"simulate: the bottom of {name} ({type(job.bottom).__name__})")
        else:
            bottom = build_bottom(model, name, dataset.encoder.feature_shape, seed=job.contract.seed)
            try_bottom(bottom, few, what=f"model.bottoms.{name} = {model.bottoms[name]}")
    for note in dataset.encoder.notes if dataset.encoder is not None else ():
        job.logbook.watcher.say(note)
    for note in dataset.resolved_notes(job.contract.training):
        job.logbook.watcher.say(note)
    return dataset


def value_digests(own: OwnRows, dataset: Dataset) -> dict[str, str]:
    """Return digests of this party's data in a run, by name: each column, and the labels, of all rows that some step uses.

    A column that the encoder leaves out has an empty digest, which says that the table has it.
    """
    party, parts, encoder = own.party, (dataset, dataset.unaligned), dataset.encoder
    positions_N = torch.cat([each.cpu() for part in parts for each in (part.train_N, part.validation_N, part.test_N)])
    by_number = own.alignment.candidates and not own.is_label
    rows_R = own.alignment.own_rows if by_number else own.rows_at(positions_N.sort().values)
    rows_R = rows_R[rows_R >= 0]
    features = feature_columns(own.frame, party)
    columns: dict[str, list[str]] = {name: [] for name in (*features.categorical, *party.sequences)}
    columns |= {vector_of(name, party.vectors) or name: [] for name in features.numeric}
    if encoder is not None:
        for number in encoder.numeric:
            columns.setdefault(number.vector or number.name, []).append(number.name)
        columns |= {category.name: [category.name] for category in encoder.categorical}
        columns |= {each.name: [name for name in (each.name, each.target) if name is not None] for each in encoder.sequences}
    columns |= {name: [name] for name in (party.weight, party.time) if name is not None}
    columns_of = {f"column {name!r}": used for name, used in columns.items()}
    if party.labels:
        columns_of["the labels"] = list(party.labels)
    return {
        name: column_digest(own.column_at(column, rows_R, use="feature") for column in used) if used else ""
        for name, used in columns_of.items()
    }


def telling_columns(job: Job, own: OwnRows, dataset: Dataset) -> list[str]:
    """Warn the label party of own columns that alone reveal the labels of its training rows. Nobody else learns it."""
    if dataset.encoder is None or job.party.label is None:
        return []
    rows_M = own.alignment.rows_N[dataset.train_N.cpu().numpy()]
    rows_M = rows_M[rows_M >= 0]
    label = own.label().gather(rows_M)
    notes = []
    for place in column_places(dataset.encoder):
        if place.name in job.party.sequences or place.name not in own.frame.columns:
            continue
        if (how := telling(own.column_at(place.name, rows_M, use="feature"), label)) is not None:
            notes.append(f"own column {place.name!r} {how} on training rows; is it known before the label is? (leakage)")
            job.logbook.watcher.say(f"warning: {notes[-1]}")
    return notes


def start_of(contract: Contract, folder: RunFolder) -> Seed:
    """Return this party's secret of this run, which the run folder keeps. If ``training.starts`` is public, return the
    contract's seed.

    If a peer knows a feature party's starting weights, it can compute the columns of the first batch from its embeddings
    (``attacks/feature_inference/known_initial_weights.py``), and use these rows to learn the others. If it knows the label
    party's starting weights, it can simulate the gradient of each possible label (``attacks/label_inference/enumeration.py``).
    A secret start prevents both. It is not a formal guarantee: embeddings and gradients still reveal what they reveal without the
    start.
    """
    return contract.seed if contract.training.starts == "public" else folder.start_secret()


def train_as_label_party(
    job: Job,
    dataset: Dataset,
    agreement: Agreement,
    *,
    own: OwnRows,
    kept_cuts: Sequence[KeptCuts] | None = None,
    scores_unmatched: bool = True,
) -> TrainedLabelParty:
    """Train with the contract's defences, or load the trained model. Labels are replaced and charged before any is used.

    With ``kept_cuts`` nothing is sent, so nothing is charged. Without ``scores_unmatched`` the network of own columns, which
    scores rows without a partner's row, is not trained.
    """
    is_new = trains(job, agreement)
    training = paced_label_party(job, dataset, goes_on=agreement.resume_from > 0) if is_new else None
    widths = [each.width for each in kept_cuts] if kept_cuts is not None else receive_widths(job, dataset, training)
    if training is None:
        return TrainedLabelParty.load(job.folder, job.architecture, widths=widths)
    if job.top is not None:
        # refuse a simulation's top that does not fit the bottoms' outputs, before a step fails
        outputs = job.contract.target.outputs
        own_width = width_of(job.bottom) if job.bottom is not None else 0
        parts = ", ".join(f"{name} {width}" for name, width in zip(job.contract.feature_parties, widths, strict=True))
        cuts = f"{parts}, own {own_width}" if own_width else parts
        what = f"simulate: the top of {job.name} ({type(job.top).__name__}), for cuts of {cuts}"
        try_top(job.top, sum(widths) + own_width, outputs=outputs or 1, what=what)
    defense, start = RunDefense.of(job.contract, job.folder), start_of(job.contract, job.folder)
    architecture = replace(job.architecture, seed=start, folds=dataset.networks, own_folds=dataset.own_part().networks)
    if dataset.dispensed is not None:
        architecture = architecture.without_unaligned()
    model = architecture.label_model(dataset.encoder, widths, candidates=dataset.candidates)
    put_starting_weights(job.folder, model)
    what = f"training of {job.contract.name}, run {agreement.run_id}"
    if kept_cuts is None:
        true_N, column = dataset.known_labels.true_N, own.used_labels(job.contract)
        defense.spend(
            job.contract,
            job.party,
            job.folder,
            true_N,
            what=what,
            column=column,
            use="tuning" if job.command == "tune" else "gradients",
        )
    defended = defense.defended(dataset)
    labels = defended.known_labels
    check_classes(job.contract.unaligned, labels.coder, labels.training_labels_N[defended.train_N])
    if labels.weight_N is not None and job.contract.sends_gradients:  # without gradients this was checked before
        weights = torch.cat([labels.weight_N[part_N] for part_N in (defended.train_N, defended.unaligned.train_N)])
        if not (weights > 0).any():
            raise LabelError(
                f"weight column {job.party.weight!r}: every weight is 0 on the {len(weights)} training rows, or so small beside "
                "the largest that it counts as 0; at least one must be above"
            )
    run = _training_run(job, defended, agreement, training)
    side, recording = audited_side(job, dataset, run_id=agreement.run_id), RecordingThread()
    observers = recorders(side, widths, resume_epoch=run.begun().epoch, later=recording)
    peers: Sequence[Peer]
    if kept_cuts is not None:
        peers = [KeptPeer(name=name, kept=each) for name, each in zip(job.contract.feature_parties, kept_cuts, strict=True)]
    else:
        peers = [
            FeaturePeer(channel=channel, width=width, observer=observer, compression=job.contract.training.compression)
            for channel, width, observer in zip(job.feature_channels, widths, observers, strict=True)
        ]
    method = defended.method(run.training, start=start)
    if method is not None and not agreement.resume_from:
        prepare = method.prepare if StartingPoint.of(job.folder) is None else method.prepare_again
        prepare(model, defended.objective(), own_part(job, defended, start))
    objective = defended.objective()

    def train(run: TrainingRun) -> TrainingState:
        rule, cut = method or settling(job, objective, run), defense.cut(run)
        state = train_label_party(model, defended.features_at, objective, peers, run, step_rule=rule, defense=cut)
        job.logbook.watcher.say(_how_it_ended(state, run))
        return state

    keep_first = partial(keep_before_refit, job.folder, model)
    with recording, label_workers(job, model, dataset, widths, run):
        state = train_and_refit(model, run, refit_schedule(job, defended), train, between=keep_first)
    alone = model.own_rows if scores_unmatched and isinstance(model, BranchedModel) else None
    trained = TrainedLabelParty(
        model=model,
        encoder=dataset.encoder,
        widths=widths,
        candidates=dataset.candidates,
        coder=dataset.known_labels.coder,
        calibration=dataset.calibration(state),
        state=state,
        alone=_train_alone(job, defended, model, alone, state) if alone is not None else None,
        dispensed=dataset.dispensed is not None,
        folds=dataset.networks,
        own_folds=architecture.own_folds,
    )
    trained.keep(job.folder)
    return trained


def settling(job: Job, objective: Objective, run: TrainingRun) -> StepRule:
    """Return the plain rule, or one that first draws a union's absent labels and keeps them in the run folder.

    A resumed run uses the labels that it drew before.

    Raises DamagedFile if a resumed run has lost them.
    """
    if not isinstance(objective, ImputingObjective) or not objective.settles_first:
        return PLAIN
    folder = job.folder
    if run.resume_from:
        noted = folder.required(SETTLED)
        bits = np.unpackbits(np.frombuffer(base64.b64decode(str(noted["labels"])), dtype=np.uint8))
        settled_U = torch.from_numpy(bits[: int(str(noted["positions"]))].astype(np.float32))
        objective.take_settled(settled_U.to(run.schedule.train_N.device))

    def keep(settled_U: Tensor) -> None:
        bits = np.packbits(settled_U.cpu().numpy() > 0)
        folder.note(SETTLED, {"labels": base64.b64encode(bits.tobytes()).decode(), "positions": len(settled_U)}, private=True)

    return SettlingRule(objective=objective, seed=folder.secret_seed() % 2**63, keep=keep)


def _train_alone(job: Job, dataset: Dataset, model: LabelModel, alone: LabelModel, joint: TrainingState) -> LogitLine:
    """Train the model that scores rows without a partner's row: on own columns of every row, by the labels of the joint
    training.

    Return the calibration of its logits. It needs rows that the model did not train on, so it is fitted before the network is
    trained again with all rows. A joint model from before its own refit then also has this part's weights of that time.
    """
    job.logbook.watcher.say("training the model of own columns, for rows without a partner's row")
    own = replace(dataset.own_part(), labels=dataset.known_labels)
    lines: list[LogitLine] = []

    def progress(_what: str, completed: int, total: int) -> None:
        job.logbook.watcher.progress("own columns, for rows without a partner's row", completed, total)
        for channel in job.feature_channels:  # nothing is received here for a long time: end soon if a peer is lost
            channel.check()

    def before_its_refit() -> None:
        first = deepcopy(alone.state_dict())
        with before_refit(job.folder, model, joint):
            alone.load_state_dict(first)
            lines.append(calibrated_alone(model, dataset))
            if joint.refit_epochs:
                keep_before_refit(job.folder, model)

    store, screening = job.folder.store("alone"), own_screening(job, own)
    train_own_columns(job.contract, own, alone, store=store, screening=screening, progress=progress, between=before_its_refit)
    return lines[0] if lines else calibrated_alone(model, dataset)


def train_own_columns(
    contract: Contract,
    own: Dataset,
    model: LabelModel,
    *,
    store: CheckpointStore,
    screening: Screening | None,
    progress: Progress,
    between: Callable[[], None] = lambda: None,
    objective: Objective | None = None,
) -> TrainingState:
    """Train the network of own columns alone, as a label party without a partner would. Nothing crosses.

    It scores rows without a partner's row, and the joint model is compared with it. It is trained with the contract's settings,
    and with folds or a refit like a joint network of as many rows.

    Args:
        contract: gives the settings.
        own: all own rows, with the labels to train by.
        model: of own columns alone.
        store: keeps its checkpoints.
        screening: how useless columns are closed; None closes none.
        progress: called as steps go by.
        between: called before a refit, while the model has the weights that validated best.
        objective: its loss; by default that of the training labels.

    Raises what ``train_label_party`` raises without peers.
    """
    training, seed = own.resolved(contract.training), contract.seed
    schedule = replace(own.schedule(training, seed=seed), validated=SCORED_AT_A_TIME)
    anew = own.with_validation().schedule(training, seed=seed) if contract.own_refits else None
    run = TrainingRun(training=training, schedule=schedule, store=store, progress=progress, screening=screening)
    train = partial(train_label_party, model, own.features_at, objective or own.objective(), [])
    return train_and_refit(model, run, anew, train, between=between)


def embed_as_feature_party(job: Job, dataset: Dataset, agreement: Agreement) -> tuple[TrainedFeatureParty, Finished]:
    """Build the bottom model from this party's secret, and train it, if at all, on own columns alone.

    Then send each row's embedding once.
    """
    channel = job.channels[job.contract.label_party]
    start = start_of(job.contract, job.folder)
    bottom = replace(job.architecture, seed=start).of_run(job.folder).bottom_model(dataset)
    put_starting_weights(job.folder, bottom)
    is_continued = StartingPoint.of(job.folder) is not None
    channel.send(CutWidth(width=width_of(bottom)))
    observer, passes = None, None
    if is_new := trains(job, agreement):
        side = audited_side(job, dataset, run_id=agreement.run_id)
        (observer,) = recorders(side, [width_of(bottom)], resume_epoch=0)
        passes = pass_recorder(side, width_of(bottom), anew=True)
        method = dataset.method(dataset.resolved(job.contract.training), start=start)
        if method is not None and not is_continued:
            method.prepare_bottom(bottom, own_part(job, dataset, start))
        trained = TrainedFeatureParty(bottom=bottom, encoder=dataset.known_encoder, state=TrainingState())
        trained.keep(job.folder)
    else:
        trained = TrainedFeatureParty.load(job.folder, job.architecture, dataset)
    finished = send_once(job, trained.bottom, dataset, trains=is_new, observer=observer, passes=passes, run_id=agreement.run_id)
    return trained, finished


def train_as_feature_party(job: Job, dataset: Dataset, agreement: Agreement) -> TrainedFeatureParty:
    """Train the bottom model, or load the trained one. First announce its width."""
    channel = job.channels[job.contract.label_party]
    start = start_of(job.contract, job.folder)
    bottom = replace(job.architecture, seed=start, folds=dataset.networks).of_run(job.folder).bottom_model(dataset)
    put_starting_weights(job.folder, bottom)
    is_continued = StartingPoint.of(job.folder) is not None
    is_new = trains(job, agreement)
    training = paced_feature_party(job, dataset, goes_on=agreement.resume_from > 0) if is_new else None
    channel.send(CutWidth(width=width_of(bottom)))
    if training is None:
        return TrainedFeatureParty.load(job.folder, job.architecture, dataset)
    run = _training_run(job, dataset, agreement, training)
    side = audited_side(job, dataset, run_id=agreement.run_id)
    (observer,) = recorders(side, [width_of(bottom)], resume_epoch=run.begun().epoch)
    passes = pass_recorder(side, width_of(bottom), run.schedule.validation(), anew=not run.begun().step)
    what = f"training of {job.contract.name}, run {agreement.run_id}"
    charge = EmbeddingCharge.of(job.contract, job.party, job.folder, what=what)
    ahead = training_ahead(job.contract, run.training, run.schedule, state=run.begun())
    if "evaluation" in job.phases:
        ahead = ahead.and_then(evaluation_ahead(job.contract))
    charge.reserve(ahead)
    method = dataset.method(run.training, start=start)
    if method is not None and not agreement.resume_from and not is_continued:
        method.prepare_bottom(bottom, own_part(job, dataset, start))

    def train(run: TrainingRun) -> TrainingState:
        sending = charge.refitting if run.begins.refit_epochs else charge
        state = train_feature_party(bottom, dataset.features_at, channel, run, observer=observer, passes=passes, sending=sending)
        job.logbook.watcher.say(_how_it_ended(state, run))
        return state

    keep_first = partial(keep_before_refit, job.folder, bottom)
    with feature_workers(job, bottom, dataset, run):
        state = train_and_refit(bottom, run, refit_schedule(job, dataset), train, between=keep_first)
    if "evaluation" not in job.phases:
        charge.settle()
    trained = TrainedFeatureParty(bottom=bottom, encoder=dataset.known_encoder, state=state, folds=dataset.networks)
    trained.keep(job.folder)
    return trained


def _how_it_ended(state: TrainingState, run: TrainingRun) -> str:
    """Say after how many epochs training ended, and why: patience ends most trainings long before the last step of the progress
    bar.
    """
    if state.refit_epochs:
        return f"trained anew with the validation rows, for {state.refit_steps} steps; these weights are kept"
    sentence = f"trained {state.epoch} of at most {run.epochs} epochs"
    if state.best_epoch is None:
        return sentence
    waited, patience = state.epoch - state.best_epoch - 1, run.training.patience
    is_over_time = state.stopped and run.training.minutes is not None and (patience is None or waited < patience)
    if is_over_time:
        sentence += f"; training.minutes = {run.training.minutes:g} were over"
        sentence += " within the first; raise them" if state.epoch == run.schedule.epochs_before + 1 else ""
    if run.training.folds > 1:
        stopped = "; the last did not validate better (training.patience)" if state.stopped and not is_over_time else ""
        return f"{sentence}{stopped}; each of {run.training.folds} networks keeps the weights of its own best step"
    best_epoch = state.best_epoch + 1  # messages count from 1, states from 0
    if state.stopped and not is_over_time:
        sentence += f"; the last {state.epoch - best_epoch} validated no better (training.patience)"
    where = (
        f"epoch {best_epoch}"
        if state.best_step == run.ends(state.best_epoch)
        else f"step {state.best_step}, in epoch {best_epoch},"
    )
    return f"{sentence}; the weights of {where} are kept"


def own_part(job: Job, dataset: Dataset, start: Seed) -> OwnPart:
    """Return the rows that a party may train on before the first joint step: the label party's unaligned rows, a feature
    party's own.
    """

    train_N = dataset.unaligned.train_N
    return OwnPart(
        source=dataset.features_at,
        train_N=train_N if job.is_label else torch.cat([dataset.train_N, train_N]),
        validation_N=dataset.unaligned.validation_N,
        training=dataset.resolved(job.contract.training),
        store=job.folder.store,
        seed=job.contract.seed,
        start=start,
        progress=lambda what, completed, total: job.progress(f"before joint training: {what}", completed, total),
    )


def trains(job: Job, agreement: Agreement) -> bool:
    """Tell whether this job trains, rather than loads a trained model."""
    return "training" in job.phases and agreement.train


def receive_widths(job: Job, dataset: Dataset, training: TrainingConfig | None = None) -> list[int]:
    """Receive the cut widths of the feature parties, in the contract's order. Raises ProtocolError for a width out of range."""
    training, most = training or dataset.resolved(job.contract.training), job.contract.network.max_message_mib * MEBIBYTE
    largest = max(map(len, (dataset.train_N, dataset.validation_N, dataset.test_N)))
    validated = _rows_validated(job.contract, training)
    together = min(max(training.batch_size * batches_per_message(training), validated), largest)
    return [
        receive_width(
            channel,
            rows=dataset.most_cut_rows(together, number),
            max_message_bytes=most,
            networks=dataset.networks,
        )
        for number, channel in enumerate(job.feature_channels)
    ]


def _training_run(job: Job, dataset: Dataset, agreement: Agreement, training: TrainingConfig) -> TrainingRun:
    schedule = dataset.schedule(training, seed=job.contract.seed)
    return TrainingRun(
        training=training,
        schedule=replace(
            schedule, validations=job.contract.validations(training), validated=_rows_validated(job.contract, training)
        ),
        store=job.folder.store(),
        resume_from=agreement.resume_from,
        progress=job.logbook.watcher.progress,
        committed=job.logbook.commit,
        announce=dataset.announce,
        screening=None if dataset.has_branches else own_screening(job, dataset),  # branches share their columns
    )


def own_screening(job: Job, dataset: Dataset) -> Screening | None:
    """Build the screening of this party's columns in a training.

    Return None if the training starts from an earlier run, whose weights come with its open columns.
    """
    encoder = dataset.encoder
    if encoder is None or not encoder.screened or StartingPoint.of(job.folder) is not None:
        return None

    def settled(open_C: Tensor) -> None:
        job.logbook.watcher.say(screening_sentence(encoder.names, open_C))

    return Screening(seed=start_of(job.contract, job.folder), settled=settled)


def _rows_validated(contract: Contract, training: TrainingConfig) -> int:
    """Count the validation rows of a message from facts that all parties know, not from a width that a party announces.

    If several candidates may cross for each row, count those of a batch.
    """
    if contract.alignment.similarity is not None:
        return training.batch_size
    width = MAX_CUT_WIDTH if contract.model.bottoms else training.folds * contract.model.built_in_cut_width
    most = contract.network.max_message_mib * MEBIBYTE - 4096  # the widths of its fields
    return rows_validated(training, width=width, max_message_bytes=most)


def refit_schedule(job: Job, dataset: Dataset) -> Schedule | None:
    """Build the batches of the refit, over training and validation rows. Return None if the contract has no refit."""
    if not job.contract.refits:
        return None
    return dataset.with_validation().schedule(dataset.resolved(job.contract.training), seed=job.contract.seed)
