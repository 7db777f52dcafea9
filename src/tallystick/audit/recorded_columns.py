"""Load what a feature party's folder recorded for the audit of its columns: the true columns, and what was sent.

Shapes: N aligned positions, R recorded rows, D cut width, C columns that were measured.

All that the audit reads of a folder is read here, once. ``audit/columns.py`` attacks it.
"""

import dataclasses
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tallystick.attacks.feature_inference.evaluate import attacked_rows
from tallystick.attacks.feature_inference.view import ColumnValues, FirstBatch, SentEmbeddings
from tallystick.attacks.row_sums import RowSums, chosen_rows
from tallystick.audit.known_initial_weights import first_batch
from tallystick.audit.other_run import OtherRun
from tallystick.config.contract import Contract
from tallystick.config.party import FeatureColumns
from tallystick.cut.forward import Part
from tallystick.dataset.dataset import Dataset
from tallystick.dataset.own_rows import OwnRows
from tallystick.errors import DataError, FeatureError, StorageError
from tallystick.evaluation.importance import column_places
from tallystick.run_folder.folder import RunFolder
from tallystick.run_folder.initial_weights import StartingPoint
from tallystick.run_folder.pass_recorder import PASSES, PassStores
from tallystick.run_folder.row_recorder import RowStore
from tallystick.run_folder.trained import kept_encoder
from tallystick.tables.encoder import Encoder, feature_columns
from tallystick.training.checkpoint import read_tensors, write_tensors

COLUMNS = "columns.safetensors"
LEAST_ROWS = 10  # all audited runs must share at least this many rows
MOST_COLUMNS = 100  # limit of attacked columns, for the columns in the model and for the other columns
MOST_NUMBERS = 32  # limit of attacked numbers of a vector
ALL_TOGETHER = "known-start: solves for all columns of a row together, but of this many columns only some are attacked"


@dataclass(frozen=True, kw_only=True)
class Truth:
    """This party's own columns at the recorded rows: those in the model, and the other columns of the table.

    Args:
        rows_R: int64, positions, or numbers if rows have candidates.
        used: columns that the bottom model reads.
        unused: the table's other columns. They were not sent, but an attacker may infer them.
        first_R: bool, whether the row was in the first batch.
        notes: says which columns cannot be judged, and why.
    """

    rows_R: Tensor
    used: ColumnValues
    unused: ColumnValues
    first_R: Tensor
    notes: tuple[str, ...] = ()

    @classmethod
    def without_columns(cls, rows_R: Tensor) -> "Truth":
        """Build the truth of a party that has no column in the model."""
        none = ColumnValues(
            numeric_NF=torch.empty(len(rows_R), 0),
            categorical_NG=torch.empty(len(rows_R), 0, dtype=torch.int64),
            numeric=(),
            categorical=(),
            categories=(),
        )
        return cls(rows_R=rows_R, used=none, unused=none, first_R=torch.zeros(len(rows_R), dtype=torch.bool))

    def with_number(self, name: str, number_R: Tensor) -> "Truth":
        """Return a copy with one more number for each row."""
        numeric_NF = torch.cat([self.used.numeric_NF, number_R[:, None].to(self.used.numeric_NF)], dim=1)
        used = dataclasses.replace(self.used, numeric_NF=numeric_NF, numeric=(*self.used.numeric, name))
        return dataclasses.replace(self, used=used)

    def rows(self, kept_K: Tensor) -> "Truth":
        """Return the truth of some rows."""
        some = {name: getattr(self, name)[kept_K] for name in ("rows_R", "first_R")}
        return dataclasses.replace(self, used=self.used.rows(kept_K), unused=self.unused.rows(kept_K), **some)


