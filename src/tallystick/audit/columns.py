"""The feature party's audit: how well could the label party rebuild this party's columns from what it was sent?

Shapes: N aligned positions, R recorded rows, D cut width.

It is measured where it discloses nothing: this party sent the embeddings and has the columns, so it plays the attack at home.
"""

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from tallystick import results
from tallystick.attacks.feature_inference.attack_table import FEATURE_INFERENCE_ATTACKS, FeatureInferenceAttack
from tallystick.attacks.feature_inference.evaluate import (
    KNOWN,
    MOST_ROWS,
    NO_ROW_KNOWN,
    AttackPlan,
    FeatureLeaks,
    PlannedAttack,
    Told,
    attacked_rows,
    draws_of_known,
)
from tallystick.attacks.feature_inference.tasks import leaks_on
from tallystick.attacks.feature_inference.view import ColumnValues, FirstBatch, SentEmbeddings
from tallystick.attacks.row_sums import RowSums, epochs_in_words
from tallystick.audit.known_initial_weights import first_batch
from tallystick.audit.other_run import OtherRun, runs_in_words
from tallystick.compute.task import Engine
from tallystick.config.contract import Contract
from tallystick.config.party import FeatureColumns
from tallystick.cut.forward import Part
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.disclosure.protection import defense_lines
from tallystick.disclosure.training import start_lines
from tallystick.errors import DataError, FeatureError, StorageError
from tallystick.evaluation.importance import column_places
from tallystick.run_folder.embedding_charge import embeddings_epsilon, noise_on_embeddings, serves_others
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.run_folder.pass_recorder import PASSES, PassStores
from tallystick.run_folder.row_recorder import RowStore
from tallystick.run_folder.trained import kept_encoder
from tallystick.tables.encoder import Encoder, feature_columns
from tallystick.training.checkpoint import read_tensors, write_tensors
from tallystick.watcher import Watcher

COLUMNS = "columns.safetensors"
GROUPS: Mapping[Part, str] = MappingProxyType(
    {
        "training": "training rows, embedded once more before an epoch",
        "validation": "validation rows",
        "test": "test rows",
    }
)
NO_GROUP = (
    "rows that predictions, requests or a later evaluation send after this audit: by the weights of the test rows, hence with "
    "their figure, and with a higher one where a row crosses by other weights, too"
)
GROUPS_ALONE = (
    "of validation and test rows: attacks that know no row (but for shuffled columns), columns that the model was not given, and "
    "what several runs tell together"
)
MANY_KNOWN = 100
LEAST_ROWS = 10  # that several runs must have in common
NO_START = "known-start: solves the first batch by starting weights, which are this side's secret"
NO_KNOWN_ROW = (
    "an attacker who knows no row: known-start needs a public start; marginals, which knows how each column is distributed, and "
    "simulator, which has other people's rows, are run where the contract says `audit: true`"
)
OF_NO_ROW = (
    "A figure for 0 known rows is of an attacker who knows how each column is distributed (marginals) or has other people's rows "
    "(simulator), but knows no row that was sent. "
)


@dataclass(frozen=True, kw_only=True)
class Truth:
    """This party's own columns at the recorded rows: those that it trained with, and those that it left out.

    Args:
        rows_R: int64, positions, or numbers where rows have candidates.
        used: what the bottom model read.
        unused: the table's other columns: properties that were not sent, but may be inferred.
        first_R: bool, which of the rows were embedded first.
        notes: which of these cannot be judged, and why.
    """

    rows_R: Tensor
    used: ColumnValues
    unused: ColumnValues
    first_R: Tensor
    notes: tuple[str, ...] = ()

    def rows(self, kept_K: Tensor) -> "Truth":
        """Return the truth of some rows."""
        some = {name: getattr(self, name)[kept_K] for name in ("rows_R", "first_R")}
        return dataclasses.replace(self, used=self.used.rows(kept_K), unused=self.unused.rows(kept_K), **some)


