"""Check before a job everything that this party can check alone, so that nothing is disclosed to a peer in vain.

`tallystick check` lists what preflight() finds; every job begins with require(), which raises it.
"""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.dataset.intersection import check_classes, check_unaligned
from tallystick.dataset.own_rows import Before, extended_encoder, known_labels
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.disclosure.training import screening_line
from tallystick.errors import ConfigError, DataError
from tallystick.evaluation.boosting import check_halves
from tallystick.job.phases.budget import Ahead, check_budget
from tallystick.job.phases.defense import check_teacher
from tallystick.job.phases.release import shows_weights
from tallystick.job.resource_estimate import WORTH_SAYING, least_room, room_of
from tallystick.job.side_checks import (
    Preflight,
    check_ids_of,
    check_keys,
    check_side,
    promises_labels,
    raise_problems,
    refuse_telling,
)
from tallystick.models.build import (
    TRIED_ROWS,
    build_bottom,
    check_bottom_rows,
    check_modules,
    check_top_rows,
    try_bottom,
    width_of,
)
from tallystick.models.tabular import embedding_widths
from tallystick.network.messages import MEBIBYTE
from tallystick.reading import shown
from tallystick.run_folder.embedding_charge import noise_on_embeddings
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.run_folder.trained import Architecture
from tallystick.tables.encoder import Encoder
from tallystick.tables.keys import Keys, keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.rows import machine_memory
from tallystick.tables.sequences import check_separators
from tallystick.tables.split import TEST, TRAINING, VALIDATION, split_by_hash, split_by_time, split_positions
from tallystick.tables.table import label_column, read_party_table, require_column
from tallystick.tables.target import LabelCoder, encode_weights
from tallystick.tables.times import ordered_times
from tallystick.training.plan import most_batches_per_message

CodedLabels: TypeAlias = tuple[LabelCoder, Tensor]

LOADED = "tallystick.job.phases.tuning_alone"
"""Modules that a worker loads when an engine is tried. They take as much memory as those of a training worker without data."""
COPIES = 4  # for a weight in training: the weight, its gradient, and the two moments of Adam


def require(
    contract: Contract,
    party: PartyFile,
    *,
    folder: RunFolder | None = None,
    trials: int | None = None,
    point: StartingPoint | None = None,
    say: Callable[[str], None],
) -> tuple[Frame, Keys | None]:
    """Return this party's table and keys, after all checks have passed. ``trials`` is the number of trials of a search.

    ``point`` is the run whose weights this one starts from, if any. ``say`` gets warnings, and the estimate for a large table.

    A helper has neither: its table is empty.

    Raises the problem; for several problems a ConfigError or a DataError with a line for each.
    """
    report = preflight(contract, party, folder=folder, trials=trials, point=point)
    raise_problems(report)
    if report.room is not None and report.room.rows >= WORTH_SAYING:
        say(report.room.describe())
    for line in report.warnings:
        say(f"warning: {line}")
    return report.frame if report.frame is not None else pl.DataFrame(), report.keys


def require_to_predict(
    contract: Contract,
    party: PartyFile,
    frame: Frame,
    encoder: Encoder | None,
    *,
    folder: RunFolder,
    charges: bool = True,
    calls: bool = True,
) -> Keys:
    """Return the ids of the rows to score, after all local checks have passed. Raises the same errors as require().

    Check the ledger if scoring ``charges`` it. Check addresses only if the party ``calls`` its peers after this.
    """
    report = Preflight()
    if calls:
        _check_side(contract, party, report)
    keys = report.tried(lambda: keys_of(frame, party, contract.alignment))
    if keys is not None:
        is_label = contract.role_of(party.party) == "label"
        report.tried(lambda: check_ids_of(contract, keys, is_label=is_label))
        if encoder is not None:
            report.tried(lambda: room_of(contract, encoder, rows=frame.height).require())
            report.tried(lambda: encoder.check(frame[keys.rows_R]))  # all columns, without infinite numbers
    ahead = Ahead(contract=contract, party=party, folder=folder, predicts=True, keys=keys)
    if charges:
        report.tried(lambda: check_budget(ahead))
    raise_problems(report)
    assert keys is not None
    return keys


def preflight(
    contract: Contract,
    party: PartyFile,
    *,
    folder: RunFolder | None = None,
    trials: int | None = None,
    point: StartingPoint | None = None,
) -> Preflight:
    """Check party file, certificates, budget, table, labels, columns, split and modules. Nothing is sent.

    Args:
        contract: the contract.
        party: this party's file.
        folder: that of a run to resume.
        trials: number of trials that a search may still run; None if this is not a search.
        point: the run whose weights this one starts from, if any.
    """
    report = Preflight()
    fits = _check_side(contract, party, report)
    if party.table is not None:
        trained = point.encoder if point is not None else None
        report.frame = report.tried(lambda: read_party_table(party, trained=trained))
    if not fits:
        return report
    if (cluster := party.training_cluster) is not None:
        report.tried(partial(cluster.check, LOADED))
    if contract.role_of(party.party) == "label":
        report.tried(lambda: check_teacher(contract))
    if (frame := report.frame) is not None:
        report.frame = report.tried(lambda: with_summaries(frame, party, contract.alignment))
    if report.frame is not None:
        before = point.before(grows=party.party not in contract.model.bottoms) if point is not None else None
        _check_table(contract, party, report, report.frame, folder, before)
    ahead = Ahead(contract=contract, party=party, folder=folder, trials=trials, keys=report.keys)
    report.budget = report.tried(lambda: check_budget(ahead)) or ()
    return report


