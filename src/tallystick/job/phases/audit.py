"""Audit as phases of a run: the linkage when rows are linked, everything else after training."""

from functools import partial

from tallystick.alignment.outcome import Alignment
from tallystick.audit.linkage import LinkedSide, audit_linkage, keep_linkage, kept_linkage
from tallystick.audit.recording import AuditedRun
from tallystick.audit.run import audit_run
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.job.job import Job
from tallystick.report.leaks import located_sentence, named_sentence
from tallystick.results import Audited, LinkageSummary
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.tables.keys import Keys


def audited_side(job: Job, dataset: Dataset, *, run_id: str) -> AuditedRun:
    """Return this party's side of the run, as its audits see it."""
    return AuditedRun(
        contract=job.contract,
        party=job.name,
        folder=job.folder,
        dataset=dataset,
        run_id=run_id,
        # A peer knows the weights of an earlier run as little as a module that was given.
        given_modules=job.top is not None or job.bottom is not None or StartingPoint.of(job.folder) is not None,
    )


def audit_training(job: Job, rows: OwnRows, dataset: Dataset, *, run_id: str) -> Audited:
    """Attack what the training sent, once per run."""
    during = partial(job.logbook.during, "audit", ())
    return audit_run(audited_side(job, dataset, run_id=run_id), rows, watcher=job.logbook.watcher, during=during)


def audit_links(job: Job, keys: Keys, alignment: Alignment) -> LinkageSummary | None:
    """Attack what this party gave a linkage by similarity, once per alignment. Return None if rows were linked otherwise."""
    terms = job.contract.alignment.similarity
    if terms is None or keys.similar is None:
        return None
    if (earlier_summary := kept_linkage(job.folder)) is not None:
        return earlier_summary
    watcher = job.logbook.watcher
    side = LinkedSide(
        contract=job.contract,
        party=job.name,
        folder=job.folder,
        keys=keys.similar,
        alignment=alignment,
        progress=job.progress,
    )
    with job.logbook.during("linkage audit", ()):
        watcher.say("attacking what this side gave the linkage, as the others could")
        summary = audit_linkage(side, terms)
        for sentence in (*map(located_sentence, summary.attacks), *map(named_sentence, summary.named)):
            watcher.say(sentence)
    keep_linkage(job.folder, summary)
    return summary
