"""Prepare the common start of every linkage: a party's table and its alignment, encoded columns, fitted labels.

Shapes: R own rows that take part, N linked positions.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from tallystick.alignment.ids import Ids
from tallystick.alignment.outcome import Alignment, Candidates
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.errors import DataError, FeatureError, LabelError, SharedDataError
from tallystick.tables.encoder import Encoder
from tallystick.tables.extension import extended
from tallystick.tables.features import Numbers, PackedFeatures
from tallystick.tables.keys import Keys, who_of
from tallystick.tables.lazy_table import Frame
from tallystick.tables.split import TEST, TRAINING, VALIDATION, folds_by_hash
from tallystick.tables.table import label_column, require_column
from tallystick.tables.target import LabelCoder, encode_weights
from tallystick.training.folds import Folds

Parts = NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Before:
    """State of an earlier run from which a run starts.

    Args:
        encoder: encoder of the columns; None for a label party without columns.
        coder: coder of the labels, at the label party.
        grows: whether the network can take further categories, as the built-in bottoms can.
        folds: number of networks side by side in it.
        own_folds: number of networks of own columns alone.
    """

    encoder: Encoder | None
    coder: LabelCoder | None
    grows: bool = True
    folds: int = 1
    own_folds: int = 1


@dataclass(frozen=True, kw_only=True)
class OwnRows:
    """A party's table, its rows that take part, and their positions in the alignment.

    ``before`` is the earlier run's state if this run starts from it. ``trained`` is the encoder with which this run's model was
    trained, after training. ``screens`` says whether its training can screen columns, ``hides`` whether nothing that is sent may
    depend on the content of columns.
    """

    party: PartyFile
    is_label: bool
    frame: Frame
    keys: Keys
    alignment: Alignment
    numbers: Literal["auto"] | Numbers = "plain"
    before: Before | None = None
    trained: Encoder | None = None
    screens: bool = False
    hides: bool = False

    def table(self) -> Frame:
        """Return the R rows, in the table's order."""
        return self.frame[self.keys.rows_R]

    def linked(self) -> Frame:
        """Return the own rows in the order that links use. If links use positions, every position must have a row."""
        return self.frame[self.keys.rows_R[self.alignment.own_rows]]

    def candidates(self, feature_parties: Sequence[str]) -> list[Candidates]:
        """Return the candidates of each feature party in this order. A feature party has only its own."""
        candidates = self.alignment.candidates
        return [candidates[name] for name in (feature_parties if self.is_label else [self.party.party])]

    def crossed(self, rows_R: NDArray[np.int64]) -> Frame:
        """Return a feature party's rows that crossed the cut: by position, or by number if rows have candidates."""
        return self.frame[self.keys.rows_R[self.alignment.own_rows[rows_R]]]

    def unlinked(self) -> NDArray[np.int64]:
        """Return which of the R rows are at no position, in the order of their ids.

        Batches of these rows shape weights through which others see rows. So their order is not the table's, which may reveal
        more.
        """
        is_linked_R = np.zeros(len(self.keys.rows_R), dtype=bool)
        is_linked_R[self.alignment.rows_N[self.alignment.rows_N >= 0]] = True
        rows_M = np.flatnonzero(~is_linked_R)
        rank_U = np.empty(len(self.keys.ids), dtype=np.int64)
        rank_U[self.keys.ids.sorted()[1]] = np.arange(len(rank_U))
        in_order_M: NDArray[np.int64] = rows_M[np.argsort(rank_U[self.keys.id_R[rows_M]], kind="stable")]
        return in_order_M

    def ids_of(self, rows_M: NDArray[np.int64]) -> Ids:
        """Return the ids of these of the R rows that determine parts and folds. They are the same on all sides for a
        linked row.
        """
        return self.keys.linked_ids(rows_M, self.alignment)

    def key_at(self, index_B: Tensor) -> NDArray[np.int64]:
        """Return the id of the own row at each position. Unlinked rows come after the linked ones."""
        id_B: NDArray[np.int64] = self.keys.id_R[self.rows_at(index_B)]
        return id_B

    def rows_at(self, index_B: Tensor) -> NDArray[np.int64]:
        """Return which of the R rows is at each position. Unlinked rows come after the linked ones."""
        row_B: NDArray[np.int64] = np.concatenate([self.alignment.rows_N, self.unlinked()])[index_B.cpu().numpy()]
        return row_B

    def at(self, rows_M: NDArray[np.int64]) -> Frame:
        """Select these of the R rows."""
        return self.frame[self.keys.rows_R[rows_M]]

    def named(self, packed: PackedFeatures, rows_M: NDArray[np.int64], contract: Contract) -> PackedFeatures:
        """Attach ids to the packed columns of these of the R rows, if a feature party's noise depends on the row."""
        if self.is_label or not contract.embedding_defenses().noisy:
            return packed
        # The name that distinguishes each row, also in another table: the id; with similar keys its number and its key
        ids, similar = self.keys.ids_of(rows_M), self.keys.similar
        if similar is None:
            names: Iterable[bytes] = ids
        else:
            texts = ("\0".join(column[row] for column in similar.texts).encode() for row in rows_M)
            numbers = (numbers_D.tobytes() for numbers_D in similar.numbers_RD[rows_M])
            names = map(b"".join, zip(ids, numbers, texts, strict=True))
        return replace(packed, who_M=torch.from_numpy(who_of(names)))

    def column_at(self, name: str, rows_M: NDArray[np.int64], *, use: str) -> pl.Series:
        """Return one column of these of the R rows."""
        return require_column(self.frame, name, use=use).gather(self.keys.rows_R[rows_M])

    def linked_column(self, name: str, *, use: str) -> pl.Series:
        """Return one column of the linked rows."""
        return require_column(self.frame, name, use=use).gather(self.keys.rows_R[self.alignment.rows_N])

    def label(self) -> pl.Series:
        """Return the R labels. The classes do not depend on which other rows are in the alignment."""
        return label_column(self.frame, self.party).gather(self.keys.rows_R)

    def used_labels(self, contract: Contract) -> pl.Series:
        """Return the labels that a run uses: those of linked rows, or of all rows if unaligned rows are used too."""
        rows_N = self.alignment.rows_N
        return self.label() if contract.unaligned.used else self.label().gather(rows_N[rows_N >= 0])

    def fit_labels(self, contract: Contract, training_R: NDArray[np.int64]) -> LabelCoder:
        """Fit the coding of labels. The training rows determine the scale.

        Other parties see whether the run goes on, and their ids choose which rows are training rows. So if the contract hides
        labels, or sends no gradient, the run must not end because of an exact label (``check_at_home`` checks that later).
        """
        if self.before is not None and self.before.coder is not None:
            return known_labels(self.before.coder, self.label())
        hidden = contract.hides_labels or not contract.sends_gradients
        return LabelCoder.fit(self.label(), contract.target, training_R, hidden=hidden)

    def weights(self, contract: Contract, rows_M: NDArray[np.int64]) -> Tensor | None:
        """Return the weights of these of the R rows, if rows have weights.

        Without gradients no error may depend on which rows these are.
        """
        if self.party.weight is None:
            return None
        column = require_column(self.frame, self.party.weight, use="weight").gather(self.keys.rows_R)
        if contract.sends_gradients:
            return encode_weights(column.gather(rows_M)).to(self.party.device)
        return encode_weights(column)[torch.from_numpy(rows_M.copy())].to(self.party.device)

    def check_at_home(self, contract: Contract, *training_N: Tensor) -> None:
        """Refuse training labels and weights from which nothing can be learnt, when no party can see any more if the
        run goes on.
        """
        training_R = np.concatenate([self.rows_at(part_N) for part_N in training_N])
        if self.before is None:
            LabelCoder.fit(self.label(), contract.target, training_R)
        weight_N = self.weights(contract, training_R)
        if weight_N is not None and not (weight_N > 0).any():
            raise LabelError(
                f"weight column {self.party.weight!r}: every weight is 0 on the training rows; at least one must be above"
            )

    def fit_encoder(self, frame: Frame, training_rows: NDArray[np.int64]) -> Encoder | None:
        """Fit the encoder on these rows of a frame. Return None for a label party without a usable column.

        A step after training uses the encoder of the training, even if the table has changed. If this party ``hides`` its
        columns, and none is usable on these rows, the encoder is fitted on all own rows: other parties, whose ids chose these
        rows, must not see that the run ends, or goes on without columns.

        Raises FeatureError for a feature party without a usable column.
        """
        if self.trained is not None:
            return self.trained
        if self.before is not None:
            return extended_encoder(self.before, frame, self.party, training_rows)
        encoder = Encoder.of_party(frame, self.party, training_rows, numbers=self.numbers, screens=self.screens)
        if encoder is None and self.hides:
            all_rows = np.arange(len(self.keys.rows_R))
            encoder = Encoder.of_party(self.table(), self.party, all_rows, numbers=self.numbers, screens=self.screens)
        if encoder is None and not self.is_label:
            raise FeatureError(f"party {self.party.party} has no usable feature column; list some under features")
        return encoder


