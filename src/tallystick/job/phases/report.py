"""Build the result that a report shows from a job's findings. Each party reports what it knows, nothing more."""

import platform
import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import yaml

from tallystick import __version__, results
from tallystick.alignment.group import SODIUM
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.disclosure.alignment import membership_lines, repeats_lines
from tallystick.disclosure.disclosure import RunFacts, TrialFacts
from tallystick.disclosure.protection import deviation_of, protects_a_row
from tallystick.disclosure.table import learnt_in_run
from tallystick.job.findings import RunFindings
from tallystick.job.job import ALL_PHASES, Job
from tallystick.job.log import Logbook
from tallystick.job.loggers import facts_of, loggers_of
from tallystick.job.phases.release import privacy_section, shows_weights
from tallystick.reading import redacted
from tallystick.report.page import to_html
from tallystick.report.templating import write_page
from tallystick.run_folder.embedding_charge import embeddings_cost, noise_on_embeddings

if TYPE_CHECKING:
    from torch import nn

    from tallystick.training.checkpoint import TrainingState


def result_of(contract: Contract, party: PartyFile, logbook: Logbook, findings: RunFindings, *, started: str) -> results.Result:
    """Build this party's result."""
    # the weights that trained gates give to similarities, if there are any
    link_weights: list[results.LinkWeights] = []
    if (model := findings.modules.get("label model")) is not None:
        from tallystick.models.similarity.model import LOOKED_AT, learnt_weights
        from tallystick.models.split import LabelModel

        weights_by_party = learnt_weights(model) if isinstance(model, LabelModel) else []
        if weights_by_party:
            link_weights = [
                results.LinkWeights(party=name, similarities=list(LOOKED_AT), weights=weights)
                for name, weights in zip(contract.feature_parties, weights_by_party, strict=True)
            ]
    aligned = None
    if (alignment := findings.alignment) is not None:
        repeat = contract.alignment.duplicates == "all"  # then ids were aligned
        what = "ids" if repeat else "rows"
        size_names = {
            "own": f"{what} of {party.party}",
            "intersection": "rows with a link" if alignment.candidates else f"{what} in common",
            "union": "rows in the union",
            **{f"intersection by {key.name}": f"{what} in common by {key.name}" for key in contract.alignment.any_of},
        }
        sizes = {size_names.get(name, f"{what} of {name}"): size for name, size in alignment.sizes.items()}
        if repeat:
            sizes[f"rows of {contract.label_party} with these ids"] = len(alignment)
        aligned = results.AlignmentSummary(method=alignment.method, sizes=sizes, learnt=alignment.learnt)
    # each training uses labels for messages; a search on own columns alone counts once
    trials = 1 if findings.alone else sum(not trial.problem for trial in findings.trials)
    privacy = privacy_section(
        contract,
        findings.evaluated.finished,
        party.privacy if party.label is not None else None,
        trainings=trials + (findings.training is not None),
        shared=findings.evaluated.sent_shared or findings.evaluated.shared is not None,
        alone=findings.alone,
        weighted=shows_weights(contract, party),
    )
    if privacy is not None and noise_on_embeddings(contract) is not None:
        apart = "Columns are not counted here: each feature party's own ledger has the cost of its noisy embeddings."
        privacy = msgspec.structs.replace(privacy, summary=f"{privacy.summary} {apart}")
    return results.Result(
        run_id=findings.run_id,
        party=party.party,
        parties=[results.PartyInfo(name=name, role=member.role) for name, member in contract.parties.items()],
        contract=contract_info(contract.agreed),
        started=started,
        seconds=time.monotonic() - logbook.began,
        phases=logbook.phases,
        alignment=aligned,
        learnt=learnt_of_run(contract, party, findings),
        data=_data(contract, party, findings),
        model=[_model_part(party.party, name, module) for name, module in findings.modules.items()],
        training=_training(contract, logbook, findings, findings.training),
        local_baseline_training=_training(contract, None, findings, findings.evaluated.local_baseline),
        evaluation=findings.evaluated.comparison,
        sections=results.Sections(
            membership=findings.audited.membership,
            linkage=findings.linkage,
            leakage=findings.audited.leakage,
            features=[findings.audited.features] if findings.audited.features is not None else [],
            told=findings.audited.told,
            sample=findings.sample,
            decisions=findings.evaluated.decisions.get(""),
            decisions_by_label={name: each for name, each in findings.evaluated.decisions.items() if name},
            groups=list(findings.evaluated.groups),
            importance=list(findings.evaluated.importance),
            link_weights=link_weights,
            shared=findings.evaluated.shared,
            tuning=_tuning(findings),
            privacy=privacy,
            notes=[*_notes(contract, party, findings), *findings.version_notes] if not findings.alone else [],
        ),
        versions=versions(),
    )