def own_columns(own: OwnRows, dataset: Dataset, rows_R: Tensor, *, first_B: Tensor) -> Truth:
    """Encode this party's columns at the recorded rows that it has. ``first_B`` are the rows of the first batch."""
    rows_R = rows_R[dataset.is_own(rows_R)]
    # A row at several positions counts once; otherwise one copy could be known while another is attacked.
    rows_R = rows_R[torch.from_numpy(np.unique(own.alignment.own_rows[rows_R.numpy()], return_index=True)[1]).sort().values]
    here_R = rows_R.to(dataset.train_N.device)  # a recording is read to the CPU, the columns are on the party's training device
    features, encoder = dataset.columns_of(here_R), dataset.known_encoder
    # columns that only name a sequence's target item, and where their codes are
    feature_names = [column.name for column in encoder.numeric] + [column.name for column in encoder.categorical]
    targets: dict[str, int] = {}
    place = len(encoder.categorical)
    for sequence in encoder.sequences:
        if sequence.target is not None and sequence.target not in feature_names:
            targets.setdefault(sequence.target, place)
        place += sequence.shape.columns
    places = [*range(len(encoder.categorical)), *targets.values()]
    used = ColumnValues(
        numeric_NF=features.numeric_NF.cpu(),
        categorical_NG=features.categorical_NG[:, places].cpu(),
        numeric=encoder.numeric_names,
        categorical=(*(column.name for column in encoder.categorical), *targets),
        categories=tuple(encoder.feature_shape.codes[place] for place in places),
        vectors=tuple(column.vector for column in encoder.numeric),
    )
    used, notes = _fewer(used)
    unused, notes_of_unused = _unused(own, rows_R, targets)
    notes += notes_of_unused
    notes += tuple(f"sequence {sequence.name!r}: no attack here infers items" for sequence in encoder.sequences)
    return Truth(rows_R=rows_R, used=used, unused=unused, first_R=torch.isin(rows_R, first_B), notes=notes)


def _fewer(columns: ColumnValues) -> tuple[ColumnValues, tuple[str, ...]]:
    """Choose evenly spread columns to attack, and say which are left out. This bounds the total time."""
    notes, vectors = [], columns.vectors
    numbers = [place for place in range(len(columns.numeric)) if place >= len(vectors) or not vectors[place]]
    for vector in dict.fromkeys(filter(None, vectors)):
        of_vector = torch.tensor([place for place, name in enumerate(vectors) if name == vector])
        numbers += chosen_rows(of_vector, most=MOST_NUMBERS).tolist()
        if len(of_vector) > MOST_NUMBERS:
            notes.append(f"vector {vector!r}: {MOST_NUMBERS} of its {len(of_vector)} numbers, evenly spread, are attacked")
    every = torch.tensor([*numbers, *(len(columns.numeric) + place for place in range(len(columns.categorical)))])
    if len(every) > MOST_COLUMNS:
        notes.append(f"{len(every) - MOST_COLUMNS} of {len(every)} columns: {MOST_COLUMNS}, evenly spread, are attacked")
        every = chosen_rows(every, most=MOST_COLUMNS)
    elif not notes:
        return columns, ()
    kept_F = [place for place in every.sort().values.tolist() if place < len(columns.numeric)]
    kept_G = [place - len(columns.numeric) for place in every.sort().values.tolist() if place >= len(columns.numeric)]
    fewer = ColumnValues(
        numeric_NF=columns.numeric_NF[:, kept_F],
        categorical_NG=columns.categorical_NG[:, kept_G],
        numeric=tuple(columns.numeric[place] for place in kept_F),
        categorical=tuple(columns.categorical[place] for place in kept_G),
        categories=tuple(columns.categories[place] for place in kept_G),
        vectors=tuple(vectors[place] for place in kept_F if place < len(vectors)),
    )
    return fewer, tuple(notes)


def _unused(own: OwnRows, rows_R: Tensor, targets: Collection[str]) -> tuple[ColumnValues, tuple[str, ...]]:
    """Return the table's columns that are neither keys nor in the model (``targets``)."""
    party = own.party
    frame = own.crossed(rows_R.numpy())
    read = feature_columns(frame, party)
    used = (*read.numeric, *read.categorical, *party.sequences, *targets)
    used_otherwise = {*party.keys.values(), *used, *party.labels, party.weight, party.time}
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
    unused, fewer_notes = _fewer(unused)
    return unused, (*notes, *(f"not used: {note}" for note in fewer_notes))


def save_columns(
    folder: RunFolder, contract: Contract, party: str, truth: Truth, *, run_id: str, part: str | None = None
) -> None:
    """Save the columns with the sums, readable by this user alone, so that attacks can be measured again later.

    Without a ``part`` they are the columns of the rows in training steps. With one, they are those of the rows that crossed in
    passes over that part, or, at the label party, of the rows whose gradients were summed.
    """
    facts: dict[str, object] = {"contract": contract.hash, "run_id": run_id, "party": party, "notes": truth.notes}
    tensors = {"rows_R": truth.rows_R, "first_R": truth.first_R}
    for name, columns in (("used", truth.used), ("unused", truth.unused)):
        tensors |= {f"{name}/numeric": columns.numeric_NF, f"{name}/categorical": columns.categorical_NG}
        facts[name] = {
            "numeric": columns.numeric,
            "categorical": columns.categorical,
            "categories": columns.categories,
            "vectors": columns.vectors,
        }
    write_tensors(folder.views / file_of(part), tensors, {"columns": json.dumps(facts)}, origin=folder.origin, private=True)