def known_labels(coder: LabelCoder, column: pl.Series) -> LabelCoder:
    """Check a whole new column against an earlier run's label coding. Raises LabelError for an unknown class.

    Its scale stays the same as well, so the meaning of the network's outputs does not change.
    """
    try:
        coder.encode(column)
    except LabelError as error:
        known = coder.classes or [f"{name}: {', '.join(classes)}" for name, classes in coder.labels.items()]
        raise LabelError(f"{error}; the run to start from knows {', '.join(known)}: start from scratch") from None
    return coder


def extended_encoder(before: Before, frame: Frame, party: PartyFile, rows: NDArray[np.int64]) -> Encoder | None:
    """Extend the earlier run's encoder to these rows of a frame. Return None for a label party that had none."""
    return extended(before.encoder, frame, party, rows, grows=before.grows) if before.encoder is not None else None


def fitted_positions(train_N: Tensor, validation_N: Tensor, *, taught: bool) -> Tensor:
    """Return the positions on which encoders are fitted: the training rows, and also the validation rows if they are ``taught``.

    Encoders use no labels. An encoder fitted without the newest rows would map their numbers to the nearest known ones, and their
    new categories to unknown ones, and a refit could not learn them.
    """
    return torch.cat([train_N, validation_N]) if taught else train_N