def write_report(job: Job, findings: RunFindings) -> results.Result:
    """Build this party's result, and write it and its report to the run folder."""
    if (audit := findings.audited.features) is not None:
        from tallystick.audit.columns import with_releases

        audited = msgspec.structs.replace(findings.audited, features=with_releases(audit, job.folder, job.contract))
        findings = replace(findings, audited=audited)
    result = result_of(job.contract, job.party, job.logbook, findings, started=job.started)
    if (privacy := result.sections.privacy) is not None and job.party.label is None:
        privacy = msgspec.structs.replace(privacy, columns=embeddings_cost(job.contract, job.folder))
        result = msgspec.structs.replace(result, sections=msgspec.structs.replace(result.sections, privacy=privacy))
    job.folder.write(job.folder.result, result.to_json())
    write_page(to_html(result), job.folder.report, origin=job.folder.origin)
    # write to the loggers that the party file names; a failure is reported, and the run is complete without them
    for name, logger in loggers_of(job.party, folder=job.folder.path).items():
        try:
            logger(facts_of(result))
        except Exception as error:  # a library or its server may raise anything: everything that matters is on disk
            first = redacted(str(error).partition("\n")[0])[:200]
            job.logbook.watcher.say(
                f"loggers.{name}: nothing was logged ({type(error).__name__}: {first}); the report is complete"
            )
    return result


def versions() -> dict[str, str]:
    """Return the versions of the software that made a result."""
    used = {"tallystick": __version__, "python": platform.python_version(), "libsodium": SODIUM.origin}
    if "torch" in sys.modules:  # if it is not loaded, nothing was computed with it
        used["torch"] = str(sys.modules["torch"].__version__)
    return used


SHARED_HEAD_NOTE = (
    "A run cannot measure what its scores reveal about columns, because no side has both the scores and the columns. The "
    "feature party's report says what the scores would reveal if one of its columns were the label."
)


def _notes(contract: Contract, party: PartyFile, findings: RunFindings) -> list[str]:
    dataset = findings.dataset
    notes = [f"Alignment by {contract.alignment.method}: a peer that does not follow the protocol {deviation_of(contract)}."]
    # also conditional at the label party, which knows its own columns: all reports of a run then say the same
    none = contract.role_of(party.party) == "label" and dataset is not None and dataset.encoder is None
    notes += [f"{line[0].upper()}{line[1:]}." for line in repeats_lines(contract) + protects_a_row(contract)]
    notes += [f"{line[0].upper()}{line[1:]}." for line in membership_lines(contract, own_columns=False if none else None)]
    if dataset is not None and dataset.encoder is not None:
        from tallystick.training.screening import screening_notes

        for module in findings.modules.values():
            notes += screening_notes(dataset.encoder.names, module)
    if contract.shares_head:
        return [*notes, SHARED_HEAD_NOTE]
    if not contract.audit or not contract.sends_gradients or contract.role_of(party.party) != "feature":
        return notes
    audited = f"{contract.label_party} recorded the cut, attacked it for labels as {party.party} could, and kept the findings."
    return [*notes, audited]