def file_of(part: str | None) -> str:
    """Return the file of this party's columns at the rows of a part. None means the rows of training steps."""
    return COLUMNS if part is None else f"columns-{part}.safetensors"


def load_columns(folder: RunFolder, contract: Contract, part: str | None = None) -> tuple[Truth, str, str]:
    """Read the columns, and which party and run they belong to. Raises DataError if that fails."""
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
                vectors=tuple(facts[name]["vectors"]),
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


@dataclass(frozen=True, kw_only=True)
class RecordedGroup:
    """Rows of one part of the split whose embeddings crossed outside training steps.

    Args:
        part: part of the split.
        columns: this party's own columns, row by row.
        sent: the embeddings of these rows; with ``contrast_BCD`` where columns were shuffled.
        passes: number of messages about each row that are kept.
        crossed: greatest number of times that a row was sent.
    """

    part: Part
    columns: ColumnValues
    sent: SentEmbeddings
    passes: int
    crossed: int


@dataclass(frozen=True, kw_only=True)
class RecordedColumns:
    """Everything that an audit of columns reads from a run folder.

    Args:
        contract: of the run.
        party: owner of the columns.
        truth: the columns at the attacked rows.
        views: embeddings of these rows that this run sent; then those of all runs together, if there are others.
        rows: number of recorded rows. If there are many, only some are attacked.
        epochs: the epochs that the sums hold.
        first: the first batch, if the starting weights are public and the first epoch's embeddings were recorded.
        groups: the rows that crossed outside training steps.
        absent: parts of the split whose rows did not cross.
        runs: how many runs are attacked.
    """

    contract: Contract
    party: str
    truth: Truth
    views: tuple[SentEmbeddings, ...]
    rows: int
    epochs: tuple[int, ...]
    first: FirstBatch | None
    groups: tuple[RecordedGroup, ...]
    absent: tuple[Part, ...]
    runs: int = 1

    @classmethod
    def load(cls, folder: RunFolder, contract: Contract, *, also: Sequence[OtherRun] = ()) -> "RecordedColumns":
        """Read a folder, and those of other runs on the same rows.

        Raises DataError if a folder has no sums, damaged sums, or those of another contract or run, or if the runs share fewer
        than ten rows.
        """
        truth, party, run_id = load_columns(folder, contract)
        sums = _last_sums(folder, contract, run_id)
        rows_R, kept_R = truth.rows_R, torch.ones(len(truth.rows_R), dtype=torch.bool)
        other_sums = []
        for other in also:
            truth_there, _, other_id = load_columns(other.folder, other.contract)
            number_R = other.number_N[rows_R]
            kept_R &= (number_R >= 0) & torch.isin(number_R, truth_there.rows_R)
            other_sums.append((_last_sums(other.folder, other.contract, other_id), number_R))
        if also and int(kept_R.sum()) < LEAST_ROWS:
            raise DataError(f"--also: {int(kept_R.sum())} recorded rows are in all runs; give runs with the same split and seed")
        (kept_K,) = torch.nonzero(kept_R, as_tuple=True)
        attacked_K = kept_K[attacked_rows(len(kept_K))]
        alone = _embeddings(sums, rows_R[attacked_K])
        together = alone
        for of_other, number_R in other_sums:
            together = together.beside(_embeddings(of_other, number_R[attacked_K]))
        truth = truth.rows(attacked_K)
        first = None
        # A peer knows the starting weights only if they follow from the contract's seed and no noise is added.
        is_known = contract.training.starts == "public" and StartingPoint.of(folder) is None
        if is_known and sums.look_epochs[:1] == (0,) and not contract.embedding_defenses():
            (first_B,) = truth.first_R.nonzero(as_tuple=True)
            look_RD = alone.looks_BE[:, : alone.last_BD.shape[1]]
            encoder = kept_encoder(folder)
            if encoder is None or set(encoder.numeric_names) <= set(truth.used.numeric):
                first = first_batch(contract, party, encoder, first_B, look_RD[first_B])
            else:  # this attack solves for all columns of a row together, in time that grows with the cube of their number
                truth = dataclasses.replace(truth, notes=(*truth.notes, ALL_TOGETHER))
        groups, absent = _groups(folder, contract, run_id)
        return cls(
            contract=contract,
            party=party,
            truth=truth,
            views=(alone, together) if other_sums else (alone,),
            rows=len(kept_K),
            epochs=sums.epochs,
            first=first,
            groups=groups,
            absent=absent,
            runs=1 + len(also),
        )


