"""Scores of rows without a partner's row, by the label party's own columns. Shapes: B batch, N positions."""

import torch
from torch import Tensor

from tallystick.dataset.dataset import Dataset
from tallystick.models.branches import BranchedModel
from tallystick.models.split import LabelModel
from tallystick.training.calibration import LogitLine, fit_line

PASS = 4096  # rows of a pass that trains nothing


@torch.no_grad()
def logits_alone(model: LabelModel, dataset: Dataset, index_N: Tensor) -> Tensor:
    """Logits by own columns at these positions, not calibrated."""
    assert isinstance(model, BranchedModel), "the contract has a method for unaligned rows"
    model.eval()
    found = [model.local(dataset.features_at(index_B)) for index_B in torch.split(index_N, PASS)] if len(index_N) else []
    model.train()
    return torch.cat(found) if found else torch.empty(0)


def calibrated_alone(model: LabelModel, dataset: Dataset) -> LogitLine:
    """A line through the logits of binary targets that makes them probabilities, as the joint model's are meant to be.

    It is fitted on unaligned validation rows; where there are none, or for other targets, the logits stay as they are. The labels
    are those that training saw: a defence that replaced them is not undone here. A statistic that stays with the label party.
    """
    index_V, labels = dataset.unaligned.validation_N, dataset.known_labels
    if labels.coder.type != "binary" or not len(index_V):
        return LogitLine()
    rate = labels.training_labels_N[dataset.unaligned.train_N].double().mean().item()
    logits_V = logits_alone(model, dataset, index_V)
    return fit_line(logits_V, labels.training_labels_N[index_V], real=1.0, positive_rate=rate)[0]
