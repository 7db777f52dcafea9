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
from tallystick.benchmark.criteo import ClickData
from tallystick.data.features import Features
from tallystick.defenses.build import NO_DEFENSE, Defenses
from tallystick.errors import ConfigError
from tallystick.evaluation.metrics import auc_statistic
from tallystick.models.build import seeded
from tallystick.models.tabular import TabularBottom, TabularTop

PASS = 8192  # rows of a pass that trains nothing


@dataclass(frozen=True, kw_only=True)
class Network:
    """The paper's network (section 6.1): ``below`` layers at the feature party, ``above`` and a linear output at the label party.

    Args:
        below: layers f of the feature party, at least 1.
        above: layers of the label party. The paper's "3 layers" are two hidden layers and the output: ``above`` = 2.
        width: of every layer, and of the cut.
        embedding_width: of every categorical column.
        normalised: the top model begins with batch normalisation: it scales up what a small-variance direction carries.
    """

    below: int = 5
    above: int = 2
    width: int = 128
    embedding_width: int = 4
    normalised: bool = False

    def __post_init__(self) -> None:
        if self.below < 1 or self.above < 0 or self.width < 1:
            raise ConfigError(f"network: below={self.below}, above={self.above}, width={self.width}; need 1, 0 and 1 at least")


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """How long and in what steps to train."""

    epochs: int = 3
    batch_size: int = 512
    learning_rate: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """What an epoch left behind: the feature party's view of it, and the network's worth after it."""

    number: int
    steps: tuple[StepView, ...]
    undefended: tuple[Tensor, ...]  # per step (B, D), the cut gradients before any noise: for attackers who are granted some
    loss: float
    test_auc: float


class SplitNetwork:
    """Both sides' models and optimisers, and the label party's defences."""

    def __init__(self, data: ClickData, network: Network, schedule: Schedule, *, seed: int) -> None:
        self.data, self.schedule, self.seed = data, schedule, seed
        hidden = (network.width,) * network.below
        with seeded(seed, "label leakage"):
            self.bottom = TabularBottom(data.shape, embedding_width=network.embedding_width, hidden=hidden)
            top = TabularTop(network.width, hidden=(network.width,) * network.above, outputs=1)
        normalised = [nn.BatchNorm1d(network.width)] if network.normalised else []
        self.top = nn.Sequential(*normalised, *top.layers, top.output)
        self._bottom_optimizer = torch.optim.Adam(self.bottom.parameters(), lr=schedule.learning_rate)
        self._top_optimizer = torch.optim.Adam(self.top.parameters(), lr=schedule.learning_rate)

    def epochs(self, defenses: Defenses = NO_DEFENSE) -> Iterator[Epoch]:
        """Train, and stop after each epoch to hand out what the feature party saw in it."""
        generator = torch.Generator().manual_seed(self.seed)
        # an experiment repeats; a job draws from the operating system
        random_bytes = np.random.default_rng([self.seed, 2]).bytes
        labels_N = defenses.defend_labels(self.data.training_labels_N, classes=2, random_bytes=random_bytes)
        for number in range(self.schedule.epochs):
            self._train(True)
            batches = torch.split(torch.randperm(len(labels_N), generator=generator), self.schedule.batch_size)
            done = [
                self._step(number + index / len(batches), rows_B, labels_N[rows_B], defenses, generator)
                for index, rows_B in enumerate(batches)
            ]
            steps, undefended, losses = zip(*done, strict=True)
            yield Epoch(number=number, steps=steps, undefended=undefended, loss=float(np.mean(losses)), test_auc=self.test_auc())

    def _step(
        self, epoch: float, rows_B: Tensor, labels_B: Tensor, defenses: Defenses, generator: torch.Generator
    ) -> tuple[StepView, Tensor, float]:
        embedded_BD = self.bottom(self.data.training.rows(rows_B))  # feature party
        sent_BD = embedded_BD.detach()

        cut_BD = sent_BD.clone().requires_grad_()  # label party
        loss = binary_cross_entropy_with_logits(self.top(cut_BD).squeeze(1), labels_B)
        penalty = defenses.penalty(cut_BD, labels_B, epoch=epoch)
        self._top_optimizer.zero_grad()
        (loss if penalty is None else loss + penalty).backward()  # type: ignore[no-untyped-call]
        self._top_optimizer.step()
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
        logits_T = torch.cat([self.top(self.bottom(part)).squeeze(1) for part in _parts(self.data.test)])
        labels_T = self.data.test_labels_T.numpy()
        return auc_statistic(labels_T, logits_T.double().numpy())(np.ones(len(labels_T)))

    @torch.no_grad()
    def layers(self) -> Iterator[tuple[Tensor, list[Tensor]]]:
        """Pass over the training rows without training: labels, and each layer's output, the logit last, per 8,192 rows."""
        self._train(False)
        for part, labels_B in zip(_parts(self.data.training), torch.split(self.data.training_labels_N, PASS), strict=True):
            outputs = _outputs(self.bottom.layers, self.bottom.columns(part))
            yield labels_B, outputs + _outputs(self.top, outputs[-1])

    def _train(self, mode: bool) -> None:
        self.bottom.train(mode)
        self.top.train(mode)


def _parts(features: Features) -> Iterator[Features]:
    for rows_B in torch.split(torch.arange(len(features)), PASS):
        yield features.rows(rows_B)


def _outputs(modules: nn.Sequential, x_BD: Tensor) -> list[Tensor]:
    """Give what each layer puts out: after its ReLU, or the logit."""
    found = []
    for module in modules:
        x_BD = module(x_BD)
        if isinstance(module, nn.ReLU) or module is modules[-1]:
            found.append(x_BD)
    return found