def _check_table(
    contract: Contract, party: PartyFile, preflight: Preflight, frame: Frame, folder: RunFolder | None, before: Before | None
) -> None:
    keys = check_keys(contract, party, preflight, frame, folder=folder)
    is_label = contract.role_of(party.party) == "label"
    if keys is None:
        return
    here = frame[keys.rows_R]
    training = np.arange(here.height)  # all rows that may be used in training
    if contract.split.method != "hash" or contract.linkage.imputes or (contract.linkage.similar and not is_label):
        parts = None
    elif contract.linkage.similar:
        parts = split_positions(len(keys.ids), contract.split, seed=contract.seed)
    else:
        parts = split_by_hash(keys.ids_of(np.arange(len(keys.rows_R))), contract.split, seed=contract.seed)
    if parts is not None:
        parts_N = parts
        if preflight.tried(lambda: _check_parts(contract, parts_N)) and not contract.linkage.similar:
            training = np.flatnonzero(parts == TRAINING)
        if contract.split.test and not (parts == TEST).any():
            preflight.warnings.append(f"none of {here.height} ids fall into the test part, so nothing can be measured")
    labels = None
    if is_label:
        taught = training
        labels = preflight.tried(lambda: check_label(contract, party, here, taught, before=before))
        if (weight := party.weight) is not None:
            preflight.tried(lambda: encode_weights(require_column(here, weight, use="weight")))
            if shows_weights(contract, party):
                preflight.tried(
                    lambda: refuse_telling(
                        require_column(here, weight, use="weight"),
                        label_column(here, party),
                        what=f"weight column {weight!r}",
                        why="cut gradients show the rows' weights: the contract's ε for labels would not hold; leave the weight "
                        "out, or take weights that do not depend on labels",
                    )
                )
                preflight.warnings.append(
                    f"weight column {weight!r}: cut gradients show the rows' weights, so the labels' ε holds only if weights do "
                    "not depend on labels"
                )
        if (time := party.time) is not None and contract.split.method == "time":
            times = preflight.tried(lambda: split_by_time(require_column(here, time, use="time"), contract.split))
            if times is not None and not contract.unaligned.used:  # aligned rows' times decide the others' parts
                training = np.flatnonzero(times == TRAINING)
            if times is not None and labels is not None and promises_labels(contract):
                preflight.tried(
                    lambda: refuse_telling(
                        ordered_times(require_column(here, time, use="time"), use="time"),
                        label_column(here, party),
                        what=f"time column {time!r}",
                        why="split.method = time shows others which of three groups in time each row is in: the contract's "
                        "promise for labels would not hold; split by hash, or take times that do not depend on labels",
                    )
                )
                preflight.warnings.append(
                    f"time column {time!r}: others learn which of three groups in time each row is in, so the contract's promise "
                    "for labels holds only if times do not depend on labels"
                )
    preflight.tried(lambda: _check_features(contract, party, preflight, here, training, labels, before))


def _check_side(contract: Contract, party: PartyFile, preflight: Preflight) -> bool:
    """Check everything but the table. Return whether the party file fits the contract."""
    fits = check_side(contract, party, preflight)
    preflight.tried(lambda: _check_device(party))
    if fits:
        is_label = contract.role_of(party.party) == "label"
        preflight.tried(lambda: check_modules(contract.model, party.party, top=is_label))
    return fits


def check_label(
    contract: Contract, party: PartyFile, here: Frame, training: "np.ndarray[Any, Any]", *, before: Before | None = None
) -> CodedLabels:
    """Refuse labels that no training can learn. Return their coder and the coded training labels. Raises DataError.

    If the contract hides labels, do not look at which of them the training rows have.
    """
    label = label_column(here, party)
    if before is not None and before.coder is not None:
        label_coder = known_labels(before.coder, label)
        return label_coder, label_coder.encode(label)[torch.from_numpy(training)]
    coder = LabelCoder.fit(label, contract.target, training, hidden=contract.hides_labels)
    if not contract.sends_gradients:  # then a run checks the whole column, and nobody else learns of it
        LabelCoder.fit(label, contract.target, training, hidden=True)
    return coder, coder.encode(label)[torch.from_numpy(training)]


def _check_parts(contract: Contract, parts_N: "np.ndarray[Any, Any]") -> bool:
    """Refuse a split that leaves a part without any row of this side: no linkage could fill it."""
    for part, name, share in ((TRAINING, "training", 1.0), (VALIDATION, "validation", contract.split.validation)):
        if share and not (parts_N == part).any():
            raise DataError(
                f"split: none of this side's {len(parts_N)} ids fall into the {name} part; bring more rows or change split"
            )
    return True


