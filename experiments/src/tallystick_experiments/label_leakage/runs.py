"""Make one training run of the label-leakage benchmark with a network, a plan and defences, and measure its AUC and its leaks.

Shapes: B rows of a batch, D cut width, N training rows.
"""

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from tallystick.attacks.label_inference.attack_table import LABEL_INFERENCE_ATTACKS
from tallystick.attacks.label_inference.spectral import spectral_scores
from tallystick.attacks.scoring import symmetric_auc
from tallystick.attacks.view import StepView
from tallystick.defenses.chain import chain
from tallystick.defenses.defense import Defense
from tallystick.errors import ConfigError
from tallystick.models.build import seeded
from tallystick.models.split import LabelModel
from tallystick.models.tabular import TabularBottom, TabularTop
from tallystick.tables.features import Features
from tallystick_experiments.catalogue.table import SplitData, TwoPartyTable
from tallystick_experiments.observed_training import Epoch, ObservedTraining, TrainingPlan, attack_figures
from tallystick_experiments.stats import evenly

EACH_EPOCH = ("norm", "direction-1", "direction-3", "direction-5", "spectral-gradient", "spectral-embedding")
OVER_EPOCHS = (
    "norm-averaged",
    "direction-averaged",
    "spectral-averaged",
    "clusters-averaged",
    "completion-gradient",
    "probe-gradient",
)  # noise averages out
FINE_TUNED = "completion-fine-tuned"
CLEAN_HINT = "direction-1-clean"
COMPONENTS = 8
COMPONENT_ROWS = 2**17
ATTACKED_STEPS = 64  # attacked steps of an epoch, evenly spread: enough rows for the third decimal
ATTACKED_EPOCHS = 4  # attacked epochs of a training, evenly spread, including the last one