def own_columns(own: OwnRows, dataset: Dataset, rows_R: Tensor, *, first_B: Tensor) -> Truth:
    """Encode this party's columns at those of the recorded rows that it has; ``first_B`` were embedded first."""
    rows_R = rows_R[dataset.is_own(rows_R)]
    # A row at several positions counts once: else it could be known and attacked at the same time.
    rows_R = rows_R[torch.from_numpy(np.unique(own.alignment.own_rows[rows_R.numpy()], return_index=True)[1]).sort().values]
    here_R = rows_R.to(dataset.train_N.device)  # a recording is read to the CPU, the columns lie where the party trains
    features, encoder = dataset.columns_of(here_R), dataset.known_encoder
    targets = _targets(encoder)
    places = [*range(len(encoder.categorical)), *targets.values()]
    used = ColumnValues(
        numeric_NF=features.numeric_NF.cpu(),
        categorical_NG=features.categorical_NG[:, places].cpu(),
        numeric=encoder.numeric_names,
        categorical=(*(column.name for column in encoder.categorical), *targets),
        categories=tuple(encoder.feature_shape.codes[place] for place in places),
    )
    unused, notes = _unused(own, rows_R, targets)
    notes += tuple(f"sequence {sequence.name!r}: no attack here infers items" for sequence in encoder.sequences)
    return Truth(rows_R=rows_R, used=used, unused=unused, first_R=torch.isin(rows_R, first_B), notes=notes)


def _targets(encoder: Encoder) -> dict[str, int]:
    """Columns that name a sequence's target item and are no features beside, and where their codes stand."""
    features = [column.name for column in encoder.numeric] + [column.name for column in encoder.categorical]
    places: dict[str, int] = {}
    place = len(encoder.categorical)
    for sequence in encoder.sequences:
        if sequence.target is not None and sequence.target not in features:
            places.setdefault(sequence.target, place)
        place += sequence.shape.columns
    return places


def _unused(own: OwnRows, rows_R: Tensor, targets: Collection[str]) -> tuple[ColumnValues, tuple[str, ...]]:
    """Return the table's columns that are neither keys nor were trained with, which the ``targets`` were."""
    party = own.party
    frame = own.crossed(rows_R.numpy())
    read = feature_columns(frame, party)
    used = (*read.numeric, *read.categorical, *party.sequences, *targets)
    used_otherwise = {*party.keys.values(), *used, party.label, party.weight, party.time}
    parts, notes = [], []
    for name, kind in frame.schema.items():
        if name in used_otherwise:
            continue
        if kind.is_nested():
            notes.append(f"column {name!r}, which was not used: has type {kind}, which no attack here infers")
            continue
        numeric = kind.is_numeric() or kind.is_temporal() or str(kind) == "Boolean"
        columns = FeatureColumns(numeric=(name,) if numeric else (), categorical=() if numeric else (name,))
        try:
            encoder = Encoder.fit(frame, columns, torch.arange(frame.height).numpy(), encoding=party.encoding)
            if not (encoder.numeric or encoder.categorical):
                notes.append(f"column {name!r} is constant: there is nothing to infer")
                continue
            parts.append((encoder, encoder.encode(frame).unpacked()))
        except FeatureError as error:
            notes.append(f"column {name!r}, which was not used: {error}")
    empty = torch.empty(len(rows_R), 0)
    unused = ColumnValues(
        numeric_NF=torch.cat([empty, *(features.numeric_NF for _, features in parts)], dim=1),
        categorical_NG=torch.cat([empty.long(), *(features.categorical_NG for _, features in parts)], dim=1),
        numeric=tuple(name for encoder, _ in parts for name in encoder.numeric_names),
        categorical=tuple(column.name for encoder, _ in parts for column in encoder.categorical),
        categories=tuple(size for encoder, _ in parts for size in encoder.feature_shape.cardinalities),
    )
    return unused, tuple(notes)


def save_columns(
    folder: RunFolder, contract: Contract, party: str, truth: Truth, *, run_id: str, part: str | None = None
) -> None:
    """Keep them beside the sums, readable by this user alone, so that attacks can be measured again later.

    Without a ``part`` they are of the training steps' rows, else of those that crossed in passes over that part, or, of the label
    party, of those whose gradients were summed.
    """
    facts: dict[str, object] = {"contract": contract.hash, "run_id": run_id, "party": party, "notes": truth.notes}
    tensors = {"rows_R": truth.rows_R, "first_R": truth.first_R}
    for name, columns in (("used", truth.used), ("unused", truth.unused)):
        tensors |= {f"{name}/numeric": columns.numeric_NF, f"{name}/categorical": columns.categorical_NG}
        facts[name] = {"numeric": columns.numeric, "categorical": columns.categorical, "categories": columns.categories}
    write_tensors(folder.views / file_of(part), tensors, {"columns": json.dumps(facts)}, origin=folder.origin, private=True)


def file_of(part: str | None) -> str:
    """Name the file of this party's columns at the rows of a part; None: of the training steps' rows."""
    return COLUMNS if part is None else f"columns-{part}.safetensors"