def _check_features(
    contract: Contract,
    party: PartyFile,
    preflight: Preflight,
    here: Frame,
    training: "np.ndarray[Any, Any]",
    labels: CodedLabels | None,
    before: Before | None,
) -> None:
    """Fit the encoder and try the model on this side's training rows, as a run would. Note the result and what may still
    change.
    """
    is_label = contract.role_of(party.party) == "label"
    least_room(contract, party, here).require()
    check_separators(here, party.sequences)
    if before is not None:
        encoder = extended_encoder(before, here, party, training)
    else:
        screens = contract.screens(party.party)
        encoder = Encoder.of_party(here, party, training, numbers=contract.model.numeric, screens=screens)
    if encoder is None and not is_label:
        raise DataError(f"party {party.party} has no usable feature column; list some under features")
    if labels is not None and contract.unaligned.used:
        check_unaligned(contract.unaligned, encoder)
        if not contract.hides_labels:
            check_classes(contract.unaligned, *labels)
    if encoder is not None:
        preflight.room = room_of(contract, encoder, rows=here.height)
        preflight.room.require()
        _check_model(contract, party, encoder, here)
        if labels is not None and contract.defense and contract.defense[0].defense.asks_teacher:  # for true labels
            check_halves(labels[1], classes=contract.target.classes)
    if is_label:
        preflight.own_columns = encoder is not None
        # build a user's own top as a run would, unless other parties decide widths; refuse one that mixes rows under noise
        model, terms = contract.feature_model, contract.alignment.similarity
        if model.top is not None:
            architecture = Architecture.of(contract, party.party)
            if encoder is not None and contract.evaluation.own_columns_baseline and contract.split.test:
                architecture.label_model(encoder, [])
            if not any(name in model.bottoms for name in contract.feature_parties):
                widths = [model.built_in_cut_width] * len(contract.feature_parties)
                candidates = [terms.links] * len(widths) if terms is not None else []
                architecture.label_model(encoder, widths, candidates=candidates)
            if GaussianGradients in [entry.defense for entry in contract.defense]:
                outputs = contract.target.outputs
                check_top_rows(model, outputs=outputs, claim=GaussianGradients.method)
    if encoder is None:
        return
    several = contract.training.folds_notes(contract.folds(len(training)))
    notes = (*encoder.notes, *contract.training.resolved_notes(len(training)), *several)
    notes += (screening_line(contract),) if encoder.screened and not is_label else ()
    fit_note = (f"a run fits on those of these {len(training):,} rows that all parties have, and may then choose otherwise",)
    preflight.notes += notes + (fit_note if not contract.linkage.imputes and any("auto:" in note for note in notes) else ())


def _check_model(contract: Contract, party: PartyFile, encoder: Encoder, here: Frame) -> None:
    """Refuse a model too large for this machine, and embeddings too large for a message. Then try the bottom on a few rows."""
    shape, model = encoder.feature_shape, contract.feature_model
    if party.party not in model.bottoms:
        widths = embedding_widths(shape.tables_built_for, model.embedding_width)
        tables = sum(size * width for size, width in zip(shape.tables, widths, strict=True))
        weights = tables + sum(a * b for a, b in pairwise([shape.numeric + sum(widths), *model.hidden]))
        needed = 4 * COPIES * weights
        if needed > (memory := machine_memory()):
            raise ConfigError(
                f"model.hidden = {shown(model.hidden) or len(model.hidden)}, model.embedding_width = {model.embedding_width}: "
                f"{weights:,} weights take {needed / 2**30:.1f} GiB in training, and this machine has {memory / 2**30:.1f}; "
                "use narrower layers"
            )
        width = model.built_in_cut_width
    else:
        bottom, path = build_bottom(model, party.party, shape, seed=contract.seed), model.bottoms[party.party]
        few = encoder.encode(here[np.arange(min(TRIED_ROWS, here.height))]).unpacked()
        try_bottom(bottom, few.rows(torch.arange(min(2, len(few)))), what=f"model.bottoms.{party.party} = {path}")
        if contract.role_of(party.party) == "feature" and noise_on_embeddings(contract) is not None:
            check_bottom_rows(bottom, few, path=path, party=party.party, claim=GaussianEmbeddings.method)
        width = width_of(bottom)
    training = contract.training.resolved(here.height)
    width *= contract.folds(here.height)
    rows = min(most_batches_per_message(training) * training.batch_size, here.height)
    if (size := 4 * rows * width) > contract.network.max_message_mib * MEBIBYTE - 4096:
        raise ConfigError(
            f"training.batch_size = {training.batch_size}: the cut embeddings of {rows} rows and width {width} take "
            f"{size / MEBIBYTE:.0f} MiB, over network.max_message_mib = {contract.network.max_message_mib}; "
            "use smaller batches, a narrower cut or larger messages"
        )


def _check_device(party: PartyFile) -> None:
    try:
        torch.empty(1, device=party.device)
    except (RuntimeError, AssertionError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"device = {party.device}: PyTorch cannot use it ({first}); use cpu") from None