def _last_sums(folder: RunFolder, contract: Contract, run_id: str) -> RowSums:
    """Return the sums over the whole training. Raises DataError if there are none."""
    views = folder.views / contract.label_party
    store = RowStore(folder=views, contract=contract.hash, origin=folder.origin, run_id=run_id, received="cut_embedding")
    epochs = store.epochs()
    if not epochs:
        raise DataError(f"{folder.path} holds no sums of what was sent; run the contract again")
    return store.load(epochs[-1])


def _embeddings(sums: RowSums, rows_R: Tensor) -> SentEmbeddings:
    """Return the sent embeddings of these rows. All of them were recorded."""
    (step,) = sums.view().steps
    place_N = torch.full((int(step.rows_B.max()) + 1,), -1, dtype=torch.int64)
    place_N[step.rows_B] = torch.arange(len(step.rows_B))
    if len(rows_R) and (int(rows_R.max()) >= len(place_N) or int(place_N[rows_R].min()) < 0):
        raise DataError("the recorded columns are of other rows than the recorded sums; run the contract again")
    return SentEmbeddings.of(step).rows(place_N[rows_R])


def _groups(folder: RunFolder, contract: Contract, run_id: str) -> tuple[tuple[RecordedGroup, ...], tuple[Part, ...]]:
    """Return the rows of each part that crossed outside training steps, and the parts without any."""
    views = folder.views / contract.label_party
    stores = PassStores(folder=views, contract=contract.hash, origin=folder.origin, run_id=run_id)
    shuffled = stores.contrast()
    groups: list[RecordedGroup] = []
    absent: list[Part] = []
    for part in PASSES:
        sums = stores.load(part)
        if sums is None:
            absent.append(part)
            continue
        truth, *_ = load_columns(folder, contract, part)
        rows_R, contrast = truth.rows_R, None
        if part == "validation" and shuffled is not None:
            (kept_K,) = torch.isin(rows_R, shuffled[0]).nonzero(as_tuple=True)
            rows_R, truth = rows_R[kept_K], truth.rows(kept_K)
            contrast = _contrast(folder, truth.used, shuffled[1][torch.searchsorted(shuffled[0], rows_R)])
        shuffles = contract.evaluation.importance.repeats
        sent = dataclasses.replace(_embeddings(sums, rows_R), contrast_BCD=contrast, shuffles=shuffles)
        group = RecordedGroup(part=part, columns=truth.used, sent=sent, passes=len(sums.epochs), crossed=int(sums.count_N.max()))
        groups.append(group)
    return tuple(groups), tuple(absent)


def _contrast(folder: RunFolder, columns: ColumnValues, contrast_NPD: Tensor) -> Tensor:
    """Return by how much shuffling each column changed the embeddings.

    A number and its mark for missing values were shuffled together. The change is 0 for columns that were not shuffled.
    """
    encoder = kept_encoder(folder)
    assert encoder is not None, "a party whose columns were measured has an encoder"
    categorical = [column.name for column in encoder.categorical]
    target_of = {sequence.name: sequence.target for sequence in encoder.sequences}
    place_of: dict[str, int] = {}
    for number, place in enumerate(column_places(encoder)):
        names = [encoder.numeric_names[index] for index in place.numeric]
        names += [categorical[index] for index in place.categorical if index < len(categorical)]
        for name in (*names, *filter(None, [target_of.get(place.name)])):
            place_of.setdefault(name, number)
    still_ND = torch.zeros_like(contrast_NPD[:, 0])
    every = (*columns.numeric, *columns.categorical)
    return torch.stack([contrast_NPD[:, place_of[name]] if name in place_of else still_ND for name in every], dim=1)
