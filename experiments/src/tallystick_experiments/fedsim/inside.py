"""Look inside a trained FedSim network: which outputs of a bottom are dead, and which links its merge reads.

Shapes: B test rows, K links in the order in which the merge reads them, L width of a link's output.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tallystick.models.similarity.merges import CNNMerge
from tallystick.models.similarity.model import LinkModel, SimilarityLabelModel
from tallystick.training.single_process import SplitNetwork

STEPS = 32  # number of steps of the integral


def looked_into(network: SplitNetwork, index_B: Tensor) -> dict[str, Any]:
    """Count dead outputs of the first feature party, and say how much each place of the links counts for FedSim's merge.

    ``dead`` is the number of the bottom's outputs that are 0 for every row to which these test rows are linked. Without links
    there are no figures.
    """
    if not network.bottoms:
        return {}
    network.train(False)
    with torch.no_grad():
        cuts = [bottom(source(index_B)) for bottom, source in zip(network.bottoms, network.sources, strict=True)]
    figures: dict[str, Any] = {"dead": int((cuts[0] == 0).all(dim=0).sum())}
    model = network.model
    first = next(iter(model.links), None) if isinstance(model, SimilarityLabelModel) else None
    if isinstance(first, LinkModel) and isinstance(first.merge, CNNMerge):
        given_BKL = attributions(network, cuts, index_B, first)
        by_place_K = given_BKL.abs().sum(dim=2).mean(dim=0)
        figures["importance"] = (by_place_K / by_place_K.sum().clamp(min=1e-30)).tolist()
    return figures


def attributions(network: SplitNetwork, cuts: Sequence[Tensor], index_B: Tensor, link: LinkModel) -> Tensor:
    """Compute integrated gradients of the prediction with respect to the merge's input, starting at zero (FedSim, Figure 10) (B,
    K, L).

    They add up to the prediction minus that of a merge whose input is zeros.
    """
    own, total, merge_inputs = network.own(index_B), torch.zeros(()), torch.zeros(())
    for step in range(STEPS):
        with _scaled(link.merge, (step + 0.5) / STEPS) as observed:
            network.model(cuts, own).sum().backward()
            merge_inputs, grad_BKL = observed[0]
            assert grad_BKL.grad is not None
            total = total + grad_BKL.grad / STEPS
    network.model.zero_grad(set_to_none=True)
    return merge_inputs * total


@contextmanager
def _scaled(merge: nn.Module, share: float) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Scale the links' outputs that the merge gets in this block. The list has the unscaled outputs and the scaled ones."""
    observations: list[tuple[Tensor, Tensor]] = []

    def scale(_: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        output_BKL, *others = inputs
        got_BKL = (share * output_BKL.detach()).requires_grad_()
        observations.append((output_BKL.detach(), got_BKL))
        return (got_BKL, *others)

    hook = merge.register_forward_pre_hook(scale)
    try:
        yield observations
    finally:
        hook.remove()
