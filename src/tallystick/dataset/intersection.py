"""Rows that all parties have: every position is a row of everybody's. Shapes: N linked positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from tallystick.config.contract import Contract, SplitConfig
from tallystick.data.encoder import Encoder
from tallystick.data.split import TEST, TRAINING, VALIDATION, split_by_hash, split_by_time
from tallystick.data.target import encode_weights
from tallystick.dataset.dataset import Dataset, Labels
from tallystick.dataset.own_rows import OwnRows, Parts, positions
from tallystick.errors import DataError, ProtocolError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.training.objective import Objective, Supervised


class SplitParts(Message, frozen=True):
    """Label party to feature parties where the split is by time: the part of each aligned position, uint8 (N,)."""

    limit = MAX_MESSAGE_BYTES
    parts: Array


@dataclass(frozen=True, kw_only=True)
class IntersectionDataset(Dataset):
    """A party's rows where every position is one of them."""

    @classmethod
    def of(
        cls,
        contract: Contract,
        own: OwnRows,
        channels: Sequence[Channel],
        *,
        secret_seed: Callable[[], int],  # noqa: ARG003
    ) -> "IntersectionDataset":
        """Fit this party's encoder on its training rows and encode its rows at all positions.

        ``channels`` carry the parts where the split is by the label party's time column.
        """
        here = own.linked()
        train_N, validation_N, test_N = positions(_parts(contract.split, contract.seed, own, channels))
        for part_N, name, share in ((train_N, "training", 1.0), (validation_N, "validation", contract.split.validation)):
            if share and not len(part_N):
                raise DataError(
                    f"none of the {here.height} aligned rows fall into the {name} part; align more rows or change split"
                )
        encoder = own.fit_encoder(here, train_N.numpy())
        device = torch.device(own.party.device)
        labels = None
        if own.is_label:
            coder = own.fit_labels(contract.target, own.alignment.rows_N[train_N.numpy()])
            true_N = coder.encode(own.label().gather(own.alignment.rows_N)).to(device)
            weight_N = None
            if own.party.weight is not None:
                weight_N = encode_weights(own.linked_column(own.party.weight, use="weight")).to(device)
            labels = Labels.of(coder, true_N, weight_N)
        return cls(
            encoder=encoder,
            source=encoder.encode(here).to(device).rows if encoder is not None else None,
            labels=labels,
            train_N=train_N.to(device),
            validation_N=validation_N.to(device),
            test_N=test_N.to(device),
        )

    @classmethod
    def to_score(
        cls,
        contract: Contract,  # noqa: ARG003
        own: OwnRows,
        encoder: Encoder | None,
        *,
        secret_seed: Callable[[], int],  # noqa: ARG003
    ) -> "IntersectionDataset":
        """New rows, by the encoder that was fitted in training."""
        return cls(encoder=encoder, source=encoder.encode(own.linked()).rows if encoder is not None else None)

    def objective(self) -> Objective:
        """The loss by the labels to train on."""
        labels = self.known_labels
        return Supervised(labels.coder.type, labels.training_labels_N, labels.weight_N)

    def own_part(self) -> "IntersectionDataset":
        """All of it, with the true labels."""
        labels = self.known_labels
        return replace(self, labels=replace(labels, training_labels_N=labels.true_N))


def _parts(split: SplitConfig, seed: int, own: OwnRows, channels: Sequence[Channel]) -> Parts:
    if split.method == "hash":
        return split_by_hash([own.keys.ids[row] for row in own.alignment.rows_N], split, seed=seed)
    return parts_by_time(split, own, channels)


def parts_by_time(split: SplitConfig, own: OwnRows, channels: Sequence[Channel]) -> Parts:
    """The part of each position by the label party's time column; it tells the others."""
    if own.is_label:
        assert own.party.time is not None
        parts_N = split_by_time(own.linked_column(own.party.time, use="time"), split)
        for channel in channels:
            channel.send(SplitParts(parts=Array.of(parts_N)))
        return parts_N
    return receive_parts(channels[0], len(own.alignment))


def receive_parts(channel: Channel, rows: int) -> Parts:
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
