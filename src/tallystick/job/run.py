"""One party's run of a contract: read this file to see what happens in which order.

    handshake -> alignment -> training -> audit -> evaluation -> report

A search (`tallystick tune`) has many trainings in their place: handshake -> alignment -> tuning -> report.

_run_label_party and _run_feature_party are the two roles; both do the same phases over the same channels. Each phase has
its file in ``phases/``.
"""

from collections.abc import Callable

import msgspec

from tallystick.data.groups import check_subgroups
from tallystick.data.keys import Keys, keys_of
from tallystick.errors import ConfigError
from tallystick.job.handshake import Agreement, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import Job, use_threads
from tallystick.job.phases.align import align_or_keep, help_align, kept_alignment, match_notes
from tallystick.job.phases.audit import audit_links, audit_training
from tallystick.job.phases.evaluate import evaluate, take_part
from tallystick.job.phases.once import receive_once
from tallystick.job.phases.report import JobState, write_report
from tallystick.job.phases.train import (
    embed_as_feature_party,
    encode_rows,
    own_rows,
    receive_widths,
    telling_columns,
    train_as_feature_party,
    train_as_label_party,
    trains,
)
from tallystick.job.phases.tuning import finished_trials, tune_as_feature_party, tune_as_label_party
from tallystick.job.preflight import check_kept
from tallystick.results import Result


def run_party(job: Job) -> Result:
    """Run this party's side of a job, whichever its role; leaves model, result and report in the run folder."""
    use_threads(job.party.threads)
    job_state = JobState()
    roles = {"label": _run_label_party, "feature": _run_feature_party, "helper": _run_helper}
    roles[job.contract.role_of(job.name)](job, job_state)
    return write_report(job, job_state)


