"""Provide rows that all parties have: every position is a row of every party. Shapes: N linked positions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from tallystick.config.contract import Contract
from tallystick.config.sections import SplitConfig, TrainingConfig
from tallystick.config.unaligned import HeuristicConfig, NoneConfig, UnalignedKeys
from tallystick.cut.forward import ignore_rows
from tallystick.dataset.dataset import Dataset, Labels, UnalignedRows
from tallystick.dataset.own_rows import OwnRows, Parts, fitted_positions, folds_of, own_folds_of, positions
from tallystick.errors import DataError, ProtocolError, SharedDataError
from tallystick.network.channel import Channel
from tallystick.network.messages import MAX_MESSAGE_BYTES, Array, MalformedMessage, Message
from tallystick.privacy.randomness import Seed
from tallystick.reading import shown
from tallystick.tables.encoder import Encoder
from tallystick.tables.split import TEST, TRAINING, VALIDATION, parts_of_other_times, split_by_hash, split_by_time
from tallystick.tables.target import LabelCoder
from tallystick.training.objective import Objective, Supervised
from tallystick.training.plan import Schedule
from tallystick.training.unaligned.method import UnalignedMethod
from tallystick.training.unaligned.method_table import method_of
from tallystick.training.unaligned.schedule import rows_ratio, scheduled


class SplitParts(Message, frozen=True):
    """Sent by the label party if the split is by time: the part of each aligned position, uint8 (N,)."""

    limit = MAX_MESSAGE_BYTES
    parts: Array


@dataclass(frozen=True, kw_only=True)
class IntersectionDataset(Dataset):
    """A party's rows if every linked position is one of them.

    Args:
        settings: the contract's settings for unaligned rows; none if the label party has no such rows and the method is optional.
    """

    settings: UnalignedKeys = field(default_factory=NoneConfig)

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

        ``channels`` carry the parts if the split is by the label party's time column. Nothing is sent about unaligned rows.
        """
        linked = len(own.alignment)
        if contract.split.method == "hash":
            parts_N = split_by_hash(own.ids_of(own.alignment.rows_N), contract.split, seed=contract.seed)
        else:
            parts_N = parts_by_time(contract.split, own, channels)
        train_N, validation_N, test_N = positions(parts_N)
        for part_N, name, share in ((train_N, "training", 1.0), (validation_N, "validation", contract.split.validation)):
            if share and not len(part_N):
                raise DataError(f"none of the {linked} aligned rows fall into the {name} part; align more rows or change split")
        folds = folds_of(contract, own, train_N, validation_N)
        linked_N, facts = own.alignment.rows_N, contract.unaligned.facts
        if not contract.unaligned.used or not (own.is_label or facts.pretrains_bottoms):
            rows_M, unaligned = linked_N, UnalignedRows()
        else:
            other_rows = own.unlinked()
            # Without labels or times, a feature party's unaligned rows are only for training
            parts_M = np.full(len(other_rows), TRAINING, dtype=np.uint8)
            if contract.split.method == "hash":
                parts_M = split_by_hash(own.ids_of(other_rows), contract.split, seed=contract.seed)
            elif own.is_label:
                assert own.party.time is not None
                times = own.column_at(own.party.time, np.concatenate([linked_N, other_rows]), use="time")
                parts_M = parts_of_other_times(times, parts_N)
            first = len(linked_N)
            train_U, validation_U, test_U = (part_N + first for part_N in positions(parts_M))
            rows_M = np.concatenate([linked_N, other_rows])
            unaligned = UnalignedRows(train_N=train_U, validation_N=validation_U, test_N=test_U)
        here = own.at(rows_M)
        taught_N, judging_N = (torch.cat(each) for each in ((train_N, unaligned.train_N), (validation_N, unaligned.validation_N)))
        dispensed = own.is_label and contract.unaligned.facts.dispensable and not len(unaligned.train_N)
        own_folds, refits = None, contract.refits
        if own.is_label and contract.unaligned.used and not dispensed:
            own_folds = own_folds_of(contract, own.before, own.ids_of(rows_M), taught_N, judging_N)
            refits = contract.own_refits
        taught = refits or folds is not None or own_folds is not None
        encoder = own.fit_encoder(here, fitted_positions(taught_N, judging_N, taught=taught).numpy())
        device = torch.device(own.party.device)
        labels = None
        if own.is_label:
            coder = own.fit_labels(contract, rows_M[taught_N.numpy()])
            true_N = coder.encode(own.label().gather(rows_M)).to(device)
            labels = Labels.of(coder, true_N, own.weights(contract, rows_M))
        packed = own.named(encoder.encode(here), rows_M, contract).to(device) if encoder is not None else None
        dataset = cls(
            encoder=encoder,
            source=packed.rows if packed is not None else None,
            announce=packed.announce if packed is not None else ignore_rows,
            labels=labels,
            train_N=train_N.to(device),
            validation_N=validation_N.to(device),
            test_N=test_N.to(device),
            unaligned=UnalignedRows() if dispensed else unaligned,
            settings=NoneConfig() if dispensed else contract.unaligned,
            dispensed=contract.agreed.unaligned.method if dispensed or contract.agreed.unaligned != contract.unaligned else None,
            folds=folds.to(device) if folds is not None else None,
            own_folds=own_folds.to(device) if own_folds is not None else None,
        )
        if labels is not None and dataset.settings.used:
            where = f"unaligned.method = {contract.unaligned.method}"
            if not len(unaligned.train_N):
                raise SharedDataError(
                    f"{where}: none of the label party's rows without a partner's row falls into the training part; "
                    "set unaligned.method to none, or bring more rows",
                    # All parties know from the alignment how many such rows there are.
                    told=f"{where}: it has too few rows without a partner's row; agree on none, or let it bring more rows",
                )
            check_unaligned(contract.unaligned, encoder)
        return dataset

    @classmethod
    def to_score(
        cls,
        contract: Contract,
        own: OwnRows,
        encoder: Encoder | None,
        *,
        secret_seed: Callable[[], int],  # noqa: ARG003
    ) -> "IntersectionDataset":
        """Encode new rows by the encoder of the training. The label party's unaligned rows count as test rows."""
        rows_M, unaligned = own.alignment.rows_N, UnalignedRows()
        if own.is_label and contract.unaligned.used:
            rows_M = np.concatenate([rows_M, own.unlinked()])
            unaligned = UnalignedRows(test_N=torch.arange(len(own.alignment), len(rows_M)))
        source = own.named(encoder.encode(own.at(rows_M)), rows_M, contract).rows if encoder is not None else None
        return cls(encoder=encoder, source=source, unaligned=unaligned, settings=contract.unaligned)

    @property
    def has_branches(self) -> bool:
        """Tell whether there is a method for such rows."""
        return self.settings.used

    def schedule(self, training: TrainingConfig, *, seed: int) -> Schedule:
        """Build the batches of training, with those of unaligned rows."""
        return scheduled(super().schedule(training, seed=seed), self.settings, self.unaligned.train_N)

    def method(self, training: TrainingConfig, *, start: Seed) -> UnalignedMethod | None:
        """Build the method for unaligned rows, with weights drawn from ``start``."""
        if not self.settings.used:
            return None
        columns = tuple(column.name for column in self.encoder.categorical) if self.encoder is not None else ()
        schedule = self.schedule(training, seed=0)  # only its counts are used
        ratio = rows_ratio(schedule) if schedule.local_batches else len(self.unaligned.train_N) / max(1, len(self.train_N))
        return method_of(self.settings, batch_size=training.batch_size, ratio=ratio, seed=start, columns=columns)

    def objective(self) -> Objective:
        """Build the loss for the training labels."""
        labels = self.known_labels
        each = Supervised(labels.coder.type, labels.training_labels_N, labels.weight_N, levels=labels.coder.levels)
        return self.folds.objective(each) if self.folds is not None else each

    def own_part(self) -> "IntersectionDataset":
        """Return all rows with the true labels. The label party alone could train on unaligned rows as on the others.

        A contract with a method for unaligned rows trains one joint network, but may train several networks of own columns.
        """
        labels, device = self.known_labels, self.train_N.device  # unaligned positions are on the CPU, even if there are none
        return replace(
            self,
            labels=replace(labels, training_labels_N=labels.true_N),
            train_N=torch.cat([self.train_N, self.unaligned.train_N.to(device)]),
            validation_N=torch.cat([self.validation_N, self.unaligned.validation_N.to(device)]),
            settings=NoneConfig(),
            folds=self.own_folds if self.settings.used else self.folds,
        )


