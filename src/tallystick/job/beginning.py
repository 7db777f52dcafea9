"""Begin a job, once per role: the handshake and the alignment. `tallystick align` does nothing more.

Nothing here loads PyTorch, so a party that only aligns need not have it.
"""

import math
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.randomness import random_of
from tallystick.alignment.sample import draw_sample
from tallystick.config.explore import LEAST_TEST_ROWS, MOST_TEST_SHARE, least_common
from tallystick.errors import ConfigError, DataError
from tallystick.job.findings import RunFindings
from tallystick.job.handshake import Agreement, ResumeState, shake_hands, shake_hands_label_party
from tallystick.job.job import EXPLORE, Job, fitting_threads, use_threads
from tallystick.job.phases.align import align_or_keep, help_align, match_notes, max_rows
from tallystick.job.phases.report import write_report
from tallystick.job.side_checks import check_kept
from tallystick.results import Result, SampleSummary
from tallystick.run_folder.folder import SAMPLE
from tallystick.tables.groups import check_subgroups
from tallystick.tables.keys import Keys


def align_party(job: Job) -> Result:
    """Run this party's side of `tallystick align` in its role, and leave alignment, result and report in the run folder."""
    use_threads(job.party.threads or fitting_threads(job.contract, job.frame.height))
    roles = {"label": begin_label_party, "feature": begin_feature_party, "helper": begin_helper}
    return write_report(job, roles[job.contract.role_of(job.name)](job).findings)


@dataclass(frozen=True, kw_only=True)
class Beginning:
    """A job whose rows are linked: the agreement, and the findings so far. A helper has no keys."""

    agreement: Agreement
    findings: RunFindings
    keys: Keys | None = None

    @property
    def own_keys(self) -> Keys:
        """Return the keys of a party with rows."""
        assert self.keys is not None, "a party with rows has keys"
        return self.keys


def begin_label_party(job: Job) -> Beginning:
    """Shake hands with all parties and link this party's rows with theirs, as the label party."""
    contract = job.contract
    check_subgroups(job.frame, job.party)  # before any other party hears of the job
    keys = _own_keys(job)
    with job.logbook.during("handshake", job.all_channels):
        feature_channels = {name: job.channels[name] for name in contract.feature_parties}
        helper = job.channels[contract.helper] if contract.helper is not None else None
        notes: list[str] = []
        agreement = shake_hands_label_party(
            contract, _resume_state(job, keys), feature_channels, helper=helper, note=partial(_note, job, notes)
        )
        if not (contract.sends_gradients or agreement.align) and "training" in job.phases:
            # Without gradients no other party has steps or knows about them: the label party goes on alone.
            agreement = msgspec.structs.replace(agreement, resume_from=max(job.folder.steps()[0], default=0))
        findings = _taken_up(job, keys, agreement, notes)
    return _linked(job, keys, agreement, findings)


def begin_feature_party(job: Job) -> Beginning:
    """Shake hands with the label party and link this party's rows with its, as a feature party."""
    keys = _own_keys(job)
    with job.logbook.during("handshake", job.all_channels):
        notes: list[str] = []
        channel = job.channels[job.contract.label_party]
        agreement = shake_hands(job.contract, _resume_state(job, keys), channel, note=partial(_note, job, notes))
        findings = _taken_up(job, keys, agreement, notes)
    return _linked(job, keys, agreement, findings)


def begin_helper(job: Job) -> Beginning:
    """Shake hands as the helper, and help to link rows. The helper sees keyed hashes or encoded keys."""
    contract = job.contract
    label, features = job.channels[contract.label_party], job.feature_channels
    with job.logbook.during("handshake", [label]):
        agreement = shake_hands(contract, ResumeState(command=job.command, resume=job.resume), label, keeps=False)
    findings = RunFindings(run_id=agreement.run_id)
    if contract.shares_head or not agreement.align:
        return Beginning(agreement=agreement, findings=findings)
    with job.logbook.during("alignment", [label, *features]):
        outcome = help_align(contract, job.channels)
    for sentence in outcome.learnt:
        job.logbook.watcher.say(f"learnt: {sentence}")
    return Beginning(agreement=agreement, findings=replace(findings, helper=outcome))


def _linked(job: Job, keys: Keys, agreement: Agreement, findings: RunFindings) -> Beginning:
    """Align, if this job has that phase, and add the findings: common rows, or links and what these gave away.

    An exploration continues with the keys of a sample, any other job with all keys.
    """
    if "alignment" not in job.phases:
        return Beginning(agreement=agreement, findings=findings, keys=keys)
    with job.logbook.during("alignment", job.all_channels):
        if job.command == EXPLORE:
            keys, alignment, sample = _aligned_sample(job, keys, run_id=agreement.run_id)
            findings = replace(findings, sample=sample)
        else:
            alignment = align_or_keep(job, keys, anew=agreement.align, run_id=agreement.run_id)
        notes = match_notes(job, alignment)
    findings = replace(findings, alignment=alignment, match_notes=notes)
    if job.contract.linkage.similar:
        from tallystick.job.phases.audit import audit_links

        findings = replace(findings, linkage=audit_links(job, keys, alignment))
    return Beginning(agreement=agreement, findings=findings, keys=keys)


