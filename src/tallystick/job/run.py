"""One party's run of a contract: read this file to see what happens in which order.

    handshake -> alignment -> training -> evaluation -> audit -> report

A search (`tallystick tune`) has many trainings in their place: handshake -> alignment -> tuning -> report.

_run_label_party and _run_feature_party are the two roles; both do the same phases over the same channels. Each phase has
its file in ``phases/``.
"""

from dataclasses import replace
from functools import partial

import msgspec

from tallystick.audit.labels import unattacked
from tallystick.audit.run import Audited
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import ConfigError
from tallystick.job.findings import Evaluated, RunFindings
from tallystick.job.handshake import Agreement, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import Job, fitting_threads, use_threads
from tallystick.job.phases.align import align_or_keep, help_align, kept_alignment, linked_job, match_notes
from tallystick.job.phases.audit import audit_links, audit_training
from tallystick.job.phases.evaluate import evaluate_as_feature_party, evaluate_as_label_party, measure_once
from tallystick.job.phases.no_gradients import receive_once
from tallystick.job.phases.report import write_report
from tallystick.job.phases.shared_head import help_shared_head, train_shared_feature_party, train_shared_label_party
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
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.run_folder.kept_buckets import forget_buckets
from tallystick.tables.groups import check_subgroups
from tallystick.tables.keys import Keys


def run_party(job: Job) -> Result:
    """Run this party's side of a job, whichever its role; leaves model, result and report in the run folder."""
    use_threads(job.party.threads or fitting_threads(job.contract, job.frame.height))
    roles = {"label": _run_label_party, "feature": _run_feature_party, "helper": _run_helper}
    job, findings = roles[job.contract.role_of(job.name)](job)
    if job.phases != ("alignment",):  # whoever went on from the alignment told the others that it has it
        forget_buckets(job.folder, notes=job.contract.alignment.security != "malicious")
    return write_report(job, findings)


def _run_label_party(job: Job) -> tuple[Job, RunFindings]:
    contract, logbook, channels = job.contract, job.logbook, job.feature_channels
    check_subgroups(job.frame, job.party)  # before anybody is told of the job
    keys = _own_keys(job)
    with logbook.during("handshake", job.all_channels):
        feature_channels = {name: job.channels[name] for name in contract.feature_parties}
        helper = job.channels[contract.helper] if contract.helper is not None else None
        notes: list[str] = []
        agreement = shake_hands_label_party(
            contract, _resume_state(job, keys), feature_channels, helper=helper, note=partial(_note, job, notes)
        )
        if not (job.contract.sends_gradients or agreement.align) and "training" in job.phases:
            # Without gradients nobody else has steps, or knows of them: the label party goes on by itself.
            agreement = msgspec.structs.replace(agreement, resume_from=max(job.folder.steps()[0], default=0))
        findings = _taken_up(job, keys, agreement, notes)
    if "alignment" in job.phases:
        findings = _linked(job, keys, agreement, findings)
    if "tuning" in job.phases and findings.alignment is not None:
        linked = linked_job(job, findings.alignment)
        with logbook.during("tuning", channels):
            findings = replace(findings, trials=tune_as_label_party(linked, keys, findings.alignment, run_id=agreement.run_id))
    if "training" not in job.phases and "evaluation" not in job.phases:
        return job, findings
    alignment = findings.alignment or kept_alignment(job)
    job = linked_job(job, alignment)
    rows = own_rows(job, keys, alignment)
    if contract.shares_head:
        return _share_head_label_party(job, rows, findings)
    with logbook.during("training", channels):
        dataset = encode_rows(job, keys, alignment, channels)
        cuts = None
        if not contract.sends_gradients:
            cuts = receive_once(job, dataset, receive_widths(job, dataset), trains=trains(job, agreement))
            rows.check_at_home(job.contract, dataset.train_N, dataset.unaligned.train_N)
        trained = train_as_label_party(job, dataset, agreement, own=rows, kept_cuts=cuts)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", channels):
            findings = replace(
                findings, evaluated=evaluate_as_label_party(job, rows, trained, dataset, run_id=agreement.run_id, kept_cuts=cuts)
            )
    job.leave()
    findings = replace(
        findings,
        alignment=alignment,
        dataset=dataset,
        training=trained.state,
        modules={"label model": trained.model},
        column_notes=telling_columns(job, rows, dataset),
        audited=audit_training(job, rows, dataset, run_id=agreement.run_id),
    )
    return job, findings