def load_columns(folder: RunFolder, contract: Contract, part: str | None = None) -> tuple[Truth, str, str]:
    """Read them back, whose they are and of which run; raises DataError if that fails."""
    path = folder.views / file_of(part)
    try:
        tensors, metadata = read_tensors(path, origin=folder.origin)
        facts = json.loads(metadata["columns"])
        of, run_id, party = (str(facts[name]) for name in ("contract", "run_id", "party"))
        used, unused = (
            ColumnValues(
                numeric_NF=tensors[f"{name}/numeric"],
                categorical_NG=tensors[f"{name}/categorical"],
                numeric=tuple(facts[name]["numeric"]),
                categorical=tuple(facts[name]["categorical"]),
                categories=tuple(facts[name]["categories"]),
            )
            for name in ("used", "unused")
        )
        truth = Truth(rows_R=tensors["rows_R"], first_R=tensors["first_R"], used=used, unused=unused, notes=tuple(facts["notes"]))
    except (StorageError, KeyError, ValueError, TypeError) as error:
        raise DataError(f"{path}: is cut short or holds no columns ({error}); run the contract again") from None
    if of != contract.hash:
        raise DataError(
            f"{path}: is of contract {of[:8]}, but here {contract.hash[:8]} is audited; give the folder of its own run"
        )
    return truth, party, run_id


def audit_features(
    folder: RunFolder,
    contract: Contract,
    *,
    watcher: Watcher,
    known: Sequence[int] = KNOWN,
    also: Sequence[OtherRun] = (),
    engine: Engine | None = None,
    seed: int = 0,
) -> results.FeatureAudit:
    """Attack what this party sent over the whole training, as the label party could, and measure by its own columns.

    With ``also`` all these runs are attacked as one view, too, on the rows that all of them recorded, and of each column the
    stronger figure counts. Threat model: an honest-but-curious label party that keeps every embedding and knows the columns of a
    few rows from elsewhere. No guarantee: every figure is a floor; the label party's own columns, which would help, are not known
    here. Raises DataError if the folder holds no sums, damaged ones, or those of another contract or run.
    """
    truth, party, run_id = load_columns(folder, contract)
    sums = _last_sums(folder, contract, run_id)
    watcher.say("attacking what this side sent, for its columns, as the label party could")
    views, kept_K = _sent(sums, truth, also)
    rows_C = attacked_rows(len(kept_K))
    views, truth = [view.rows(rows_C) for view in views], truth.rows(kept_K[rows_C])
    first = _first(folder, contract, party, truth, sums, views[0].looks_BE[:, : views[0].last_BD.shape[1]])
    leaks_by_name: dict[str, FeatureLeaks] = {}
    notes: list[str] = []
    for name, columns in (("used", truth.used), ("unused", truth.unused)):
        if not (columns.numeric or columns.categorical):
            continue
        attacks = {each: row for each, row in _attacks(contract).items() if name == "used" or not row.from_others}
        try:
            firsts = (first if name == "used" else None, None)  # with other runs beside it, nothing is known of the start
            alone, *together = [
                _rebuilt(
                    AttackPlan.of(
                        view,
                        columns,
                        first=its,
                        known=_told(len(view.last_BD), known, seed=seed),
                        marginals=True,
                        attacks=attacks,
                        seed=seed,
                        groups=len(GROUPS),
                    ),
                    engine,
                )
                for view, its in zip(views, firsts, strict=False)
            ]
            leaks_by_name[name] = stronger(alone, together, how=f"{1 + len(also)} runs")
            notes += alone.not_measured
        except DataError as error:  # NaN of a training that diverged
            notes.append(f"all columns: {error}")
    by_marginals = any(row.from_marginals for row in _attacks(contract).values())
    if first is None:
        notes.append(NO_START if by_marginals else NO_KNOWN_ROW)
    groups, of_groups = _groups(folder, contract, run_id, known=known, engine=engine, seed=seed)
    notes += of_groups
    if len(sums.epochs) == 1:
        notes.append("what a row's embeddings of several epochs tell together: one epoch was recorded only, and more tell more")
    found_now = results.FeatureAudit(
        party=party,
        by=contract.label_party,
        summary=(OF_NO_ROW if by_marginals and first is None else "")
        + _summary(contract, party, sums, len(kept_K))
        + runs_in_words(also),
        defense="; ".join([*defense_lines(contract, of="features"), *_unbounded(contract), *start_lines(contract)]),
        columns=[replace(each, used=name == "used") for name, leaks in leaks_by_name.items() for each in leaks.columns],
        means=_means(leaks_by_name.get("used"), known),
        groups=groups,
        not_measured=[*dict.fromkeys(notes), *truth.notes],
    )
    return with_releases(found_now, folder, contract)


def _rebuilt(plan: AttackPlan, engine: Engine | None) -> FeatureLeaks:
    """Return what the attacks on one view find."""
    return plan.leaks(PlannedAttack.__call__) if engine is None else leaks_on(engine, plan)