@dataclass(frozen=True, kw_only=True)
class PaperNetwork:
    """Define the paper's network (section 6.1): ``below`` layers at the feature party, ``above`` and a linear output at the
    other.

    Args:
        below: layers f of the feature party, at least 1.
        above: layers of the label party. The paper's "3 layers" are two hidden layers and the output: ``above`` = 2.
        width: the width of every layer, and of the cut.
        embedding_width: the width of every categorical column's embedding.
        normalised: whether the label party begins with batch normalisation, which scales up directions of small variance.
    """

    below: int = 5
    above: int = 2
    width: int = 128
    embedding_width: int = 4
    normalised: bool = False

    def __post_init__(self) -> None:
        if self.below < 1 or self.above < 0 or self.width < 1:
            raise ConfigError(f"network: below={self.below}, above={self.above}, width={self.width}; need 1, 0 and 1 at least")

    def build(self, clicks: SplitData, plan: TrainingPlan, *, seed: int) -> ObservedTraining:
        """Initialise both sides. The label party has no columns."""
        with seeded(seed, "label leakage"):
            bottom = TabularBottom(clicks.shape, embedding_width=self.embedding_width, hidden=(self.width,) * self.below)
            top = TabularTop(self.width, hidden=(self.width,) * self.above, outputs=1)
        normalised = [nn.BatchNorm1d(self.width)] if self.normalised else []
        label = LabelModel(nn.Sequential(*normalised, *top.layers, top.output))
        return ObservedTraining(bottom, label, clicks, plan, seed=seed)


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Define one row of a table or one point of a figure."""

    name: str
    defense: tuple[Defense, ...] = ()
    network: PaperNetwork = field(default_factory=PaperNetwork)
    plan: TrainingPlan | None = None  # None: the sweep's
    positive_rate: float | None = None  # None: as it is; else negatives are dropped at random to reach it
    by_layer: bool = False  # whether to run the spectral attack on every layer's output
    every_attack: bool = False  # after the last epoch; else only the fast ones
    by_rows: bool = False  # whether to compute AUC and spectral attack on training rows as well as on test rows


def run_scenario(scenario: Scenario, clicks: SplitData, *, plan: TrainingPlan, seed: int) -> dict[str, Any]:
    """Train once, and measure the feature party's attacks on its view of each epoch.

    Returns:
        seconds; per epoch test_auc and loss, and for up to four epochs leak AUC by fast attack; for the last epoch all figures of
        every attack; and, if wanted, the AUC of the spectral attack on every layer's output, of the cut's principal components,
        and on training rows next to test rows. Leak AUCs are max(a, 1 - a) per batch, see ``AttackMetrics.symmetric_auc``.
    """
    started = time.perf_counter()
    plan = scenario.plan or plan
    network = scenario.network.build(clicks, plan, seed=seed)
    labels_N = clicks.training_labels_N.long()
    epochs, figures = [], {}
    gradients: list[StepView] = []
    attacked = set(evenly(plan.epochs, ATTACKED_EPOCHS))
    for epoch in network.epochs(chain(scenario.defense)):
        leaks: dict[str, float] = {}
        if epoch.number in attacked:
            last = epoch.number == plan.epochs - 1
            figures = _leaks(epoch, labels_N, every=last and scenario.every_attack, seed=seed)
            leaks = {name: figures[name]["symmetric_auc"] for name in (*EACH_EPOCH, CLEAN_HINT)}
        epochs.append({"test_auc": epoch.test_auc, "loss": epoch.loss, "leaks": leaks})
        if scenario.every_attack:
            gradients += [replace(step, sent_BD=None) for step in epoch.steps]
    if gradients:
        figures |= attack_figures(gradients, labels_N, OVER_EPOCHS, seed=seed)
        own = EmbedsRows(network.bottom, network.data.training.rows)
        figures |= attack_figures(gradients, labels_N, (FINE_TUNED,), seed=seed, own_model=own)
    return {
        "epochs": epochs,
        "attacks": figures,
        "layers": layer_aucs(network) if scenario.by_layer else [],
        "components": component_aucs(network) if scenario.every_attack else [],
        **({"by_rows": row_aucs(network)} if scenario.by_rows else {}),
        "seconds": time.perf_counter() - started,
    }


def _leaks(epoch: Epoch, labels_N: Tensor, *, every: bool, seed: int) -> dict[str, dict[str, Any]]:
    """Attack evenly spread steps of an epoch with the fast attacks, or with every attack that does not need several epochs."""
    step_places = evenly(len(epoch.steps), ATTACKED_STEPS)
    steps = [epoch.steps[index] for index in step_places]
    rows = LABEL_INFERENCE_ATTACKS.items()
    alone = [
        name
        for name, row in rows
        if row.binary and not (row.from_start or row.from_flip or row.with_model or row.of_several) and name not in OVER_EPOCHS
    ]
    names = alone if every else EACH_EPOCH
    # Marvell's own evaluation gives its attacker the known rows' gradients before any noise
    clean = attack_figures(steps, labels_N, ("direction-1",), seed=seed, clean=[epoch.undefended[index] for index in step_places])
    return attack_figures(steps, labels_N, names, seed=seed) | {CLEAN_HINT: clean["direction-1"]}


class EmbedsRows(nn.Module):
    """Compute cut embeddings of row numbers with a feature party's own model and columns."""

    def __init__(self, bottom: nn.Module, rows: Callable[[Tensor], Features]) -> None:
        super().__init__()
        self.bottom, self.rows = bottom, rows

    def forward(self, rows_B: Tensor) -> Tensor:
        """Compute the cut embeddings (B, D) of these rows."""
        cut_BD: Tensor = self.bottom(self.rows(rows_B))
        return cut_BD

    def __deepcopy__(self, memo: dict[int, Any]) -> "EmbedsRows":
        """Return the same columns with a copy of the model."""
        return EmbedsRows(copy.deepcopy(self.bottom, memo), self.rows)


