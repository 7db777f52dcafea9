"""Run one party's side of a contract: read this file to see what happens in which order.

    handshake -> alignment -> training -> evaluation -> audit -> report

A search (`tallystick tune`) has many trainings instead: handshake -> alignment -> tuning -> report.

_run_label_party and _run_feature_party are the two roles; both do the same phases over the same channels. Each phase has
its file in ``phases/``. The first two are all of `tallystick align`: ``beginning.py`` has them.
"""

import shutil
from dataclasses import replace

from tallystick.audit.labels import unattacked
from tallystick.job.beginning import begin_feature_party, begin_helper, begin_label_party
from tallystick.job.findings import Evaluated, RunFindings
from tallystick.job.job import Job, fitting_threads, use_threads
from tallystick.job.log import LOG
from tallystick.job.phases.align import kept_alignment, linked_job
from tallystick.job.phases.audit import audit_training
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
from tallystick.job.phases.tuning import tune_as_feature_party, tune_as_label_party
from tallystick.results import Audited, Result
from tallystick.run_folder.kept_buckets import forget_buckets
from tallystick.run_folder.ledger import LEDGER_NOTE
from tallystick.storage import LOCK, ORIGIN, remove

KEPT = ("format", ORIGIN, "contract.json", "result.json", "report.html", f"{LEDGER_NOTE}.json", LOG, LOCK)
"""Files of an exploration's folder that stay. Nobody can continue it or predict with it. The note shows an older copy of the
ledger.
"""


def run_party(job: Job) -> Result:
    """Run this party's side of a job in its role, and leave model, result and report in the run folder."""
    use_threads(job.party.threads or fitting_threads(job.contract, job.frame.height))
    roles = {"label": _run_label_party, "feature": _run_feature_party, "helper": _run_helper}
    job, findings = roles[job.contract.role_of(job.name)](job)
    # a party that resumed after the alignment has told the others so
    forget_buckets(job.folder, notes=job.contract.alignment.security != "malicious")
    return write_report(job, findings)


def explore_party(job: Job) -> Result:
    """Run this party's side on a sample of ids, in its role. However it ends, no data of single rows stays in the run folder."""
    try:
        return run_party(replace(job, contract=job.contract.explored()))
    finally:
        for path in job.folder.path.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
            elif path.name not in KEPT:
                remove(path)


def _run_label_party(job: Job) -> tuple[Job, RunFindings]:
    contract, logbook, channels = job.contract, job.logbook, job.feature_channels
    beginning = begin_label_party(job)
    keys, agreement, findings = beginning.own_keys, beginning.agreement, beginning.findings
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
    beginning = begin_feature_party(job)
    keys, agreement, findings = beginning.own_keys, beginning.agreement, beginning.findings
    if "tuning" in job.phases and findings.alignment is not None:
        linked = linked_job(job, findings.alignment)
        with logbook.during("tuning", [channel]):
            findings = replace(findings, trials=tune_as_feature_party(linked, keys, findings.alignment, run_id=agreement.run_id))
    if "training" not in job.phases and "evaluation" not in job.phases:
        return job, findings
    alignment = findings.alignment or kept_alignment(job)
    job = linked_job(job, alignment)
    if contract.shares_head:
        rows = own_rows(job, keys, alignment)
        with job.logbook.during("training", job.all_channels):
            dataset = encode_rows(job, rows.keys, rows.alignment, [job.channels[job.contract.label_party]])
            head = train_shared_feature_party(job, dataset, rows, run_id=agreement.run_id)
        return job, replace(
            findings,
            alignment=rows.alignment,
            dataset=dataset,
            training=head.state,
            modules={"features": head.features},
            audited=audit_training(job, rows, dataset, run_id=agreement.run_id),
        )
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


def _run_helper(job: Job) -> tuple[Job, RunFindings]:
    """Run the helper: in an alignment it sees keyed hashes or encoded keys, and for a head on shares it sees sizes."""
    findings = begin_helper(job).findings
    if job.contract.shares_head and "training" in job.phases:
        with job.logbook.during("training", [job.channels[job.contract.label_party], *job.feature_channels]):
            help_shared_head(job.contract, job.channels, progress=job.logbook.watcher.progress)
    return job, findings
