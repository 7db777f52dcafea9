"""Encode columns of a table as standardised numbers and category codes, fitted on a party's training rows.

Shapes: N rows, F numeric outputs, G categorical outputs.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec
import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray

from tallystick.config.party import EncodingConfig, FeatureColumns, PartyFile, SequenceConfig
from tallystick.errors import DataError, FeatureError
from tallystick.tables.bins import bin_edges
from tallystick.tables.categories import ENCODED_AT_A_TIME, CategoricalColumn, fit_categorical, usual_count
from tallystick.tables.column_formats import TYPES, Form, as_form, form_of, has_form
from tallystick.tables.columns import Floats, TrainingColumns, numbers_of
from tallystick.tables.common_values import CommonValues
from tallystick.tables.doubtful_text import encoding_warning, marks_warning, rare_words_warning, text_warning
from tallystick.tables.doubtful_times import digits_warning, either_way, has_late_days, times_warnings
from tallystick.tables.features import FeatureShape, Numbers, PackedFeatures, Packing
from tallystick.tables.lazy_table import Frame, LazyTable, in_order, slices_of
from tallystick.tables.records import fits_memory, mapped, rows_of_a_piece
from tallystick.tables.sequences import SequenceColumn, fit_sequence
from tallystick.tables.stand_ins import marks_missing
from tallystick.tables.table import require_column, require_named
from tallystick.tables.text import as_text
from tallystick.tables.vectors import vector_of, widths_of

RANK_KNOTS = 1000
MANY_COLUMNS = 40  # encoding.screening = auto: from this many encoded columns, some may be closed
ENOUGH_ROWS = 400  # model.numeric = auto: training rows from which numbers get an embedding (docs/results/quality.md)
SKEWED = 1.0  # encoding.numeric = auto ranks columns with a larger absolute skewness


class NumericColumn(msgspec.Struct, frozen=True, kw_only=True):
    """One numeric column: transform, then standardise. Missing becomes 0 (the mean) and, if it is known, an indicator.

    A number beyond the training rows' range is replaced by the nearest number within it. Beyond the range the network's output
    is arbitrary, so a single absurd cell would get an absurd score.
    """

    name: str
    transform: Literal["standard", "log", "rank"]
    mean: float
    deviation: float
    low: float  # least number of the training rows, standardised
    high: float
    indicator: bool  # whether training rows had missing values
    form: Form = "number"
    knots: tuple[float, ...] = ()  # rank: values, ascending
    scores: tuple[float, ...] = ()  # rank: their normal scores
    edges: tuple[float, ...] = ()  # edges of its bins, in units of encoded numbers; none for a plain number
    vector: str = ""  # the vector to which it belongs
    whole: bool = False  # whether no number of the training rows had a fraction
    late_days: bool = False  # whether some date of the training rows was of a day beyond the twelfth

    @property
    def bounds(self) -> tuple[float, float]:
        """Return the least and the greatest number of the training rows, but for rounding."""
        if self.transform == "rank":
            return self.knots[0], self.knots[-1]
        low, high = (self.mean + self.deviation * bound for bound in (self.low, self.high))
        if self.transform == "log":
            low, high = (float(np.copysign(np.expm1(abs(bound)), bound)) for bound in (low, high))
        return low, high

    def encode(self, values_N: Floats) -> Floats:
        """Standardise numbers. NaN becomes 0."""
        transformed_N = transformed(values_N, self.transform, self.knots, self.scores)
        with np.errstate(over="ignore"):
            scaled_N = np.clip((transformed_N - self.mean) / self.deviation, self.low, self.high)
        return np.where(np.isnan(values_N), 0.0, scaled_N)


class Encoder(msgspec.Struct, frozen=True, kw_only=True):
    """A party's fitted columns. It holds categories and statistics of the party's rows, and stays with the party."""

    numeric: tuple[NumericColumn, ...]
    categorical: tuple[CategoricalColumn, ...]
    sequences: tuple[SequenceColumn, ...] = ()
    notes: tuple[str, ...] = ()  # columns left out, with reasons; choices of auto
    numbers: Numbers = "plain"
    screened: bool = False  # whether useless columns may be closed: training/screening.py
    common: CommonValues | None = None  # for a party that makes rows up; ``encode`` returns the unchanged values
    rows: int = 0  # number of training rows; 0 if unknown
    decimal: Literal[",", "."] | None = None  # decimal sign of the training's files; None if no number showed it
    missing: dict[str, tuple[str, ...]] = {}  # words that marked a missing cell in the training's files, by column

    @classmethod
    def fit(
        cls,
        frame: Frame,
        features: FeatureColumns,
        rows: NDArray[np.int64],
        *,
        encoding: EncodingConfig | None = None,
        numbers: Literal["auto"] | Numbers = "plain",
        sequences: Mapping[str, SequenceConfig] | None = None,
        vectors: Sequence[str] = (),
    ) -> "Encoder":
        """Fit on the training rows ``rows`` of ``frame``. Columns that are constant there are left out with a note.

        ``numbers`` says how the bottom model embeds numbers; ``auto`` decides by the number of rows. ``sequences`` are columns
        of lists, and how each is read; ``vectors`` columns whose numbers are columns of the frame (tables/vectors.py).

        Raises DataError for an absent column, infinite numbers, text in a numeric column, lists that cannot be read, or no
        training rows.
        """
        if len(rows) == 0:
            raise FeatureError("there are no training rows to fit the encoder on; check the split and the alignment")
        encoding = encoding or EncodingConfig()
        for name in (*features.numeric, *features.categorical):
            require_named(frame, name, use="feature")
        # Read the columns one by one, and check all rows, so that an infinite number is reported now and not in validation.
        columns = TrainingColumns(frame, rows)
        numeric = {
            name: _fit_numeric(name, columns.numbers(name), encoding.numeric, form_of(frame.schema[name], use="numeric"))
            for name in features.numeric
            if not vector_of(name, vectors)
        }
        blocks = {name: _fit_vector(name, features.numeric, columns) for name in vectors}
        categorical = {
            name: fit_categorical(
                name,
                columns.cells(name),
                encoding,
                rows=len(rows),
                form=form_of(frame.schema[name], use="categorical"),
            )
            for name in features.categorical
        }
        notes = _notes(frame, rows, encoding, numeric, categorical, blocks)
        listed = [fit_sequence(frame, name, config, rows, encoding) for name, config in (sequences or {}).items()]
        notes += tuple(note for _, note in listed)
        used_numeric = tuple(column for column in numeric.values() if column is not None)
        # With few rows an embedding overfits.
        numeric_method = ("piecewise-linear" if len(rows) >= ENOUGH_ROWS else "plain") if numbers == "auto" else numbers
        if numeric_method != "plain":
            used_numeric = tuple(_binned(column, columns.numbers(column.name)) for column in used_numeric)
        singles = len(used_numeric)
        used_numeric += tuple(column for block in blocks.values() for column in block)
        if numbers == "auto" and singles:
            bins = [len(column.edges) - 1 for column in used_numeric[:singles] if column.edges]
            if numeric_method == "plain":
                choice = "numeric columns stay plain numbers"
            elif not bins:
                choice = "nothing to bin"
            else:
                sizes = f"{min(bins)}" if min(bins) == max(bins) else f"{min(bins)} to {max(bins)}"
                columns_get = "1 numeric column gets" if len(bins) == 1 else f"{len(bins)} numeric columns get"
                choice = f"{columns_get} {numeric_method} embeddings of {sizes} bins"
            notes += (f"model.numeric = auto: {choice}, by the {len(rows):,} rows it is fitted on",)
        return cls(
            numeric=used_numeric,
            categorical=tuple(column for column in categorical.values() if column is not None),
            sequences=tuple(sequence for sequence, _ in listed if sequence is not None),
            notes=notes,
            numbers=numeric_method,
            rows=len(rows),
            decimal=frame.decimal if isinstance(frame, LazyTable) else None,
            missing=dict(frame.missing) if isinstance(frame, LazyTable) else {},
        )

    def screening(self) -> "Encoder":
        """Return the encoder for a training that can close columns (training/screening.py), if there are enough columns."""
        encoded = sum(1 + column.indicator for column in self.numeric if not column.vector) + len(self.categorical)
        if encoded < MANY_COLUMNS:
            return self
        note = f"encoding.screening = auto: of {encoded} columns, useless ones may be closed in training"
        return msgspec.structs.replace(self, screened=True, notes=(*self.notes, note))

    @classmethod
    def of_party(
        cls,
        frame: Frame,
        party: PartyFile,
        rows: NDArray[np.int64],
        *,
        numbers: Literal["auto"] | Numbers,
        screens: bool = False,
    ) -> "Encoder | None":
        """Fit a party's columns as its party file says. Return None if it has no useful column.

        ``screens`` says that the training can close columns, if the party file allows it.
        """
        columns = feature_columns(frame, party)
        if not (columns.numeric or columns.categorical or party.sequences):
            return None
        if frame.height and (lacking := [name for name, width in widths_of(frame.columns, party.vectors).items() if not width]):
            raise FeatureError(f"vectors: column {lacking[0]!r} is not in the table")
        doubts = list[str | None](frame.notes if isinstance(frame, LazyTable) else ())
        in_time = (party.time, party.repeats.latest if party.repeats is not None else None)
        ordering = [name for name in in_time if name is not None and name in frame.schema]  # columns that order rows by time
        for name in dict.fromkeys((*columns.numeric, *columns.categorical, *ordering)):
            if vector_of(name, party.vectors):
                continue
            cells = frame.get_column(name)
            if party.features is not None:
                doubts.append(encoding_warning(cells))
            elif name in columns.categorical:
                doubts += [digits_warning(cells) or text_warning(cells) or rare_words_warning(cells, party)]
                doubts.append(marks_warning(frame, name, party))
            elif name in columns.numeric:
                doubts.append(digits_warning(cells))
            if name in party.dates:
                doubts.append(either_way(cells, party.dates[name]))
            doubts += times_warnings(cells)
        of_table = tuple(doubt for doubt in doubts if doubt is not None)
        encoder = cls.fit(
            frame,
            columns,
            rows,
            encoding=party.encoding,
            numbers=numbers,
            sequences=party.sequences,
            vectors=party.vectors,
        )
        if screens and party.encoding.screening == "auto":
            encoder = encoder.screening()
        encoder = msgspec.structs.replace(encoder, notes=(*of_table, *encoder.notes))
        return encoder if encoder.feature_shape.tables or encoder.numeric else None

    @property
    def feature_shape(self) -> FeatureShape:
        """Return the shape of encoded features."""
        return FeatureShape(
            numeric=len(self.numeric_names),
            cardinalities=tuple(column.tables[0] for column in self.categorical),
            built_for=tuple(column.tables[1] for column in self.categorical)
            if any(column.built_for is not None for column in self.categorical)
            else (),
            numbers=self.numbers,
            edges=tuple(column.edges for column in self.numeric) if self.numbers != "plain" else (),
            sequences=tuple(column.shape for column in self.sequences),
            screened=self.screened,
            rows=self.rows,
        )

    @property
    def numeric_names(self) -> tuple[str, ...]:
        """Return the names of the F numeric outputs: the columns, then their missing-indicators."""
        return tuple(column.name for column in self.numeric) + tuple(
            f"{column.vector or column.name} is missing" for column in self.numeric if column.indicator
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the encoded columns, other than sequences: the numeric outputs, then the categorical ones."""
        return self.numeric_names + tuple(column.name for column in self.categorical)

    @property
    def vectors(self) -> Mapping[str, int]:
        """Return how many numbers each vector has."""
        return dict(Counter(column.vector for column in self.numeric if column.vector))

    @property
    def packing(self) -> Packing:
        """Return the place of each column in an encoded row."""
        return Packing(
            numbers=len(self.numeric),
            indicators=sum(column.indicator for column in self.numeric),
            cardinalities=self.feature_shape.codes,
        )

    @property
    def types(self) -> dict[str, pl.DataType]:
        """Return, for each column except sequences, a type with the form that it had in training."""
        return {column.name: TYPES[column.form] for column in self._columns}

    @property
    def _columns(self) -> tuple[NumericColumn | CategoricalColumn, ...]:
        return (*self.numeric, *self.categorical)

    @property
    def columns(self) -> tuple[str, ...]:
        """Return the columns of a table that the encoder reads. A vector is one column."""
        columns = [column.vector or column.name for column in self.numeric] + [column.name for column in self.categorical]
        columns += [column.name for column in self.sequences]
        return tuple(dict.fromkeys([*columns, *(each.target for each in self.sequences if each.target is not None)]))

    @property
    def text_columns(self) -> tuple[str, ...]:
        """Return the columns that were text in training: a file's cells are kept as they are written."""
        return tuple(column.name for column in self.categorical if column.form == "text")

    @property
    def text_categories(self) -> Mapping[str, Sequence[str]]:
        """Return the categories of the columns that were text in training."""
        return {column.name: column.categories for column in self.categorical if column.form == "text"}

    def fitted(self, frame: Frame) -> Frame:
        """Convert a table's columns to the forms that they had in training.

        Raises FeatureError for a column that is absent or does not fit.
        """
        for vector, width in self.vectors.items():
            if (here := widths_of(frame.columns, (vector,))[vector]) != width:
                raise FeatureError(
                    f"vectors: column {vector!r} had {width} numbers per cell in training, and has {here} here; give vectors "
                    "of the same model"
                )
        changed: dict[str, pl.Series] = {}
        whole = replace(frame, rows=None) if isinstance(frame, LazyTable) else frame
        for column in self._columns:
            require_named(frame, column.name, use="feature")
            kind = frame.schema[column.name]
            is_as_trained = has_form(kind, column.form)
            # A reader of files has already removed words for a missing cell; an empty text that is left may be a value
            is_read = isinstance(frame, LazyTable) and column.name in frame.missing and column.form != "text"
            may_have_words = column.name in self.missing and not is_read
            if is_as_trained and not may_have_words:
                continue
            cells = before = whole.get_column(column.name)
            if not is_as_trained:
                categories = column.categories if isinstance(column, CategoricalColumn) else ()
                cells = as_form(cells, column.form, categories=categories)
            if may_have_words:
                # Remove the words, numbers or times that marked a missing cell in the files of training. In text that does not
                # come from a file, an empty text also marks a missing cell, unless it was a category in training.
                words = self.missing[column.name]
                if isinstance(column, CategoricalColumn) and column.form == "text":
                    cells = cells.cast(pl.String)
                    if "" not in column.categories:  # a cell of blanks is not empty: a file keeps it
                        cells = cells.replace("", None)
                    words = tuple(word for word in words if word not in column.categories)
                is_missing = marks_missing(cells, cells.dtype, words, decimal=self.decimal)
                cells = cells.set(is_missing, None) if is_missing is not None and is_missing.any() else cells
            if cells is not before:
                changed[column.name] = cells
        if not changed:
            return frame
        if isinstance(frame, pl.DataFrame):
            return frame.with_columns(**changed)
        assert isinstance(whole, LazyTable)
        untouched = [name for name in whole.columns if name not in changed]
        beside = whole.beside(untouched, pl.DataFrame(list(changed.values())))
        return beside if frame.rows is None else beside[frame.rows]

    def encode(self, frame: Frame) -> PackedFeatures:
        """Encode rows, one column at a time. If there are too many for memory, encode some rows at a time, into a file.

        Raises DataError for a missing column or infinite numbers, StorageError if the disk is full.
        """
        packing, frame = self.packing, self.fitted(frame)
        if fits_memory(frame.height, packing.row_bytes):
            return PackedFeatures(records_MR=torch.from_numpy(self._records(frame, packing)), packing=packing)
        ordered, place_M = in_order(frame)
        pieces = slices_of(ordered, rows_of_a_piece(packing.row_bytes))
        file = mapped((self._records(piece, packing) for piece in pieces), row_bytes=packing.row_bytes)
        return PackedFeatures(
            records_MR=torch.from_numpy(file.records_NR),
            packing=packing,
            file=file,
            place_M=torch.from_numpy(place_M) if place_M is not None else None,
        )

    def check(self, frame: Frame) -> None:
        """Raise the errors of encode, without encoding."""
        frame = self.fitted(frame)
        for column in self.numeric:
            numbers_of(frame, column.name)
        for categorical in self.categorical:
            as_text(require_column(frame, categorical.name, use="feature").head(0))
        for sequence in self.sequences:
            for _ in sequence.encode(frame):
                pass

    def _records(self, frame: Frame, packing: Packing) -> NDArray[np.uint8]:
        """Pack the rows, in the frame's order."""
        records_NR = np.empty((frame.height, packing.row_bytes), dtype=np.uint8)
        chunks = [slice(start, start + ENCODED_AT_A_TIME) for start in range(0, frame.height, ENCODED_AT_A_TIME)]
        indicator = 0
        for index, column in enumerate(self.numeric):
            values_N = numbers_of(frame, column.name)
            for chunk in chunks:
                packing.write_number(records_NR[chunk], index, column.encode(values_N[chunk]))
            if column.indicator:
                packing.write_indicator(records_NR, indicator, np.isnan(values_N))
                indicator += 1
        for index, categorical in enumerate(self.categorical):
            cells = require_column(frame, categorical.name, use="feature")
            for chunk in chunks:
                packing.write_codes(records_NR[chunk], index, categorical.encode(cells[chunk]))
        place = len(self.categorical)
        for sequence in self.sequences:
            for chunk, codes_NL in sequence.encode(frame):
                for index, codes_N in enumerate(codes_NL.T):
                    packing.write_codes(records_NR[chunk], place + index, codes_N)
            place += sequence.shape.columns
        return records_NR

    def to_json(self) -> str:
        """Write as JSON. Numbers read back exactly."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> "Encoder":
        """Read the output of to_json. Raises DataError if it is something else."""
        try:
            return msgspec.json.decode(text, type=cls)
        except msgspec.DecodeError as error:
            raise DataError(f"a saved encoder is not readable: {error}") from None


def feature_columns(frame: Frame, party: PartyFile) -> FeatureColumns:
    """Choose the feature columns: those that the party file lists, or by type all columns without another use.

    ``features: auto`` reads numbers, booleans, dates and times as numeric and text as categorical. It leaves out key, label,
    weight and time columns, sequences, and columns under ``drop``. Raises DataError for an absent column, for a column of lists
    that is not named as a sequence, and for a type that is neither numeric nor categorical.
    """
    if party.features is not None:
        for name in party.features.numeric + party.features.categorical:
            require_named(frame, name, use="feature")
            _refuse_lists(name, frame.schema[name], instead="list it under sequences or vectors instead")
        numbers = tuple(name for name in frame.columns if vector_of(name, party.vectors))
        return party.features.model_copy(update={"numeric": party.features.numeric + numbers}) if numbers else party.features
    for name in party.drop:
        require_named(frame, name, use="drop")
    used_otherwise = {*party.keys.values(), *party.drop, *party.sequences, *party.labels, party.weight, party.time}
    numeric, categorical = [], []
    for name, kind in frame.schema.items():
        if name in used_otherwise:
            continue
        if kind.is_numeric() or kind.is_temporal() or kind == pl.Boolean:
            numeric.append(name)
        elif kind in (pl.String, pl.Categorical, pl.Enum, pl.Null):
            categorical.append(name)
        else:
            _refuse_lists(
                name, kind, instead="list it under vectors if all cells have equally many numbers, else under sequences or drop"
            )
            raise FeatureError(
                f"column {name!r} has type {kind}, which features: auto cannot read; list it under drop or convert it"
            )
    return FeatureColumns(numeric=tuple(numeric), categorical=tuple(categorical))


def _refuse_lists(name: str, kind: pl.DataType, *, instead: str) -> None:
    if isinstance(kind, pl.List | pl.Array):
        raise FeatureError(f"column {name!r} holds lists (type {kind}), which are neither numbers nor categories; {instead}")


def _notes(
    frame: Frame,
    rows: NDArray[np.int64],
    encoding: EncodingConfig,
    numeric: Mapping[str, NumericColumn | None],
    categorical: Mapping[str, CategoricalColumn | None],
    blocks: Mapping[str, Sequence[NumericColumn]],
) -> tuple[str, ...]:
    """Say why columns are left out, and what ``auto`` chose in the encoding."""
    notes = []
    for name in (name for name, column in (*numeric.items(), *categorical.items()) if column is None):
        cells = require_column(frame, name, use="feature")
        if not cells.dtype.is_numeric() or cells.gather(rows).drop_nulls().n_unique() <= 1:
            notes.append(f"column {name!r} is constant on the training rows and was left out")
        else:
            notes.append(
                f"column {name!r} was left out: its numbers differ only beyond the 15 to 17 digits that floating point keeps; "
                "list it under categorical, or subtract the same number from all of them"
            )
    for name in (name for name, block in blocks.items() if not block):
        notes.append(f"vectors: column {name!r} is the same in all training rows and was left out")
    ranked = sum(column is not None and column.transform == "rank" for column in numeric.values())
    if encoding.numeric == "auto" and ranked:
        what = "is skewed and was ranked" if ranked == 1 else "are skewed and were ranked"
        notes.append(f"encoding.numeric = auto: {ranked} of {len(numeric)} numeric columns {what}")
    pooled = [column for column in categorical.values() if column is not None and column.min_count > usual_count(len(rows))]
    if encoding.min_count == "auto" and pooled:
        notes.append(
            f"encoding.min_count = auto: {len(pooled)} of {len(categorical)} categorical columns "
            f"{'keeps' if len(pooled) == 1 else 'keep'} getting new values, so categories of fewer than {pooled[0].min_count} "
            "rows share a code"
        )
    return tuple(notes)


def transformed(values_N: Floats, transform: str, knots: tuple[float, ...], scores: tuple[float, ...]) -> Floats:
    """Transform numbers before they are standardised."""
    if transform == "log":
        size_N = np.abs(values_N)
        np.log1p(size_N, out=size_N)
        return np.multiply(np.sign(values_N), size_N, out=size_N)
    if transform == "rank":
        return np.interp(values_N, knots, scores)
    return values_N


def _fit_numeric(
    name: str, values_N: Floats, setting: Literal["auto", "standard", "log", "rank"], form: Form
) -> NumericColumn | None:
    rows = len(values_N)
    values = values_N[~np.isnan(values_N)]
    missing = len(values) < rows
    del values_N  # a column of a large table is large
    if len(values) == 0 or (values.min() == values.max() and not missing):
        return None
    if setting != "auto":
        transform = setting
    else:
        # rank if a few values are so far out that they would determine the scale of all others
        with np.errstate(over="ignore", invalid="ignore"):
            centred = values - values.mean()
            spread = np.sqrt(np.mean(centred**2))
            skewness = np.mean((centred / spread) ** 3) if spread > 0 else 0.0
        # A column whose variance overflows has such values, whatever its skewness.
        transform = "standard" if np.isfinite(spread) and abs(skewness) <= SKEWED else "rank"
    knots: tuple[float, ...] = ()
    scores: tuple[float, ...] = ()
    if transform == "rank":
        # Map values to the normal quantiles of their mid-ranks, at no more than RANK_KNOTS of them
        distinct_values, counts = np.unique(values, return_counts=True)
        middle = (np.cumsum(counts) - counts / 2) / len(values)
        normal_scores = torch.special.ndtri(torch.from_numpy(middle)).numpy()
        if len(distinct_values) > RANK_KNOTS:
            # Evenly spaced in score, so that the tails keep their shape.
            even = np.linspace(normal_scores[0], normal_scores[-1], RANK_KNOTS)
            picked = np.unique(np.searchsorted(normal_scores, even).clip(max=len(distinct_values) - 1))
            distinct_values, normal_scores = distinct_values[picked], normal_scores[picked]
        knots, scores = tuple(distinct_values.tolist()), tuple(normal_scores.tolist())
    with np.errstate(over="ignore", invalid="ignore"):
        known_T = transformed(values, transform, knots, scores)
        mean, deviation = float(known_T.mean()), float(known_T.std())
    if not np.isfinite([mean, deviation]).all():
        raise FeatureError(
            f"numeric column {name!r}: its numbers are too large to standardise; use encoding.numeric = log or rank"
        )
    deviation = deviation or 1.0  # of a constant with missing values only the indicator is informative
    return NumericColumn(
        name=name,
        transform=transform,
        mean=mean,
        deviation=deviation,
        low=float((known_T.min() - mean) / deviation),
        high=float((known_T.max() - mean) / deviation),
        indicator=missing,
        form=form,
        knots=knots,
        scores=scores,
        whole=form == "number" and bool((values % 1 == 0).all()),
        late_days=form in ("date", "moment", "zoned") and has_late_days(values, in_days=form == "date"),
    )


def _fit_vector(name: str, numeric: Sequence[str], columns: TrainingColumns) -> tuple[NumericColumn, ...]:
    """Fit a vector's numbers as one block: centre each, and divide all by one deviation. Return none if all rows are equal."""
    own = [column for column in numeric if vector_of(column, (name,))]
    transforms = []
    for place, column in enumerate(own):
        values_N = columns.numbers(column)
        known = values_N[~np.isnan(values_N)]
        if not len(known):
            return ()
        mean, low, high = float(known.mean()), float(known.min()), float(known.max())
        missing = place == 0 and len(known) < len(values_N)  # one indicator marks the whole vector as missing
        transforms.append((column, mean, float(known.var()), low, high, missing))
    deviation = float(np.sqrt(np.mean([variance for _, _, variance, _, _, _ in transforms])))
    if deviation == 0:
        return ()
    return tuple(
        NumericColumn(
            name=column,
            transform="standard",
            mean=mean,
            deviation=deviation,
            low=(low - mean) / deviation,
            high=(high - mean) / deviation,
            indicator=missing,
            vector=name,
        )
        for column, mean, _, low, high, missing in transforms
    )


def _binned(column: NumericColumn, values_N: Floats) -> NumericColumn:
    """Add the edges of its bins to a column, computed from float32 numbers, which is what a model gets."""
    values = values_N[~np.isnan(values_N)]
    del values_N
    encoded = np.empty(len(values), dtype=np.float32)
    for start in range(0, len(values), ENCODED_AT_A_TIME):
        chunk = slice(start, start + ENCODED_AT_A_TIME)
        encoded[chunk] = column.encode(values[chunk])
    return msgspec.structs.replace(column, edges=bin_edges(encoded))