def row_aucs(network: ObservedTraining) -> dict[str, dict[str, float]]:
    """Compute the network's AUC and the spectral attack's, for training rows and for test rows.

    The attack is the sweep's, on the rows' cut embeddings: max(a, 1 - a) per batch of the training's size, with the rows in their
    random order and the last partial batch left out.
    """
    data, size = network.data, min(network.plan.batch_size, len(network.data.test))

    def leak(labels_N: Tensor, *, test: bool) -> float:
        cut_ND = torch.cat([cut_BD for _, cut_BD in network.embed(test=test)])
        batches = zip(torch.split(labels_N, size), torch.split(cut_ND, size), strict=True)
        aucs = [symmetric_auc(labels_B > 0.5, spectral_scores(cut_BD)) for labels_B, cut_BD in batches if len(cut_BD) == size]
        return float(np.mean(aucs))

    return {
        "training": {"auc": network.training_auc(), "leak": leak(data.training_labels_N, test=False)},
        "test": {"auc": network.test_auc(), "leak": leak(data.test_labels_T, test=True)},
    }


def layer_aucs(network: ObservedTraining) -> list[float]:
    """Compute the AUC of the spectral attack on each layer's output, first layer first and the logit last.

    Means are over 8,192 rows each.

    The layers above the cut belong to the label party. Their AUC is not a leak, but shows where the label is learned.
    """
    by_pass = [
        [symmetric_auc(network.data.training_labels_N[rows_B] > 0.5, spectral_scores(output_BD)) for output_BD in outputs]
        for rows_B, outputs in layer_outputs(network)
    ]
    return [float(auc) for auc in np.mean(by_pass, axis=0)]


def component_aucs(network: ObservedTraining) -> list[float]:
    """Compute the AUC of each of the cut embeddings' first principal components, over 131,072 training rows.

    The spectral attack reads the first component. A network that keeps the label out of it can still carry it in the next one.
    """
    rows_N, cut_ND = (torch.cat(parts) for parts in zip(*network.embed(most=COMPONENT_ROWS), strict=True))
    centred_ND = cut_ND.double() - cut_ND.double().mean(dim=0)
    directions_DD = torch.linalg.eigh(centred_ND.T @ centred_ND).eigenvectors.flip(1)
    positive_N = network.data.training_labels_N[rows_N] > 0.5
    return [symmetric_auc(positive_N, centred_ND @ direction_D) for direction_D in directions_DD[:, :COMPONENTS].T]


@torch.no_grad()
def layer_outputs(network: ObservedTraining) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Pass over the training rows without training. Yield rows and each layer's output, after its ReLU, with the logit last."""
    bottom, top = network.bottom, network.label.top
    assert isinstance(bottom, TabularBottom)
    assert isinstance(top, nn.Sequential)
    for rows_B, _ in network.embed():  # this also switches training off
        outputs = _after_each_layer(bottom.layers, bottom.columns(network.data.training.rows(rows_B)))
        yield rows_B, outputs + _after_each_layer(top, outputs[-1])


def _after_each_layer(modules: nn.Sequential, x_BD: Tensor) -> list[Tensor]:
    layers = []
    for module in modules:
        x_BD = module(x_BD)
        if isinstance(module, nn.ReLU) or module is modules[-1]:
            layers.append(x_BD)
    return layers


def balanced(table: TwoPartyTable, positive_rate: float, *, seed: int) -> TwoPartyTable:
    """Drop negatives at random until positives make up ``positive_rate`` of the rows (appendix G).

    Raises ConfigError if the table's own rate is already higher.
    """
    labels = table.frame.get_column(table.label)
    positives = int(labels.sum())
    negatives_due = round(positives * (1 - positive_rate) / positive_rate)
    if not 0 < negatives_due <= len(labels) - positives:
        raise ConfigError(
            f"positive rate {positive_rate:g}: the table has {positives} positives among {len(labels)} rows; choose a rate of at "
            f"least {positives / max(1, len(labels)):.3f} and below 1"
        )
    negatives = np.flatnonzero(labels.to_numpy() == 0)
    negatives_drawn = np.random.default_rng([seed, 6]).choice(negatives, size=negatives_due, replace=False)
    rows = np.sort(np.concatenate([np.flatnonzero(labels.to_numpy() == 1), negatives_drawn]))
    return replace(table, frame=table.frame[pl.Series(rows)])
