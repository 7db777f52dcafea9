"""One party's run of a contract: read this file to see what happens in which order.

    handshake -> alignment -> training -> evaluation -> report

run_label_party and run_feature_party are the two roles; both do the same phases over the same channels.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from tallystick.alignment.outcome import Alignment
from tallystick.alignment.psi import intersect_feature_party, intersect_label_party
from tallystick.alignment.randomness import SecureRandom
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.cut.forward import receive_logits, send_embeddings
from tallystick.data.features import FeatureShape
from tallystick.data.keys import Keys
from tallystick.data.target import LabelCoder
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.measure import compare
from tallystick.evaluation.messages import Finished
from tallystick.job.folder import RunFolder
from tallystick.job.handshake import Agreement, Standing, shake_hands, shake_hands_label_party
from tallystick.job.phases import Logbook
from tallystick.job.release import finished, release_auc
from tallystick.job.results import Findings, result_of
from tallystick.job.rows import Aligned, aligned_rows, fingerprint, read_ids
from tallystick.models.build import build_bottom, build_label_model
from tallystick.models.split import LabelModel
from tallystick.network.channel import Channel
from tallystick.report.page import render
from tallystick.report.result import Result
from tallystick.training.checkpoint import Progressed, read_tensors, write_bytes, write_tensors
from tallystick.training.feature_party import train_feature_party
from tallystick.training.label_party import train_label_party
from tallystick.training.messages import CutWidth
from tallystick.training.objective import Supervised

ALL_PHASES = ("alignment", "training", "evaluation")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Everything that one party's run needs; ``bottom`` and ``top`` stand in for the contract's modules when given."""

    contract: Contract
    party: PartyFile
    frame: pl.DataFrame
    channels: Mapping[str, Channel]
    folder: RunFolder
    logbook: Logbook
    command: str = "run"
    resume: bool = False
    phases: tuple[str, ...] = ALL_PHASES
    bottom: nn.Module | None = None
    top: nn.Module | None = None
    started: str = field(default_factory=lambda: datetime.now(UTC).isoformat())

    @property
    def name(self) -> str:
        """This party's name."""
        return self.party.party

    @property
    def feature_channels(self) -> list[Channel]:
        """The label party's channels to the feature parties, in the contract's order."""
        return [self.channels[name] for name in self.contract.feature_parties]


def run_party(job: Job) -> Result:
    """Run this party's side of a job, whichever its role; leaves model, result and report in the run folder."""
    torch.set_num_threads(job.party.threads or torch.get_num_threads())
    findings = Findings()
    if job.contract.role_of(job.name) == "label":
        _run_label_party(job, findings)
    else:
        _run_feature_party(job, findings)
    result = result_of(job.contract, job.party, job.logbook, findings, started=job.started)
    write_bytes(job.folder.result, result.to_json().encode())
    render(result, job.folder.report)
    return result