def _aligned_sample(job: Job, keys: Keys, *, run_id: str) -> tuple[Keys, Alignment, SampleSummary]:
    """Draw a sample of the ids with the other party, and align it. Raises DataError, on both sides, if it is too small."""
    contract = job.contract
    assert contract.explore is not None, "it was asked for before"
    (peer,) = contract.feature_parties if job.is_label else (contract.label_party,)
    sample = draw_sample(
        keys.ids,
        job.channels[peer],
        rows=contract.explore.rows,
        rng=random_of(job.folder.draw(SAMPLE)),
        leads=job.is_label,
        max_rows=max_rows(contract, len(keys.ids)),
    )
    sampled_keys = keys.only(sample.is_in_N)
    job.logbook.watcher.say(f"sample: {len(sampled_keys.ids):,} of {len(keys.ids):,} ids")
    alignment = align_or_keep(job, sampled_keys, anew=True, run_id=run_id)
    common, least = len(alignment), least_common(contract.split.test)
    if common < least:
        helps = f"raise explore.rows to about {contract.explore.rows * least * 6 // (5 * max(common, 1)):,}, in the contract"
        if sample.share == 1:
            share = math.ceil(100 * LEAST_TEST_ROWS / max(common, 1)) / 100
            more_rows = f", or split.test: {share:g} in the contract" if share <= MOST_TEST_SHARE else ""
            helps = f"the sample has all ids already, so only larger tables help{more_rows}"
        raise DataError(
            f"explore.rows = {contract.explore.rows}: {common} ids of the sample are common, and an interval takes at least "
            f"{least}; {helps}"
        )
    summary = SampleSummary(
        ids={job.name: len(keys.ids), peer: sample.others}, drawn=len(sampled_keys.ids), common=common, share=sample.share
    )
    return sampled_keys, alignment, summary


def starts_from(run_id: str) -> str:
    """Say what a run that starts from another run discloses, compared with one from scratch."""
    return (
        f"Training began with the weights of run {run_id}, and not with secret ones: what a peer has learnt about that "
        "network helps it with new rows from the first step on, and the audit, which sees one run, does not count this."
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
    """Tell whether aligning again would delete what was trained on the old alignment, perhaps a finished model.

    Other parties see the refusal. So without gradients any kept alignment counts: whether the label party has trained on it
    depends on its labels.
    """
    if not job.contract.sends_gradients:
        return job.folder.load_alignment() is not None
    from tallystick.job.phases.tuning import finished_trials

    return job.folder.trained or job.folder.began_training or bool(finished_trials(job.folder))


def _resume_state(job: Job, keys: Keys) -> ResumeState:
    """Return what the run folder holds, for the handshake. A kept alignment of another table does not count."""
    saved_before = job.folder.load_alignment()
    start_from = _starting_run(job)
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
        # Without gradients the label party's last step, and whether training has ended, depend on labels: it tells nobody.
        checkpoints=tuple(steps) if job.contract.sends_gradients else (),
        trained=job.contract.sends_gradients and job.folder.trained and not of_model,
    )


def _starting_run(job: Job) -> str:
    """Return the run whose weights training starts from; empty for a start from scratch."""
    if not job.folder.starts_from_a_run:
        return ""
    from tallystick.run_folder.initial_weights import StartingPoint

    point = StartingPoint.of(job.folder)
    assert point is not None, "its file lies there"
    return point.run_id


def _taken_up(job: Job, keys: Keys, agreement: Agreement, notes: list[str]) -> RunFindings:
    """Return the state from which this run goes on, as the parties agreed. Raises ConfigError if they cannot go on together."""
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
    if run_id := _starting_run(job):
        logbook.watcher.say(starts_from(run_id))
        notes.append(starts_from(run_id))
    findings = RunFindings(run_id=agreement.run_id, resumed_from=agreement.resume_from, version_notes=notes, keys=keys.report)
    logbook.committed = agreement.resume_from
    if agreement.resume_from and agreement.train:
        logbook.watcher.say(f"resuming after step {agreement.resume_from}")
    elif not job.contract.sends_gradients and not (job.is_label and "training" in job.phases):
        return findings
    elif job.resume and agreement.train and (job.folder.began_training or job.folder.trained):
        logbook.watcher.say("there is no step from which all parties can go on: training starts again on the kept alignment")
    return findings