def folds_of(contract: Contract, own: OwnRows, train_N: Tensor, validation_N: Tensor) -> Folds | None:
    """Assign each position a fold, if the contract has several for this many training rows. All rows of an id share a fold.

    A run that starts from an earlier one has as many folds. Raises DataError for a fold without a row, and if the several
    networks of an earlier run meet rows without a partner's row.
    """
    count = own.before.folds if own.before is not None else contract.folds(len(train_N))
    if count > 1 and contract.unaligned.used:
        where = f"unaligned.method = {contract.unaligned.method}"
        raise SharedDataError(
            f"{where}: the run to start from is {count} networks side by side, trained when every id of "
            f"{contract.label_party} was common; now some are not. Start from scratch, without --start-from on all sides, or "
            "agree on none",
            told=f"{where}: the run to start from had no rows without a partner's row; start from scratch, or agree on none",
        )
    folds = _by_hash(contract, own.ids_of(own.alignment.rows_N), count=count)
    _check_filled(folds, torch.cat([train_N, validation_N]))
    return folds


def own_folds_of(
    contract: Contract, before: Before | None, ids: Sequence[bytes], train_N: Tensor, validation_N: Tensor
) -> Folds | None:
    """Assign folds to all own rows, which have these ids by position, for the networks that score rows without a partner's row.

    These folds are optional: if there are too few ids for a row in each fold, a single network is used.
    """
    both_N = torch.cat([train_N, validation_N])
    if before is not None:
        folds = _by_hash(contract, ids, count=before.own_folds)
        _check_filled(folds, both_N)
        return folds
    folds = _by_hash(contract, ids, count=contract.own_folds(len(train_N)))
    return folds if folds is not None and bool(folds.rows_of_each(both_N).all()) else None


def _by_hash(contract: Contract, ids: Sequence[bytes], *, count: int) -> Folds | None:
    if count == 1:
        return None
    fold_N = torch.from_numpy(folds_by_hash(ids, contract.split, count=count, seed=contract.seed))
    return Folds(count=count, fold_N=fold_N)


def _check_filled(folds: Folds | None, index_N: Tensor) -> None:
    if folds is not None and not (rows := folds.rows_of_each(index_N)).all():
        raise DataError(
            f"training.folds = {folds.count}: of {int(rows.sum())} training and validation rows none is in fold "
            f"{int(rows.argmin()) + 1}; lower training.folds, or align more rows"
        )


def positions(parts_N: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions of a split's training, validation and test part."""
    train_N, validation_N, test_N = (torch.from_numpy(np.flatnonzero(parts_N == part)) for part in (TRAINING, VALIDATION, TEST))
    return train_N, validation_N, test_N