def _run_feature_party(job: Job) -> tuple[Job, RunFindings]:
    contract, logbook = job.contract, job.logbook
    channel = job.channels[contract.label_party]
    keys = _own_keys(job)
    with logbook.during("handshake", job.all_channels):
        notes: list[str] = []
        agreement = shake_hands(contract, _resume_state(job, keys), channel, note=partial(_note, job, notes))
        findings = _taken_up(job, keys, agreement, notes)
    if "alignment" in job.phases:
        findings = _linked(job, keys, agreement, findings)
    if "tuning" in job.phases and findings.alignment is not None:
        linked = linked_job(job, findings.alignment)
        with logbook.during("tuning", [channel]):
            findings = replace(findings, trials=tune_as_feature_party(linked, keys, findings.alignment, run_id=agreement.run_id))
    if "training" not in job.phases and "evaluation" not in job.phases:
        return job, findings
    alignment = findings.alignment or kept_alignment(job)
    job = linked_job(job, alignment)
    if contract.shares_head:
        return _share_head_feature_party(job, own_rows(job, keys, alignment), findings, run_id=agreement.run_id)
    with logbook.during("training", [channel]):
        dataset = encode_rows(job, keys, alignment, [channel])
        if contract.sends_gradients:
            trained = train_as_feature_party(job, dataset, agreement)
            findings = replace(findings, training=trained.state)
        else:
            trained, finished = embed_as_feature_party(job, dataset, agreement)
            findings = replace(findings, evaluated=Evaluated(finished=finished))
    if "evaluation" in job.phases and contract.sends_gradients:
        with logbook.during("evaluation", [channel]):
            findings = replace(findings, evaluated=evaluate_as_feature_party(job, trained, dataset, run_id=agreement.run_id))
    job.leave()
    findings = replace(
        findings,
        alignment=alignment,
        dataset=dataset,
        modules={"bottom model": trained.bottom},
        audited=audit_training(job, own_rows(job, keys, alignment), dataset, run_id=agreement.run_id),
    )
    return job, findings


def _share_head_label_party(job: Job, rows: OwnRows, findings: RunFindings) -> tuple[Job, RunFindings]:
    """Train a head on shares and score rows by it once, as the label party, and measure it at home."""
    with job.logbook.during("training", job.all_channels):
        dataset = encode_rows(job, rows.keys, rows.alignment, job.feature_channels)
        scored = train_shared_label_party(job, dataset, rows)
        rows.check_at_home(job.contract, dataset.train_N)
    with job.logbook.during("evaluation", ()):
        evaluated = measure_once(job, rows, dataset, test_T=scored.test_N, validation_V=scored.validation_N)
    return job, replace(
        findings,
        alignment=rows.alignment,
        dataset=dataset,
        training=scored.head.state,
        modules={"features": scored.head.features},
        column_notes=telling_columns(job, rows, dataset),
        audited=Audited(leakage=unattacked(job.contract)),
        evaluated=evaluated,
    )


def _share_head_feature_party(job: Job, rows: OwnRows, findings: RunFindings, *, run_id: str) -> tuple[Job, RunFindings]:
    """Train a head on shares as the feature party, and measure at home what labels that are its columns would tell."""
    with job.logbook.during("training", job.all_channels):
        dataset = encode_rows(job, rows.keys, rows.alignment, [job.channels[job.contract.label_party]])
        head = train_shared_feature_party(job, dataset, rows, run_id=run_id)
    return job, replace(
        findings,
        alignment=rows.alignment,
        dataset=dataset,
        training=head.state,
        modules={"features": head.features},
        audited=audit_training(job, rows, dataset, run_id=run_id),
    )


def _run_helper(job: Job) -> tuple[Job, RunFindings]:
    """Run the helper: of an alignment it sees keyed hashes or encoded keys, and of a head on shares it sees sizes."""
    contract = job.contract
    label, features = job.channels[contract.label_party], job.feature_channels
    with job.logbook.during("handshake", [label]):
        agreement = shake_hands(contract, ResumeState(command=job.command, resume=job.resume), label, keeps=False)
    findings = RunFindings(run_id=agreement.run_id)
    if contract.shares_head:
        if "training" not in job.phases:
            return job, findings
        with job.logbook.during("training", [label, *features]):
            help_shared_head(contract, job.channels, progress=job.logbook.watcher.progress)
        return job, findings
    if not agreement.align:
        return job, findings
    with job.logbook.during("alignment", [label, *features]):
        outcome = help_align(contract, job.channels)
    for sentence in outcome.learnt:
        job.logbook.watcher.say(f"learnt: {sentence}")
    return job, replace(findings, helper=outcome)


