"""One step of training a split network, per role, without a network: batch and received tensors in, what to send out.

The networked loops (label_party.py, feature_party.py) put a channel between the two, in_process.py nothing. Shapes: B rows of a
batch, D cut width of one feature party.

    feature party   embed         features      -> cut_BD
    label party     label_step    cuts_BD       -> loss, grads_BD
    feature party   apply         cut_BD, grad_BD
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from tallystick.errors import ConfigError
from tallystick.models.split import LabelModel
from tallystick.tables.features import Features
from tallystick.training.label_defense import CutDefense
from tallystick.training.objective import Objective
from tallystick.training.plan import Batch
from tallystick.training.step_rule import PLAIN, StepRule
from tallystick.training.updates import Updates


@dataclass(frozen=True, kw_only=True)
class LabelStep:
    """Results of a step of the label party.

    Args:
        loss: the batch's mean loss, without penalties.
        targets_B: the targets that it was taken by.
        grads_BD: the cut gradients to send, one per feature party; none for a local batch.
        undefended_BD: the same before any defence: for attackers who are granted some of them.
    """

    loss: Tensor
    targets_B: Tensor
    grads_BD: list[Tensor]
    undefended_BD: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class LabelLearner:
    """Parts of the label party's training: its model, and what the model is trained by.

    Args:
        model: top model and own bottom.
        updates: of its weights.
        objective: the loss.
        step_rule: how the loss comes about.
        defense: what changes the gradients that are sent.
    """

    model: LabelModel
    updates: Updates
    objective: Objective
    step_rule: StepRule = PLAIN
    defense: CutDefense | None = None


class CutObserver(Protocol):
    """Whoever keeps what crosses the cut between a feature party and the label party: an audit's recorder, an experiment."""

    def crossed(self, batch: Batch, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Take in a step's cut embeddings, which were sent, and its cut gradients, which answered them."""
        ...

    def epoch_ended(self, epoch: int) -> None:
        """Note that all steps of an epoch are over."""
        ...


def embed(bottom: nn.Module, features: Features) -> Tensor:
    """Compute the feature party's first half: the cut embeddings (B, D), with the graph for their gradients."""
    cut_BD: Tensor = bottom(features)
    return cut_BD


def absent_cuts(batch: Batch, widths: Sequence[int]) -> list[Tensor]:
    """Return zeros in place of the cut embeddings of rows that only the label party has, one per feature party."""
    return [torch.zeros(len(batch.index_B), width, device=batch.index_B.device) for width in widths]


def apply(updates: Updates, cut_BD: Tensor, grad_BD: Tensor, *, step: int) -> None:
    """Compute the feature party's second half: take a step's cut gradients into the bottom model, and update it."""
    if updates.are_none:
        return
    take_back(cut_BD, grad_BD)
    updates.step(step)


def take_back(output_BD: Tensor, grad_BD: Tensor) -> None:
    """Leave with the weights behind an output their gradients, of a loss whose gradient by the output is given.

    It is the gradient of the sum of the products, bit for bit. Given to PyTorch as it is, it has the first backward pass import
    the algebra of PyTorch's compiler, which takes a third of a second of processor time.
    """
    torch.autograd.backward(torch.dot(output_BD.flatten(), grad_BD.flatten()))


def label_step(
    learner: LabelLearner,
    batch: Batch,
    cuts_BD: Sequence[Tensor],
    own: Features,
    *,
    check: Callable[[Tensor, Sequence[Tensor]], None] | None = None,
) -> LabelStep:
    """Compute the label party's step: finish the forward pass, take the loss, go back to the cut.

    The gradients of the own weights are left for ``updates.step()``, which the caller does once the answer is on its way.

    Args:
        learner: what is trained, and by what.
        batch: the step's number and positions.
        cuts_BD: received cut embeddings, one per feature party; none where the label party trains on its own columns alone.
        own: the own columns at these positions.
        check: called with the loss and what was received, before anything is made of them; it raises if they will not do.

    Raises ConfigError if the loss does not depend on a received cut embedding.
    """
    model, defense = learner.model, learner.defense
    received_RD = [cut_BD.detach().requires_grad_() for cut_BD in cuts_BD]
    by_example = model.by_example(received_RD, own)
    leaves_BD = [cut_BD.detach().requires_grad_() for cut_BD in by_example]
    loss, targets_B = learner.step_rule.loss(model, learner.objective, batch, leaves_BD, own)
    if check is not None:
        check(loss.detach(), cuts_BD)
    learner.updates.zero_grad()
    torch.autograd.backward(loss)
    if batch.is_local:
        return LabelStep(loss=loss.detach(), targets_B=targets_B.detach(), grads_BD=[], undefended_BD=[])
    undefended_BD = []
    for number, leaf_BD in enumerate(leaves_BD):
        if leaf_BD.grad is None:
            raise ConfigError(
                f"model.top: the loss does not depend on the cut embedding of feature party {number + 1}; use every input"
            )
        undefended_BD.append(leaf_BD.grad)
    undefended_RD = _as_crossed(undefended_BD, by_example, received_RD)
    grads_RD = undefended_RD
    if defense is not None:
        # An example has one label, however many rows are linked to it: all that it sends is defended together.
        flat_BD = [leaf_BD.flatten(1) for leaf_BD in leaves_BD]
        defended_BD = defense(flat_BD, [grad_BD.flatten(1) for grad_BD in undefended_BD], targets_B, step=batch.step)
        shaped_BD = [grad_BD.view_as(leaf_BD) for grad_BD, leaf_BD in zip(defended_BD, leaves_BD, strict=True)]
        grads_RD = _as_crossed(shaped_BD, by_example, received_RD)
    return LabelStep(loss=loss.detach(), targets_B=targets_B.detach(), grads_BD=grads_RD, undefended_BD=undefended_RD)


def _as_crossed(grads_BD: Sequence[Tensor], by_example: Sequence[Tensor], received_RD: Sequence[Tensor]) -> list[Tensor]:
    """Sum gradients by example over the examples that a row is linked to: gradients by what crossed."""
    return [
        grad_BD if part_BD is row_RD else torch.autograd.grad(part_BD, row_RD, grad_BD, retain_graph=True)[0]
        for grad_BD, part_BD, row_RD in zip(grads_BD, by_example, received_RD, strict=True)
    ]
