"""One party's run of a contract: read this file to see what happens in which order.

    handshake -> alignment -> training -> audit -> evaluation -> report

run_label_party and run_feature_party are the two roles; both do the same phases over the same channels.
"""

from dataclasses import asdict

import torch
from torch import nn

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psu_helper import union_helper
from tallystick.alignment.randomness import SecureRandom
from tallystick.cut.forward import send_embeddings
from tallystick.data.groups import check_subgroups
from tallystick.data.keys import Keys, spelling_hints
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.messages import Finished, receive_finished
from tallystick.job.alignment import align, helpers_max_rows, low_match, require_match_rate
from tallystick.job.audit import audit_run, recorders
from tallystick.job.defense import RunDefense
from tallystick.job.evaluate import evaluate
from tallystick.job.handshake import Agreement, Standing, shake_hands, shake_hands_label_party
from tallystick.job.importance import receive_results, send_columns
from tallystick.job.job import Job
from tallystick.job.preflight import check_kept
from tallystick.job.results import Findings, result_of
from tallystick.job.rows import Aligned, aligned_rows, fingerprint, read_ids, united_rows
from tallystick.models.build import build_bottom
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.network.messages import MEBIBYTE
from tallystick.report.page import render
from tallystick.report.result import Result
from tallystick.storage import write_json
from tallystick.training.checkpoint import TrainingState, load_weights, write_tensors
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import FeaturePeer, train_label_party
from tallystick.training.messages import CutWidth, receive_width
from tallystick.training.plan import Schedule, batches_per_message
from tallystick.training.run import TrainingRun


def run_party(job: Job) -> Result:
    """Run this party's side of a job, whichever its role; leaves model, result and report in the run folder."""
    torch.set_num_threads(job.party.threads or torch.get_num_threads())
    findings = Findings()
    roles = {"label": _run_label_party, "feature": _run_feature_party, "helper": _run_helper}
    roles[job.contract.role_of(job.name)](job, findings)
    result = result_of(job.contract, job.party, job.logbook, findings, started=job.started)
    write_json(job.folder.result, result.to_json().encode())
    render(result, job.folder.report)
    return result


