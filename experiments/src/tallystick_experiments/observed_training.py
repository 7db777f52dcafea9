"""Train a defended split network once, epoch by epoch, and give the feature party's view, for experiments on label leakage.

Shapes: B rows of a batch, D cut width, N training rows, T test rows.

The steps, the batches and the defences are those of a job (training/single_process.py, training/label_defense.py). Random values
that a job draws from the operating system come from seeds.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.evaluate import evaluate_label_inference
from tallystick.attacks.row_sums import RowSums
from tallystick.attacks.scoring import AttackEvaluator
from tallystick.attacks.view import StepView, View
from tallystick.config.sections import TrainingConfig
from tallystick.cut.forward import FeatureSource
from tallystick.defenses.chain import NO_DEFENSE, Defenses
from tallystick.errors import ConfigError
from tallystick.metrics import auc_statistic
from tallystick.models.folds import networks_in
from tallystick.models.split import LabelModel
from tallystick.tables.features import PackedFeatures
from tallystick.training.label_defense import CutDefense
from tallystick.training.objective import Supervised
from tallystick.training.plan import Schedule
from tallystick.training.single_process import CrossedStep, SplitNetwork
from tallystick_experiments.catalogue.table import SplitData
from tallystick_experiments.stats import evenly

PLAIN_ADAM: dict[str, Any] = {"optimizer": "adam", "schedule": "constant", "ema": None}
"""Training as in the papers: Adam at one rate, and the weights of the last step."""
PLAIN_EVALUATOR = AttackEvaluator(replicates=1)
PASS = 8192  # rows of a pass without training
KEPT_ROWS = 2**18  # limit of an epoch's kept rows, evenly spread: more than a sample has, and a bound on memory for a full file


@dataclass(frozen=True, kw_only=True)
class TrainingPlan:
    """Set the length and the steps of a training: passes, at least 1, rows per step, at least 2, and Adam's step
    size, above 0.
    """

    epochs: int = 3
    batch_size: int = 512
    learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or not self.learning_rate > 0:
            raise ConfigError(
                f"plan: epochs={self.epochs}, batch_size={self.batch_size}, learning_rate={self.learning_rate}; "
                "expected at least 1, at least 2 and above 0"
            )


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """Hold the outcome of an epoch: the feature party's view of evenly spread steps, and the network's test AUC after it."""

    number: int
    steps: tuple[StepView, ...]
    undefended: tuple[Tensor, ...]  # per step (B, D), the cut gradients before any noise: for attackers who get some
    loss: float
    test_auc: float


def view_of_step(step: CrossedStep, *, epoch: int) -> StepView:
    """Return the feature party's view of a step. It has every row."""
    ((embedding_BD,), (gradient_BD,)), rows_B = (step.embeddings_BD, step.answer.grads_BD), step.batch.index_B
    own_B = torch.ones(len(rows_B), dtype=torch.bool)
    return StepView(epoch=epoch, rows_B=rows_B, own_B=own_B, received_BD=gradient_BD, sent_BD=embedding_BD)


def summed_epoch(network: SplitNetwork, epoch: int, *sums: RowSums) -> Iterator[CrossedStep]:
    """Train an epoch, step by step, and add everything that crosses to all sums."""
    for step in network.epoch(epoch):
        ((embedding_BD,), (gradient_BD,)) = step.embeddings_BD, step.answer.grads_BD
        for each in sums:
            each.add(step.batch.index_B, embedding_BD, gradient_BD)
        yield step
    for each in sums:
        each.epoch_ended(epoch)


def attack_figures(
    steps: Sequence[StepView], labels_N: Tensor, names: Sequence[str], *, seed: int, **granted: Any
) -> dict[str, dict[str, Any]]:
    """Attack the labels with the feature party's view. ``granted`` has further arguments of LabelInferenceEvaluation.

    Return each attack's figures without intervals, because those come from seeds here.
    """
    view = View(received="cut_gradient", steps=tuple(steps), own_model=granted.pop("own_model", None))
    attacks = {name: LABEL_INFERENCE_ATTACKS[name] for name in names}
    metrics_by_name = evaluate_label_inference(view, labels_N, attacks=attacks, evaluator=PLAIN_EVALUATOR, seed=seed, **granted)
    return {name: metrics.as_figures() for name, metrics in metrics_by_name.items()}