def _told(rows: int, known: Sequence[int], *, seed: int) -> Told:
    """Draw the rows that are known, many in one draw alone: their figures hang little on which they are."""
    told = draws_of_known(rows, known=known, seed=seed)
    return {count: draws if count < MANY_KNOWN else draws[:1] for count, draws in told.items()}


def _attacks(contract: Contract) -> dict[str, FeatureInferenceAttack]:
    """Those that this party can play at home; the quick ones where the contract asks for no more."""
    quick = contract.audit == "quick"
    return {name: row for name, row in FEATURE_INFERENCE_ATTACKS.items() if not row.own_columns and (row.quick or not quick)}


def with_releases(audit: results.FeatureAudit, folder: RunFolder, contract: Contract) -> results.FeatureAudit:
    """Update the findings with what was sent by now, and its cost: evaluations and predictions may follow an audit."""
    epsilon, delta, releases = embeddings_epsilon(contract, folder)
    return replace(audit, epsilon=epsilon, delta=delta, releases=releases)


def _last_sums(folder: RunFolder, contract: Contract, run_id: str) -> RowSums:
    """Return the sums over the whole training; raises DataError if there are none."""
    views = folder.views / contract.label_party
    store = RowStore(folder=views, contract=contract.hash, origin=folder.origin, run_id=run_id, received="cut_embedding")
    epochs = store.epochs()
    if not epochs:
        raise DataError(f"{folder.path} holds no sums of what was sent; run the contract again")
    return store.load(epochs[-1])


def _sent(sums: RowSums, truth: Truth, also: Sequence[OtherRun]) -> tuple[list[SentEmbeddings], Tensor]:
    """Return what this run sent, and what all runs together did if there are others; and which of the rows these are of.

    Raises DataError where fewer than ten rows are in all of them.
    """
    rows_R, kept_R = truth.rows_R, torch.ones(len(truth.rows_R), dtype=torch.bool)
    other_sums = []
    for other in also:
        truth_there, _, run_id = load_columns(other.folder, other.contract)
        number_R = other.number_N[rows_R]
        kept_R &= (number_R >= 0) & torch.isin(number_R, truth_there.rows_R)
        other_sums.append((_last_sums(other.folder, other.contract, run_id), number_R))
    if also and int(kept_R.sum()) < LEAST_ROWS:
        raise DataError(f"--also: {int(kept_R.sum())} recorded rows are in all runs; give runs with the same split and seed")
    (kept_K,) = torch.nonzero(kept_R, as_tuple=True)
    views = [_embeddings(sums, rows_R[kept_K])]
    if other_sums:
        together = views[0]
        for of_other, number_R in other_sums:
            together = together.beside(_embeddings(of_other, number_R[kept_K]))
        views.append(together)
    return views, kept_K


def stronger(some: FeatureLeaks, others: Sequence[FeatureLeaks], *, how: str) -> FeatureLeaks:
    """Keep of each column and number of known rows the greater figure; ``how`` the others were found stands beside theirs."""
    more = {(each.name, each.known): each for leaks in others for each in leaks.columns}
    columns = []
    for each in some.columns:
        other = more.get((each.name, each.known), each)
        columns.append(replace(other, attack=f"{other.attack}, {how}") if other.value > each.value else each)
    return dataclasses.replace(some, columns=tuple(columns))


def _embeddings(sums: RowSums, rows_R: Tensor) -> SentEmbeddings:
    """Return what was sent of these rows, each of which was recorded."""
    (step,) = sums.view().steps
    place_N = torch.full((int(step.rows_B.max()) + 1,), -1, dtype=torch.int64)
    place_N[step.rows_B] = torch.arange(len(step.rows_B))
    if len(rows_R) and (int(rows_R.max()) >= len(place_N) or int(place_N[rows_R].min()) < 0):
        raise DataError("the recorded columns are of other rows than the recorded sums; run the contract again")
    return SentEmbeddings.of(step).rows(place_N[rows_R])


def _first(folder: RunFolder, contract: Contract, party: str, truth: Truth, sums: RowSums, look_RD: Tensor) -> FirstBatch | None:
    """Return the first batch and what embedded it, if the start is public and the looks hold the first epoch's embeddings."""
    is_known = contract.training.starts == "public" and StartingPoint.of(folder) is None
    if not is_known or sums.look_epochs[:1] != (0,) or contract.embedding_defenses():
        return None
    (rows_B,) = truth.first_R.nonzero(as_tuple=True)
    return first_batch(contract, party, kept_encoder(folder), rows_B, look_RD[rows_B])