def _run_label_party(job: Job, findings: Findings) -> None:
    contract, logbook, channels = job.contract, job.logbook, job.feature_channels
    check_subgroups(job.frame, job.party)  # before anybody is told of the job
    keys = read_ids(contract, job.party, job.frame)
    findings.keys = keys.report
    with logbook.during("handshake", channels):
        named = {name: job.channels[name] for name in contract.feature_parties}
        helper = job.channels[contract.helper] if contract.helper is not None else None
        agreement = shake_hands_label_party(contract, _standing(job, keys), named, helper=helper)
        _take_up(job, findings, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", channels):
            findings.alignment = _align(job, keys, agreement)
            findings.match_notes = _match_notes(job, findings.alignment)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = findings.alignment = findings.alignment or _kept_alignment(job)
    with logbook.during("training", channels):
        rows = findings.rows = _rows(job, keys, alignment, channels)
        _save_coders(job, rows)
        widths = _receive_widths(job, rows, channels)
        model = job.label_model(rows.encoder.feature_shape if rows.encoder else None, widths)
        findings.modules = {"label model": model}
        if "training" in job.phases and agreement.train:
            findings.training = _train_label(job, model, rows, widths, agreement)
            _finish_training(
                job, model, findings.training, {"widths": widths, "calibration": _calibration_facts(rows, findings.training)}
            )
        else:
            findings.training = _load_trained(job, model)
    findings.audited = audit_run(job, rows, run_id=agreement.run_id)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", channels):
            evaluate(job, keys, model, rows, widths, findings)
            for channel in channels:
                channel.send(findings.finished)


def _run_feature_party(job: Job, findings: Findings) -> None:
    contract, logbook = job.contract, job.logbook
    channel = job.channels[contract.label_party]
    keys = read_ids(contract, job.party, job.frame)
    findings.keys = keys.report
    with logbook.during("handshake", [channel]):
        agreement = shake_hands(contract, _standing(job, keys), channel)
        _take_up(job, findings, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", [channel]):
            findings.alignment = _align(job, keys, agreement)
            findings.match_notes = _match_notes(job, findings.alignment)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = findings.alignment = findings.alignment or _kept_alignment(job)
    with logbook.during("training", [channel]):
        rows = findings.rows = _rows(job, keys, alignment, [channel])
        assert rows.encoder is not None
        assert rows.source is not None
        _save_coders(job, rows)
        bottom = job.bottom or build_bottom(contract.model, job.name, rows.encoder.feature_shape, seed=contract.seed)
        bottom = (rows.imputation.bottom(bottom) if rows.imputation is not None else bottom).to(job.party.device)
        findings.modules = {"bottom model": bottom}
        channel.send(CutWidth(width=_width(bottom)))
        if "training" in job.phases and agreement.train:
            (observer,) = recorders(job, rows, [_width(bottom)], run_id=agreement.run_id, resume_from=agreement.resume_from)
            run = _training_run(job, rows.schedule(contract), agreement)
            findings.training = train_feature_party(bottom, rows.source, channel, run, observer=observer)
            _finish_training(job, bottom, findings.training, {})
        else:
            findings.training = _load_trained(job, bottom)
    findings.audited = audit_run(job, rows, run_id=agreement.run_id)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", [channel]):
            send_embeddings(bottom, rows.source, rows.test_batches(job.contract), channel)
            send_columns(job, bottom, rows, channel)
            logbook.watcher.say(f"waiting for {channel.peer} to measure and to write its report")
            findings.shared = receive_results(job, rows, channel, findings)
            findings.finished = _receive_finished(job, rows, channel)


def _run_helper(job: Job, findings: Findings) -> None:
    """The helper of an alignment: it sees keyed hashes, tells both parties their positions, and is done."""
    contract = job.contract
    label, feature = (job.channels[name] for name in (contract.label_party, contract.feature_parties[0]))
    with job.logbook.during("handshake", [label]):
        agreement = shake_hands(contract, Standing(command=job.command, resume=job.resume), label, keeps=False)
        findings.run_id = agreement.run_id
    if not agreement.align:
        return
    with job.logbook.during("alignment", [label, feature]):
        outcome = union_helper(label, feature, rng=SecureRandom(), max_rows=helpers_max_rows(contract))
    findings.helper = outcome
    for sentence in outcome.learnt:
        job.logbook.watcher.say(f"learnt: {sentence}")


def _standing(job: Job, keys: Keys) -> Standing:
    """What the run folder holds, for the handshake; a kept alignment of another table is of no use."""
    kept = job.folder.load_alignment()
    if kept is None or not job.resume:
        return Standing(command=job.command, resume=job.resume)
    check_kept(job.party, keys, job.folder)
    saved, _ = kept
    steps, damaged = job.folder.store().intact()
    of_model = job.folder.damage()
    for error in (*damaged, *of_model):
        job.logbook.watcher.say(f"{error}; going on without it")
    return Standing(
        command=job.command,
        resume=True,
        run_id=saved.run_id,
        checkpoints=tuple(steps),
        trained=job.folder.trained and not of_model,
    )


def _take_up(job: Job, findings: Findings, agreement: Agreement) -> None:
    logbook = job.logbook
    if agreement.align and "alignment" not in job.phases:
        raise ConfigError(
            f"the parties' latest alignments are not of one run (here: {job.folder.path}); run `tallystick align` on all sides"
        )
    if agreement.align and job.resume and (job.folder.trained or job.folder.store().steps()):
        # Aligning again would drop what was learnt on the old alignment, perhaps a finished model.
        raise ConfigError(
            f"the parties cannot go on together with {job.folder.path}: their latest runs are not the same one; "
            "start a new run without --resume on all sides"
        )
    findings.run_id = agreement.run_id
    findings.resumed_from = agreement.resume_from
    logbook.committed = agreement.resume_from
    if agreement.resume_from and agreement.train:
        logbook.watcher.say(f"resuming after step {agreement.resume_from}")
    elif job.resume and agreement.train and (job.folder.store().steps() or job.folder.trained):
        logbook.watcher.say("there is no step that all parties can go on from: training starts anew on the kept alignment")


def _align(job: Job, keys: Keys, agreement: Agreement) -> Alignment:
    """Align, or take the alignment of the run that goes on; then say what was learnt."""
    watcher = job.logbook.watcher
    kept = job.folder.load_alignment()
    if not agreement.align and kept is not None:
        watcher.say(f"keeping the alignment of the interrupted run: {len(kept[1])} rows")
        return kept[1]
    job.folder.forget_training()
    alignment = align(job.contract, job.party, keys.ids, job.channels, progress=watcher.progress)
    require_match_rate(job.contract, job.name, alignment)
    job.folder.save_alignment(alignment, run_id=agreement.run_id, table=fingerprint(keys))
    for sentence in alignment.learnt:
        watcher.say(f"learnt: {sentence}")
    return alignment


def _match_notes(job: Job, alignment: Alignment) -> list[str]:
    """Warn of an alignment that found few common ids, with what may have kept others apart."""
    if (low := low_match(alignment)) is None:
        return []
    hints = spelling_hints(job.frame, columns=job.party.keys, alignment=job.contract.alignment)
    told = "; ".join(hints) or "this side's keys look uniform, so look at the other side's"
    note = f"{low}; if more should be common, the sides may spell keys in different ways: {told}"
    job.logbook.watcher.say(f"warning: {note}")
    return [note]


def _kept_alignment(job: Job) -> Alignment:
    kept = job.folder.load_alignment()
    if kept is None:
        raise DataError(f"{job.folder.path} holds no alignment; run `tallystick align` on both sides first")
    return kept[1]


def _rows(job: Job, keys: Keys, alignment: Alignment, channels: list[Channel]) -> Aligned:
    if alignment.method == "intersection":
        return aligned_rows(job.contract, job.party, job.frame, keys, alignment, channels)
    return united_rows(job.contract, job.party, job.frame, keys, alignment, job.folder)


def _receive_widths(job: Job, rows: Aligned, channels: list[Channel]) -> list[int]:
    training, most = job.contract.training, job.contract.network.max_message_mib * MEBIBYTE
    largest = max(map(len, (rows.train_N, rows.validation_N, rows.test_N)))
    together = min(training.batch_size * batches_per_message(training), largest)
    return [receive_width(channel, rows=together, max_message_bytes=most) for channel in channels]


def _receive_finished(job: Job, rows: Aligned, channel: Channel) -> Finished:
    released = job.contract.evaluation.privacy
    return receive_finished(channel, rows=len(rows.test_N), epsilon=released.epsilon if released is not None else None)


def _train_label(job: Job, model: LabelModel, rows: Aligned, widths: list[int], agreement: Agreement) -> TrainingState:
    """Train with the contract's defences: labels replaced and charged for before anything is sent."""
    defense = RunDefense.of(job.contract, job.folder)
    what = f"training of {job.contract.name}, run {agreement.run_id}"
    defense.spend(job.contract, job.party, job.folder, rows, what=what)
    taught = defense.taught(rows)
    schedule = taught.schedule(job.contract)
    observers = recorders(job, rows, widths, run_id=agreement.run_id, resume_from=agreement.resume_from)
    peers = [
        FeaturePeer(channel=channel, width=width, observer=observer)
        for channel, width, observer in zip(job.feature_channels, widths, observers, strict=True)
    ]
    run = _training_run(job, schedule, agreement)
    return train_label_party(model, taught.source, taught.objective(job.contract), peers, run, defense=defense.cut(schedule))


def _training_run(job: Job, schedule: Schedule, agreement: Agreement) -> TrainingRun:
    return TrainingRun(
        training=job.contract.training,
        schedule=schedule,
        store=job.folder.store(),
        resume_from=agreement.resume_from,
        progress=job.logbook.watcher.progress,
        committed=job.logbook.commit,
    )


def _calibration_facts(rows: Aligned, state: TrainingState) -> dict[str, object] | None:
    """What prediction needs to know of the calibration; None where there is none to know."""
    return asdict(rows.calibrated(state)) if rows.imputation is not None else None


def _save_coders(job: Job, rows: Aligned) -> None:
    if rows.encoder is not None:
        write_json(job.folder.encoder, rows.encoder.to_json().encode())
        for note in rows.encoder.notes:
            job.logbook.watcher.say(note)
    if rows.label_coder is not None:
        write_json(job.folder.label_coder, rows.label_coder.to_json().encode())


def _finish_training(job: Job, module: nn.Module, state: TrainingState, facts: dict[str, object]) -> None:
    job.folder.note("training", {"state": vars(state), **facts})
    write_tensors(job.folder.model, dict(module.state_dict()), {})


def _load_trained(job: Job, module: nn.Module) -> TrainingState:
    if not job.folder.trained:
        raise DataError(f"{job.folder.path} holds no trained model; run `tallystick train` on both sides first")
    load_weights(module, job.folder.model)
    state = job.folder.noted("training")["state"]
    assert isinstance(state, dict)
    return TrainingState(**state)


def _width(bottom: nn.Module) -> int:
    width = bottom.width
    assert isinstance(width, int)
    return width