_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
"""Writes the same text as PyYAML's own dumper. With libyaml, if PyYAML has it, it takes a quarter of the time."""


def contract_info(contract: Contract) -> results.ContractInfo:
    """Return the contract as a report shows it."""
    training = contract.training
    return results.ContractInfo(
        name=contract.name,
        hash=contract.hash,
        yaml=yaml.dump(contract.model_dump(mode="json"), Dumper=_DUMPER, sort_keys=False),
        summary={
            "alignment": contract.alignment.method,
            "unaligned rows": contract.unaligned.method,
            "target": contract.target.type,
            "hidden layers": "-".join(map(str, contract.model.hidden)),
            "cut after layer": contract.model.cut_after,
            "defences": ", ".join(entry.defense.method for entry in contract.defense) or "none",
            "mode": training.mode,
            "cut gradients": training.gradients,
            "epochs at most": training.epochs,
            "batch size": training.batch_size,
            "optimizer": training.optimizer,
            "learning rate": (
                training.learning_rate if training.schedule == "constant" else f"{training.learning_rate:g}, {training.schedule}"
            ),
            "seed": contract.seed,
        },
    )


def _tuning(findings: RunFindings) -> results.Tuning | None:
    if not findings.trials:
        return None
    from tallystick.job.phases.search import best_of
    from tallystick.job.phases.tuning import told

    best, crosses = best_of(findings.trials), not findings.alone
    trials = [
        results.TunedTrial(
            number=trial.number,
            values=told(trial.values),
            loss=trial.loss,
            epochs=trial.epochs,
            embedded=crosses * trial.epochs * sum(trial.rows),
            answered=crosses * trial.epochs * trial.rows[0],
            seconds=trial.seconds,
            problem=trial.problem,
        )
        for trial in findings.trials
    ]
    keys_tried = ", ".join(dict.fromkeys(key for trial in findings.trials for key in trial.values)) or "the contract as it is"
    summary = (
        f"{len(trials)} trials of {keys_tried}, each trained on the training rows and compared on the "
        "validation rows; no test row was touched. "
    )
    what = "Each trial disclosed what a training does."
    if findings.alone:
        what = "Nothing was sent: only own columns were used. The chosen values depend on the labels that chose them."
    return results.Tuning(summary=summary + what, trials=trials, best=best.number if best is not None else None)


def _data(contract: Contract, party: PartyFile, findings: RunFindings) -> results.DataSummary | None:
    dataset, keys = findings.dataset, findings.keys
    if dataset is None:
        return None
    auto_notes = dataset.resolved_notes(contract.training)
    of_keys = [f"{party.party}: {note}" for note in [*(keys.notes() if keys is not None else []), *findings.match_notes]]
    from tallystick.evaluation.importance import column_places

    shape = dataset.encoder.feature_shape if dataset.encoder is not None else None
    positive = []
    if dataset.labels is not None and dataset.labels.coder.type == "binary":
        classes = dataset.labels.coder.classes
        positive = [f"the positive class of {party.label!r} is {classes[1]!r}; a score is its probability"]
    if dataset.labels is not None:
        positive += [
            f"the positive class of {name!r} is {classes[1]!r}; score_{name} is its probability"
            for name, classes in dataset.labels.coder.labels.items()
        ]
    columns = results.ColumnSummary(
        party=party.party,
        numeric=shape.numeric if shape else 0,
        categorical=len(shape.cardinalities) if shape else 0,
        sequences=len(shape.sequences) if shape else 0,
        names=[place.name for place in column_places(dataset.encoder)] if dataset.encoder is not None else [],
    )
    unaligned = dataset.unaligned
    counts = [len(part_N) for part_N in (unaligned.train_N, unaligned.validation_N, unaligned.test_N)]
    if sum(counts):
        train, validation, test = counts
        positive.append(
            f"{sum(counts):,} rows without a partner's row are used too: {train:,} for training, {validation:,} for validation, "
            f"{test:,} for test"
        )
    return results.DataSummary(
        rows={"train": len(dataset.train_N), "validation": len(dataset.validation_N), "test": len(dataset.test_N)},
        columns=[columns],
        notes=[
            *positive,
            *of_keys,
            *(dataset.encoder.notes if dataset.encoder is not None else []),
            *auto_notes,
            *findings.column_notes,
            *findings.evaluated.notes,
        ],
    )


