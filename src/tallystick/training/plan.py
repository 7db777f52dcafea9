"""Plan a training run as every party knows it: its settings, and the batches of each epoch. Shapes: N positions, B batch.

A batch is *joint* or *local*. The cut embeddings and gradients of a joint batch cross. The rows of a local batch are the label
party's alone and nothing crosses. An epoch may have both, and phases of other epochs (pretraining) may precede the usual ones.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, takewhile

import torch
from torch import Tensor

from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import SCORED_AT_A_TIME, TILE, CutRows, a_row_each
from tallystick.training.training_messages import MOST_IN_FLIGHT

GROUPED_ROWS = 4096
"""Greatest number of rows of a message that holds several batches."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step of the schedule: its number, counted from 1 over the whole run, its place, and its positions.

    Args:
        step: number of the step.
        epoch: counted from 0.
        number: place in the epoch, counted from 0.
        index_B: positions.
        is_local: whether nothing crosses.
    """

    step: int
    epoch: int
    number: int
    index_B: Tensor
    is_local: bool = False


def no_positions() -> Tensor:
    """Return an empty tensor of positions."""
    return torch.empty(0, dtype=torch.int64)


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Epochs that precede the usual ones: their number, and the positions of their joint and their local batches."""

    epochs: int
    joint_N: Tensor = field(default_factory=no_positions)
    local_N: Tensor = field(default_factory=no_positions)

    @property
    def parts(self) -> "EpochPositions":
        """Return its positions."""
        return EpochPositions(joint_N=self.joint_N, local_N=self.local_N)


@dataclass(frozen=True, kw_only=True)
class EpochPositions:
    """The positions of an epoch's batches, with ``local_batches`` as in Schedule."""

    joint_N: Tensor
    local_N: Tensor
    local_batches: int | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The batches that all parties process together, drawn from the contract's seed.

    Positions are aligned positions, the same for every party; each party knows which own row is at a position. Feature parties
    only need to know the number of local positions.

    Args:
        train_N: positions of the joint batches.
        validation_N: positions that compare epochs.
        batch_size: positions of a batch.
        seed: seed of the contract.
        local_N: positions of the local batches, spread evenly among the joint ones of each epoch.
        local_batches: number of local batches that share these positions; None for batches of ``batch_size``. If it is given, a
            feature party needs no positions in ``local_N``, and so does not learn how many there are.
        before: earlier phases; training starts from their weights, and none of their epochs can be the best.
        embeds_before: the epoch before whose first step the training positions are embedded once, without training.
        cut_rows: returns how many rows of a feature party's cut embedding cross for a joint batch's positions.
        validations: how often the weights are compared in a usual epoch, at even distances, the last time at its end.
        validated: most validation rows that cross together; None for those of a batch.
    """

    train_N: Tensor
    validation_N: Tensor
    batch_size: int
    seed: int
    local_N: Tensor = field(default_factory=no_positions)
    local_batches: int | None = None
    before: tuple[Phase, ...] = ()
    embeds_before: int | None = None
    cut_rows: CutRows = a_row_each
    validations: int = 1
    validated: int | None = None

    @property
    def steps_per_epoch(self) -> int:
        """Count the steps in a usual epoch. The last batch of a kind may be smaller."""
        return self._count(self._usual)

    @property
    def epochs_before(self) -> int:
        """Count the epochs of the earlier phases."""
        return sum(phase.epochs for phase in self.before)

    def steps_before(self, epoch: int) -> int:
        """Count the steps of all epochs before this one."""
        steps = 0
        for phase in self.before:
            steps += min(epoch, phase.epochs) * self._count(phase.parts)
            epoch = max(epoch - phase.epochs, 0)
        return steps + epoch * self.steps_per_epoch

    def crosses(self, epoch: int) -> bool:
        """Tell whether an epoch has joint batches."""
        return len(self._parts(epoch).joint_N) > 0

    def rows(self, epoch: int) -> int:
        """Count the positions that an epoch uses."""
        parts = self._parts(epoch)
        return len(parts.joint_N) + len(self._repeated(parts))

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterable[Batch]:
        """Yield the batches of an epoch in their order, without the first ``skip``."""
        generator = torch.Generator().manual_seed((self.seed << 16) + epoch)
        parts = self._parts(epoch)
        joint = self._shuffled(parts.joint_N, generator)
        local = self._shuffled(self._repeated(parts), generator, batches=parts.local_batches)
        first = self.steps_before(epoch) + 1
        # The batches of both kinds, evenly mixed over the epoch
        placed = [
            ((number + 0.5) / len(part), is_local, index_B)
            for is_local, part in ((False, joint), (True, local))
            for number, index_B in enumerate(part)
        ]
        for number, (_, is_local, index_B) in enumerate(sorted(placed, key=lambda each: each[:2])):
            if number >= skip:
                yield Batch(step=first + number, epoch=epoch, number=number, index_B=index_B.long(), is_local=is_local)

    @property
    def _usual(self) -> EpochPositions:
        return EpochPositions(joint_N=self.train_N, local_N=self.local_N, local_batches=self.local_batches)

    def _parts(self, epoch: int) -> EpochPositions:
        for phase in self.before:
            if epoch < phase.epochs:
                return phase.parts
            epoch -= phase.epochs
        return self._usual

    def _count(self, parts: EpochPositions) -> int:
        local = parts.local_batches if parts.local_batches is not None else self._batches(parts.local_N)
        return self._batches(parts.joint_N) + local

    def _batches(self, part_N: Tensor) -> int:
        return -(-len(part_N) // self.batch_size)

    def _repeated(self, parts: EpochPositions) -> Tensor:
        """Repeat the local positions until each local batch has a row."""
        rows, batches = len(parts.local_N), parts.local_batches or 0
        return parts.local_N.repeat(-(-batches // rows)) if 0 < rows < batches else parts.local_N

    def _shuffled(self, part_N: Tensor, generator: torch.Generator, *, batches: int | None = None) -> Sequence[Tensor]:
        if not len(part_N) and not batches:
            return ()
        # An epoch's order is as long as the table. It is stored in half of the bytes if the positions fit.
        kind = torch.int32 if not len(part_N) or int(part_N.max()) < 2**31 else torch.int64
        place_N = torch.randperm(len(part_N), generator=generator, dtype=kind).to(part_N.device)
        order_N = part_N.to(kind).index_select(0, place_N)
        return torch.split(order_N, self.batch_size) if batches is None else torch.tensor_split(order_N, batches)

    def after(self, first: "Schedule", *, epochs: int) -> "Schedule":
        """Return these batches with epochs and steps counted on after this many epochs of another schedule."""
        assert not first.before, "its phases would have to be repeated, too"
        assert not len(first.local_N), "a schedule of joint batches alone"
        return replace(self, before=(Phase(epochs=epochs, joint_N=first.train_N), *self.before))

    def messages(self, epoch: int, *, size: int, skip: int = 0, last: int | None = None) -> Iterator[tuple[Batch, ...]]:
        """Group the same batches up to the step ``last`` into messages of ``size``, without the first ``skip`` batches."""
        batches = takewhile(lambda batch: last is None or batch.step <= last, self.epoch(epoch, skip=skip))
        while group := tuple(islice(batches, size)):
            yield group

    def validates(self, group: Sequence[Batch]) -> bool:
        """Tell whether the weights are compared after this message, because it passes one of the epoch's places for that."""
        steps, done_steps = self.steps_per_epoch, group[-1].number + 1
        if not len(self.validation_N) or group[-1].epoch < self.epochs_before or done_steps == steps:
            return False
        return done_steps * self.validations // steps > group[0].number * self.validations // steps

    def validation(self) -> Sequence[Tensor]:
        """Return the validation batches."""
        return torch.split(self.validation_N, self.validated or self.batch_size) if len(self.validation_N) else ()

    def embedded(self, epoch: int, *, step: int) -> Sequence[Tensor]:
        """Return the training positions in batches if they are embedded before this epoch, and ``step`` is the last one before
        it.
        """
        if epoch != self.embeds_before or step != self.steps_before(epoch):
            return ()
        return torch.split(self.train_N, self.batch_size)


