"""Score rows that have no partner's row by the label party's own columns. Shapes: B batch, N positions."""

import torch
from torch import Tensor

from tallystick.cut.forward import whole_tiles
from tallystick.dataset.dataset import Dataset
from tallystick.models.branches import BranchedModel
from tallystick.models.split import LabelModel
from tallystick.run_folder.trained import TrainedLabelParty
from tallystick.training.calibration import LogitLine, fit_line

PASS = 4096  # rows of a pass that trains nothing


@torch.no_grad()
def logits_alone(model: LabelModel, dataset: Dataset, index_N: Tensor) -> Tensor:
    """Compute logits from own columns at these positions, without calibration."""
    assert isinstance(model, BranchedModel), "the contract has a method for unaligned rows"
    model.eval()
    batches = torch.split(index_N, PASS) if len(index_N) else ()
    parts = [model.score_alone(dataset.features_at(whole_tiles(index_B))) for index_B in batches]
    model.train()
    return torch.cat(parts)[: len(index_N)] if parts else torch.empty(0)


def final_logits(trained: TrainedLabelParty, dataset: Dataset, logits_B: Tensor, index_B: Tensor) -> Tensor:
    """Return the calibrated logits of these positions: the joint model's, or those from own columns if no row is linked."""
    found_B = trained.calibration.prediction_logits(logits_B)
    alone_B = ~dataset.is_linked(index_B)
    if trained.alone is not None and bool(alone_B.any()):
        found_B[alone_B] = trained.alone(logits_alone(trained.model, dataset, index_B[alone_B])).to(found_B)
    return found_B


def calibrated_alone(model: LabelModel, dataset: Dataset) -> LogitLine:
    """Fit a line that turns the logits of binary targets into probabilities, as the joint model's calibration does.

    It is fitted on unaligned validation rows; if rows are linked by similarity, on all validation rows. Without such rows, and
    for other targets, the logits stay as they are. The labels are those that training used: a defence that replaced them is not
    undone here. The result stays with the label party.
    """
    train_N, index_V, labels = dataset.unaligned.train_N, dataset.unaligned.validation_N, dataset.known_labels
    if dataset.candidates:  # use all own rows, because every row may have a link
        train_N, index_V = dataset.train_N, dataset.validation_N
    if labels.coder.type != "binary" or not len(index_V):
        return LogitLine()
    rate = labels.training_labels_N[train_N].double().mean().item()
    assert isinstance(model, BranchedModel), "the contract has a method for unaligned rows"
    with model.first_alone():  # among several networks of own rows, use the one that did not learn from validation rows
        logits_V = logits_alone(model, dataset, index_V)
    return fit_line(logits_V, labels.training_labels_N[index_V], real=1.0, positive_rate=rate)[0]