def _groups(
    folder: RunFolder, contract: Contract, run_id: str, *, known: Sequence[int], engine: Engine | None, seed: int
) -> tuple[list[results.RowGroup], list[str]]:
    """Attack what crossed outside training steps, each part of the split by itself; and what of that could not be measured."""
    views = folder.views / contract.label_party
    stores = PassStores(folder=views, contract=contract.hash, origin=folder.origin, run_id=run_id)
    shuffled = stores.contrast()
    groups, notes = [], [NO_GROUP]
    for part in PASSES:
        sums = stores.load(part)
        if sums is None:
            if contract.split.validation if part == "validation" else part == "test":
                notes.append(f"{GROUPS[part]}: none had crossed when the audit began")
            continue
        truth, *_ = load_columns(folder, contract, part)
        rows_R, contrast = truth.rows_R, None
        if part == "validation" and shuffled is not None:
            (kept_K,) = torch.isin(rows_R, shuffled[0]).nonzero(as_tuple=True)
            rows_R, truth = rows_R[kept_K], truth.rows(kept_K)
            contrast = _contrast(folder, truth.used, shuffled[1][torch.searchsorted(shuffled[0], rows_R)])
        embeddings = dataclasses.replace(_embeddings(sums, rows_R), contrast_BCD=contrast)
        attacks = {
            name: row
            for name, row in _attacks(contract).items()
            if not row.knows_no_row and (len(sums.epochs) > 1 or not row.several_looks)
        }
        try:
            plan = AttackPlan.of(
                embeddings,
                truth.used,
                marginals=contrast is not None,
                known=known,
                draws=1,
                attacks=attacks,
                seed=seed,
                groups=len(GROUPS),
            )
            leaks = _rebuilt(plan, engine)
        except DataError as error:  # NaN of a training that diverged
            notes.append(f"{GROUPS[part]}: {error}")
            continue
        which = GROUPS[part] + (", also with each column shuffled" if contrast is not None else "")
        crossed = int(sums.count_N.max())
        means = _means(leaks, known)
        groups.append(
            results.RowGroup(rows=which, attacked=len(rows_R), crossed=crossed, columns=list(leaks.columns), means=means)
        )
        notes += [f"{GROUPS[part]}: {reason}" for reason in leaks.not_measured if reason != NO_ROW_KNOWN]
    return groups, [*notes, GROUPS_ALONE] if groups else notes


def _contrast(folder: RunFolder, columns: ColumnValues, contrast_NPD: Tensor) -> Tensor:
    """Return what shuffling took away, by column: a number and whether it is missing were shuffled as one, others not at all."""
    encoder = kept_encoder(folder)
    assert encoder is not None, "a party whose columns were measured has an encoder"
    places = column_places(encoder)
    still_ND = torch.zeros_like(contrast_NPD[:, 0])
    parts = []
    for kind, count in (("numeric", len(columns.numeric)), ("categorical", len(columns.categorical))):
        for index in range(count):
            at = [number for number, place in enumerate(places) if index in getattr(place, kind)]
            parts.append(contrast_NPD[:, at[0]] if at else still_ND)
    return torch.stack(parts, dim=1)


def _means(measured: FeatureLeaks | None, known: Sequence[int]) -> list[results.MeanRebuilt]:
    if measured is None:
        return []
    values = [(count, measured.mean(count)) for count in dict.fromkeys((0, *known))]
    return [results.MeanRebuilt(known=count, value=value) for count, value in values if value is not None]


def _summary(contract: Contract, party: str, sums: RowSums, rows: int) -> str:
    plural = "s" if len(sums.epochs) > 1 else ""
    by = contract.label_party
    which = f"{min(rows, MOST_ROWS):,} {'evenly chosen ' if rows > MOST_ROWS else ''}"
    which += "rows that training rows are linked to" if contract.linkage.similar else "training rows"
    quick = "This is the quick form: `audit: true` runs all attacks. " if contract.audit == "quick" else ""
    return (
        f"How well could {by} rebuild the columns of {party} from the cut embeddings that it was sent? Measured by {party} "
        f"alone, on {which} over epoch{plural} {epochs_in_words(sums.epochs)}; nothing was sent for it. "
        f"{by}'s own columns, which would help, are not known here. {quick}Every figure is a floor: another attack may find more."
    )


def _unbounded(contract: Contract) -> list[str]:
    """Say where a row may serve for others: its own embeddings are not all that is sent of it, and no total holds."""
    sentence = "a row may serve for others here, so how often it is sent is not bounded, and no ε holds for the run"
    return [sentence] if noise_on_embeddings(contract) and serves_others(contract) else []