Committed = Callable[[int], None]
"""Called with a step when this party and its peers are known to have committed it."""


def ignore_commit(step: int) -> None:
    """Ignore a commit. This is a Committed."""


def batches_per_message(training: TrainingConfig) -> int:
    """Return how many batches travel in one message. A small message costs more than its bytes, so a long pipeline sends half of
    its batches at a time.
    """
    return max(1, min(staleness_of(training) // 2, GROUPED_ROWS // training.batch_size))


def most_batches_per_message(training: TrainingConfig) -> int:
    """Bound the batches of a message before ``auto`` is resolved."""
    if training.mode == "auto":
        training = training.model_copy(update={"mode": "pipelined", "staleness": MOST_IN_FLIGHT})
    return batches_per_message(training)


def rows_validated(training: TrainingConfig, *, width: int, max_message_bytes: int) -> int:
    """Count the validation rows of a message for a cut of at most this width: whole tiles that fit into it, at least a batch."""
    fitting = min(SCORED_AT_A_TIME, max_message_bytes // (4 * width))
    return max(training.batch_size, fitting - fitting % TILE)


def commits(group: Sequence[Batch], training: TrainingConfig, *, ends: int, last: int) -> bool:
    """Tell whether all parties commit after this message: it passes a multiple of checkpoint_every and does not end the epoch.

    ``ends`` is the epoch's last step, and ``last`` the last committed step. Nothing crosses between local steps, so no party
    commits there: otherwise one party could run ahead and delete the checkpoints that the others still need.
    """
    step = group[-1].step
    is_multiple = step // training.checkpoint_every > last // training.checkpoint_every
    return is_multiple and any(not batch.is_local for batch in group) and step != ends


def staleness_of(training: TrainingConfig) -> int:
    """Return how many batches a feature party sends ahead of the gradients that it has applied: 0 if synchronous, or not resolved
    yet.
    """
    return training.staleness if training.mode == "pipelined" else 0


SHORT_ROUND_TRIP_S = 0.005
"""With a round trip up to this, training waits little for the network, and stays synchronous and lossless."""
STEP_S = 0.002
"""Seconds of a small step at one party, for expressing a round trip in steps."""
MOST_ROWS_IN_FLIGHT = 8192


def fitting_staleness(round_trip_s: float, *, batch_size: int, batches: int) -> int:
    """Return how many batches in flight fill a line with this round trip: a power of two, or 0 if no pipeline is needed.
    Half of them travel while the other half is processed. It is at most a quarter of an epoch's ``batches``.
    """
    if round_trip_s < SHORT_ROUND_TRIP_S:
        return 0
    most = min(MOST_IN_FLIGHT, MOST_ROWS_IN_FLIGHT // batch_size, batches // 4)
    return max(2, min(1 << math.ceil(math.log2(2 + 2 * round_trip_s / STEP_S)), most))
