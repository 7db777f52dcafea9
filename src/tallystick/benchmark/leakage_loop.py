"""A split network in one process, epoch by epoch, with what the feature party saw: the ground of every leakage experiment.

Shapes: B rows of a batch, D cut width, N training rows, T test rows.

Nothing but cut embeddings and cut gradients passes between the sides. Defences sit where they sit in a job: labels once, a
penalty in the loss, then the gradient just before it is sent.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tallystick.attacks.view import StepView
from tallystick.data.features import Features
from tallystick.defenses.build import NO_DEFENSE, Defenses
from tallystick.errors import ConfigError
from tallystick.evaluation.metrics import auc_statistic
from tallystick.models.split import LabelModel

PASS = 8192  # rows of a pass that trains nothing
KEPT_ROWS = 2**19  # of an epoch's steps, evenly spread: all of a sample's, and a bound on memory for a full file


@dataclass(frozen=True, kw_only=True)
class SplitData:
    """Both parties' encoded rows in one order; the label party's own columns if it has any."""

    training: Features
    training_labels_N: Tensor  # float32, 0 or 1
    test: Features
    test_labels_T: Tensor
    own_training: Features | None = None
    own_test: Features | None = None


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and in what steps to train: passes, at least 1; rows per step, at least 2; Adam's step size, above 0."""

    epochs: int = 3
    batch_size: int = 512
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not self.learning_rate > 0:
            raise ConfigError(
                f"schedule: epochs={self.epochs}, batch_size={self.batch_size}, learning_rate={self.learning_rate}; "
                "expected at least 1, at least 2 and above 0"
            )


def evenly(count: int, most: int) -> list[int]:
    """Give at most ``most`` of ``count`` indices, at least one, evenly spread."""
    return sorted({round(index) for index in np.linspace(0, count - 1, min(count, max(1, most)))})


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch left behind: the feature party's view of evenly spread steps, and the network's worth after it."""

    number: int
    steps: tuple[StepView, ...]
    undefended: tuple[Tensor, ...]  # per step (B, D), the cut gradients before any noise: for attackers who are granted some
    loss: float
    test_auc: float


class SplitNetwork:
    """Both sides' models and optimisers."""

    def __init__(self, bottom: nn.Module, label: LabelModel, data: SplitData, schedule: Schedule, *, seed: int) -> None:
        self.bottom, self.label, self.data, self.schedule, self.seed = bottom, label, data, schedule, seed
        self._bottom_optimizer = torch.optim.Adam(bottom.parameters(), lr=schedule.learning_rate)
        self._label_optimizer = torch.optim.Adam(label.parameters(), lr=schedule.learning_rate)

    def epochs(self, defenses: Defenses = NO_DEFENSE) -> Iterator[Epoch]:
        """Train, and stop after each epoch to hand out what the feature party saw in it."""
        generator = torch.Generator().manual_seed(self.seed)
        # an experiment repeats; a job draws from the operating system
        random_bytes = np.random.default_rng([self.seed, 2]).bytes
        labels_N = defenses.defend_labels(self.data.training_labels_N, classes=2, random_bytes=random_bytes)
        for number in range(self.schedule.epochs):
            self._train(True)
            order_N = torch.randperm(len(labels_N), generator=generator)
            batches = [
                rows_B for rows_B in torch.split(order_N, self.schedule.batch_size) if len(rows_B) > 1
            ]  # one has no variance
            kept = evenly(len(batches), KEPT_ROWS // self.schedule.batch_size)
            steps, undefended, losses = [], [], []
            for index, rows_B in enumerate(batches):
                epoch = number + index / len(batches)
                step, before_BD, loss = self._step(epoch, rows_B, labels_N[rows_B], defenses, generator)
                losses.append(loss)
                if index in kept:
                    steps.append(step)
                    undefended.append(before_BD)
            yield Epoch(
                number=number,
                steps=tuple(steps),
                undefended=tuple(undefended),
                loss=float(np.mean(losses)),
                test_auc=self.test_auc(),
            )

    def _step(
        self, epoch: float, rows_B: Tensor, labels_B: Tensor, defenses: Defenses, generator: torch.Generator
    ) -> tuple[StepView, Tensor, float]:
        embedded_BD = self.bottom(self.data.training.rows(rows_B))  # feature party
        sent_BD = embedded_BD.detach()

        cut_BD = sent_BD.clone().requires_grad_()  # label party
        own = self.data.own_training
        logits_B = self.label([cut_BD], own.rows(rows_B) if own is not None else None)
        loss = binary_cross_entropy_with_logits(logits_B, labels_B)
        penalty = defenses.penalty(cut_BD, labels_B, epoch=epoch)
        self._label_optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        self._label_optimizer.step()
        assert cut_BD.grad is not None
        grad_BD = defenses.defend_gradients(cut_BD.grad, labels_B, generator)

        self._bottom_optimizer.zero_grad()  # feature party
        embedded_BD.backward(grad_BD)
        self._bottom_optimizer.step()
        everyone_B = torch.ones(len(rows_B), dtype=torch.bool)
        view = StepView(epoch=int(epoch), rows_B=rows_B, own_B=everyone_B, received_BD=grad_BD, sent_BD=sent_BD)
        return view, cut_BD.grad, loss.item()

    @torch.no_grad()
    def test_auc(self) -> float:
        """AUC on the test rows."""
        self._train(False)
        data, logits = self.data, []
        for rows_B in torch.split(torch.arange(len(data.test)), PASS):
            own = data.own_test.rows(rows_B) if data.own_test is not None else None
            logits.append(self.label([self.bottom(data.test.rows(rows_B))], own))
        labels_T = data.test_labels_T.numpy()
        return auc_statistic(labels_T, torch.cat(logits).double().numpy())(np.ones(len(labels_T)))

    @torch.no_grad()
    def embed(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Pass over the training rows without training: rows and their cut embeddings, 8,192 at a time."""
        self._train(False)
        for rows_B in torch.split(torch.arange(len(self.data.training)), PASS):
            yield rows_B, self.bottom(self.data.training.rows(rows_B))

    def _train(self, mode: bool) -> None:
        self.bottom.train(mode)
        self.label.train(mode)