def _model_part(party: str, name: str, module: "nn.Module") -> results.ModelPart:
    from torch import nn

    linear = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    embeddings = sum(isinstance(layer, nn.Embedding) for layer in module.modules())
    widths = "-".join(str(layer.in_features) for layer in linear) + (f"-{linear[-1].out_features}" if linear else "")
    layers = ", ".join(part for part in (f"{embeddings} embeddings" if embeddings else "", widths) if part)
    return results.ModelPart(
        party=party, name=name, layers=layers or type(module).__name__, parameters=sum(p.numel() for p in module.parameters())
    )


def _training(
    contract: Contract, logbook: Logbook | None, findings: RunFindings, state: "TrainingState | None"
) -> results.TrainingSummary | None:
    if state is None:
        return None
    history = [
        results.EpochRecord(
            epoch=int(record["epoch"]) + 1,
            train_loss=record["train_loss"],
            validation_loss=record.get("validation_loss"),
            seconds=record["seconds"],
        )
        for record in state.history
    ]
    phase = next((phase for phase in logbook.phases if phase.name == "training"), None) if logbook is not None else None
    seconds = phase.seconds if phase is not None else sum(record["seconds"] for record in state.history)
    steps = state.step - (findings.resumed_from if logbook is not None else 0)
    # dropout rates of layers; a party's own module may use PyTorch's
    shares: list[float] = []
    if logbook is not None:
        from torch import nn

        from tallystick.models.dropout import Dropout

        layers = [layer for module in findings.modules.values() for layer in module.modules()]
        shares += [layer.share for layer in layers if isinstance(layer, Dropout)]
        shares += [layer.p for layer in layers if isinstance(layer, nn.Dropout)]
    return results.TrainingSummary(
        mode=contract.training.mode if logbook is not None else "in one process",
        steps=state.step,
        best_epoch=state.best_epoch + 1 if state.best_epoch is not None else None,
        best_step=state.best_step,
        history=history,
        seconds=seconds,
        steps_per_s=steps / seconds if seconds and steps else None,
        resumed_from=(findings.resumed_from or None) if logbook is not None else None,
        refit_epochs=state.refit_epochs,
        refit_steps=state.refit_steps,
        folds=findings.dataset.networks if findings.dataset is not None else 1,
        dropout=max(shares, default=0.0),
    )


def learnt_of_run(contract: Contract, party: PartyFile, findings: RunFindings) -> list[results.Learnt]:
    """List what this party and its peers learnt, in the order of the phases."""
    dataset, trials, search = findings.dataset, [trial for trial in findings.trials if not trial.problem], None
    rows = {}
    if dataset is not None:
        parts = {"training": dataset.train_N, "validation": dataset.validation_N, "test": dataset.test_N}
        rows = {name: len(part_N) for name, part_N in parts.items()}
    if trials and not findings.alone:
        training, validation = trials[0].rows
        epochs = sum(trial.epochs for trial in trials)
        search = TrialFacts(trials=len(trials), epochs=epochs, training=training, validation=validation)
    facts = RunFacts(
        party=party.party,
        alignment=findings.alignment,
        sample=findings.sample,
        helper=findings.helper,
        rows=rows,
        networks=dataset.networks if dataset is not None else 1,
        training=findings.training,
        search=search,
        finished=findings.evaluated.finished,
    )
    return sorted(learnt_in_run(contract, facts), key=lambda item: ALL_PHASES.index(item.step))
