"""Before a job: all that this party can find out alone, so that nothing is disclosed to a peer in vain.

`tallystick check` lists what preflight() finds; every job begins with require(), which raises it.
"""

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.alignment.encoding import check_filters
from tallystick.alignment.exchange import check_ids
from tallystick.alignment.key_noise import check_radius
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.config.party_checks import check_party
from tallystick.dataset.intersection import check_classes, check_unaligned
from tallystick.dataset.own_rows import Before, extended_encoder, known_labels
from tallystick.defenses.gaussian import GaussianGradients
from tallystick.defenses.gaussian_embeddings import GaussianEmbeddings
from tallystick.disclosure.training import screening_line
from tallystick.errors import ComputeError, ConfigError, DataError, StorageError, TallystickError
from tallystick.evaluation.boosting import check_halves
from tallystick.job.loggers import loggers_of
from tallystick.job.phases.align import max_rows
from tallystick.job.phases.budget import Ahead, check_budget
from tallystick.job.phases.defense import check_teacher
from tallystick.job.resource_estimate import WORTH_SAYING, Room, least_room, room_of
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
from tallystick.network.certificates import Identity, load_identity
from tallystick.network.messages import MEBIBYTE
from tallystick.network.proxy import Proxy, checked_proxy
from tallystick.privacy.ledger import Outlook
from tallystick.reading import shown
from tallystick.run_folder.embedding_charge import noise_on_embeddings
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.run_folder.trained import Architecture
from tallystick.tables.encoder import Encoder
from tallystick.tables.features import FeatureShape
from tallystick.tables.groups import check_subgroups
from tallystick.tables.keys import Keys, fingerprint, keys_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.repeats import with_summaries
from tallystick.tables.rows import machine_memory
from tallystick.tables.sequences import check_separators
from tallystick.tables.split import TEST, TRAINING, VALIDATION, split_by_hash, split_by_time, split_positions
from tallystick.tables.table import read_party_table, require_column
from tallystick.tables.target import LabelCoder, encode_weights
from tallystick.training.plan import most_batches_per_message

T = TypeVar("T")

CodedLabels: TypeAlias = tuple[LabelCoder, Tensor]

LOADED = "tallystick.job.phases.tuning_alone"
"""What a worker loads when an engine is tried: it takes as much memory as one that trains does before any data."""
COPIES = 4  # of a weight in training: itself, its gradient, and the two moments of Adam