def _linked(job: Job, keys: Keys, agreement: Agreement, findings: RunFindings) -> RunFindings:
    """Add what the alignment found: common rows, or links with what these gave away."""
    with job.logbook.during("alignment", job.all_channels):
        alignment = align_or_keep(job, keys, anew=agreement.align, run_id=agreement.run_id)
        notes = match_notes(job, alignment)
    return replace(findings, alignment=alignment, match_notes=notes, linkage=audit_links(job, keys, alignment))


def starts_from(run_id: str) -> str:
    """Say what a run that starts from another discloses beyond one from scratch."""
    return (
        f"Training began at the weights of run {run_id}, and not at secret ones: what a peer has learnt of that network holds "
        "for rows that are new from the first step on, and the audit, which sees one run, does not count it."
    )


def _note(job: Job, notes: list[str], line: str) -> None:
    """Say a line, and keep it for the report."""
    job.logbook.watcher.say(f"note: {line}")
    notes.append(line)


def _own_keys(job: Job) -> Keys:
    assert job.keys is not None, "a party with rows has keys"
    for note in job.keys.report.notes():
        job.logbook.watcher.say(f"table of {job.name}: {note}")
    return job.keys


def _would_drop(job: Job) -> bool:
    """Tell whether aligning again would drop what was learnt on the old alignment, perhaps a finished model.

    Others see that it is refused. Without gradients it is whenever an alignment is kept: whether the label party has learnt
    anything on it depends on its labels.
    """
    if not job.contract.sends_gradients:
        return job.folder.load_alignment() is not None
    return job.folder.trained or bool(job.folder.store().steps()) or bool(finished_trials(job.folder))


def _resume_state(job: Job, keys: Keys) -> ResumeState:
    """Return what the run folder holds, for the handshake; a kept alignment of another table is of no use."""
    saved_before = job.folder.load_alignment()
    point = StartingPoint.of(job.folder)
    start_from = point.run_id if point is not None else ""
    if saved_before is None or not job.resume:
        return ResumeState(command=job.command, resume=job.resume, start_from=start_from)
    check_kept(job.party, keys, job.folder)
    saved, _ = saved_before
    steps, damaged = job.folder.steps()
    of_model = job.folder.damage()
    for error in (*damaged, *of_model):
        job.logbook.watcher.say(f"{error}; going on without it")
    return ResumeState(
        command=job.command,
        resume=True,
        start_from=start_from,
        run_id=saved.run_id,
        # Without gradients the label party's last step, and whether it has ended, depend on labels: no other party is told.
        checkpoints=tuple(steps) if job.contract.sends_gradients else (),
        trained=job.contract.sends_gradients and job.folder.trained and not of_model,
    )


def _taken_up(job: Job, keys: Keys, agreement: Agreement, notes: list[str]) -> RunFindings:
    """Return where this run stands once the parties agree; raises ConfigError if they cannot go on together."""
    logbook = job.logbook
    if agreement.align and "alignment" not in job.phases:
        raise ConfigError(
            f"the parties' latest alignments are not of one run (here: {job.folder.path}); run `tallystick align` on all sides"
        )
    if agreement.align and job.resume and _would_drop(job):
        raise ConfigError(
            f"the parties cannot go on together with {job.folder.path}: their latest runs are not the same one; "
            "start a new run without --resume on all sides"
        )
    if (point := StartingPoint.of(job.folder)) is not None:
        logbook.watcher.say(starts_from(point.run_id))
        notes.append(starts_from(point.run_id))
    findings = RunFindings(run_id=agreement.run_id, resumed_from=agreement.resume_from, version_notes=notes, keys=keys.report)
    logbook.committed = agreement.resume_from
    if agreement.resume_from and agreement.train:
        logbook.watcher.say(f"resuming after step {agreement.resume_from}")
    elif not job.contract.sends_gradients and not (job.is_label and "training" in job.phases):
        return findings
    elif job.resume and agreement.train and (job.folder.store().steps() or job.folder.trained):
        logbook.watcher.say("there is no step that all parties can go on from: training starts anew on the kept alignment")
    return findings
