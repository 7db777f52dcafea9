"""Compute one step of training a split network, per role, without a network: batch and received tensors in, answers out.

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
        targets_B: the targets of the loss.
        grads_BD: the cut gradients to send, one per feature party; none for a local batch.
        undefended_BD: the same before any defence, for attackers that are given some of them.
    """

    loss: Tensor
    targets_B: Tensor
    grads_BD: list[Tensor]
    undefended_BD: list[Tensor]


@dataclass(frozen=True, kw_only=True)
class LabelLearner:
    """Parts of the label party's training: its model, and what trains it.

    Args:
        model: the top model and the own bottom.
        updates: updates of its weights.
        objective: its loss.
        step_rule: how the loss is computed.
        defense: defence that changes the gradients to send.
    """

    model: LabelModel
    updates: Updates
    objective: Objective
    step_rule: StepRule = PLAIN
    defense: CutDefense | None = None


class CutObserver(Protocol):
    """An observer of what crosses between a feature party and the label party: an audit's recorder, or an experiment."""

    def crossed(self, batch: Batch, embedding_BD: Tensor, gradient_BD: Tensor) -> None:
        """Record a step's cut embeddings, and the cut gradients that answered them."""
        ...

    def epoch_ended(self, epoch: int) -> None:
        """Note that all steps of an epoch are done."""
        ...


def embed(bottom: nn.Module, features: Features) -> Tensor:
    """Compute the feature party's first half: the cut embeddings (B, D), with the graph for their gradients."""
    cut_BD: Tensor = bottom(features)
    return cut_BD


def absent_cuts(batch: Batch, widths: Sequence[int]) -> list[Tensor]:
    """Return zeros instead of the cut embeddings of rows that only the label party has, one tensor per feature party."""
    return [torch.zeros(len(batch.index_B), width, device=batch.index_B.device) for width in widths]


def apply(updates: Updates, cut_BD: Tensor, grad_BD: Tensor, *, step: int) -> None:
    """Compute the feature party's second half: propagate a step's cut gradients into the bottom model, and update it."""
    if updates.are_none:
        return
    take_back(cut_BD, grad_BD)
    updates.step(step)


def take_back(output_BD: Tensor, grad_BD: Tensor) -> None:
    """Add the gradients of a loss to the weights behind an output, given the loss's gradient by the output.

    The sum of the products has the same gradient, bit for bit. Passing the gradient to PyTorch directly would make the first
    backward pass import the algebra of PyTorch's compiler, which takes a third of a second of processor time.
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
    """Compute the label party's step: finish the forward pass, compute the loss, and go back to the cut.

    The gradients of the own weights are left for ``updates.step()``, which the caller runs after sending the answer.

    Args:
        learner: the model, and what trains it.
        batch: the step's number and positions.
        cuts_BD: received cut embeddings, one per feature party; empty if the label party trains on its own columns alone.
        own: the own columns at these positions.
        check: called with the loss and the received embeddings before gradients are computed; raises if they are invalid.

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
        # An example has one label, however many rows are linked to it, so everything that is sent for it is defended together.
        flat_BD = [leaf_BD.flatten(1) for leaf_BD in leaves_BD]
        defended_BD = defense(flat_BD, [grad_BD.flatten(1) for grad_BD in undefended_BD], targets_B, step=batch.step)
        shaped_BD = [grad_BD.view_as(leaf_BD) for grad_BD, leaf_BD in zip(defended_BD, leaves_BD, strict=True)]
        grads_RD = _as_crossed(shaped_BD, by_example, received_RD)
    return LabelStep(loss=loss.detach(), targets_B=targets_B.detach(), grads_BD=grads_RD, undefended_BD=undefended_RD)


def _as_crossed(grads_BD: Sequence[Tensor], by_example: Sequence[Tensor], received_RD: Sequence[Tensor]) -> list[Tensor]:
    """Sum gradients by example over the examples to which a row is linked. The result is by crossed row."""
    return [
        grad_BD if part_BD is row_RD else torch.autograd.grad(part_BD, row_RD, grad_BD, retain_graph=True)[0]
        for grad_BD, part_BD, row_RD in zip(grads_BD, by_example, received_RD, strict=True)
    ]