def _run_label_party(job: Job, job_state: JobState) -> None:
    contract, logbook, channels = job.contract, job.logbook, job.feature_channels
    check_subgroups(job.frame, job.party)  # before anybody is told of the job
    keys = _read_keys(job, job_state)
    with logbook.during("handshake", job.all_channels):
        named = {name: job.channels[name] for name in contract.feature_parties}
        helper = job.channels[contract.helper] if contract.helper is not None else None
        agreement = shake_hands_label_party(
            contract, _resume_state(job, keys), named, helper=helper, note=_noting(job, job_state)
        )
        agreement = _own_steps(job, agreement)
        _take_up(job, job_state, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", job.all_channels):
            job_state.alignment = align_or_keep(job, keys, anew=agreement.align, run_id=agreement.run_id)
            job_state.match_notes = match_notes(job, job_state.alignment)
        job_state.linkage = audit_links(job, keys, job_state.alignment)
    if "tuning" in job.phases and job_state.alignment is not None:
        with logbook.during("tuning", channels):
            job_state.trials = tune_as_label_party(job, keys, job_state.alignment, run_id=agreement.run_id)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = job_state.alignment = job_state.alignment or kept_alignment(job)
    rows = own_rows(job, keys, alignment)
    with logbook.during("training", channels):
        dataset = job_state.dataset = encode_rows(job, keys, alignment, channels)
        kept = None
        if not contract.sends_gradients:
            kept = receive_once(job, dataset, receive_widths(job, dataset), trains=trains(job, agreement))
            rows.check_at_home(contract, dataset.train_N, dataset.unaligned.train_N)
        trained = train_as_label_party(job, dataset, agreement, kept=kept)
        job_state.training, job_state.modules = trained.state, {"label model": trained.model}
    job_state.baseline_notes += telling_columns(job, rows, dataset)
    job_state.audited = audit_training(job, rows, dataset, run_id=agreement.run_id)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", channels):
            evaluate(job, rows, trained, dataset, job_state, kept=kept)


def _run_feature_party(job: Job, job_state: JobState) -> None:
    contract, logbook = job.contract, job.logbook
    channel = job.channels[contract.label_party]
    keys = _read_keys(job, job_state)
    with logbook.during("handshake", job.all_channels):
        agreement = shake_hands(contract, _resume_state(job, keys), channel, note=_noting(job, job_state))
        _take_up(job, job_state, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", job.all_channels):
            job_state.alignment = align_or_keep(job, keys, anew=agreement.align, run_id=agreement.run_id)
            job_state.match_notes = match_notes(job, job_state.alignment)
        job_state.linkage = audit_links(job, keys, job_state.alignment)
    if "tuning" in job.phases and job_state.alignment is not None:
        with logbook.during("tuning", [channel]):
            job_state.trials = tune_as_feature_party(job, keys, job_state.alignment, run_id=agreement.run_id)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = job_state.alignment = job_state.alignment or kept_alignment(job)
    with logbook.during("training", [channel]):
        dataset = job_state.dataset = encode_rows(job, keys, alignment, [channel])
        if contract.sends_gradients:
            trained = train_as_feature_party(job, dataset, agreement)
            job_state.training = trained.state
        else:
            trained, job_state.finished = embed_as_feature_party(job, dataset, agreement)
        job_state.modules = {"bottom model": trained.bottom}
    job_state.audited = audit_training(job, own_rows(job, keys, alignment), dataset, run_id=agreement.run_id)
    if "evaluation" in job.phases and contract.sends_gradients:
        with logbook.during("evaluation", [channel]):
            take_part(job, trained, dataset, job_state)


def _run_helper(job: Job, job_state: JobState) -> None:
    """The helper of an alignment: it sees keyed hashes or encoded keys, tells the parties what is linked, and is done."""
    contract = job.contract
    label, features = job.channels[contract.label_party], job.feature_channels
    with job.logbook.during("handshake", [label]):
        agreement = shake_hands(contract, ResumeState(command=job.command, resume=job.resume), label, keeps=False)
        job_state.run_id = agreement.run_id
    if not agreement.align:
        return
    with job.logbook.during("alignment", [label, *features]):
        job_state.helper = help_align(contract, job.channels)
    for sentence in job_state.helper.learnt:
        job.logbook.watcher.say(f"learnt: {sentence}")


def _noting(job: Job, job_state: JobState) -> Callable[[str], None]:
    """Say a line, and keep it for the report."""

    def note(line: str) -> None:
        job.logbook.watcher.say(f"note: {line}")
        job_state.version_notes.append(line)

    return note


def _read_keys(job: Job, job_state: JobState) -> Keys:
    keys = keys_of(job.frame, job.party, job.contract.alignment)
    job_state.keys = keys.report
    for note in keys.report.notes():
        job.logbook.watcher.say(f"table of {job.name}: {note}")
    return keys


def _resume_state(job: Job, keys: Keys) -> ResumeState:
    """What the run folder holds, for the handshake; a kept alignment of another table is of no use."""
    kept = job.folder.load_alignment()
    if kept is None or not job.resume:
        return ResumeState(command=job.command, resume=job.resume)
    check_kept(job.party, keys, job.folder)
    saved, _ = kept
    steps, damaged = job.folder.store().intact()
    of_model = job.folder.damage()
    for error in (*damaged, *of_model):
        job.logbook.watcher.say(f"{error}; going on without it")
    return ResumeState(
        command=job.command,
        resume=True,
        run_id=saved.run_id,
        # How far the label party is by itself hangs on labels, and so does whether it has ended: no other party is told.
        checkpoints=tuple(steps) if job.contract.sends_gradients else (),
        trained=job.contract.sends_gradients and job.folder.trained and not of_model,
    )


def _own_steps(job: Job, agreement: Agreement) -> Agreement:
    """Where the label party goes on by itself, if no gradients are sent: nobody else has steps, or knows of them."""
    if job.contract.sends_gradients or agreement.align or "training" not in job.phases:
        return agreement
    return msgspec.structs.replace(agreement, resume_from=max(job.folder.store().intact()[0], default=0))


def _take_up(job: Job, job_state: JobState, agreement: Agreement) -> None:
    logbook = job.logbook
    if agreement.align and "alignment" not in job.phases:
        raise ConfigError(
            f"the parties' latest alignments are not of one run (here: {job.folder.path}); run `tallystick align` on all sides"
        )
    if agreement.align and job.resume and (job.folder.trained or job.folder.store().steps() or finished_trials(job.folder)):
        # Aligning again would drop what was learnt on the old alignment, perhaps a finished model.
        raise ConfigError(
            f"the parties cannot go on together with {job.folder.path}: their latest runs are not the same one; "
            "start a new run without --resume on all sides"
        )
    job_state.run_id = agreement.run_id
    job_state.resumed_from = agreement.resume_from
    logbook.committed = agreement.resume_from
    if agreement.resume_from and agreement.train:
        logbook.watcher.say(f"resuming after step {agreement.resume_from}")
    elif not job.contract.sends_gradients and not (job.is_label and "training" in job.phases):
        return
    elif job.resume and agreement.train and (job.folder.store().steps() or job.folder.trained):
        logbook.watcher.say("there is no step that all parties can go on from: training starts anew on the kept alignment")