def _run_label_party(job: Job, findings: Findings) -> None:
    contract, logbook, channels = job.contract, job.logbook, job.feature_channels
    keys = read_ids(contract, job.party, job.frame)
    with logbook.during("handshake", channels):
        named = {name: job.channels[name] for name in contract.feature_parties}
        agreement = shake_hands_label_party(contract, _standing(job, keys), named)
        _take_up(job, findings, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", channels):
            findings.alignment = _align(job, keys, agreement)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = findings.alignment = findings.alignment or _kept_alignment(job)
    with logbook.during("training", channels):
        rows = findings.rows = aligned_rows(contract, job.party, job.frame, keys, alignment, channels)
        _save_coders(job, rows)
        widths = [channel.receive(CutWidth).width for channel in channels]
        model = _label_model(job, rows.encoder.feature_shape if rows.encoder else None, widths)
        findings.modules = {"label model": model}
        if "training" in job.phases and agreement.train:
            findings.progressed = _train_label(job, model, rows, widths, agreement)
            _finish_training(job, model, findings.progressed, {"widths": widths})
        else:
            findings.progressed = _load_trained(job, model)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", channels):
            _evaluate(job, model, rows, widths, findings)
            for channel in channels:
                channel.send(findings.finished)


def _run_feature_party(job: Job, findings: Findings) -> None:
    contract, logbook = job.contract, job.logbook
    channel = job.channels[contract.label_party]
    keys = read_ids(contract, job.party, job.frame)
    with logbook.during("handshake", [channel]):
        agreement = shake_hands(contract, _standing(job, keys), channel)
        _take_up(job, findings, agreement)
    if "alignment" in job.phases:
        with logbook.during("alignment", [channel]):
            findings.alignment = _align(job, keys, agreement)
    if "training" not in job.phases and "evaluation" not in job.phases:
        return
    alignment = findings.alignment = findings.alignment or _kept_alignment(job)
    with logbook.during("training", [channel]):
        rows = findings.rows = aligned_rows(contract, job.party, job.frame, keys, alignment, [channel])
        assert rows.encoder is not None
        assert rows.features is not None
        _save_coders(job, rows)
        bottom = job.bottom or build_bottom(contract.model, job.name, rows.encoder.feature_shape, seed=contract.seed)
        bottom = bottom.to(job.party.device)
        findings.modules = {"bottom model": bottom}
        channel.send(CutWidth(width=_width(bottom)))
        if "training" in job.phases and agreement.train:
            findings.progressed = train_feature_party(
                bottom,
                rows.features.rows,
                channel,
                training=contract.training,
                schedule=rows.schedule(contract),
                store=job.folder.store(),
                resume_from=agreement.resume_from,
                progress=logbook.watcher.progress,
                committed=logbook.commit,
            )
            _finish_training(job, bottom, findings.progressed, {})
        else:
            findings.progressed = _load_trained(job, bottom)
    if "evaluation" in job.phases:
        with logbook.during("evaluation", [channel]):
            send_embeddings(bottom, rows.features.rows, _batches(job, rows.test_N), channel)
            logbook.watcher.say(f"waiting for {channel.peer} to measure and to write its report")
            findings.finished = channel.receive(Finished)


def _standing(job: Job, keys: Keys) -> Standing:
    """What the run folder holds, for the handshake; a kept alignment of another table is of no use."""
    kept = job.folder.load_alignment()
    if kept is None or not job.resume:
        return Standing(command=job.command, resume=job.resume)
    saved, _ = kept
    if saved.table != fingerprint(keys):
        raise DataError(
            f"the table of {job.name} has other ids, or another order, than when {job.folder.path} was aligned; "
            "put the old table back or start a new run without --resume"
        )
    return Standing(
        command=job.command,
        resume=True,
        run_id=saved.run_id,
        checkpoints=tuple(job.folder.store().steps()),
        trained=job.folder.trained,
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


def _align(job: Job, keys: Keys, agreement: Agreement) -> Alignment:
    """Align, or take the alignment of the run that goes on; then say what was learnt."""
    watcher, limit = job.logbook.watcher, job.contract.alignment.max_rows
    kept = job.folder.load_alignment()
    if not agreement.align and kept is not None:
        watcher.say(f"keeping the alignment of the interrupted run: {len(kept[1])} rows")
        return kept[1]
    job.folder.forget_training()
    rng, threads = SecureRandom(), job.party.threads
    if job.contract.role_of(job.name) == "label":
        alignment = intersect_label_party(
            keys.ids, job.feature_channels, rng=rng, max_rows=limit, threads=threads, progress=watcher.progress
        )
    else:
        channel = job.channels[job.contract.label_party]
        alignment = intersect_feature_party(
            keys.ids, channel, rng=rng, max_rows=limit, threads=threads, progress=watcher.progress
        )
    job.folder.save_alignment(alignment, run_id=agreement.run_id, table=fingerprint(keys))
    for sentence in alignment.learnt:
        watcher.say(f"learnt: {sentence}")
    return alignment


def _kept_alignment(job: Job) -> Alignment:
    kept = job.folder.load_alignment()
    if kept is None:
        raise DataError(f"{job.folder.path} holds no alignment; run `tallystick align` on both sides first")
    return kept[1]


def _label_model(job: Job, own: FeatureShape | None, widths: list[int]) -> LabelModel:
    if job.top is not None:
        return LabelModel(job.top, bottom=job.bottom).to(job.party.device)
    outputs = job.contract.target.classes if job.contract.target.type == "multiclass" else 1
    model = build_label_model(job.contract.model, job.name, own, widths, outputs=outputs, seed=job.contract.seed)
    return model.to(job.party.device)


def _train_label(job: Job, model: LabelModel, rows: Aligned, widths: list[int], agreement: Agreement) -> Progressed:
    return train_label_party(
        model,
        rows.features.rows if rows.features is not None else None,
        _objective(job, rows),
        job.feature_channels,
        widths,
        training=job.contract.training,
        schedule=rows.schedule(job.contract),
        store=job.folder.store(),
        resume_from=agreement.resume_from,
        progress=job.logbook.watcher.progress,
        committed=job.logbook.commit,
    )


def _evaluate(job: Job, model: LabelModel, rows: Aligned, widths: list[int], findings: Findings) -> None:
    """Score the test rows with the joint model, train and score the own-columns model, measure both, release what may leave."""
    own = rows.features.rows if rows.features is not None else None
    batches = _batches(job, rows.test_N)
    joint_logits = receive_logits(model, own, batches, job.feature_channels, widths)
    findings.finished = Finished(rows=len(joint_logits))
    if len(joint_logits) and findings.progressed is not None:
        job.logbook.commit(findings.progressed.step)  # the feature parties had committed it before they embedded these
    own_logits = None
    if job.contract.evaluation.own_columns_baseline and rows.encoder is not None and job.top is None:
        job.logbook.watcher.say("training the own-columns-only model, the baseline")

        def progress(_what: str, done: int, total: int) -> None:
            job.logbook.watcher.progress("own columns only", done, total)
            for channel in job.feature_channels:  # nothing is received here for long: if one is lost, end soon
                channel.check()

        baseline = _label_model(job, rows.encoder.feature_shape, [])
        findings.own_only = train_label_party(
            baseline,
            own,
            _objective(job, rows),
            [],
            [],
            training=job.contract.training,
            schedule=rows.schedule(job.contract),
            store=job.folder.store("baseline"),
            progress=progress,
        )
        own_logits = receive_logits(baseline, own, batches, [], [])
    if not len(joint_logits):
        return
    assert rows.target_N is not None
    assert rows.label_coder is not None
    evaluation = job.contract.evaluation
    findings.evaluation = compare(
        job.contract.target.type,
        _in_units(rows.target_N[rows.test_N], rows.label_coder),
        _in_units(joint_logits, rows.label_coder),
        _in_units(own_logits, rows.label_coder) if own_logits is not None else None,
        weights=rows.weight_N[rows.test_N].cpu().numpy() if rows.weight_N is not None else None,
        bins=evaluation.calibration_bins,
        resamples=evaluation.bootstrap,
        generator=np.random.default_rng(job.contract.seed),
    )
    if evaluation.privacy is not None:
        released = release_auc(evaluation.privacy, job.party.privacy, job.name, rows.target_N[rows.test_N], joint_logits)
        job.logbook.watcher.say(f"released: {released.statement()}")
        findings.finished = finished(len(rows.test_N), released)


def _in_units(values: Tensor, coder: LabelCoder) -> np.ndarray[Any, Any]:
    """Regression is learnt standardised and measured in the label's own units."""
    array: np.ndarray[Any, Any] = values.cpu().numpy()
    return array.astype(np.float64) * coder.deviation + coder.mean if coder.type == "regression" else array


def _objective(job: Job, rows: Aligned) -> Supervised:
    assert rows.target_N is not None
    return Supervised(job.contract.target.type, rows.target_N, rows.weight_N)


def _batches(job: Job, index_N: Tensor) -> tuple[Tensor, ...]:
    return torch.split(index_N, job.contract.training.batch_size) if len(index_N) else ()


def _save_coders(job: Job, rows: Aligned) -> None:
    if rows.encoder is not None:
        write_bytes(job.folder.encoder, rows.encoder.to_json().encode())
        for note in rows.encoder.notes:
            job.logbook.watcher.say(note)
    if rows.label_coder is not None:
        write_bytes(job.folder.label_coder, rows.label_coder.to_json().encode())


def _finish_training(job: Job, module: nn.Module, progressed: Progressed, facts: dict[str, object]) -> None:
    job.folder.note("training", {"progressed": vars(progressed), **facts})
    write_tensors(job.folder.model, dict(module.state_dict()), {})


def _load_trained(job: Job, module: nn.Module) -> Progressed:
    if not job.folder.trained:
        raise DataError(f"{job.folder.path} holds no trained model; run `tallystick train` on both sides first")
    module.load_state_dict(read_tensors(job.folder.model)[0])
    progressed = job.folder.noted("training")["progressed"]
    assert isinstance(progressed, dict)
    return Progressed(**progressed)


def _width(bottom: nn.Module) -> int:
    width = bottom.width
    assert isinstance(width, int)
    return width
