"""From a party's table to what training reads: ids before the alignment, encoded rows after it.

Shapes: N aligned positions, R own rows, B batch.
"""

import hashlib
import math
from dataclasses import dataclass, replace

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.cut.forward import Source
from tallystick.data.encoder import Encoder, feature_columns
from tallystick.data.keys import Keys, read_keys
from tallystick.data.split import TEST, TRAINING, VALIDATION, split_by_hash, split_by_time
from tallystick.data.table import require_column
from tallystick.data.target import LabelCoder, encode_weights
from tallystick.errors import DataError, FeatureError, ProtocolError
from tallystick.job.folder import RunFolder
from tallystick.job.union import Imputation
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.training.calibration import NO_CALIBRATION, Calibration, LogitLine
from tallystick.training.checkpoint import TrainingState
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Schedule


class SplitParts(Message, frozen=True):
    """Label party to feature parties where the split is by time: the part of each aligned position, uint8 (N,)."""

    limit = MAX_MESSAGE_BYTES
    parts: Array


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """A party's rows at the aligned positions, encoded; the label party's labels too.

    ``target_N`` and ``labels_R`` are the truth. ``taught_N`` are the labels that training and validation see instead, where a
    defence replaced them: they shape all that is sent, while test labels and the baseline, which stay here, are true.
    On a union ``positive_rate`` is that of the own training rows: no other label shapes an imputed value or a shift.
    """

    source: Source | None
    encoder: Encoder | None
    train_N: Tensor
    validation_N: Tensor
    test_N: Tensor
    target_N: Tensor | None = None
    weight_N: Tensor | None = None
    label_coder: LabelCoder | None = None
    imputation: Imputation | None = None
    labels_R: Tensor | None = None
    positive_rate: float = math.nan
    taught_N: Tensor | None = None

    def schedule(self, contract: Contract) -> Schedule:
        """The batches of training."""
        return Schedule(
            train_N=self.train_N, validation_N=self.validation_N, batch_size=contract.training.batch_size, seed=contract.seed
        )

    def test_batches(self, contract: Contract) -> tuple[Tensor, ...]:
        """The test positions in batches."""
        return torch.split(self.test_N, contract.training.batch_size) if len(self.test_N) else ()

    def objective(self, contract: Contract) -> Objective:
        """The label party's loss."""
        if self.imputation is not None:
            assert self.labels_R is not None
            return self.imputation.objective(self.labels_R, self._calibration, positive_rate=self.positive_rate)
        taught_N = self.target_N if self.taught_N is None else self.taught_N
        assert taught_N is not None
        return Supervised(contract.target.type, taught_N, self.weight_N)

    def is_own(self, index_B: Tensor) -> Tensor:
        """Which of these positions are rows of this party: all, unless aligned by union."""
        if self.imputation is None:
            return torch.ones(len(index_B), dtype=torch.bool, device=index_B.device)
        return self.imputation.own_U[index_B] >= 0

    def own_part(self) -> "Aligned":
        """The same without the positions that this party lacks, and with the true labels: nothing of it leaves."""
        if self.imputation is None:
            return replace(self, taught_N=None)
        train_N, validation_N, test_N = (part_N[self.is_own(part_N)] for part_N in (self.train_N, self.validation_N, self.test_N))
        return replace(self, imputation=None, labels_R=None, train_N=train_N, validation_N=validation_N, test_N=test_N)

    def calibrated(self, state: TrainingState | None) -> Calibration:
        """What turns the trained model's logits into those of real rows: on a union there may be something to undo."""
        if self.imputation is None:
            return NO_CALIBRATION
        fitted = state.best_fitted if state is not None else {}
        return replace(self._calibration, line=LogitLine(**fitted)) if fitted else self._calibration

    @property
    def _calibration(self) -> Calibration:
        assert self.imputation is not None
        return self.imputation.calibration(positive_rate=self.positive_rate, own_columns=self.encoder is not None)


def fingerprint(keys: Keys) -> str:
    """A digest of a table's ids in their order: a kept alignment is of use only for the same table."""
    digest = hashlib.blake2b(digest_size=16)
    for uid in keys.ids:
        digest.update(len(uid).to_bytes(4, "big") + uid)
    return digest.hexdigest()


def read_ids(contract: Contract, party: PartyFile, frame: pl.DataFrame) -> Keys:
    """The table's unique, normalised ids."""
    return read_keys(frame, columns=party.keys, alignment=contract.alignment)


