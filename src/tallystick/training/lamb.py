"""LAMB, the optimizer of FedSim's experiments; PyTorch has none."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

BETAS = (0.9, 0.999)
EPSILON = 1e-6
LARGEST_NORM = 10.0


class Lamb(torch.optim.Optimizer):
    """Adam's step with weight decay, of each tensor in proportion to the norm of its weights.

    You et al. (2020), "Large batch optimization for deep learning", algorithm 2, as FedSim's authors ran it: moments are not
    corrected for their start at 0, and a norm of weights counts as 10 at most. A tensor of zeros takes the step as it is.

    Args:
        params: the weights.
        lr: the learning rate, above 0.
        weight_decay: added to a tensor's step in proportion to its weights.
    """

    def __init__(self, params: Iterable[nn.Parameter], *, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Take a step by the gradients of all weights that have one."""
        assert closure is None, "no loop of training has a closure"
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is not None:
                    self._update(weight, weight.grad, lr=group["lr"], weight_decay=group["weight_decay"])

    def _update(self, weight: nn.Parameter, gradient: Tensor, *, lr: float, weight_decay: float) -> None:
        state = self.state[weight]
        if not state:
            state["mean"], state["square"] = torch.zeros_like(weight), torch.zeros_like(weight)
        mean, square = state["mean"], state["square"]
        mean.lerp_(gradient, 1 - BETAS[0])
        square.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
        step = mean / square.sqrt().add_(EPSILON) + weight_decay * weight
        of_weight, of_step = weight.norm().clamp(max=LARGEST_NORM), step.norm()
        ratio = torch.where((of_weight > 0) & (of_step > 0), of_weight / of_step, 1.0)
        weight.sub_(step * (lr * ratio))
