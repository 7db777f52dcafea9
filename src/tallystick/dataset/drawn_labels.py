"""Draw the imputed labels before training, from the predictions of a model of the first embeddings.

Shapes: N training positions, B batch, D cut width, R rows with a real label.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tallystick.cut.forward import FeatureSource
from tallystick.dataset.imputed import ImputingObjective
from tallystick.models.split import LabelModel
from tallystick.training.objective import Objective, mean_cross_entropy
from tallystick.training.optimizers import Adam
from tallystick.training.step_rule import StepRule

EPOCHS, LEAST_STEPS, BATCH, RATE = 5, 300, 256, 2e-3
"""Settings of its own training, independent of the contract: a search's trials draw the same labels from the same embeddings."""


@dataclass(frozen=True, kw_only=True)
class SettlingRule(StepRule):
    """The plain rule, which first draws the labels that this side lacks.

    Threat model: an honest-but-curious feature party. Nothing that depends on a label is sent while the model is trained. So a
    feature party only sees the effect of an imputed label that never changes. No formal guarantee.

    Args:
        objective: objective of the run.
        seed: seed of the order of its batches.
        keep: called with the drawn labels, for a resumed run.
    """

    objective: ImputingObjective
    seed: int
    keep: Callable[[Tensor], None] = lambda settled_U: None  # noqa: ARG005

    def fit(self, model: LabelModel, objective: Objective, own: FeatureSource, index_N: Tensor, cuts_ND: Tensor) -> None:  # noqa: ARG002
        """Train a copy of the model, which has not learnt anything yet, and draw the absent labels with it."""
        model = copy.deepcopy(model)
        target_N = self.objective.real_labels(index_N)
        (real_R,) = torch.nonzero(target_N >= 0, as_tuple=True)
        generator = torch.Generator().manual_seed(self.seed)
        optimizer = Adam({1.0: [*model.parameters()]})
        steps = max(1, -(-len(real_R) // BATCH))  # steps per epoch
        epochs = max(EPOCHS, -(-LEAST_STEPS // steps))
        model.train()
        for _ in range(epochs):
            for some_B in torch.split(real_R[torch.randperm(len(real_R), generator=generator).to(real_R.device)], BATCH):
                logits = model.finish([cuts_ND[some_B]], own(index_N[some_B]))
                optimizer.zero_grad()
                torch.autograd.backward(mean_cross_entropy(logits, target_N[some_B]))
                optimizer.step(RATE)
        model.eval()
        with torch.no_grad():
            parts = torch.split(torch.arange(len(index_N), device=index_N.device), BATCH)
            logits_N = torch.cat([model.finish([cuts_ND[some_B]], own(index_N[some_B])) for some_B in parts])
        self.keep(self.objective.settle(index_N, logits_N))