def check_unaligned(settings: UnalignedKeys, encoder: Encoder | None) -> None:
    """Refuse columns of the label party that the method cannot use. Raises DataError."""
    where = f"unaligned.method = {settings.method}"
    if encoder is None:
        raise DataError(
            f"{where}: the label party has no usable column of its own, so nothing can be learnt from unaligned rows; use none"
        )
    group = settings.group if isinstance(settings, HeuristicConfig) else None
    if group is not None and group not in [column.name for column in encoder.categorical]:
        raise DataError(f"unaligned.group = {group}: is not a categorical column of the label party that training uses")


def check_classes(settings: UnalignedKeys, coder: LabelCoder, aligned_N: Tensor) -> None:
    """Refuse aligned training rows that lack a class if unaligned rows train a joint model as well. Raises DataError.

    ``aligned_N`` are the labels used in training. If the contract hides labels these are the replaced ones, because all parties
    see whether a run goes on. Targets between the classes train both classes.
    """
    if not settings.used or coder.is_number or bool((aligned_N != aligned_N.round()).any()):
        return
    where, classes_met = f"unaligned.method = {settings.method}", set(aligned_N.long().tolist())
    if lacking := [name for code, name in enumerate(coder.classes) if code not in classes_met]:
        raise DataError(
            f"{where}: no aligned training row is of class {shown(lacking[0])}, so joint training cannot learn it; align more "
            "rows, or leave that class out of the table"
        )


def parts_by_time(split: SplitConfig, own: OwnRows, channels: Sequence[Channel]) -> Parts:
    """Return the part of each position by the label party's time column. The label party sends it to the others."""
    if own.is_label:
        assert own.party.time is not None
        parts_N = split_by_time(own.linked_column(own.party.time, use="time"), split)
        for channel in channels:
            channel.send(SplitParts(parts=Array.of(parts_N)))
        return parts_N
    return receive_parts(channels[0], len(own.alignment))


def receive_parts(channel: Channel, rows: int) -> Parts:
    """Receive each position's part. Raises ProtocolError for another number of parts, another type or an unknown part."""
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