@dataclass(kw_only=True)
class Preflight:
    """Findings before a job: the problems in their order, and what could be read in spite of them."""

    problems: list[TallystickError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what the encoder came to, fitted on all own rows
    frame: Frame | None = None
    keys: Keys | None = None
    identity: Identity | None = None
    room: Room | None = None  # what a run will take, of a party with columns
    budget: Sequence[Outlook] = ()  # what the job would bring each of this party's budgets to
    own_columns: bool | None = None  # of a label party: whether it has any of use; None where that was not found out

    def tried(self, work: Callable[[], T]) -> T | None:
        """Do one check; what it finds is kept, and the other checks go on."""
        try:
            return work()
        except (ComputeError, ConfigError, DataError, StorageError) as error:
            self.problems.append(error)
            return None


def require(
    contract: Contract,
    party: PartyFile,
    *,
    folder: RunFolder | None = None,
    trials: int | None = None,
    point: StartingPoint | None = None,
    say: Callable[[str], None],
) -> tuple[Frame, Keys | None]:
    """Give this party's table and its keys, once all checks have passed; ``trials`` are those of a search.

    ``point`` is what the run starts from, where that is not scratch. ``say`` hears what a large table will take.

    A helper has neither: its table is empty.

    Raises the problem that was found; of several, a ConfigError or a DataError with a line for each.
    """
    report = preflight(contract, party, folder=folder, trials=trials, point=point)
    _raise(report)
    if report.room is not None and report.room.rows >= WORTH_SAYING:
        say(report.room.describe())
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
    """Give the ids of the rows to be scored, once all that can be checked alone has passed; raises as require() does.

    The ledger is looked at where scoring ``charges`` it each time. A party that has called its peers already no longer ``calls``
    them.
    """
    report = Preflight()
    if calls:
        _check_side(contract, party, report)
    keys = report.tried(lambda: keys_of(frame, party, contract.alignment))
    if keys is not None:
        is_label = contract.role_of(party.party) == "label"
        report.tried(lambda: _check_ids(contract, keys, is_label=is_label))
        if encoder is not None:
            report.tried(lambda: room_of(contract, encoder, rows=frame.height).require())
            report.tried(lambda: encoder.check(frame[keys.rows_R]))  # all columns, and nothing infinite in them
    ahead = Ahead(contract=contract, party=party, folder=folder, predicts=True, keys=keys)
    if charges:
        report.tried(lambda: check_budget(ahead))
    _raise(report)
    assert keys is not None
    return keys


def _raise(preflight: Preflight) -> None:
    if len(preflight.problems) == 1:
        raise preflight.problems[0]
    if preflight.problems:
        kind = DataError if all(isinstance(error, DataError) for error in preflight.problems) else ConfigError
        raise kind("\n".join(str(error) for error in preflight.problems))


def preflight(
    contract: Contract,
    party: PartyFile,
    *,
    folder: RunFolder | None = None,
    trials: int | None = None,
    point: StartingPoint | None = None,
) -> Preflight:
    """Go through party file, certificates, budget, table, labels, columns, split and modules; sends nothing.

    Args:
        contract: the contract.
        party: this party's file.
        folder: that of a run that is to go on.
        trials: how many trainings a search may still take, where it is one.
        point: what the run starts from, where that is not scratch.
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


def _check_side(contract: Contract, party: PartyFile, preflight: Preflight) -> bool:
    """Check all but the table; tells whether the party file fits the contract."""
    preflight.tried(lambda: check_party(contract, party))
    fits = not preflight.problems
    if party.tls is not None:
        preflight.identity = preflight.tried(lambda: identity_of(party))
    preflight.tried(lambda: proxy_of(party))
    if (listen := party.listen) is not None:
        preflight.tried(lambda: _check_listen(listen))
    preflight.tried(lambda: _check_runs(party.runs))
    preflight.tried(lambda: _check_device(party))
    preflight.tried(lambda: loggers_of(party, folder=party.runs))
    preflight.tried(lambda: party.run_key)
    if fits:
        is_label = contract.role_of(party.party) == "label"
        preflight.tried(lambda: check_modules(contract.model, party.party, top=is_label))
    return fits


def identity_of(party: PartyFile) -> Identity:
    """Load the party's certificates, checked."""
    assert party.tls is not None
    password = party.tls.key_password.read("tls.key_password") if party.tls.key_password is not None else None
    return load_identity(
        party.party, ca=party.tls.ca, certificate=party.tls.certificate, key=party.tls.key, key_password=password
    )


def proxy_of(party: PartyFile) -> Proxy | None:
    """Return the proxy that the party's peers are dialled through, with its credentials."""
    if party.proxy is None:
        return None
    credentials = party.proxy.credentials
    user_and_password = credentials.read("proxy.credentials").strip() if credentials is not None else None
    return checked_proxy(party.proxy.address, credentials=user_and_password)


def check_kept(party: PartyFile, keys: Keys, folder: RunFolder) -> None:
    """Refuse to go on with a run that aligned other ids; raises DataError."""
    saved = folder.load_alignment()
    if saved is not None and saved[0].table != fingerprint(keys):
        raise DataError(
            f"the table of {party.party} has other ids, or another order, than when {folder.path} was aligned; "
            "put the old table back, or start a new run without --resume on all sides"
        )


def _check_table(
    contract: Contract, party: PartyFile, preflight: Preflight, frame: Frame, folder: RunFolder | None, before: Before | None
) -> None:
    keys = preflight.keys = preflight.tried(lambda: keys_of(frame, party, contract.alignment))
    is_label = contract.role_of(party.party) == "label"
    preflight.tried(lambda: check_subgroups(frame, party))
    if keys is None:
        return
    preflight.tried(lambda: _check_ids(contract, keys, is_label=is_label))
    if folder is not None:
        preflight.tried(lambda: check_kept(party, keys, folder))
    here = frame[keys.rows_R]
    training = np.arange(here.height)  # all that may be for training
    if (parts := _hash_parts(contract, keys, is_label=is_label)) is not None:
        if preflight.tried(lambda: _check_parts(contract, parts)) and not contract.linkage.similar:
            training = np.flatnonzero(parts == TRAINING)
        if contract.split.test and not (parts == TEST).any():
            preflight.warnings.append(f"none of {here.height} ids fall into the test part, so nothing can be measured")
    labels = None
    if is_label:
        taught = training
        labels = preflight.tried(lambda: check_label(contract, party, here, taught, before=before))
        if (weight := party.weight) is not None:
            preflight.tried(lambda: encode_weights(require_column(here, weight, use="weight")))
        if (time := party.time) is not None and contract.split.method == "time":
            times = preflight.tried(lambda: split_by_time(require_column(here, time, use="time"), contract.split))
            if times is not None and not contract.unaligned.used:  # the times of aligned rows alone settle those of the others
                training = np.flatnonzero(times == TRAINING)
    preflight.tried(lambda: _check_features(contract, party, preflight, here, training, labels, before))


def check_label(
    contract: Contract, party: PartyFile, here: Frame, training: "np.ndarray[Any, Any]", *, before: Before | None = None
) -> CodedLabels:
    """Refuse labels that cannot be learnt, whichever of these rows are for training; gives those of them. Raises DataError.

    Where the contract hides labels, which of them training rows have is not looked at.
    """
    assert party.label is not None
    label = require_column(here, party.label, use="label")
    if before is not None and before.coder is not None:
        label_coder = known_labels(before.coder, label)
        return label_coder, label_coder.encode(label)[torch.from_numpy(training)]
    coder = LabelCoder.fit(label, contract.target, training, hidden=contract.hides_labels)
    if not contract.sends_gradients:  # then a run judges the whole column, and nobody is to hear of it
        LabelCoder.fit(label, contract.target, training, hidden=True)
    return coder, coder.encode(label)[torch.from_numpy(training)]


def _hash_parts(contract: Contract, keys: Keys, *, is_label: bool) -> "np.ndarray[Any, Any] | None":
    """Return the parts of a split by hash that this side knows: of its ids; by similarity, of the label party's positions."""
    if contract.split.method != "hash" or contract.linkage.imputes or (contract.linkage.similar and not is_label):
        return None
    if contract.linkage.similar:
        return split_positions(len(keys.ids), contract.split, seed=contract.seed)
    return split_by_hash(keys.ids_of(np.arange(len(keys.rows_R))), contract.split, seed=contract.seed)


def _check_ids(contract: Contract, keys: Keys, *, is_label: bool) -> None:
    check_ids(keys.ids, max_rows=max_rows(contract, len(keys.ids)))
    terms = contract.alignment.similarity
    if terms is not None and keys.similar is not None:
        check_filters(len(keys.similar), terms)
        check_radius(keys.similar, terms)
    if terms is not None and not is_label and len(keys.ids) < terms.neighbors:
        raise DataError(
            f"alignment.similarity.neighbors = {terms.neighbors}: this side has {len(keys.ids)} rows with a key to link to; "
            "agree on at most that many, or bring more rows"
        )
    limit = contract.alignment.max_rows
    dummies = contract.union.label_dummies if is_label else contract.union.feature_dummies
    if contract.linkage.imputes and limit is not None and len(keys.ids) + dummies > limit:
        key = f"union.{'label' if is_label else 'feature'}_dummies = {dummies}"
        raise DataError(
            f"{key}: with these {len(keys.ids)} ids they may exceed alignment.max_rows = {limit}; raise it, or have fewer dummies"
        )


def _check_parts(contract: Contract, parts_N: "np.ndarray[Any, Any]") -> bool:
    """Refuse a split that leaves a part of this side empty, whoever else has its rows."""
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
    """Fit and try what a run would, on this side's rows for training; notes what it came to, and what may yet change it."""
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
        if labels is not None and contract.defense and contract.defense[0].defense.asks_teacher:  # of labels as they are
            check_halves(labels[1], classes=contract.target.classes)
    if is_label:
        preflight.own_columns = encoder is not None
        _check_top(contract, party, encoder)
    if encoder is None:
        return
    several = contract.training.folds_notes(contract.folds(len(training)))
    notes = (*encoder.notes, *contract.training.resolved_notes(len(training)), *several)
    notes += (screening_line(contract),) if encoder.screened and not is_label else ()
    fit_note = (f"a run fits on those of these {len(training):,} rows that all parties have, and may then choose otherwise",)
    preflight.notes += notes + (fit_note if not contract.linkage.imputes and any("auto:" in note for note in notes) else ())


def _check_model(contract: Contract, party: PartyFile, encoder: Encoder, here: Frame) -> None:
    """Refuse a model that this machine cannot hold, and cut embeddings that no message can; then try the bottom on a few rows."""
    shape, model = encoder.feature_shape, contract.feature_model
    if party.party not in model.bottoms:
        _check_memory(contract, shape)
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


def _check_top(contract: Contract, party: PartyFile, encoder: Encoder | None) -> None:
    """Build a user's own top as a run would, unless widths are other parties' to tell; refuse one that mixes rows under noise."""
    model, terms = contract.feature_model, contract.alignment.similarity
    if model.top is None:
        return
    architecture = Architecture.of(contract, party.party)
    if encoder is not None and contract.evaluation.own_columns_baseline and contract.split.test:
        architecture.label_model(encoder, [])
    if not any(name in model.bottoms for name in contract.feature_parties):
        widths = [model.built_in_cut_width] * len(contract.feature_parties)
        candidates = [terms.links] * len(widths) if terms is not None else []
        architecture.label_model(encoder, widths, candidates=candidates)
    if GaussianGradients in [entry.defense for entry in contract.defense]:
        outputs = contract.target.classes if contract.target.type == "multiclass" else 1
        check_top_rows(model, outputs=outputs, claim=GaussianGradients.method)


def _check_memory(contract: Contract, shape: FeatureShape) -> None:
    model = contract.feature_model
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


def _check_listen(listen: str) -> None:
    host, _, port = listen.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(where)
            listener.listen(1)
    except OSError as error:
        raise ConfigError(
            f"listen = {listen}: cannot listen there ({error.strerror or error}); is the port taken, as by `tallystick serve`, "
            "or is it not this machine's address?"
        ) from None


def _check_runs(runs: Path) -> None:
    there = next((path for path in (runs, *runs.parents) if path.exists()), runs)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"runs = {runs}: no folder can be made there ({there} is not a folder that this user may write to)")


def _check_device(party: PartyFile) -> None:
    try:
        torch.empty(1, device=party.device)
    except (RuntimeError, AssertionError) as error:
        first = (str(error).splitlines() or [""])[0]
        raise ConfigError(f"device = {party.device}: PyTorch cannot use it ({first}); use cpu") from None
