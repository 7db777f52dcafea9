"""What every party of a training run knows: the plan, and the batches of each epoch. Shapes: N rows, B batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import Tensor, nn

from tallystick.config.contract import Training

GROUPED_ROWS = 4096
"""Most rows of a message that holds several batches."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step of the schedule: its number, counted from 1 over the whole run, and the aligned positions it takes."""

    step: int
    index_B: Tensor


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """The batches that all parties go through together, drawn from the contract's seed.

    Positions are aligned positions, the same for every party; which own row stands there is each party's matter.
    """

    train_N: Tensor
    validation_N: Tensor
    batch_size: int
    seed: int

    @property
    def steps_per_epoch(self) -> int:
        """Steps in an epoch; the last batch may be smaller."""
        return -(-len(self.train_N) // self.batch_size)

    def epoch(self, epoch: int, *, skip: int = 0) -> Iterable[Batch]:
        """The batches of an epoch in their order, without the first ``skip``."""
        generator = torch.Generator().manual_seed((self.seed << 16) + epoch)
        order_N = self.train_N[torch.randperm(len(self.train_N), generator=generator).to(self.train_N.device)]
        for number, index_B in enumerate(torch.split(order_N, self.batch_size)):
            if number >= skip:
                yield Batch(step=epoch * self.steps_per_epoch + number + 1, index_B=index_B)

    def messages(self, epoch: int, *, size: int, skip: int = 0) -> Iterator[tuple[Batch, ...]]:
        """The same batches, ``size`` of them to a message; skip whole messages."""
        batches = iter(self.epoch(epoch, skip=skip))
        while group := tuple(islice(batches, size)):
            yield group

    def validation(self) -> Sequence[Tensor]:
        """The validation batches."""
        return torch.split(self.validation_N, self.batch_size) if len(self.validation_N) else ()


def optimizer_of(training: Training, module: nn.Module) -> torch.optim.Optimizer | None:
    """A party's optimizer over its own parameters; None for a module that has none."""
    parameters = list(module.parameters())
    if not parameters:
        return None
    kind = {"adam": torch.optim.Adam, "sgd": torch.optim.SGD}[training.optimizer]
    optimizer: torch.optim.Optimizer = kind(parameters, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True)
    return optimizer


def load_optimizers() -> None:
    """Have PyTorch import what it puts off until the first optimizer: a second or more, in which a peer would hear nothing."""
    torch.optim.Adam([torch.zeros(1, requires_grad=True)])


Committed = Callable[[int], None]
"""Called with a step once it is known that this party and its peers have committed it."""


def ignore_commit(step: int) -> None:
    """A Committed that goes nowhere."""


def batches_per_message(training: Training) -> int:
    """Batches that travel together: a small message costs more than its bytes, so a long pipeline sends half of it at a time."""
    return max(1, min(staleness_of(training) // 2, GROUPED_ROWS // training.batch_size))


def commits(group: Sequence[Batch], training: Training, schedule: Schedule) -> bool:
    """Whether all parties commit after this message: it passes a multiple of checkpoint_every and does not end the epoch."""
    first, last = group[0].step, group[-1].step
    passed = last // training.checkpoint_every > (first - 1) // training.checkpoint_every
    return passed and last % schedule.steps_per_epoch != 0


def staleness_of(training: Training) -> int:
    """Batches that a feature party sends ahead of the gradients it has applied: 0 when synchronous."""
    return training.staleness if training.mode == "pipelined" else 0
