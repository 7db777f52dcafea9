"""From a party's table to what training reads: ids before the alignment, encoded rows after it.

Shapes: N aligned positions.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from tallystick.alignment.outcome import Alignment
from tallystick.config.contract import Contract
from tallystick.config.party import PartyFile
from tallystick.data.encoder import Encoder, feature_columns
from tallystick.data.features import Features
from tallystick.data.keys import Keys, read_keys
from tallystick.data.split import TEST, TRAINING, VALIDATION, split_by_hash, split_by_time
from tallystick.data.table import require_column
from tallystick.data.target import LabelCoder, encode_weights
from tallystick.errors import DataError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, Message
from tallystick.training.plan import Schedule


class SplitParts(Message, frozen=True):
    """Label party to feature parties where the split is by time: the part of each aligned position, uint8 (N,)."""

    limit = MAX_MESSAGE_BYTES
    parts: Array


@dataclass(frozen=True, kw_only=True)
class Aligned:
    """A party's rows at the aligned positions, encoded; the label party's labels too."""

    features: Features | None
    encoder: Encoder | None
    train_N: Tensor
    validation_N: Tensor
    test_N: Tensor
    target_N: Tensor | None = None
    weight_N: Tensor | None = None
    label_coder: LabelCoder | None = None

    def schedule(self, contract: Contract) -> Schedule:
        """The batches of training."""
        return Schedule(
            train_N=self.train_N, validation_N=self.validation_N, batch_size=contract.training.batch_size, seed=contract.seed
        )


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
    """Fit this party's encoder on its training rows and encode its rows at all aligned positions.

    ``channels`` carry the parts where the split is by the label party's time column.
    """
    rows_N = keys.rows_U[alignment.rows_N]
    here = frame[rows_N]
    is_label = contract.role_of(party.party) == "label"
    parts_N = _parts(contract, party, here, [keys.ids[row] for row in alignment.rows_N], channels, is_label=is_label)
    where = {part: torch.from_numpy(np.flatnonzero(parts_N == part)) for part in (TRAINING, VALIDATION, TEST)}
    for part, name, share in ((TRAINING, "training", 1.0), (VALIDATION, "validation", contract.split.validation)):
        if share and not len(where[part]):
            raise DataError(f"none of the {len(rows_N)} aligned rows fall into the {name} part; align more rows or change split")
    columns = feature_columns(here, party)
    encoder = None
    if columns.numeric or columns.categorical:
        encoder = Encoder.fit(here, columns, where[TRAINING].numpy(), encoding=party.encoding)
    if not is_label and (encoder is None or not (encoder.numeric or encoder.categorical)):
        raise DataError(f"party {party.party} has no usable feature column; list some under features")
    if encoder is not None and not (encoder.numeric or encoder.categorical):
        encoder = None
    device = torch.device(party.device)
    label_coder, target_N, weight_N = None, None, None
    if is_label:
        assert party.label is not None
        label = require_column(here, party.label, use="label")
        label_coder = LabelCoder.fit(label, contract.target, where[TRAINING].numpy())
        target_N = label_coder.encode(label).to(device)
        if party.weight is not None:
            weight_N = encode_weights(require_column(here, party.weight, use="weight")).to(device)
    return Aligned(
        features=encoder.encode(here).to(device) if encoder is not None else None,
        encoder=encoder,
        train_N=where[TRAINING].to(device),
        validation_N=where[VALIDATION].to(device),
        test_N=where[TEST].to(device),
        target_N=target_N,
        weight_N=weight_N,
        label_coder=label_coder,
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
    received = channels[0].receive(SplitParts).parts
    return np.array(received.numpy(len(ids)), dtype=np.uint8)