class ObservedTraining:
    """Train both sides' models on one data set."""

    def __init__(self, bottom: nn.Module, label: LabelModel, data: SplitData, plan: TrainingPlan, *, seed: int) -> None:
        self.bottom, self.label, self.data, self.plan, self.seed = bottom, label, data, plan, seed

    def epochs(self, defenses: Defenses = NO_DEFENSE) -> Iterator[Epoch]:
        """Train, and yield the feature party's view after each epoch."""
        network = self.network(defenses)
        count = network.schedule.steps_per_epoch
        chosen_steps = set(evenly(count, KEPT_ROWS // self.plan.batch_size))
        for number in range(self.plan.epochs):
            steps, undefended, losses = [], [], []
            for index, step in enumerate(network.epoch(number)):
                losses.append(float(step.answer.loss))
                if index in chosen_steps:
                    steps.append(view_of_step(step, epoch=number))
                    undefended += step.answer.undefended_BD
            yield Epoch(
                number=number,
                steps=tuple(steps),
                undefended=tuple(undefended),
                loss=float(np.mean(losses)),
                test_auc=self.test_auc(),
            )

    def network(self, defenses: Defenses) -> SplitNetwork:
        """Build the product's training with these defences. Labels are replaced and noise is drawn by the seed."""
        random = np.random.default_rng([self.seed, 2])
        labels_N = defenses.defend_labels(self.data.training_labels_N, classes=2, random_bytes=random.bytes)
        # Take all training rows, except one that would be alone in the last batch: one row has no variance to normalise by
        rows = len(self.data.training)
        train_N = torch.arange(rows - 1 if rows > 1 and rows % self.plan.batch_size == 1 else rows)
        schedule = Schedule(
            train_N=train_N, validation_N=torch.empty(0, dtype=torch.int64), batch_size=self.plan.batch_size, seed=self.seed
        )
        return SplitNetwork(
            bottoms=[self.bottom],
            sources=[self.data.training.rows],
            model=self.label,
            own=self.data.own_training,
            objective=Supervised("binary", labels_N),
            training=TrainingConfig(
                epochs=self.plan.epochs,
                batch_size=self.plan.batch_size,
                learning_rate=self.plan.learning_rate,
                patience=None,
                **PLAIN_ADAM,
            ),
            schedule=schedule,
            defense=CutDefense.of(defenses, secret=random.bytes(32), steps_per_epoch=schedule.steps_per_epoch),
        )

    def test_auc(self) -> float:
        """Compute the AUC on the test rows."""
        return self._auc(self.data.test, self.data.own_test, self.data.test_labels_T)

    def training_auc(self) -> float:
        """Compute the AUC on the training rows."""
        return self._auc(self.data.training, self.data.own_training, self.data.training_labels_N)

    @torch.no_grad()
    def _auc(self, rows: PackedFeatures, own: FeatureSource, labels_N: Tensor) -> float:
        self._train(False)
        passes = torch.split(torch.arange(len(rows)), PASS)
        logits = [self.label([self.bottom(rows.rows(rows_B))], own(rows_B)) for rows_B in passes]
        return auc_statistic(labels_N.numpy(), torch.cat(logits).double().numpy())(np.ones(len(labels_N)))

    @torch.no_grad()
    def embed(self, *, most: int | None = None, test: bool = False) -> Iterator[tuple[Tensor, Tensor]]:
        """Pass over the training rows, or the test rows, without training. Yield rows and their cut embeddings, 8,192 at a time.

        ``most`` limits the pass to that many rows, at least 8,192, evenly spread, for attacks that need them all at once.
        """
        self._train(False)
        embedded = self.data.test if test else self.data.training
        passes = torch.split(torch.arange(len(embedded)), PASS)
        for index in evenly(len(passes), len(passes) if most is None else most // PASS):
            yield passes[index], self.bottom(embedded.rows(passes[index]))

    def _train(self, mode: bool) -> None:
        self.bottom.train(mode)
        self.label.train(mode)


def best_logits(network: SplitNetwork, test_T: Tensor, *, rows: int) -> tuple[Tensor, int, int]:
    """Train with the contract's patience, and return the test logits of the weights that validate best, as a run would keep them.

    For networks side by side, each network has its own best weights, and the logits are their mean.

    Also return the number of epochs, and the step after which weights were last kept. ``rows`` is the size of a pass without
    training.
    """
    training, schedule, networks = network.training, network.schedule, networks_in(network.model)
    lowest, of_each, epochs, best_epoch, best_step = math.inf, [math.inf] * networks, 0, 0, 0
    best_of_network: dict[int, Tensor] = {}
    while epochs < training.epochs and (training.patience is None or epochs - best_epoch < training.patience):
        epochs += 1
        for crossed in network.epoch(epochs - 1):
            step = crossed.batch.step
            if step != schedule.steps_before(epochs) and not schedule.validates([crossed.batch]):
                continue
            losses = network.validation_losses(rows)
            if losses.common < lowest:
                lowest, best_epoch = losses.common, epochs
            if improved := [number for number in range(networks) if losses.each[number] < of_each[number]]:
                with network.model.apart():
                    logits = network.logits(torch.split(test_T, rows))
                best_of_network |= {number: logits[:, number] if networks > 1 else logits for number in improved}
                of_each, best_step = list(map(min, losses.each, of_each)), step
            network.train(True)
    assert len(best_of_network) == networks, "some validation loss is finite"
    return torch.stack([best_of_network[number] for number in range(networks)], dim=1).mean(dim=1), epochs, best_step