def aligned_rows(
    contract: Contract, party: PartyFile, frame: pl.DataFrame, keys: Keys, alignment: Alignment, channels: list[Channel]
) -> Aligned:
    """Fit this party's encoder on its training rows and encode its rows at all positions of an intersection.

    ``channels`` carry the parts where the split is by the label party's time column.
    """
    here = frame[keys.rows_U[alignment.rows_N]]
    is_label = contract.role_of(party.party) == "label"
    parts_N = _parts(contract, party, here, [keys.ids[row] for row in alignment.rows_N], channels, is_label=is_label)
    where = {part: torch.from_numpy(np.flatnonzero(parts_N == part)) for part in (TRAINING, VALIDATION, TEST)}
    for part, name, share in ((TRAINING, "training", 1.0), (VALIDATION, "validation", contract.split.validation)):
        if share and not len(where[part]):
            raise DataError(f"none of the {here.height} aligned rows fall into the {name} part; align more rows or change split")
    columns = feature_columns(here, party)
    encoder = None
    if columns.numeric or columns.categorical:
        encoder = Encoder.fit(here, columns, where[TRAINING].numpy(), encoding=party.encoding)
    if not is_label and (encoder is None or not (encoder.numeric or encoder.categorical)):
        raise FeatureError(f"party {party.party} has no usable feature column; list some under features")
    if encoder is not None and not (encoder.numeric or encoder.categorical):
        encoder = None
    device = torch.device(party.device)
    label_coder, target_N, weight_N = None, None, None
    if is_label:
        assert party.label is not None
        # Fitted on all own rows: which classes there are does not hang on who else is in the alignment.
        label = require_column(frame[keys.rows_U], party.label, use="label")
        label_coder = LabelCoder.fit(label, contract.target, alignment.rows_N[where[TRAINING].numpy()])
        target_N = label_coder.encode(label.gather(alignment.rows_N)).to(device)
        if party.weight is not None:
            weight_N = encode_weights(require_column(here, party.weight, use="weight")).to(device)
    return Aligned(
        source=encoder.encode(here).to(device).rows if encoder is not None else None,
        encoder=encoder,
        train_N=where[TRAINING].to(device),
        validation_N=where[VALIDATION].to(device),
        test_N=where[TEST].to(device),
        target_N=target_N,
        weight_N=weight_N,
        label_coder=label_coder,
    )


def united_rows(
    contract: Contract, party: PartyFile, frame: pl.DataFrame, keys: Keys, alignment: Alignment, folder: RunFolder
) -> Aligned:
    """Encode this party's rows for a union: all own rows once, and what is imputed at the positions that it lacks.

    The split is by universal id, which both sides have for every position; the encoder is fitted on the own training rows.
    """
    here = frame[keys.rows_U]
    imputation = Imputation.of(contract, alignment, folder)
    own_U = imputation.own_U
    parts_U = split_by_hash(imputation.uids(), contract.split, seed=contract.seed)
    where = {part: torch.from_numpy(np.flatnonzero(parts_U == part)) for part in (TRAINING, VALIDATION, TEST)}
    own_training = own_U[where[TRAINING]]
    training_rows = own_training[own_training >= 0].numpy()
    is_label = contract.role_of(party.party) == "label"
    columns = feature_columns(here, party)
    encoder = None
    if columns.numeric or columns.categorical:
        encoder = Encoder.fit(here, columns, training_rows, encoding=party.encoding)
    if encoder is not None and not (encoder.numeric or encoder.categorical):
        encoder = None
    if not is_label and encoder is None:
        raise FeatureError(f"party {party.party} has no usable feature column; list some under features")
    label_coder, target_N, labels_R, positive_rate = None, None, None, math.nan
    if is_label:
        assert party.label is not None
        label = require_column(here, party.label, use="label")
        label_coder = LabelCoder.fit(label, contract.target, training_rows)
        labels_R = label_coder.encode(label)
        positive_rate = labels_R[training_rows].double().mean().item()
        target_N = labels_R[own_U.clamp(min=0)]
    return Aligned(
        source=imputation.source(encoder.encode(here), own_columns=is_label) if encoder is not None else None,
        encoder=encoder,
        train_N=where[TRAINING],
        validation_N=where[VALIDATION],
        test_N=where[TEST],
        target_N=target_N,
        label_coder=label_coder,
        imputation=imputation,
        labels_R=labels_R,
        positive_rate=positive_rate,
    )


def _parts(
    contract: Contract, party: PartyFile, here: pl.DataFrame, ids: list[bytes], channels: list[Channel], *, is_label: bool
) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    if contract.split.method == "hash":
        return split_by_hash(ids, contract.split, seed=contract.seed)
    if is_label:
        assert party.time is not None
        parts_N = split_by_time(require_column(here, party.time, use="time"), contract.split)
        for channel in channels:
            channel.send(SplitParts(parts=Array.of(parts_N)))
        return parts_N
    return receive_parts(channels[0], len(ids))


def receive_parts(channel: Channel, rows: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    """Receive each position's part; raises ProtocolError for another number of them, another type or a part that there is not."""
    parts = channel.receive(SplitParts).parts
    try:
        parts_N = parts.numpy(rows)
    except MalformedMessage as error:
        raise ProtocolError(channel.peer, f"{channel.peer}: SplitParts: {error}") from None
    if parts.dtype != "uint8":
        raise ProtocolError(channel.peer, f"{channel.peer}: SplitParts has type {parts.dtype}, expected uint8")
    if rows and parts_N.max() > max(TRAINING, VALIDATION, TEST):
        raise ProtocolError(
            channel.peer, f"{channel.peer}: SplitParts names part {parts_N.max()}; expected {TRAINING}, {VALIDATION} or {TEST}"
        )
    return np.array(parts_N, dtype=np.uint8)
